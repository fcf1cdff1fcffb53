-- name: LogEnd :one
-- The first id without a partition, and the last id drawn.
SELECT coalesce(max(s.hi), 1)::bigint AS first_missing,
       coalesce(pg_sequence_last_value('leasegen.message_id_seq'::regclass), 0)::bigint AS last_drawn
FROM leasegen.segment s;

-- name: LogBegins :one
-- The first id that has a partition: 1 until the first one is dropped.
SELECT coalesce(min(s.lo), 1)::bigint AS begins FROM leasegen.segment s;

-- name: EnsureSegments :one
SELECT leasegen.ensure_segments(sqlc.arg(upto)::bigint)::bigint AS first_missing;

-- name: LogNow :one
-- A cursor at the end of the log.
SELECT leasegen.history()::text AS history, pg_current_snapshot()::text AS snap,
       coalesce((SELECT max(m.id) FROM leasegen.message m), 0)::bigint AS pos, pg_current_xact_id()::text AS x;

-- name: FeedLog :many
-- Messages that are new after pos, and those late for the cursor, as topics, and as slots and keys
-- if asked for. First a row with the statement's snapshot and history; an xid is only drawn when the
-- position moves.
WITH fresh AS MATERIALIZED (
    SELECT m.id, m.topic, CASE WHEN sqlc.arg(slots)::boolean THEN m.slot END AS slot,
           CASE WHEN sqlc.arg(keys)::boolean THEN m.key END AS key
    FROM leasegen.message m
    WHERE m.id > sqlc.arg(pos)::bigint ORDER BY m.id LIMIT sqlc.arg(max)::bigint
), late AS (
    SELECT m.topic, m.slot, m.key
    FROM (SELECT unnest(sqlc.arg(late)::text[])::xid8 AS xid) r
    CROSS JOIN LATERAL (
        SELECT DISTINCT m.topic, CASE WHEN sqlc.arg(slots)::boolean THEN m.slot END AS slot,
               CASE WHEN sqlc.arg(keys)::boolean THEN m.key END AS key
        FROM leasegen.message m
        WHERE m.xid = r.xid AND m.id + 0 <= sqlc.arg(pos)::bigint) m
)
SELECT ''::text AS topic, 0::int AS slot, ''::text AS key, pg_current_snapshot()::text AS snap,
       leasegen.history()::text AS history, coalesce(pg_sequence_last_value('leasegen.message_id_seq'::regclass), 0)::bigint AS last,
       coalesce((SELECT max(f.id) FROM fresh f), 0)::bigint AS pos,
       (SELECT count(*) FROM fresh)::bigint AS fresh,
       coalesce((CASE WHEN EXISTS (SELECT FROM fresh) THEN pg_current_xact_id() END)::text, '')::text AS x
UNION ALL
SELECT f.topic, coalesce(f.slot, 0), coalesce(f.key, ''), '', '', 0, 0, 0, '' FROM fresh f GROUP BY f.topic, f.slot, f.key
UNION ALL
SELECT l.topic, coalesce(l.slot, 0), coalesce(l.key, ''), '', '', 0, 0, 0, '' FROM late l;

-- The reads below give rows of one shape. part is 0 for the row that carries the statement's
-- snapshot in headers, its history in kind, the last id drawn in topic and, in key, the patterns that
-- count in it (see Fetch); 1 for messages that were late for the cursor, 2 for those beyond it.
-- x is an xid drawn after the snapshot, with the first row: transactions that begin before it are in
-- question next time. Rows of an item come in the order of part and id, so that a client may stop anywhere.
--
-- Which index a read walks must not depend on what ANALYZE saw. So a read of one topic, slot or key
-- is bounded by rows, (topic, id), and ordered by them: only the index on them gives that order (see
-- Steady). Bounds on the id alone leave partitions out. The first million ids are read by
-- themselves: the order across all partitions would cost a look at each.

-- name: FetchTopics :many
-- The next messages of many topics, when none can have been late. The first row also carries an xid
-- when there are messages beyond a given id.
SELECT 0::int AS part, 0::int AS item, 0::bigint AS id, coalesce(pg_sequence_last_value('leasegen.message_id_seq'::regclass), 0)::text AS topic, ''::text AS key, leasegen.history() AS kind,
       NULL::bytea AS payload, 0::int AS size, pg_current_snapshot()::text AS headers,
       NULL::timestamptz AS published_at,
       CASE WHEN (SELECT max(m.id) FROM leasegen.message m) > sqlc.arg(beyond)::bigint THEN pg_current_xact_id() END AS x
UNION ALL
SELECT 2, i.item, m.id, '', m.key, m.kind,
       CASE WHEN m.size <= sqlc.arg(max_payload)::int THEN m.payload END, m.size, m.headers::text, m.published_at,
       pg_current_xact_id()
