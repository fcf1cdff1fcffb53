-- Slots and streams of the log, where consumers begin, and progress in the order it was made.

-- Every message has a slot: a hash of its key, or, without a key, its id in turn. The column
-- is generated, so that plain inserts and older programs give it too, and comes after xid and
-- id, whose order counts. Adding it rewrites the log's partitions.
ALTER TABLE leasegen.message ADD COLUMN slot smallint NOT NULL GENERATED ALWAYS AS
    ((CASE key WHEN '' THEN id ELSE hashtextextended(key, 0) & 9223372036854775807 END % 256)::smallint) STORED;

-- indexes are those of index_log that the log's partitions have, or will have.
ALTER TABLE leasegen.origin
    ADD COLUMN slots   integer NOT NULL DEFAULT 256,
    ADD COLUMN indexes text[]  COLLATE "C" NOT NULL DEFAULT '{}';

-- source is what is read instead of the log; empty for the log. Leases made for a consumer
-- begin at (start_pos, start_snap, start_x), which is the present of its first registration
-- if it asked for that, and the beginning otherwise.
ALTER TABLE leasegen.consumer
    ADD COLUMN lock       text   COLLATE "C" NOT NULL DEFAULT 'session',
    ADD COLUMN source     text   COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN start_pos  bigint NOT NULL DEFAULT 0,
    ADD COLUMN start_snap pg_snapshot,
    ADD COLUMN start_x    xid8;

-- seq is that of the last progress under seq_epoch: older progress that arrives late changes
-- nothing. wanted: a stream has, or may have, work.
ALTER TABLE leasegen.lease
    ADD COLUMN seq       bigint  NOT NULL DEFAULT 0,
    ADD COLUMN seq_epoch bigint  NOT NULL DEFAULT 0,
    ADD COLUMN wanted    boolean NOT NULL DEFAULT true;

-- stream_unread tells whether messages of a stream are there that its cursor has not passed:
-- beyond the position, or late for it.
CREATE FUNCTION leasegen.stream_unread(likes text[], stream text, pos bigint, snap pg_snapshot, x xid8) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM leasegen.message m
                   WHERE m.key = stream COLLATE "C" AND m.id > pos AND m.topic LIKE ANY (likes))
        OR EXISTS (SELECT FROM (SELECT pg_snapshot_xip(snap) AS xid) r JOIN leasegen.message m ON m.xid = r.xid
                   WHERE m.key = stream COLLATE "C" AND m.id + 0 <= pos AND m.topic LIKE ANY (likes))
        OR EXISTS (SELECT FROM leasegen.message m
                   WHERE m.xid >= pg_snapshot_xmax(snap) AND m.xid < x
                     AND m.key = stream COLLATE "C" AND m.id + 0 <= pos AND m.topic LIKE ANY (likes))
$$;

-- written is what transactions wrote to topics. A function so that planner and compiler (jit)
-- do not make much of it: mostly it is nothing.
CREATE FUNCTION leasegen.written(xids xid8[], likes text[]) RETURNS TABLE (xid xid8, id bigint, slot smallint)
LANGUAGE sql STABLE ROWS 100 SET search_path = pg_catalog, pg_temp SET jit = off AS $$
    SELECT m.xid, m.id, m.slot
    FROM (SELECT unnest(xids) AS xid) r
    CROSS JOIN LATERAL (SELECT m.* FROM leasegen.message m WHERE m.xid = r.xid OFFSET 0) m
    WHERE m.topic LIKE ANY (likes)
$$;

-- set_slots changes how many slots there are, as long as nothing depends on it.
CREATE FUNCTION leasegen.set_slots(n integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF n NOT BETWEEN 1 AND 16384 THEN
        RAISE EXCEPTION 'a log has 1 to 16384 slots, not %', n USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF n = (SELECT o.slots FROM leasegen.origin o) THEN
        RETURN;
    END IF;
    LOCK TABLE leasegen.message, leasegen.consumer IN ACCESS EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM leasegen.message) THEN
        RAISE EXCEPTION 'the log has messages: its % slots cannot become %', (SELECT o.slots FROM leasegen.origin o), n
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF EXISTS (SELECT FROM leasegen.consumer c JOIN leasegen.lease l ON l.consumer = c.name WHERE c.per = 'partition') THEN
        RAISE EXCEPTION 'consumers own slots of the log: its % slots cannot become %', (SELECT o.slots FROM leasegen.origin o), n
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    ALTER TABLE leasegen.message DROP COLUMN slot; -- and the indexes on it
    EXECUTE format('ALTER TABLE leasegen.message ADD COLUMN slot smallint NOT NULL GENERATED ALWAYS AS '
        '((CASE key WHEN %L THEN id ELSE hashtextextended(key, 0) & 9223372036854775807 END %% %s)::smallint) STORED', '', n);
    UPDATE leasegen.origin SET slots = n, indexes = array_remove(indexes, 'slot' COLLATE "C");
