-- 0012: consumers that an operator has paused.

CREATE TABLE leasegen.pause (
    consumer  text        COLLATE "C" PRIMARY KEY,
    paused_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- pause_consumer pauses a consumer, or resumes it, and returns whether it is known. Who acquires leases looks here with a
-- row lock, and so holds a lock on the table, which writes nothing, until its transaction has ended. The lock taken here
-- waits for those who have looked, and keeps the others out until they see what was changed: when a pause is committed,
-- no lease is granted that was not granted before.
CREATE FUNCTION leasegen.pause_consumer(of text, paused boolean) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
BEGIN
    LOCK TABLE leasegen.pause IN EXCLUSIVE MODE;
    PERFORM FROM leasegen.consumer c WHERE c.name = of FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF paused THEN
        INSERT INTO leasegen.pause (consumer) VALUES (of) ON CONFLICT DO NOTHING;
    ELSE
        DELETE FROM leasegen.pause p WHERE p.consumer = of;
    END IF;
    RETURN true;
END $$;

REVOKE ALL ON FUNCTION leasegen.pause_consumer(text, boolean) FROM PUBLIC;

-- A role that consumes as before may do so from here on.
DO $do$
DECLARE
    r record;
BEGIN
    FOR r IN SELECT a.grantee::regrole AS name FROM pg_class c, aclexplode(c.relacl) a
             WHERE c.oid = 'leasegen.consumer'::regclass AND a.privilege_type = 'INSERT' AND a.grantee NOT IN (0, c.relowner) LOOP
        EXECUTE format('GRANT SELECT, UPDATE (paused_at) ON leasegen.pause TO %s', r.name);
        EXECUTE format('GRANT EXECUTE ON FUNCTION leasegen.pause_consumer(text, boolean) TO %s', r.name);
    END LOOP;
END $do$;
