-- Whether positions are of the history that the server has: see migration 0007.

-- name: History :one
SELECT leasegen.history()::text AS history;

-- name: Expect :exec
-- Fails unless the server's history is that one, and x an xid of its past. Empty x: none is meant.
SELECT leasegen.expect(sqlc.arg(history)::text, sqlc.arg(x)::text);

-- name: ExpectEffects :exec
-- The same in a transaction that a handler wrote in, which still has to be that one.
SELECT leasegen.expect(sqlc.arg(history)::text, sqlc.arg(x)::text, sqlc.arg(effects)::text);

-- name: Horizon :one
-- How far the server has got: no snapshot or xid that it gave lies beyond.
SELECT leasegen.history()::text AS history, pg_current_snapshot()::text AS snap;

-- name: TableHorizon :one
-- How far a table has got: no position, snapshot or xid that it gave lies
-- beyond. The sequence's last number is -1 when it may not be read. file changes when the table is
-- emptied, or written anew.
SELECT leasegen.history()::text AS history, pg_current_snapshot()::text AS snap,
       (CASE WHEN to_regclass(nullif(sqlc.arg(sequence)::text, '')) IS NULL THEN -1
             WHEN NOT has_sequence_privilege(to_regclass(nullif(sqlc.arg(sequence)::text, '')), 'USAGE, SELECT') THEN -1
             ELSE coalesce(pg_sequence_last_value(to_regclass(nullif(sqlc.arg(sequence)::text, ''))), 0) END)::bigint AS last,
       coalesce(pg_relation_filenode(to_regclass(sqlc.arg(name)::text)), 0)::bigint AS file;

-- name: TakenBack :one
-- A place to go back to: everything up to pos that snap does not show, and a cursor before it had not
-- passed, is late for that one. An id up to pos was drawn before x, or is that of a row that is there.
SELECT pg_current_snapshot()::text AS snap,
       greatest(sqlc.arg(last)::bigint, CASE WHEN sqlc.arg(source)::text = '' THEN (SELECT max(m.id) FROM leasegen.message m)
                                             ELSE leasegen.source_top(sqlc.arg(source)::text) END)::bigint AS pos,
       pg_current_xact_id()::text AS x;

-- name: UnseenRows :many
-- Which cursors on a table have passed the positions of rows that came after them, counted from 1.
SELECT u::int AS item FROM leasegen.table_unseen(sqlc.arg(source)::text, sqlc.arg(positions)::bigint[], sqlc.arg(xs)::text[]) u;

-- name: UnseenMessages :many
-- The same of the log.
SELECT c.item::int AS item
FROM (SELECT unnest(sqlc.arg(positions)::bigint[]) AS pos, unnest(sqlc.arg(xs)::text[])::xid8 AS x,
             generate_subscripts(sqlc.arg(positions)::bigint[], 1) AS item) c
WHERE EXISTS (SELECT FROM (SELECT m.id FROM leasegen.message m WHERE m.xid >= c.x ORDER BY m.xid LIMIT 100) n WHERE n.id <= c.pos);

-- name: TakeBack :many
-- Leases of a session whose cursors lie in the future begin again at the beginning.
WITH ahead AS (
    SELECT l.resource, l.pos FROM leasegen.lease l
    WHERE l.consumer = sqlc.arg(consumer)::text AND l.session = sqlc.arg(session)::text
      AND l.resource = ANY (sqlc.arg(resources)::text[])
      AND (l.x >= pg_snapshot_xmax(pg_current_snapshot())
           OR pg_snapshot_xmax(l.snap) > pg_snapshot_xmax(pg_current_snapshot())
           OR pg_snapshot_xmax(l.late_snap) > pg_snapshot_xmax(pg_current_snapshot()))
    ORDER BY l.resource FOR NO KEY UPDATE OF l
)
UPDATE leasegen.lease l SET pos = 0, snap = NULL, x = NULL, late_snap = NULL, late_pos = 0
FROM ahead a
WHERE l.consumer = sqlc.arg(consumer)::text AND l.resource = a.resource
RETURNING l.resource, a.pos;
