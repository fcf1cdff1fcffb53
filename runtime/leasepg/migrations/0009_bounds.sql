-- Statements that cost what they are about, whatever else there is.

-- steady_segment tells ANALYZE not to believe its samples: after one transaction that wrote most of
-- a partition they say that xid has one value, and every look for another one would read it all.
CREATE FUNCTION leasegen.steady_segment(segment text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('ALTER TABLE leasegen.%I ALTER COLUMN xid SET (n_distinct = -1), ALTER COLUMN topic SET (n_distinct = -1), '
        'ALTER COLUMN key SET (n_distinct = -1)', segment);
END $$;

-- A trigger, so that no function that adds partitions can forget it.
CREATE FUNCTION leasegen.steady_new_segment() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM leasegen.steady_segment(NEW.name);
    RETURN NULL;
END $$;

CREATE TRIGGER steady AFTER INSERT ON leasegen.segment
    FOR EACH ROW EXECUTE FUNCTION leasegen.steady_new_segment();

ALTER TABLE leasegen.message ALTER COLUMN xid SET (n_distinct = -1, n_distinct_inherited = -1),
    ALTER COLUMN topic SET (n_distinct = -1, n_distinct_inherited = -1), ALTER COLUMN key SET (n_distinct = -1, n_distinct_inherited = -1);

SELECT leasegen.steady_segment(s.name) FROM leasegen.segment s;

-- It takes effect when a partition is analyzed.
ANALYZE leasegen.message;

REVOKE ALL ON FUNCTION leasegen.steady_segment(text), leasegen.steady_new_segment() FROM PUBLIC;

-- written as before, of transactions that have ended: what others wrote is not there yet, however
-- much that is.
CREATE OR REPLACE FUNCTION leasegen.written(xids xid8[], likes text[]) RETURNS TABLE (xid xid8, id bigint, slot smallint)
LANGUAGE sql STABLE ROWS 100 SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off AS $$
    SELECT m.xid, m.id, m.slot
    FROM (SELECT unnest(xids) AS xid) r
    CROSS JOIN LATERAL (SELECT m.* FROM leasegen.message m WHERE m.xid = r.xid OFFSET 0) m
    WHERE pg_visible_in_snapshot(r.xid, pg_current_snapshot()) AND m.topic LIKE ANY (likes)
$$;

-- Parked messages by the time when they are due, and dead letters by age.
CREATE INDEX parked_due ON leasegen.parked (consumer, next_at, seq);
CREATE INDEX dead_letter_age ON leasegen.dead_letter (consumer, dead_at);

-- chore tells which process does something for the whole fleet, and when it did it last.
CREATE TABLE leasegen.chore (
    name    text        COLLATE "C" PRIMARY KEY,
    process text        COLLATE "C" NOT NULL,
    at      timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- drop_segments as before, one partition a call: publishers wait while the log is locked, which lasts
-- until the transaction's end.
CREATE OR REPLACE FUNCTION leasegen.drop_segments() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' SET jit = off AS $$
DECLARE
    s       record;
    c       record;
    held    boolean;
    drawn   bigint;
BEGIN
    SELECT q.last_value INTO drawn FROM leasegen.message_id_seq q WHERE q.is_called;
    UPDATE leasegen.segment SET closed_xid = pg_current_xact_id() WHERE closed_xid IS NULL AND hi <= drawn;
    UPDATE leasegen.segment SET closed_xid = NULL WHERE closed_xid IS NOT NULL AND hi > drawn; -- the sequence was set back
    IF NOT EXISTS (SELECT FROM leasegen.consumer k WHERE k.source = '' AND cardinality(k.likes) > 0) THEN
        RETURN 0;
    END IF;
    <<segments>>
    FOR s IN SELECT * FROM leasegen.segment ORDER BY lo LOOP
        EXIT WHEN s.closed_xid IS NULL OR s.closed_xid >= pg_snapshot_xmin(pg_current_snapshot());
        FOR c IN SELECT * FROM leasegen.consumer k WHERE k.source = '' AND cardinality(k.likes) > 0 LOOP
            held := CASE c.per
                -- Readers of the whole log: anything matching that is above the position or was late?
                WHEN 'group' THEN EXISTS (
                    SELECT FROM (SELECT 1) one
                    LEFT JOIN leasegen.lease l ON l.consumer = c.name AND l.resource = '*'
                    WHERE (l.resource IS NULL OR l.snap IS NULL OR l.pos < s.hi - 1 OR pg_snapshot_xmin(l.snap) <= s.closed_xid)
                      AND EXISTS (
                        SELECT FROM leasegen.message m
                        WHERE m.id >= s.lo AND m.id < s.hi AND m.topic LIKE ANY (c.likes)
                          AND (l.resource IS NULL OR m.id > l.pos OR l.snap IS NULL
                               OR NOT pg_visible_in_snapshot(m.xid, l.snap))))
                -- Readers of one topic: each topic of the partition, once.
                WHEN 'topic' THEN EXISTS (
                    WITH RECURSIVE topic AS (
                        (SELECT m.topic FROM leasegen.message m WHERE m.id >= s.lo AND m.id < s.hi ORDER BY m.topic LIMIT 1)
                        UNION ALL
                        SELECT n.topic FROM topic t CROSS JOIN LATERAL (
                            SELECT m.topic FROM leasegen.message m
                            WHERE m.id >= s.lo AND m.id < s.hi AND m.topic > t.topic ORDER BY m.topic LIMIT 1) n
                    ), reader AS (
                        SELECT t.topic, coalesce(l.pos, c.start_pos) AS pos,
                               CASE WHEN l.resource IS NULL THEN c.start_snap ELSE l.snap END AS snap
                        FROM topic t
                        LEFT JOIN leasegen.lease l ON l.consumer = c.name AND l.resource = t.topic
                        WHERE t.topic LIKE ANY (c.likes)
                    )
                    SELECT FROM reader r
                    WHERE r.snap IS NULL
                       OR EXISTS (SELECT FROM leasegen.message m
                                  WHERE m.topic = r.topic AND m.id >= s.lo AND m.id < s.hi AND m.id > r.pos)
                       OR pg_snapshot_xmin(r.snap) <= s.closed_xid AND EXISTS (
                           SELECT FROM leasegen.message m
                           WHERE m.topic = r.topic AND m.id >= s.lo AND m.id < s.hi
                             AND NOT pg_visible_in_snapshot(m.xid, r.snap)))
                -- Readers of slots and streams: any message that its reader has not passed?
                WHEN 'partition' THEN
                    EXISTS (SELECT FROM generate_series(0, (SELECT o.slots FROM leasegen.origin o) - 1) n (slot)
                            LEFT JOIN leasegen.lease l ON l.consumer = c.name AND l.resource = n.slot::text
                            WHERE l.resource IS NULL OR l.snap IS NULL OR l.pos < s.hi - 1
                               OR pg_snapshot_xmin(l.snap) <= s.closed_xid)
                    AND EXISTS (
                        SELECT FROM leasegen.message m
                        LEFT JOIN leasegen.lease l ON l.consumer = c.name AND l.resource = m.slot::text
                        WHERE m.id >= s.lo AND m.id < s.hi AND m.topic LIKE ANY (c.likes)
                          AND (l.resource IS NULL OR m.id > l.pos OR l.snap IS NULL
                               OR NOT pg_visible_in_snapshot(m.xid, l.snap)))
                WHEN 'stream' THEN EXISTS (
                    SELECT FROM leasegen.message m
                    LEFT JOIN leasegen.lease l ON l.consumer = c.name AND l.resource = m.key
                    WHERE m.id >= s.lo AND m.id < s.hi AND m.topic LIKE ANY (c.likes)
                      AND CASE WHEN l.resource IS NULL
                          THEN m.id > c.start_pos OR c.start_snap IS NULL OR NOT pg_visible_in_snapshot(m.xid, c.start_snap)
                          ELSE m.id > l.pos OR l.snap IS NULL OR NOT pg_visible_in_snapshot(m.xid, l.snap) END)
                ELSE false
            END;
            EXIT segments WHEN held;
        END LOOP;
        BEGIN
            EXECUTE format('DROP TABLE leasegen.%I', s.name);
        EXCEPTION WHEN lock_not_available THEN
            EXIT;
        END;
        DELETE FROM leasegen.segment WHERE name = s.name;
        RETURN 1;
    END LOOP;
    RETURN 0;
END $$;

-- held_back tells of the oldest transaction of the server, in any database, that keeps segments of the
-- log from being dropped: what it is, and since when. The text is empty where there is none.
CREATE FUNCTION leasegen.held_back() RETURNS TABLE (what text, seconds bigint)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(x.what, ''), coalesce(extract(epoch FROM clock_timestamp() - x.since), 0)::bigint
    FROM (SELECT 1) one LEFT JOIN LATERAL (
        SELECT o.what, o.since FROM (
            SELECT format('the prepared transaction %L of database %s', p.gid, p.database) AS what, p.prepared AS since, p.transaction AS xid
            FROM pg_prepared_xacts p
            UNION ALL
            SELECT format('process %s of database %s, %s', a.pid, a.datname, a.state), a.xact_start, a.backend_xid
            FROM pg_stat_activity a WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_backend_pid()
        ) o
        WHERE EXISTS (SELECT FROM leasegen.segment s
                      WHERE s.closed_xid IS NOT NULL AND s.closed_xid >= pg_snapshot_xmin(pg_current_snapshot()))
        ORDER BY age(o.xid) DESC LIMIT 1
    ) x ON true
$$;