END $$;

-- index_segment adds the indexes that readers of slots or of keys (what) need. Late messages of
-- slots are looked up for all slots together; keys are too many for that.
CREATE FUNCTION leasegen.index_segment(segment text, what text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('CREATE INDEX %I ON leasegen.%I (%I, id)', segment || '_' || what, segment, what);
    IF what = 'key' THEN
        EXECUTE format('CREATE INDEX %I ON leasegen.%I (xid, key, id)', segment || '_late_key', segment);
    END IF;
END $$;

-- index_log makes the log quick to read by slot or by key (what), for all partitions to come
-- and, one partition with messages a call, for those that are there. It returns how many are
-- left. Publishers wait while the partition they write to is indexed, about a second for a
-- full one; partitions with an open transaction are left for a later call.
CREATE FUNCTION leasegen.index_log(what text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
DECLARE
    s    record;
    todo integer := 0;
    done boolean := false;
BEGIN
    IF what NOT IN ('slot', 'key') THEN
        RAISE EXCEPTION 'leasegen: no index on %', what USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('leasegen.segment', 0));
    UPDATE leasegen.origin SET indexes = indexes || what WHERE NOT indexes @> ARRAY[what COLLATE "C"];
    FOR s IN SELECT g.name FROM leasegen.segment g
             WHERE to_regclass('leasegen.' || g.name || '_' || what) IS NULL ORDER BY g.lo LOOP
        IF done THEN
            todo := todo + 1;
            CONTINUE;
        END IF;
        BEGIN
            PERFORM leasegen.index_segment(s.name, what);
            done := pg_relation_size(to_regclass('leasegen.' || s.name)) > 0;
        EXCEPTION WHEN lock_not_available THEN
            todo := todo + 1;
        END;
    END LOOP;
    RETURN todo;
END $$;

CREATE OR REPLACE FUNCTION leasegen.ensure_segments(upto bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    size CONSTANT bigint := 1000000;
    lo   bigint;
    part text;
    what text;
BEGIN
    SELECT coalesce(max(s.hi), 1) INTO lo FROM leasegen.segment s;
    IF lo > upto THEN
        RETURN lo;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('leasegen.segment', 0));
    SELECT coalesce(max(s.hi), 1) INTO lo FROM leasegen.segment s;
    WHILE lo <= upto LOOP
        part := 'message_' || lo;
        EXECUTE format('CREATE TABLE leasegen.%I (LIKE leasegen.message INCLUDING GENERATED)', part);
        FOREACH what IN ARRAY (SELECT o.indexes FROM leasegen.origin o) LOOP
            PERFORM leasegen.index_segment(part, what);
        END LOOP;
        EXECUTE format('ALTER TABLE leasegen.message ATTACH PARTITION leasegen.%I FOR VALUES FROM (%s) TO (%s)',
            part, lo, lo + size);
        INSERT INTO leasegen.segment (name, lo, hi) VALUES (part, lo, lo + size);
        lo := lo + size;
    END LOOP;
    RETURN lo;
END $$;

-- drop_segments as before, for readers of slots and streams too. Consumers with a source of
-- their own hold nothing of the log.
CREATE OR REPLACE FUNCTION leasegen.drop_segments() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    s       record;
    c       record;
    held    boolean;
    dropped integer := 0;
    drawn   bigint;
BEGIN
    SELECT q.last_value INTO drawn FROM leasegen.message_id_seq q WHERE q.is_called;
    UPDATE leasegen.segment SET closed_xid = pg_current_xact_id() WHERE closed_xid IS NULL AND hi <= drawn;
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
        dropped := dropped + 1;
    END LOOP;
    RETURN dropped;
END $$;

REVOKE ALL ON FUNCTION leasegen.set_slots(integer), leasegen.index_log(text), leasegen.index_segment(text, text) FROM PUBLIC;
