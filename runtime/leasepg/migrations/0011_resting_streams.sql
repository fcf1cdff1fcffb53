-- 0011: a look for streams to forget costs what it may look at, not what there is.

-- forget_streams deletes leases of streams that have had no work for long and whose messages are gone. It looks at
-- 400 leases, in the order of consumers and resources, from the one after; and at the messages of 10 that have
-- rested for long. The look goes on from where it ended, in reached, which is null after the last lease.
-- The epoch of a lease that is made again is higher: it is at least the time.
CREATE FUNCTION leasegen.forget_streams(older interval, of text, after text, OUT forgotten integer, OUT reached text[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    looked CONSTANT integer := 400;
    judged CONSTANT integer := 10;
    more integer := looked;
    rested text[] := '{}';
    l record;
BEGIN
    older := greatest(older, interval '1 hour');
    FOR l IN
        SELECT s.consumer, s.resource, NOT s.wanted AND s.rested_at < clock_timestamp() - older
               AND s.consumer IN (SELECT k.name FROM leasegen.consumer k WHERE k.per = 'stream') AS rests
        FROM leasegen.lease s WHERE (s.consumer, s.resource) > (of, after) ORDER BY s.consumer, s.resource LIMIT looked
    LOOP
        more := more - 1;
        reached := ARRAY[l.consumer, l.resource];
        IF l.rests THEN
            rested := rested || ARRAY[reached];
        END IF;
        EXIT WHEN array_length(rested, 1) = judged;
    END LOOP;
    IF more > 0 AND array_length(rested, 1) IS DISTINCT FROM judged THEN
        reached := NULL;
    END IF;
    -- A lease that is registered or retired just now is left to the next look.
    rested := ARRAY(
        SELECT ARRAY[s.consumer, s.resource] FROM leasegen.lease s
        WHERE (s.consumer, s.resource) IN (SELECT rested[i][1], rested[i][2] FROM generate_subscripts(rested, 1) i)
          AND NOT s.wanted AND s.rested_at < clock_timestamp() - older
        FOR UPDATE OF s SKIP LOCKED);
    DELETE FROM leasegen.lease s USING leasegen.consumer k
    WHERE (s.consumer, s.resource) IN (SELECT rested[i][1], rested[i][2] FROM generate_subscripts(rested, 1) i) AND k.name = s.consumer
      AND (cardinality(k.likes) = 0 OR NOT EXISTS (SELECT FROM leasegen.message m WHERE m.key = s.resource))
      AND NOT EXISTS (SELECT FROM leasegen.parked p WHERE p.consumer = s.consumer AND p.resource = s.resource)
      AND NOT EXISTS (SELECT FROM leasegen.dead_letter d WHERE d.consumer = s.consumer AND d.resource = s.resource);
    GET DIAGNOSTICS forgotten = ROW_COUNT;
END $$;

REVOKE ALL ON FUNCTION leasegen.forget_streams(interval, text, text) FROM PUBLIC;

-- A role that may forget streams as before may do so from here on; programs of version 10 still do it the old way.
DO $do$
DECLARE
    r record;
BEGIN
    FOR r IN SELECT a.grantee::regrole AS name FROM pg_proc p, aclexplode(p.proacl) a
             WHERE p.oid = 'leasegen.forget_streams(interval)'::regprocedure AND a.privilege_type = 'EXECUTE' AND a.grantee NOT IN (0, p.proowner) LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION leasegen.forget_streams(interval, text, text) TO %s', r.name);
    END LOOP;
END $do$;