FROM (SELECT unnest(sqlc.arg(items)::int[]) AS item, unnest(sqlc.arg(names)::text[]) AS topic,
             unnest(sqlc.arg(positions)::bigint[]) AS pos, unnest(sqlc.arg(limits)::bigint[]) AS lim) i
CROSS JOIN LATERAL (
    SELECT w.*, octet_length(w.payload) AS size FROM (
        (SELECT m.* FROM leasegen.message m
         WHERE m.id > i.pos AND m.id <= i.pos + 1000000
           AND (m.topic, m.id) > (i.topic, i.pos) AND (m.topic, m.id) <= (i.topic, i.pos + 1000000)
         ORDER BY m.topic, m.id LIMIT i.lim)
        UNION ALL
        (SELECT m.* FROM leasegen.message m
         WHERE m.id > i.pos + 1000000
           AND (m.topic, m.id) > (i.topic, i.pos + 1000000) AND (m.topic, m.id) <= (i.topic, 9223372036854775807)
         ORDER BY m.topic, m.id LIMIT i.lim)
        LIMIT i.lim) w
) m;

-- name: FetchTopicsLate :many
-- The next messages of many topics, and in the same snapshot those that were late; of
-- topics where these are more than a page, the next page. Transactions that have not ended show
-- no rows, and those from late_from on wrote only behind the segments that were closed before it.
-- Those that ran when they were asked for (open_xids) are in question for all items whose snapshot
-- lacks them, if they have ended since.
WITH ended AS MATERIALIZED (
    SELECT r.xid FROM (SELECT unnest(sqlc.arg(open_xids)::text[])::xid8 AS xid) r
    WHERE pg_visible_in_snapshot(r.xid, (SELECT pg_current_snapshot()))
), snaps AS MATERIALIZED (
    SELECT n.snap::pg_snapshot AS snap, n.place
    FROM (SELECT unnest(sqlc.arg(snapshots)::text[]) AS snap, generate_subscripts(sqlc.arg(snapshots)::text[], 1) AS place) n
)
SELECT 0::int AS part, 0::int AS item, 0::bigint AS id, coalesce(pg_sequence_last_value('leasegen.message_id_seq'::regclass), 0)::text AS topic, ''::text AS key, leasegen.history() AS kind,
       NULL::bytea AS payload, 0::int AS size, pg_current_snapshot()::text AS headers,
       NULL::timestamptz AS published_at,
       CASE WHEN (SELECT max(m.id) FROM leasegen.message m) > sqlc.arg(beyond)::bigint THEN pg_current_xact_id() END AS x
UNION ALL
(SELECT 1, l.item, m.id, m.topic, m.key, m.kind,
       CASE WHEN m.size <= sqlc.arg(max_payload)::int THEN m.payload END, m.size, m.headers::text, m.published_at, NULL::xid8
FROM (SELECT unnest(sqlc.arg(late_items)::int[]) AS item, unnest(sqlc.arg(late_names)::text[]) AS topic,
             unnest(sqlc.arg(late_upto)::bigint[]) AS upto, unnest(sqlc.arg(late_xids)::text[])::xid8 AS xid,
             unnest(sqlc.arg(late_limits)::bigint[]) AS lim) l
CROSS JOIN LATERAL (
    SELECT m.*, octet_length(m.payload) AS size
    FROM leasegen.message m
    WHERE m.id >= (SELECT coalesce(max(g.hi), 0) FROM leasegen.segment g WHERE g.closed_xid <= sqlc.arg(late_from)::text::xid8)
      AND m.id <= l.upto AND (m.xid, m.topic, m.id) >= (l.xid, l.topic, 0) AND (m.xid, m.topic, m.id) <= (l.xid, l.topic, l.upto)
    ORDER BY m.xid, m.topic, m.id LIMIT l.lim
) m
WHERE pg_visible_in_snapshot(l.xid, (SELECT pg_current_snapshot()))
UNION ALL
SELECT 1, u.item, m.id, m.topic, m.key, m.kind,
       CASE WHEN m.size <= sqlc.arg(max_payload)::int THEN m.payload END, m.size, m.headers::text, m.published_at, NULL::xid8
FROM (
    SELECT i.item, i.name, i.upto, i.lim, e.xid
    FROM ended e
    JOIN (SELECT unnest(sqlc.arg(open_items)::int[]) AS item, unnest(sqlc.arg(open_names)::text[]) AS name,
                 unnest(sqlc.arg(open_upto)::bigint[]) AS upto, unnest(sqlc.arg(open_below)::text[])::xid8 AS below,
                 unnest(sqlc.arg(open_limits)::bigint[]) AS lim, unnest(sqlc.arg(open_snaps)::int[]) AS snap) i ON e.xid < i.below
    JOIN snaps s ON s.place = i.snap AND NOT pg_visible_in_snapshot(e.xid, s.snap)
) u
CROSS JOIN LATERAL (
    SELECT m.*, octet_length(m.payload) AS size
    FROM leasegen.message m
    WHERE m.id >= (SELECT coalesce(max(g.hi), 0) FROM leasegen.segment g WHERE g.closed_xid <= sqlc.arg(late_from)::text::xid8)
      AND m.id <= u.upto AND (m.xid, m.topic, m.id) >= (u.xid, u.name, 0) AND (m.xid, m.topic, m.id) <= (u.xid, u.name, u.upto)
    ORDER BY m.xid, m.topic, m.id LIMIT u.lim
) m
ORDER BY 2, 3)
UNION ALL
SELECT 1, p.item, m.id, m.topic, m.key, m.kind,
       CASE WHEN m.size <= sqlc.arg(max_payload)::int THEN m.payload END, m.size, m.headers::text, m.published_at, NULL
