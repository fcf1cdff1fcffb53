-- name: Survey :many
-- Leases of each consumer counted by owner, and the members that own none. Of streams only
-- those wanted count. lapsed are those that are free though their owner's session lives: their
-- own time is over, or the lock that they are held by is gone. A consumer that is paused has a row for that.
WITH owned AS (
    SELECT l.consumer, l.session, count(*) AS leases, 0::bigint AS lapsed
    FROM leasegen.lease l
    WHERE l.wanted AND l.consumer = ANY (ARRAY(
        SELECT c.name FROM leasegen.consumer c
        WHERE c.name = ANY (sqlc.arg(consumers)::text[]) AND c.per IN ('topic', 'partition')))
    GROUP BY l.consumer, l.session
    UNION ALL
    SELECT l.consumer, l.session, count(*),
           count(*) FILTER (WHERE l.expires_at + c.grace < clock_timestamp()
               OR CASE WHEN l.advisory AND c.grace = '0' THEN EXISTS (
                   SELECT FROM leasegen.session s
                   WHERE s.id = l.session AND leasegen.lock_gone(s.lock_key, s.server, s.advisory, s.backend_pid, s.role)) END)
    FROM leasegen.lease l JOIN leasegen.consumer c ON c.name = l.consumer
    WHERE l.wanted AND l.consumer = ANY (ARRAY(
        SELECT c.name FROM leasegen.consumer c
        WHERE c.name = ANY (sqlc.arg(consumers)::text[]) AND c.per NOT IN ('topic', 'partition')))
    GROUP BY l.consumer, l.session
    UNION ALL
    SELECT p.consumer, NULL, 0, 0 FROM leasegen.pause p WHERE p.consumer = ANY (sqlc.arg(consumers)::text[])
), member AS (
    SELECT n.consumer, n.id
    FROM (SELECT s.id, unnest(s.consumers) AS consumer FROM leasegen.session s
          WHERE s.state = 'live' AND s.expires_at > clock_timestamp()) n
    WHERE n.consumer = ANY (sqlc.arg(consumers)::text[])
)
SELECT coalesce(o.consumer, m.consumer)::text AS consumer, coalesce(o.session, m.id, '')::text AS session,
       coalesce(o.leases, 0)::bigint AS leases, (m.id IS NOT NULL)::boolean AS member,
       (p.consumer IS NOT NULL)::boolean AS paused,
       (CASE WHEN o.consumer IS NULL OR p.consumer IS NOT NULL THEN 0
             WHEN o.session IS NULL OR s.state = 'closed' OR s.state = 'dead' AND c.grace = '0'
                 OR s.expires_at + c.grace < clock_timestamp() THEN o.leases
             ELSE o.lapsed END)::bigint AS free
FROM owned o
FULL JOIN member m ON m.consumer = o.consumer AND m.id = o.session
LEFT JOIN leasegen.session s ON s.id = o.session
LEFT JOIN leasegen.consumer c ON c.name = o.consumer
LEFT JOIN leasegen.pause p ON p.consumer = coalesce(o.consumer, m.consumer)
ORDER BY 1, 2;

-- name: WatchOwnership :one
-- A value that changes when a session joins or ends, leases become free, or a member's consumer is paused or resumed.
SELECT (SELECT coalesce(md5(string_agg(s.id || '/' || c.name || '/' || s.state || (EXISTS (SELECT FROM leasegen.pause p WHERE p.consumer = c.name))::text
                || (s.expires_at < clock_timestamp())::text || (s.expires_at + c.grace < clock_timestamp())::text,
                ',' ORDER BY s.id, c.name)), '')
        FROM leasegen.session s JOIN leasegen.consumer c ON c.name = ANY (s.consumers)
        WHERE c.name = ANY (sqlc.arg(consumers)::text[]))::text AS members,
       (SELECT count(*) FROM leasegen.lease l
        WHERE l.consumer = ANY (sqlc.arg(consumers)::text[]) AND l.session IS NULL AND l.wanted)::bigint AS free;

