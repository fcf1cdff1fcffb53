-- Ownership by locks: sessions that are found dead the moment their connection ends, leases
-- held by advisory locks, leases that expire one by one, and streams that have no work.

-- lock_key is the advisory lock that the session's connection holds, taken before the row told
-- of it: NULL behind a transaction pooler, where only the ttl tells. server is incarnation() at
-- that time. advisory: the session lives as long as that lock, and expires_at is infinity.
ALTER TABLE leasegen.session
    ADD COLUMN advisory    boolean NOT NULL DEFAULT false,
    ADD COLUMN lock_key    bigint,
    ADD COLUMN backend_pid integer,
    ADD COLUMN server      text;

-- expires_at is set on leases that expire one by one. advisory: the owner holds the advisory
-- lock of its consumer too. rested_at is when a stream stopped being wanted.
ALTER TABLE leasegen.lease
    ADD COLUMN expires_at timestamptz,
    ADD COLUMN advisory   boolean NOT NULL DEFAULT false,
    ADD COLUMN rested_at  timestamptz,
    ADD CONSTRAINT lease_owned_is_wanted CHECK (wanted OR session IS NULL) NOT VALID;

-- Streams without work are many, and neither counted nor granted.
DROP INDEX leasegen.lease_session;
CREATE INDEX lease_owner ON leasegen.lease (consumer, session) WHERE wanted;

-- incarnation names one life of the server's shared memory, and of the locks in it: another
-- cluster, a promoted standby or a restart changes it (the postmaster's start), and so does a
-- crash of one server process, after which the postmaster stays and all locks are gone (the
-- statistics are set back then; pg_stat_reset_shared('bgwriter') does the same, harmlessly).
CREATE FUNCTION leasegen.incarnation() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT c.system_identifier || '/' || extract(epoch FROM pg_postmaster_start_time()) || '/'
        || coalesce(extract(epoch FROM w.stats_reset)::text, '')
    FROM pg_control_system() c CROSS JOIN pg_stat_bgwriter w
$$;

-- lock_gone tells whether the lock of a session is proof that its connection has ended: nobody
-- holds it, and the locks of this server go back to when it was taken. After a restart the ttl
-- decides, except for sessions that live by their lock alone. It takes a lock that lasts until
-- the transaction's end.
CREATE FUNCTION leasegen.lock_gone(lock_key bigint, server text, advisory boolean) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN lock_key IS NULL OR pg_is_in_recovery() THEN false
                WHEN pg_try_advisory_xact_lock_shared(lock_key) THEN advisory OR server = leasegen.incarnation()
                ELSE false END
$$;

-- bury_sessions moves those of the sessions given that have expired, or whose lock is gone, from
-- live to dead, for good, and returns them. Rows in use are left for another time. Grace counts
-- from the end of what a session cut off may still believe, at most its ttl from now.
CREATE FUNCTION leasegen.bury_sessions(ids text[])
RETURNS TABLE (id text, host text, pid integer, expired boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s record;
BEGIN
    FOR s IN SELECT * FROM leasegen.session n WHERE n.id = ANY (ids) AND n.state = 'live'
             ORDER BY n.id FOR UPDATE SKIP LOCKED LOOP
        -- The lock is looked at under the row's: a session that comes back with a new
        -- connection writes the key of its new lock there.
        expired := s.expires_at < clock_timestamp();
        IF expired OR leasegen.lock_gone(s.lock_key, s.server, s.advisory) THEN
            UPDATE leasegen.session n SET state = 'dead', expires_at = least(n.expires_at, clock_timestamp() + n.ttl)
            WHERE n.id = s.id;
            id := s.id;
            host := s.host;
            pid := s.pid;
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

-- lock_holders are the backends that hold an advisory lock exclusively.
CREATE FUNCTION leasegen.lock_holders(key bigint) RETURNS TABLE (pid integer, role text, application text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT l.pid, coalesce(a.usename, '')::text, coalesce(a.application_name, '')
    FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.mode = 'ExclusiveLock'
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
      AND l.classid::bigint = ((key >> 32) & 4294967295) AND l.objid::bigint = (key & 4294967295)
$$;

-- forget_streams deletes leases of streams that have had no work for long and whose messages
-- are gone. The epoch of a row that is made again is higher: it is at least the time.
CREATE FUNCTION leasegen.forget_streams(older interval) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    c         record;
    gone      integer;
    forgotten integer := 0;
BEGIN
    FOR c IN SELECT k.name, k.likes FROM leasegen.consumer k WHERE k.per = 'stream' ORDER BY k.name LOOP
        -- As for a retirement; who registers streams just now is not kept waiting.
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(hashtextextended('leasegen.streams/' || c.name, 0));
        DELETE FROM leasegen.lease l
        WHERE l.consumer = c.name AND NOT l.wanted AND l.rested_at < clock_timestamp() - older
          AND (cardinality(c.likes) = 0 OR NOT EXISTS (SELECT FROM leasegen.message m WHERE m.key = l.resource))
          AND NOT EXISTS (SELECT FROM leasegen.parked p WHERE p.consumer = l.consumer AND p.resource = l.resource)
          AND NOT EXISTS (SELECT FROM leasegen.dead_letter d WHERE d.consumer = l.consumer AND d.resource = l.resource);
        GET DIAGNOSTICS gone = ROW_COUNT;
        forgotten := forgotten + gone;
    END LOOP;
    RETURN forgotten;
END $$;

REVOKE ALL ON FUNCTION leasegen.forget_streams(interval) FROM PUBLIC;