FROM (SELECT unnest(sqlc.arg(paged_items)::int[]) AS item, unnest(sqlc.arg(paged_names)::text[]) AS topic,
             unnest(sqlc.arg(paged_after)::bigint[]) AS after, unnest(sqlc.arg(paged_upto)::bigint[]) AS upto,
             unnest(sqlc.arg(paged_snaps)::text[])::pg_snapshot AS snap,
             unnest(sqlc.arg(paged_late_snaps)::text[])::pg_snapshot AS late_snap,
             unnest(sqlc.arg(paged_limits)::bigint[]) AS lim) p
CROSS JOIN LATERAL (
    SELECT m.*, octet_length(m.payload) AS size
    FROM leasegen.message m
    WHERE m.id > p.after AND m.id <= p.upto
      AND (m.topic, m.id) > (p.topic, p.after) AND (m.topic, m.id) <= (p.topic, p.upto)
      AND NOT pg_visible_in_snapshot(m.xid, p.snap) AND pg_visible_in_snapshot(m.xid, p.late_snap)
    ORDER BY m.topic, m.id LIMIT p.lim
) m
UNION ALL
SELECT 2, i.item, m.id, '', m.key, m.kind,
       CASE WHEN m.size <= sqlc.arg(max_payload)::int THEN m.payload END, m.size, m.headers::text, m.published_at,
       pg_current_xact_id()
FROM (SELECT unnest(sqlc.arg(items)::int[]) AS item, unnest(sqlc.arg(names)::text[]) AS topic,
             unnest(sqlc.arg(positions)::bigint[]) AS pos, unnest(sqlc.arg(limits)::bigint[]) AS lim) i
CROSS JOIN LATERAL (
    SELECT w.*, octet_length(w.payload) AS size FROM (
        (SELECT m.* FROM leasegen.message m
         WHERE m.id > i.pos AND m.id <= i.pos + 1000000
           AND (m.topic, m.id) > (i.topic, i.pos) AND (m.topic, m.id) <= (i.topic, i.pos + 1000000)
         ORDER BY m.topic, m.id LIMIT i.lim)
        UNION ALL
        (SELECT m.* FROM leasegen.message m
         WHERE m.id > i.pos + 1000000
           AND (m.topic, m.id) > (i.topic, i.pos + 1000000) AND (m.topic, m.id) <= (i.topic, 9223372036854775807)
         ORDER BY m.topic, m.id LIMIT i.lim)
        LIMIT i.lim) w
) m;

-- name: PlainUpto :one
-- How far a read goes that looks at so many messages from a position on; 0 to the end.
SELECT coalesce((SELECT m.id FROM leasegen.message m WHERE m.id > sqlc.arg(pos)::bigint ORDER BY m.id OFFSET sqlc.arg(rows)::bigint LIMIT 1), 0)::bigint AS upto;

-- name: FetchSlots :many
-- The next messages of many slots, each of the next span ids and not beyond upto, when none can have been late.
-- The first row also carries the last visible id, and an xid when that is beyond a given one.
SELECT 0::int AS part, 0::int AS item, coalesce((SELECT max(m.id) FROM leasegen.message m), 0)::bigint AS id,
       coalesce(pg_sequence_last_value('leasegen.message_id_seq'::regclass), 0)::text AS topic,
       coalesce((SELECT array_to_json(c.topics)::text FROM leasegen.consumer c WHERE c.name = sqlc.arg(consumer)::text), '')::text AS key,
       leasegen.history() AS kind,
       NULL::bytea AS payload, 0::int AS size, pg_current_snapshot()::text AS headers,
       NULL::timestamptz AS published_at, CASE WHEN (SELECT max(m.id) FROM leasegen.message m) > sqlc.arg(beyond)::bigint THEN pg_current_xact_id() END AS x
UNION ALL
SELECT 2, i.item, m.id, m.topic, m.key, m.kind,
       CASE WHEN m.size <= sqlc.arg(max_payload)::int THEN m.payload END, m.size, m.headers::text, m.published_at,
       pg_current_xact_id()