-- name: LockAttempts :exec
-- One attempt runs after the other, so that a repeated one sees what it was granted. A stranger who sees the
-- key in pg_locks cannot use it for the next attempt.
SELECT pg_advisory_xact_lock(hashtextextended(sqlc.arg(session)::text || '/' || sqlc.arg(consumer)::text || '/' || sqlc.arg(attempt)::text, 0));

-- name: AcquireLeases :many
-- Leases that have been free longest come first: the transaction that freed one, or made it wanted, is the last that wrote its row.
-- row_ttl is 0 except for leases that expire one by one. advisory: the caller holds the lock of the
-- consumer, which proves that an owner by that lock no longer is one. A lease that expired
-- under a session that lives was not left by a crash. The lock on the rows of a pause is for the lock on their table that
-- goes with it: see pause_consumer.
WITH paused AS MATERIALIZED (
    SELECT p.consumer FROM leasegen.pause p WHERE p.consumer = sqlc.arg(consumer)::text FOR KEY SHARE
), before AS MATERIALIZED ( -- granted when the same attempt was carried out
    SELECT l.* FROM leasegen.lease l
    WHERE l.consumer = sqlc.arg(consumer)::text AND l.session = sqlc.arg(session)::text
      AND l.wanted AND l.attempt = sqlc.arg(attempt)::text
), free AS ( -- by their places in the table: after Steady there is no other plan, as no index is of the number
    SELECT tidlarger(l.ctid, l.ctid) AS place
    FROM leasegen.lease l
    WHERE l.wanted::int = 1
      AND l.ctid = ANY (ARRAY( -- by the index on owners, as far as a lease's own time does not matter; those that changed longest ago
            SELECT n.place FROM (
                SELECT tidlarger(f.ctid, f.ctid) AS place, f.resource, age(f.xmin) AS waited FROM leasegen.lease f
                WHERE f.consumer = sqlc.arg(consumer)::text AND f.wanted AND f.session IS NULL
                UNION ALL
                SELECT tidlarger(f.ctid, f.ctid) AS place, f.resource, age(f.xmin) AS waited FROM leasegen.lease f
                WHERE f.consumer = sqlc.arg(consumer)::text AND f.wanted AND f.session = ANY (ARRAY(
                    SELECT s.id FROM leasegen.session s -- one whose grace is not over would hide what is free
                    WHERE s.state = 'closed'
                       OR s.state = 'dead' AND (sqlc.arg(grace)::interval = '0'
                                                OR s.expires_at + sqlc.arg(grace)::interval < clock_timestamp())))
                UNION ALL
                SELECT tidlarger(f.ctid, f.ctid) AS place, f.resource, age(f.xmin) AS waited FROM leasegen.lease f
                WHERE f.consumer = sqlc.arg(consumer)::text AND f.wanted
                  AND (f.expires_at + sqlc.arg(grace)::interval < clock_timestamp() OR sqlc.arg(advisory)::boolean AND f.advisory)
                  AND (SELECT c.lock FROM leasegen.consumer c WHERE c.name = sqlc.arg(consumer)::text) <> 'session') n
            WHERE n.resource <> ALL (sqlc.arg(exclude)::text[])
            ORDER BY n.waited DESC LIMIT greatest(4 * sqlc.arg(max)::bigint, 256)))
      AND (l.session IS NULL OR l.session = ANY (ARRAY(
            SELECT s.id FROM leasegen.session s
            WHERE s.state = 'closed'
               OR s.state = 'dead' AND (sqlc.arg(grace)::interval = '0'
                                        OR s.expires_at + sqlc.arg(grace)::interval < clock_timestamp())))
           OR l.expires_at + sqlc.arg(grace)::interval < clock_timestamp()
           OR sqlc.arg(advisory)::boolean AND l.advisory AND l.session <> sqlc.arg(session)::text
              AND sqlc.arg(grace)::interval = '0')
      AND EXISTS (SELECT FROM leasegen.session s
                  WHERE s.id = sqlc.arg(session)::text AND s.state = 'live' AND s.expires_at > clock_timestamp())
      AND NOT EXISTS (SELECT FROM before)
      AND NOT EXISTS (SELECT FROM paused)
    ORDER BY age(l.xmin) DESC
    LIMIT sqlc.arg(max)::bigint
    FOR UPDATE OF l SKIP LOCKED
), taken AS (
    UPDATE leasegen.lease l
    SET session = sqlc.arg(session)::text, attempt = sqlc.arg(attempt)::text, acquired_at = clock_timestamp(),
        epoch = greatest(l.epoch + 1, (extract(epoch FROM clock_timestamp()) * 1000000.0)::bigint),
        expires_at = clock_timestamp() + nullif(sqlc.arg(row_ttl)::interval, '0'), advisory = sqlc.arg(advisory)::boolean,
        suspicion = l.suspicion + CASE
            WHEN l.session IS NULL OR l.expires_at IS NOT NULL AND EXISTS (
                SELECT FROM leasegen.session s WHERE s.id = l.session AND s.state = 'live') THEN 0 ELSE 1 END
    WHERE l.ctid = ANY (ARRAY(SELECT f.place FROM free f))
    RETURNING l.*
), granted AS (
    SELECT t.* FROM taken t
    UNION ALL
    SELECT b.* FROM before b
)
SELECT g.resource, g.epoch, g.pos, coalesce(g.snap::text, '')::text AS snap, coalesce(g.x::text, '')::text AS x,
       coalesce(g.late_snap::text, '')::text AS late_snap, g.late_pos,
       g.suspicion, coalesce(g.mark, 0)::bigint AS mark, g.mark_count
