-- The schema of leasegen: the log, sessions, leases, parked messages, dead letters.
-- Names are COLLATE "C": they are compared as bytes, never sorted for people.

-- Which of these files have been applied.
CREATE TABLE leasegen.migration (
    version    integer     PRIMARY KEY,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What this schema belongs to. xids are only meaningful within one cluster, so a
-- restored copy is recognised by its foreign system identifier.
CREATE TABLE leasegen.origin (
    one               boolean     PRIMARY KEY DEFAULT true CHECK (one),
    system_identifier bigint      NOT NULL,
    recorded_at       timestamptz NOT NULL DEFAULT clock_timestamp()
);

INSERT INTO leasegen.origin (system_identifier)
SELECT system_identifier FROM pg_control_system();

-- The log, append-only. Two things here carry the cursor's correctness:
--   xid stands before id, so that a transaction has its xid before it draws an id
--   (defaults are evaluated in the order of the columns), and
--   the sequence keeps CACHE 1, so that ids are drawn in the order of time.
CREATE TABLE leasegen.message (
    xid          xid8        NOT NULL DEFAULT pg_current_xact_id(),
    id           bigint      NOT NULL GENERATED ALWAYS AS IDENTITY (CACHE 1),
    topic        text        COLLATE "C" NOT NULL,
    key          text        COLLATE "C" NOT NULL DEFAULT '',
    kind         text        COLLATE "C" NOT NULL,
    payload      bytea       NOT NULL,
    headers      jsonb,
    published_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);

-- Reads of one topic, and arrivals that were late for a cursor.
CREATE INDEX message_topic ON leasegen.message (topic, id);
CREATE INDEX message_late ON leasegen.message (xid, topic, id);

-- The log's partitions. closed_xid is set once every id below hi has been drawn:
-- each transaction that may still write into the segment has a smaller xid.
CREATE TABLE leasegen.segment (
    name       text   PRIMARY KEY,
    lo         bigint NOT NULL UNIQUE,
    hi         bigint NOT NULL UNIQUE,
    closed_xid xid8
);

-- One row for each process incarnation. state goes from live to dead or closed, never
-- back. No index on what a heartbeat writes, so that heartbeats stay heap-only.
CREATE TABLE leasegen.session (
    id         text        COLLATE "C" PRIMARY KEY,
    host       text        NOT NULL,
    pid        integer     NOT NULL,
    consumers  text[]      COLLATE "C" NOT NULL,
    ttl        interval    NOT NULL,
    state      text        NOT NULL DEFAULT 'live' CHECK (state IN ('live', 'dead', 'closed')),
    opened_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    beat_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE INDEX session_live ON leasegen.session (id) WHERE state = 'live';

CREATE TABLE leasegen.consumer (
    name       text        COLLATE "C" PRIMARY KEY,
    per        text        NOT NULL,
    topics     text[]      COLLATE "C" NOT NULL, -- patterns as written
    likes      text[]      COLLATE "C" NOT NULL, -- the same for LIKE
    grace      interval    NOT NULL,
    first_seen timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- One row for each resource of each consumer. Rows are never deleted: they carry the
-- epoch. The cursor is (pos, snap, x), and while arrivals that were late for it are
-- read page by page, (late_snap, late_pos).
CREATE TABLE leasegen.lease (
    consumer    text        COLLATE "C" NOT NULL,
    resource    text        COLLATE "C" NOT NULL,
    session     text        COLLATE "C",
    epoch       bigint      NOT NULL DEFAULT 0,
    attempt     text        COLLATE "C",
    acquired_at timestamptz,
    pos         bigint      NOT NULL DEFAULT 0,
    snap        pg_snapshot,
    x           xid8,
    late_snap   pg_snapshot,
    late_pos    bigint      NOT NULL DEFAULT 0,
    suspicion   integer     NOT NULL DEFAULT 0,
    mark        bigint,
    mark_epoch  bigint,
    mark_count  integer     NOT NULL DEFAULT 0,
    PRIMARY KEY (consumer, resource)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);

-- Who owns how many, and which are free.
CREATE INDEX lease_session ON leasegen.lease (consumer, session);

-- No one, by mistake or on purpose, sets an epoch back: what was fenced would pass again.
CREATE FUNCTION leasegen.refuse_epoch() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'leasegen: the epoch of % of % only rises: % is not above %',
        OLD.resource, OLD.consumer, NEW.epoch, OLD.epoch USING ERRCODE = 'insufficient_privilege';
END $$;

CREATE TRIGGER epochs_rise BEFORE UPDATE OF epoch ON leasegen.lease
    FOR EACH ROW WHEN (NEW.epoch < OLD.epoch) EXECUTE FUNCTION leasegen.refuse_epoch();

-- Messages set aside, as copies: they do not hold the log back.
CREATE TABLE leasegen.parked (
    seq          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer     text        COLLATE "C" NOT NULL,
    resource     text        COLLATE "C" NOT NULL,
    lane         text        COLLATE "C" NOT NULL,
    message_id   bigint      NOT NULL,
    topic        text        COLLATE "C" NOT NULL,
    key          text        COLLATE "C" NOT NULL,
    kind         text        COLLATE "C" NOT NULL,
    payload      bytea       NOT NULL,
    headers      jsonb,
    published_at timestamptz NOT NULL,
    attempt      integer     NOT NULL,
    next_at      timestamptz NOT NULL,
    failed_at    timestamptz, -- first failure
    error        text        NOT NULL,
    UNIQUE (consumer, resource, message_id)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX parked_lane ON leasegen.parked (consumer, resource, lane, seq);

CREATE TABLE leasegen.dead_letter (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer     text        COLLATE "C" NOT NULL,
    resource     text        COLLATE "C" NOT NULL,
    message_id   bigint      NOT NULL,
    topic        text        COLLATE "C" NOT NULL,
    key          text        COLLATE "C" NOT NULL,
    kind         text        COLLATE "C" NOT NULL,
    payload      bytea       NOT NULL,
    headers      jsonb,
    published_at timestamptz NOT NULL,
    failed_at    timestamptz NOT NULL,
    dead_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    attempts     integer     NOT NULL,
    reason       text        NOT NULL,
    UNIQUE (consumer, resource, message_id)
);

CREATE INDEX dead_letter_order ON leasegen.dead_letter (consumer, id);

-- What follows needs more rights than the application's role has. Each function does
-- one thing, with a fixed search_path.

-- ensure_segments makes sure that ids up to upto have a partition, and returns the
-- first id that has none. Attaching takes no lock that publishers or readers wait for.
CREATE FUNCTION leasegen.ensure_segments(upto bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    size CONSTANT bigint := 1000000;
    lo   bigint;
    part text;
BEGIN
    SELECT coalesce(max(s.hi), 1) INTO lo FROM leasegen.segment s;
    IF lo > upto THEN
        RETURN lo;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('leasegen.segment', 0));
    SELECT coalesce(max(s.hi), 1) INTO lo FROM leasegen.segment s;
    WHILE lo <= upto LOOP
        part := 'message_' || lo;
        EXECUTE format('CREATE TABLE leasegen.%I (LIKE leasegen.message)', part);
        EXECUTE format('ALTER TABLE leasegen.message ATTACH PARTITION leasegen.%I FOR VALUES FROM (%s) TO (%s)',
            part, lo, lo + size);
        INSERT INTO leasegen.segment (name, lo, hi) VALUES (part, lo, lo + size);
        lo := lo + size;
    END LOOP;
    RETURN lo;
END $$;

-- drop_segments drops the leading partitions that every consumer has passed, and
-- returns how many. A partition stays while a transaction that may still write into
-- it runs, while a lease has not read a message in it, and while a topic in it that a
-- consumer wants has no lease yet. When the log is in use by a long transaction it
-- gives up at once: publishers must not queue behind it.
CREATE FUNCTION leasegen.drop_segments() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    s       record;
    held    boolean;
    dropped integer := 0;
    drawn   bigint;
BEGIN
    SELECT q.last_value INTO drawn FROM leasegen.message_id_seq q WHERE q.is_called;
    UPDATE leasegen.segment SET closed_xid = pg_current_xact_id() WHERE closed_xid IS NULL AND hi <= drawn;
    IF NOT EXISTS (SELECT FROM leasegen.consumer WHERE per <> 'cluster') THEN
        RETURN 0;
    END IF;
    FOR s IN SELECT * FROM leasegen.segment ORDER BY lo LOOP
        EXIT WHEN s.closed_xid IS NULL OR s.closed_xid >= pg_snapshot_xmin(pg_current_snapshot());
        -- Whole-log readers: anything matching that is above the position or was late?
        SELECT EXISTS (
            SELECT FROM leasegen.consumer c
            LEFT JOIN leasegen.lease l ON l.consumer = c.name AND l.resource = '*'
            WHERE c.per = 'group' AND (l.resource IS NULL OR l.snap IS NULL OR l.pos < s.hi - 1
                                       OR pg_snapshot_xmin(l.snap) <= s.closed_xid)
              AND EXISTS (
                SELECT FROM leasegen.message m
                WHERE m.id >= s.lo AND m.id < s.hi AND m.topic LIKE ANY (c.likes)
                  AND (l.resource IS NULL OR m.id > l.pos OR l.snap IS NULL
                       OR NOT pg_visible_in_snapshot(m.xid, l.snap)))
        ) INTO held;
        EXIT WHEN held;
        -- Readers of one topic: each topic of the partition, once.
        WITH RECURSIVE topic AS (
            (SELECT m.topic FROM leasegen.message m WHERE m.id >= s.lo AND m.id < s.hi ORDER BY m.topic LIMIT 1)
            UNION ALL
            SELECT n.topic FROM topic t CROSS JOIN LATERAL (
                SELECT m.topic FROM leasegen.message m
                WHERE m.id >= s.lo AND m.id < s.hi AND m.topic > t.topic ORDER BY m.topic LIMIT 1) n
        )
        SELECT EXISTS (
            SELECT FROM topic t
            JOIN leasegen.consumer c ON c.per = 'topic' AND t.topic LIKE ANY (c.likes)
            LEFT JOIN leasegen.lease l ON l.consumer = c.name AND l.resource = t.topic
            WHERE l.resource IS NULL OR l.snap IS NULL
               OR EXISTS (SELECT FROM leasegen.message m
                          WHERE m.topic = t.topic AND m.id >= s.lo AND m.id < s.hi AND m.id > l.pos)
               OR pg_snapshot_xmin(l.snap) <= s.closed_xid AND EXISTS (
                   SELECT FROM leasegen.message m
                   WHERE m.topic = t.topic AND m.id >= s.lo AND m.id < s.hi
                     AND NOT pg_visible_in_snapshot(m.xid, l.snap))
        ) INTO held;
        EXIT WHEN held;
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

-- forget_sessions deletes ended sessions that no lease names any more.
CREATE FUNCTION leasegen.forget_sessions(older interval) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    forgotten integer;
BEGIN
    DELETE FROM leasegen.session s
    WHERE s.state <> 'live' AND s.expires_at < clock_timestamp() - older
      AND NOT EXISTS (SELECT FROM leasegen.lease l WHERE l.session = s.id);
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    RETURN forgotten;
END $$;

REVOKE ALL ON FUNCTION leasegen.refuse_epoch(), leasegen.ensure_segments(bigint), leasegen.drop_segments(),
    leasegen.forget_sessions(interval) FROM PUBLIC;

SELECT leasegen.ensure_segments(4000000);