FROM (SELECT unnest(sqlc.arg(items)::int[]) AS item, unnest(sqlc.arg(names)::text[])::smallint AS name,
             unnest(sqlc.arg(positions)::bigint[]) AS pos, unnest(sqlc.arg(limits)::bigint[]) AS lim) i
CROSS JOIN LATERAL (
    SELECT w.*, octet_length(w.payload) AS size FROM (
        (SELECT m.* FROM leasegen.message m
         WHERE m.id > i.pos AND m.id <= i.pos + least(sqlc.arg(span)::bigint, 1000000) AND m.id <= sqlc.arg(upto)::bigint
           AND (m.slot, m.id) > (i.name, i.pos) AND (m.slot, m.id) <= (i.name, i.pos + least(sqlc.arg(span)::bigint, 1000000))
           AND (sqlc.arg(every)::boolean OR m.topic LIKE ANY (sqlc.arg(likes)::text[]))
         ORDER BY m.slot, m.id LIMIT i.lim)
        UNION ALL
        (SELECT m.* FROM leasegen.message m
         WHERE m.id > i.pos + 1000000 AND m.id <= i.pos + sqlc.arg(span)::bigint AND m.id <= sqlc.arg(upto)::bigint
           AND (m.slot, m.id) > (i.name, i.pos + 1000000) AND (m.slot, m.id) <= (i.name, i.pos + sqlc.arg(span)::bigint)
           AND (sqlc.arg(every)::boolean OR m.topic LIKE ANY (sqlc.arg(likes)::text[]))
         ORDER BY m.slot, m.id LIMIT i.lim)
        LIMIT i.lim) w
) m;

-- name: FetchSlotsLate :many
-- The same with late messages, and pages of them, as in FetchTopicsLate. Rows that the transactions
-- in question wrote is looked up once for all slots; which of them a cursor may have missed its
-- snapshot tells.
WITH late AS MATERIALIZED (
    SELECT w.xid::xid8 AS xid, w.id::bigint AS id, w.slot::smallint AS name
    FROM leasegen.written(sqlc.arg(late_xids)::text[]::xid8[], sqlc.arg(likes)::text[]) w
)
SELECT 0::int AS part, 0::int AS item, coalesce((SELECT max(m.id) FROM leasegen.message m), 0)::bigint AS id,
       coalesce(pg_sequence_last_value('leasegen.message_id_seq'::regclass), 0)::text AS topic,
       coalesce((SELECT array_to_json(c.topics)::text FROM leasegen.consumer c WHERE c.name = sqlc.arg(consumer)::text), '')::text AS key,
       leasegen.history() AS kind,
       NULL::bytea AS payload, 0::int AS size, pg_current_snapshot()::text AS headers,
       NULL::timestamptz AS published_at, CASE WHEN (SELECT max(m.id) FROM leasegen.message m) > sqlc.arg(beyond)::bigint THEN pg_current_xact_id() END AS x
UNION ALL
(SELECT 1, l.item, m.id, m.topic, m.key, m.kind,
       CASE WHEN m.size <= sqlc.arg(max_payload)::int THEN m.payload END, m.size, m.headers::text, m.published_at, NULL
FROM (
    SELECT r.item, r.lim, w.id, row_number() OVER (PARTITION BY r.item ORDER BY w.id) AS place
    FROM (SELECT unnest(sqlc.arg(late_items)::int[]) AS item, unnest(sqlc.arg(late_names)::text[])::smallint AS name,
                 unnest(sqlc.arg(late_upto)::bigint[]) AS upto, unnest(sqlc.arg(late_snaps)::text[])::pg_snapshot AS snap,
                 unnest(sqlc.arg(late_below)::text[])::xid8 AS below, unnest(sqlc.arg(late_limits)::bigint[]) AS lim) r
    JOIN late w ON w.name = r.name AND w.id <= r.upto AND w.xid < r.below AND NOT pg_visible_in_snapshot(w.xid, r.snap)
) l
CROSS JOIN LATERAL (
    SELECT m.*, octet_length(m.payload) AS size FROM leasegen.message m WHERE m.id = l.id OFFSET 0
) m
WHERE l.place <= l.lim
ORDER BY l.item, m.id)
UNION ALL
SELECT 1, p.item, m.id, m.topic, m.key, m.kind,
       CASE WHEN m.size <= sqlc.arg(max_payload)::int THEN m.payload END, m.size, m.headers::text, m.published_at, NULL
FROM (SELECT unnest(sqlc.arg(paged_items)::int[]) AS item, unnest(sqlc.arg(paged_names)::text[])::smallint AS name,
             unnest(sqlc.arg(paged_after)::bigint[]) AS after, unnest(sqlc.arg(paged_upto)::bigint[]) AS upto,
             unnest(sqlc.arg(paged_snaps)::text[])::pg_snapshot AS snap,
             unnest(sqlc.arg(paged_late_snaps)::text[])::pg_snapshot AS late_snap,
             unnest(sqlc.arg(paged_limits)::bigint[]) AS lim) p