FROM granted g;

-- name: GrantedLanes :many
-- Of each lease by itself, in no order: after Steady a sort, or a plan that begins with all that is parked, would be the only one.
WITH granted AS MATERIALIZED (
    SELECT l.consumer, l.resource FROM leasegen.lease l
    WHERE l.consumer = sqlc.arg(consumer)::text AND l.session = sqlc.arg(session)::text
      AND l.wanted AND l.attempt = sqlc.arg(attempt)::text
)
SELECT g.resource::text AS resource, p.lane FROM granted g CROSS JOIN LATERAL (
    SELECT DISTINCT p.lane FROM leasegen.parked p WHERE p.consumer = g.consumer AND p.resource = g.resource
    OFFSET 0
) p;

-- name: ReleaseLeases :execrows
WITH given AS MATERIALIZED ( -- as of CommitLeases
    SELECT sqlc.arg(consumer)::text AS consumer, unnest(sqlc.arg(resources)::text[]) AS resource, unnest(sqlc.arg(epochs)::bigint[]) AS epoch
), own AS MATERIALIZED (
    SELECT g.* FROM given g JOIN leasegen.lease l ON l.consumer = g.consumer AND l.resource = g.resource AND l.epoch = g.epoch
    WHERE coalesce(l.session = sqlc.arg(session)::text, false)
    ORDER BY l.resource FOR NO KEY UPDATE OF l
)
UPDATE leasegen.lease l SET session = NULL
FROM own o
WHERE (SELECT count(*) FROM own) > 0 -- all are locked, in their order, before one is changed
  AND l.consumer = o.consumer AND l.resource = o.resource;

-- name: OwnedLeases :many
SELECT l.resource, l.epoch FROM leasegen.lease l
WHERE l.consumer = sqlc.arg(consumer)::text AND l.session = sqlc.arg(session)::text;