CROSS JOIN LATERAL (
    SELECT m.*, octet_length(m.payload) AS size
    FROM leasegen.message m
    WHERE m.id > p.after AND m.id <= p.upto
      AND (m.slot, m.id) > (p.name, p.after) AND (m.slot, m.id) <= (p.name, p.upto)
      AND NOT pg_visible_in_snapshot(m.xid, p.snap) AND pg_visible_in_snapshot(m.xid, p.late_snap)
      AND (sqlc.arg(every)::boolean OR m.topic LIKE ANY (sqlc.arg(likes)::text[]))
    ORDER BY m.slot, m.id LIMIT p.lim
) m
UNION ALL
SELECT 2, i.item, m.id, m.topic, m.key, m.kind,
       CASE WHEN m.size <= sqlc.arg(max_payload)::int THEN m.payload END, m.size, m.headers::text, m.published_at,
       pg_current_xact_id()
FROM (SELECT unnest(sqlc.arg(items)::int[]) AS item, unnest(sqlc.arg(names)::text[])::smallint AS name,
             unnest(sqlc.arg(positions)::bigint[]) AS pos, unnest(sqlc.arg(limits)::bigint[]) AS lim) i
CROSS JOIN LATERAL (
    SELECT w.*, octet_length(w.payload) AS size FROM (
        (SELECT m.* FROM leasegen.message m
         WHERE m.id > i.pos AND m.id <= i.pos + least(sqlc.arg(span)::bigint, 1000000) AND m.id <= sqlc.arg(upto)::bigint
           AND (m.slot, m.id) > (i.name, i.pos) AND (m.slot, m.id) <= (i.name, i.pos + least(sqlc.arg(span)::bigint, 1000000))
           AND (sqlc.arg(every)::boolean OR m.topic LIKE ANY (sqlc.arg(likes)::text[]))
         ORDER BY m.slot, m.id LIMIT i.lim)
        UNION ALL
        (SELECT m.* FROM leasegen.message m
         WHERE m.id > i.pos + 1000000 AND m.id <= i.pos + sqlc.arg(span)::bigint AND m.id <= sqlc.arg(upto)::bigint
           AND (m.slot, m.id) > (i.name, i.pos + 1000000) AND (m.slot, m.id) <= (i.name, i.pos + sqlc.arg(span)::bigint)
           AND (sqlc.arg(every)::boolean OR m.topic LIKE ANY (sqlc.arg(likes)::text[]))
         ORDER BY m.slot, m.id LIMIT i.lim)
        LIMIT i.lim) w
) m;

-- name: FetchStreams :many
-- The next messages of many streams, when none can have been late.
SELECT 0::int AS part, 0::int AS item, 0::bigint AS id,
       coalesce(pg_sequence_last_value('leasegen.message_id_seq'::regclass), 0)::text AS topic,
       coalesce((SELECT array_to_json(c.topics)::text FROM leasegen.consumer c WHERE c.name = sqlc.arg(consumer)::text), '')::text AS key,
       leasegen.history() AS kind,
       NULL::bytea AS payload, 0::int AS size, pg_current_snapshot()::text AS headers,
       NULL::timestamptz AS published_at,
       CASE WHEN (SELECT max(m.id) FROM leasegen.message m) > sqlc.arg(beyond)::bigint THEN pg_current_xact_id() END AS x
UNION ALL
SELECT 2, i.item, m.id, m.topic, '', m.kind,
       CASE WHEN m.size <= sqlc.arg(max_payload)::int THEN m.payload END, m.size, m.headers::text, m.published_at,
       pg_current_xact_id()
FROM (SELECT unnest(sqlc.arg(items)::int[]) AS item, unnest(sqlc.arg(names)::text[]) AS name,
             unnest(sqlc.arg(positions)::bigint[]) AS pos, unnest(sqlc.arg(limits)::bigint[]) AS lim) i
CROSS JOIN LATERAL (
    SELECT w.*, octet_length(w.payload) AS size FROM (
        (SELECT m.* FROM leasegen.message m
         WHERE m.id > i.pos AND m.id <= i.pos + 1000000
           AND (m.key, m.id) > (i.name, i.pos) AND (m.key, m.id) <= (i.name, i.pos + 1000000)
           AND (sqlc.arg(every)::boolean OR m.topic LIKE ANY (sqlc.arg(likes)::text[]))
         ORDER BY m.key, m.id LIMIT i.lim)
        UNION ALL
        (SELECT m.* FROM leasegen.message m
         WHERE m.id > i.pos + 1000000
           AND (m.key, m.id) > (i.name, i.pos + 1000000) AND (m.key, m.id) <= (i.name, 9223372036854775807)
           AND (sqlc.arg(every)::boolean OR m.topic LIKE ANY (sqlc.arg(likes)::text[]))
         ORDER BY m.key, m.id LIMIT i.lim)
        LIMIT i.lim) w
) m;