-- name: RetireStreams :exec
-- Streams rest whatever there is of them, until RouseStreams has looked.
WITH given AS MATERIALIZED ( -- as of CommitLeases
    SELECT sqlc.arg(consumer)::text AS consumer, unnest(sqlc.arg(resources)::text[]) AS resource, unnest(sqlc.arg(epochs)::bigint[]) AS epoch
), own AS MATERIALIZED (
    SELECT g.* FROM given g JOIN leasegen.lease l ON l.consumer = g.consumer AND l.resource = g.resource AND l.epoch = g.epoch
    WHERE coalesce(l.session = sqlc.arg(session)::text, false)
    ORDER BY l.resource FOR NO KEY UPDATE OF l
)
UPDATE leasegen.lease l SET session = NULL, wanted = false, rested_at = clock_timestamp()
FROM own o
WHERE (SELECT count(*) FROM own) > 0 -- all are locked, in their order, before one is changed
  AND l.consumer = o.consumer AND l.resource = o.resource;

-- name: RouseStreams :exec
-- After the transaction of RetireStreams: a stream is wanted again when messages are there that its cursor
-- has not passed, or parked ones; one that the application announces is not. Messages that were there when the stream
-- came to rest are seen here. Those that come later make it wanted by RegisterStreams, which sees that it rests.
-- Thus neither needs a lock. Tells the members when some became wanted.
WITH rested AS MATERIALIZED ( -- as of CommitLeases
    SELECT sqlc.arg(consumer)::text AS consumer, unnest(sqlc.arg(resources)::text[]) AS resource
), work AS (
    SELECT l.resource
    FROM rested r -- in the order that all lock them in
    JOIN leasegen.lease l ON l.consumer = r.consumer AND l.resource = r.resource
    JOIN leasegen.consumer c ON c.name = sqlc.arg(consumer)::text
    WHERE NOT l.wanted AND cardinality(c.likes) > 0
      AND (l.late_snap IS NOT NULL
           OR EXISTS (SELECT FROM leasegen.parked p WHERE p.consumer = l.consumer AND p.resource = l.resource)
           OR leasegen.stream_unread(c.likes, l.resource, l.pos, l.snap, l.x))
    FOR NO KEY UPDATE OF l
), roused AS (
    UPDATE leasegen.lease l SET wanted = true, rested_at = NULL
    WHERE l.consumer = sqlc.arg(consumer)::text AND l.resource = ANY (ARRAY(SELECT w.resource FROM work w)) AND NOT l.wanted
    RETURNING l.resource
)
SELECT pg_notify(sqlc.arg(channel)::text, sqlc.arg(payload)::text) WHERE EXISTS (SELECT FROM roused);

-- name: RenewLeases :many
-- Leases that expire one by one go on from the server's present, unless their time is over.
WITH given AS MATERIALIZED ( -- as of CommitLeases
    SELECT sqlc.arg(consumer)::text AS consumer, unnest(sqlc.arg(resources)::text[]) AS resource, unnest(sqlc.arg(epochs)::bigint[]) AS epoch
), own AS MATERIALIZED (
    SELECT g.* FROM given g JOIN leasegen.lease l ON l.consumer = g.consumer AND l.resource = g.resource AND l.epoch = g.epoch
    WHERE coalesce(l.session = sqlc.arg(session)::text, false)
      AND EXISTS (SELECT FROM leasegen.session s
                  WHERE s.id = sqlc.arg(session)::text AND s.state = 'live' AND s.expires_at > clock_timestamp())
    ORDER BY l.resource FOR NO KEY UPDATE OF l
)
UPDATE leasegen.lease l SET expires_at = clock_timestamp() + sqlc.arg(ttl)::interval
FROM own o
WHERE (SELECT count(*) FROM own) > 0 -- all are locked, in their order, before one is changed
  AND l.consumer = o.consumer AND l.resource = o.resource
  AND l.expires_at > clock_timestamp()
RETURNING l.resource;

-- name: ForgetStreams :one
-- Goes on after a lease, and says where to go on next: nowhere after the last one.
SELECT f.forgotten::int AS forgotten, coalesce(f.reached[1], '')::text AS consumer, coalesce(f.reached[2], '')::text AS resource
FROM leasegen.forget_streams(sqlc.arg(older)::interval, sqlc.arg(consumer)::text, sqlc.arg(resource)::text) f;