-- name: FetchStreamsLate :many
-- The same with late messages, and pages of them, as in FetchTopicsLate.
WITH ended AS MATERIALIZED (
    SELECT r.xid FROM (SELECT unnest(sqlc.arg(open_xids)::text[])::xid8 AS xid) r
    WHERE pg_visible_in_snapshot(r.xid, (SELECT pg_current_snapshot()))
), snaps AS MATERIALIZED (
    SELECT n.snap::pg_snapshot AS snap, n.place
    FROM (SELECT unnest(sqlc.arg(snapshots)::text[]) AS snap, generate_subscripts(sqlc.arg(snapshots)::text[], 1) AS place) n
)
SELECT 0::int AS part, 0::int AS item, 0::bigint AS id,
       coalesce(pg_sequence_last_value('leasegen.message_id_seq'::regclass), 0)::text AS topic,
       coalesce((SELECT array_to_json(c.topics)::text FROM leasegen.consumer c WHERE c.name = sqlc.arg(consumer)::text), '')::text AS key,
       leasegen.history() AS kind,
       NULL::bytea AS payload, 0::int AS size, pg_current_snapshot()::text AS headers,
       NULL::timestamptz AS published_at,
       CASE WHEN (SELECT max(m.id) FROM leasegen.message m) > sqlc.arg(beyond)::bigint THEN pg_current_xact_id() END AS x
UNION ALL
(SELECT 1, l.item, m.id, m.topic, '', m.kind,
       CASE WHEN m.size <= sqlc.arg(max_payload)::int THEN m.payload END, m.size, m.headers::text, m.published_at, NULL::xid8
FROM (SELECT unnest(sqlc.arg(late_items)::int[]) AS item, unnest(sqlc.arg(late_names)::text[]) AS name,
             unnest(sqlc.arg(late_upto)::bigint[]) AS upto, unnest(sqlc.arg(late_xids)::text[])::xid8 AS xid,
             unnest(sqlc.arg(late_limits)::bigint[]) AS lim) l
CROSS JOIN LATERAL (
    SELECT m.*, octet_length(m.payload) AS size
    FROM leasegen.message m
    WHERE m.id >= (SELECT coalesce(max(g.hi), 0) FROM leasegen.segment g WHERE g.closed_xid <= sqlc.arg(late_from)::text::xid8)
      AND m.id <= l.upto AND (m.xid, m.key, m.id) >= (l.xid, l.name, 0) AND (m.xid, m.key, m.id) <= (l.xid, l.name, l.upto)
      AND (sqlc.arg(every)::boolean OR m.topic LIKE ANY (sqlc.arg(likes)::text[]))
    ORDER BY m.xid, m.key, m.id LIMIT l.lim
) m
WHERE pg_visible_in_snapshot(l.xid, (SELECT pg_current_snapshot()))
UNION ALL
SELECT 1, u.item, m.id, m.topic, '', m.kind,
       CASE WHEN m.size <= sqlc.arg(max_payload)::int THEN m.payload END, m.size, m.headers::text, m.published_at, NULL::xid8
FROM (
    SELECT i.item, i.name, i.upto, i.lim, e.xid
    FROM ended e
    JOIN (SELECT unnest(sqlc.arg(open_items)::int[]) AS item, unnest(sqlc.arg(open_names)::text[]) AS name,
                 unnest(sqlc.arg(open_upto)::bigint[]) AS upto, unnest(sqlc.arg(open_below)::text[])::xid8 AS below,
                 unnest(sqlc.arg(open_limits)::bigint[]) AS lim, unnest(sqlc.arg(open_snaps)::int[]) AS snap) i ON e.xid < i.below
    JOIN snaps s ON s.place = i.snap AND NOT pg_visible_in_snapshot(e.xid, s.snap)
) u
CROSS JOIN LATERAL (
    SELECT m.*, octet_length(m.payload) AS size
    FROM leasegen.message m
    WHERE m.id >= (SELECT coalesce(max(g.hi), 0) FROM leasegen.segment g WHERE g.closed_xid <= sqlc.arg(late_from)::text::xid8)
      AND m.id <= u.upto AND (m.xid, m.key, m.id) >= (u.xid, u.name, 0) AND (m.xid, m.key, m.id) <= (u.xid, u.name, u.upto)
      AND (sqlc.arg(every)::boolean OR m.topic LIKE ANY (sqlc.arg(likes)::text[]))
    ORDER BY m.xid, m.key, m.id LIMIT u.lim
) m
ORDER BY 2, 3)
UNION ALL
SELECT 1, p.item, m.id, m.topic, '', m.kind,
       CASE WHEN m.size <= sqlc.arg(max_payload)::int THEN m.payload END, m.size, m.headers::text, m.published_at, NULL
FROM (SELECT unnest(sqlc.arg(paged_items)::int[]) AS item, unnest(sqlc.arg(paged_names)::text[]) AS name,
             unnest(sqlc.arg(paged_after)::bigint[]) AS after, unnest(sqlc.arg(paged_upto)::bigint[]) AS upto,
             unnest(sqlc.arg(paged_snaps)::text[])::pg_snapshot AS snap,
             unnest(sqlc.arg(paged_late_snaps)::text[])::pg_snapshot AS late_snap,
             unnest(sqlc.arg(paged_limits)::bigint[]) AS lim) p
CROSS JOIN LATERAL (
    SELECT m.*, octet_length(m.payload) AS size
    FROM leasegen.message m
    WHERE m.id > p.after AND m.id <= p.upto
      AND (m.key, m.id) > (p.name, p.after) AND (m.key, m.id) <= (p.name, p.upto)
      AND NOT pg_visible_in_snapshot(m.xid, p.snap) AND pg_visible_in_snapshot(m.xid, p.late_snap)
      AND (sqlc.arg(every)::boolean OR m.topic LIKE ANY (sqlc.arg(likes)::text[]))
    ORDER BY m.key, m.id LIMIT p.lim
) m
UNION ALL
SELECT 2, i.item, m.id, m.topic, '', m.kind,
       CASE WHEN m.size <= sqlc.arg(max_payload)::int THEN m.payload END, m.size, m.headers::text, m.published_at,
       pg_current_xact_id()
FROM (SELECT unnest(sqlc.arg(items)::int[]) AS item, unnest(sqlc.arg(names)::text[]) AS name,
             unnest(sqlc.arg(positions)::bigint[]) AS pos, unnest(sqlc.arg(limits)::bigint[]) AS lim) i
CROSS JOIN LATERAL (
    SELECT w.*, octet_length(w.payload) AS size FROM (
        (SELECT m.* FROM leasegen.message m
         WHERE m.id > i.pos AND m.id <= i.pos + 1000000
           AND (m.key, m.id) > (i.name, i.pos) AND (m.key, m.id) <= (i.name, i.pos + 1000000)
           AND (sqlc.arg(every)::boolean OR m.topic LIKE ANY (sqlc.arg(likes)::text[]))
         ORDER BY m.key, m.id LIMIT i.lim)
        UNION ALL
        (SELECT m.* FROM leasegen.message m
         WHERE m.id > i.pos + 1000000
           AND (m.key, m.id) > (i.name, i.pos + 1000000) AND (m.key, m.id) <= (i.name, 9223372036854775807)
           AND (sqlc.arg(every)::boolean OR m.topic LIKE ANY (sqlc.arg(likes)::text[]))
         ORDER BY m.key, m.id LIMIT i.lim)
        LIMIT i.lim) w
) m;

-- name: FetchAll :many
-- The next messages of the whole log, for a reader that wants them all, when none can
-- have been late.
SELECT 0::int AS part, 0::int AS item, 0::bigint AS id, coalesce(pg_sequence_last_value('leasegen.message_id_seq'::regclass), 0)::text AS topic, ''::text AS key, leasegen.history() AS kind,
       NULL::bytea AS payload, 0::int AS size, pg_current_snapshot()::text AS headers,
       NULL::timestamptz AS published_at,
       CASE WHEN EXISTS (SELECT FROM leasegen.message m WHERE m.id > sqlc.arg(pos)::bigint) THEN pg_current_xact_id() END AS x
UNION ALL
SELECT 2, 0, w.id, w.topic, w.key, w.kind,
       CASE WHEN w.size <= sqlc.arg(max_payload)::int THEN w.payload END, w.size, w.headers::text, w.published_at,
       pg_current_xact_id()
FROM (
    SELECT m.*, octet_length(m.payload) AS size
    FROM leasegen.message m
    WHERE m.id > sqlc.arg(pos)::bigint
    ORDER BY m.id LIMIT sqlc.arg(max)::bigint
) w;

-- name: FetchLog :many
-- The same for any reader of the whole log, up to id upto. The first row also carries the
-- last visible id, and an xid if the position may move.
SELECT 0::int AS part, 0::int AS item, coalesce((SELECT max(m.id) FROM leasegen.message m), 0)::bigint AS id,
       coalesce(pg_sequence_last_value('leasegen.message_id_seq'::regclass), 0)::text AS topic,
       coalesce((SELECT array_to_json(c.topics)::text FROM leasegen.consumer c WHERE c.name = sqlc.arg(consumer)::text), '')::text AS key,
       leasegen.history() AS kind,
       NULL::bytea AS payload, 0::int AS size, pg_current_snapshot()::text AS headers,
       NULL::timestamptz AS published_at,
       CASE WHEN EXISTS (SELECT FROM leasegen.message m WHERE m.id > sqlc.arg(pos)::bigint) THEN pg_current_xact_id() END AS x
UNION ALL
SELECT 1, 0, m.id, m.topic, m.key, m.kind,
       CASE WHEN m.size <= sqlc.arg(max_payload)::int THEN m.payload END, m.size, m.headers::text, m.published_at, NULL
FROM (
    SELECT m.*, octet_length(m.payload) AS size
    FROM (SELECT unnest(sqlc.arg(late)::text[])::xid8 AS xid) l
    CROSS JOIN LATERAL (
        SELECT m.* FROM leasegen.message m
        WHERE m.xid = l.xid AND m.id + 0 <= sqlc.arg(pos)::bigint
          AND (sqlc.arg(every)::boolean OR m.topic LIKE ANY (sqlc.arg(likes)::text[]))
        ORDER BY m.id + 0 LIMIT sqlc.arg(max)::bigint
    ) m
    ORDER BY m.id LIMIT sqlc.arg(max)::bigint
) m
UNION ALL
SELECT 2, 0, m.id, m.topic, m.key, m.kind,
       CASE WHEN m.size <= sqlc.arg(max_payload)::int THEN m.payload END, m.size, m.headers::text, m.published_at, NULL
FROM (
    SELECT m.*, octet_length(m.payload) AS size
    FROM leasegen.message m
    WHERE m.id > sqlc.arg(pos)::bigint AND m.id <= sqlc.arg(upto)::bigint
      AND (sqlc.arg(every)::boolean OR m.topic LIKE ANY (sqlc.arg(likes)::text[]))
    ORDER BY m.id LIMIT sqlc.arg(max)::bigint
) m;

-- name: FetchLogLate :many
-- The next page of late messages of a whole-log reader, when they were more than a page:
-- those that snap did not show and late_snap does.
SELECT 0::int AS part, 0::int AS item, 0::bigint AS id, coalesce(pg_sequence_last_value('leasegen.message_id_seq'::regclass), 0)::text AS topic,
       coalesce((SELECT array_to_json(c.topics)::text FROM leasegen.consumer c WHERE c.name = sqlc.arg(consumer)::text), '')::text AS key,
       leasegen.history() AS kind,
       NULL::bytea AS payload, 0::int AS size, pg_current_snapshot()::text AS headers,
       NULL::timestamptz AS published_at, NULL::xid8 AS x
UNION ALL
SELECT 1, 0, m.id, m.topic, m.key, m.kind,
       CASE WHEN m.size <= sqlc.arg(max_payload)::int THEN m.payload END, m.size, m.headers::text, m.published_at, NULL
FROM (
    SELECT m.*, octet_length(m.payload) AS size
    FROM leasegen.message m
    WHERE m.id > sqlc.arg(after)::bigint AND m.id <= sqlc.arg(pos)::bigint
      AND NOT pg_visible_in_snapshot(m.xid, sqlc.arg(snap)::text::pg_snapshot)
      AND pg_visible_in_snapshot(m.xid, sqlc.arg(late_snap)::text::pg_snapshot)
      AND (sqlc.arg(every)::boolean OR m.topic LIKE ANY (sqlc.arg(likes)::text[]))
    ORDER BY m.id LIMIT sqlc.arg(max)::bigint
) m;

-- name: Wrote :many
-- Where transactions that have ended wrote: the topics, slots or keys (per) of their messages; an empty name for the whole log. Of
-- one with many messages only the first are looked at, and complete is false.
SELECT r.xid::text AS xid, w.names::text[] AS names, (w.looked < sqlc.arg(most)::bigint)::boolean AS complete, (SELECT leasegen.history())::text AS history -- once, not for each row
FROM (SELECT unnest(sqlc.arg(xids)::text[])::xid8 AS xid) r
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(DISTINCT n.name), '{}') AS names, count(*) AS looked
    FROM (
        SELECT CASE sqlc.arg(per)::text WHEN 'topic' THEN m.topic WHEN 'stream' THEN m.key WHEN 'partition' THEN m.slot::text ELSE '' END AS name
        FROM leasegen.message m
        WHERE m.id >= (SELECT coalesce(max(g.hi), 0) FROM leasegen.segment g WHERE g.closed_xid <= sqlc.arg(late_from)::text::xid8)
          AND (m.xid, m.topic, m.id) >= (r.xid, '', 0) AND m.xid <= r.xid
        ORDER BY m.xid, m.topic, m.id LIMIT sqlc.arg(most)::bigint) n
) w
WHERE pg_visible_in_snapshot(r.xid, (SELECT pg_current_snapshot()));
