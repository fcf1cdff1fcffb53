-- name: ListConsumers :many
-- note is why the consumer's table is not read.
SELECT c.name, c.per, (CASE WHEN c.source = '' THEN c.per ELSE 'table' END)::text AS of, c.lock, (p.consumer IS NOT NULL)::boolean AS paused,
       coalesce(extract(epoch FROM clock_timestamp() - p.paused_at), 0)::float8 AS paused_for,
       (CASE WHEN c.source = '' THEN '' ELSE leasegen.distrust(c.source) END)::text AS note,
       (SELECT count(*) FROM leasegen.lease l WHERE l.consumer = c.name) AS leases,
       m.members, m.standbys,
       (SELECT count(*) FROM (
            SELECT DISTINCT p.resource, p.lane FROM leasegen.parked p WHERE p.consumer = c.name) k) AS lanes,
       (SELECT count(*) FROM leasegen.dead_letter d WHERE d.consumer = c.name) AS dead_letters
FROM leasegen.consumer c
LEFT JOIN leasegen.pause p ON p.consumer = c.name
CROSS JOIN LATERAL (
    SELECT count(*) AS members,
           count(*) FILTER (WHERE NOT EXISTS (SELECT FROM leasegen.lease l WHERE l.consumer = c.name AND l.session = s.id)) AS standbys
    FROM leasegen.session s
    WHERE s.state = 'live' AND s.expires_at > clock_timestamp() AND s.consumers OPERATOR(pg_catalog.@>) ARRAY[c.name]
) m
ORDER BY c.name;

-- name: PauseConsumer :one
SELECT leasegen.pause_consumer(sqlc.arg(consumer)::text, sqlc.arg(paused)::boolean)::boolean AS known;

-- name: CountLeases :one
-- of is by what the consumer's messages are found, see LeaseLags; empty of a consumer that has not run yet.
SELECT count(*) AS leases,
       coalesce((SELECT CASE WHEN c.source = '' THEN c.per ELSE 'table' END
                 FROM leasegen.consumer c WHERE c.name = sqlc.arg(consumer)::text), '')::text AS of,
       coalesce((SELECT CASE WHEN c.source = '' THEN '' ELSE leasegen.distrust(c.source) END
                 FROM leasegen.consumer c WHERE c.name = sqlc.arg(consumer)::text), '')::text AS note
FROM leasegen.lease l WHERE l.consumer = sqlc.arg(consumer)::text;

-- name: LeaseLags :many
-- Leases with how many messages each is behind, counted up to a bound, and how long the first
-- of them has been there. Streams without work are left out unless idle is set, rows of tables
-- unless counted is. The furthest behind come first, up to max of them; 0 is for all, and -1 for all in any order.
-- of is the consumer's per, or table.
SELECT v.resource, v.session, v.epoch, v.since, v.pos, v.lag, v.oldest, v.parked, v.suspicion
FROM (
    SELECT l.resource, (CASE WHEN s.state = 'live' AND s.expires_at > now.at AND coalesce(l.expires_at > now.at, true) THEN l.session ELSE '' END)::text AS session,
           l.epoch, coalesce(extract(epoch FROM now.at - l.acquired_at), 0)::float8 AS since, l.pos,
           (b.lag + CASE WHEN sqlc.arg(of)::text <> 'table' OR NOT sqlc.arg(counted)::boolean THEN 0
                         ELSE leasegen.table_lag(c.source, l.resource, l.pos, sqlc.arg(bound)::bigint) END)::bigint AS lag,
           coalesce(extract(epoch FROM now.at - b.oldest), 0)::float8 AS oldest,
           coalesce(p.parked, 0)::bigint AS parked, l.suspicion
    FROM leasegen.lease l
    JOIN leasegen.consumer c ON c.name = l.consumer
    CROSS JOIN (SELECT clock_timestamp() AS at) now
    LEFT JOIN leasegen.session s ON s.id = l.session
    LEFT JOIN (SELECT k.resource, count(*) AS parked FROM leasegen.parked k
               WHERE k.consumer = sqlc.arg(consumer)::text GROUP BY k.resource) p ON p.resource = l.resource
    CROSS JOIN LATERAL (
        SELECT count(*) AS lag, min(u.published_at) AS oldest
        FROM (
            (SELECT m.published_at FROM leasegen.message m
             WHERE sqlc.arg(of)::text = 'topic' AND m.topic = l.resource AND m.id > l.pos
             ORDER BY m.id LIMIT sqlc.arg(bound)::bigint)
            UNION ALL
            (SELECT m.published_at FROM leasegen.message m
             WHERE sqlc.arg(of)::text = 'partition' AND m.id > l.pos AND m.topic LIKE ANY (c.likes)
               AND m.slot = CASE WHEN sqlc.arg(of)::text = 'partition' AND l.resource ~ '^([0-9]{1,4}|[12][0-9]{4})$' THEN l.resource::smallint END
             ORDER BY m.id LIMIT sqlc.arg(bound)::bigint)
            UNION ALL
            (SELECT m.published_at FROM leasegen.message m
             WHERE sqlc.arg(of)::text = 'stream' AND m.key = l.resource AND m.id > l.pos AND m.topic LIKE ANY (c.likes)
             ORDER BY m.id LIMIT sqlc.arg(bound)::bigint)
            UNION ALL
            (SELECT m.published_at FROM leasegen.message m
             WHERE sqlc.arg(of)::text = 'group' AND m.id > l.pos AND m.topic LIKE ANY (c.likes)
             ORDER BY m.id LIMIT sqlc.arg(bound)::bigint)
        ) u
    ) b
    WHERE l.consumer = sqlc.arg(consumer)::text AND (l.wanted OR sqlc.arg(idle)::boolean)
      AND (sqlc.arg(resource)::text = '' OR l.resource = sqlc.arg(resource)::text)
) v
ORDER BY CASE WHEN sqlc.arg(max)::bigint >= 0 THEN v.lag END DESC, CASE WHEN sqlc.arg(max)::bigint >= 0 THEN v.resource END
LIMIT nullif(greatest(sqlc.arg(max)::bigint, 0), 0);

-- name: HasCursors :one
-- Whether the consumer reads messages: singletons and streams that the application announces do not.
SELECT (c.source <> '' OR c.per NOT IN ('stream', 'cluster') OR cardinality(c.topics) > 0)::boolean AS has
FROM leasegen.consumer c WHERE c.name = sqlc.arg(consumer)::text;

-- name: SetCursors :one
-- Moves cursors and fences owners in one statement: the snapshot is its own, and the xid is
-- drawn after that, as the cursor's rule wants. Without a resource all are moved, and those
-- that have no lease yet will begin there too.
WITH target AS (
    SELECT CASE WHEN sqlc.arg(beginning)::boolean THEN 0
                WHEN sqlc.arg(now)::boolean THEN coalesce((
                    SELECT CASE WHEN c.source = '' THEN (SELECT max(m.id) FROM leasegen.message m)
                                ELSE leasegen.table_top(c.source) END
                    FROM leasegen.consumer c WHERE c.name = sqlc.arg(consumer)::text), 0)
                ELSE sqlc.arg(after)::bigint END AS pos,
           CASE WHEN NOT sqlc.arg(beginning)::boolean THEN pg_current_snapshot() END AS snap
), locked AS (
    SELECT l.resource FROM leasegen.lease l
    WHERE l.consumer = sqlc.arg(consumer)::text
      AND (sqlc.arg(resource)::text = '' OR l.resource = sqlc.arg(resource)::text)
    ORDER BY l.resource FOR NO KEY UPDATE
), started AS (
    UPDATE leasegen.consumer c SET start_pos = t.pos, start_snap = t.snap,
        start_x = CASE WHEN t.snap IS NOT NULL THEN pg_current_xact_id() END
    FROM target t WHERE c.name = sqlc.arg(consumer)::text AND sqlc.arg(resource)::text = ''
), moved AS (
    UPDATE leasegen.lease l
    SET session = NULL, expires_at = NULL, advisory = false, wanted = true, rested_at = NULL,
        epoch = greatest(l.epoch + 1, (extract(epoch FROM clock_timestamp()) * 1000000.0)::bigint),
        pos = t.pos, snap = t.snap, x = CASE WHEN t.snap IS NOT NULL THEN pg_current_xact_id() END,
        late_snap = NULL, late_pos = 0, suspicion = 0, mark = NULL, mark_epoch = NULL, mark_count = 0
    FROM target t, locked k
    WHERE l.consumer = sqlc.arg(consumer)::text AND l.resource = k.resource
    RETURNING l.resource
)
SELECT count(*) AS moved FROM moved;

-- name: DropParked :exec
DELETE FROM leasegen.parked p
WHERE p.consumer = sqlc.arg(consumer)::text AND (sqlc.arg(resource)::text = '' OR p.resource = sqlc.arg(resource)::text);

-- name: DropDeadLetters :exec
DELETE FROM leasegen.dead_letter d
WHERE d.consumer = sqlc.arg(consumer)::text AND (sqlc.arg(resource)::text = '' OR d.resource = sqlc.arg(resource)::text);

-- name: ListMembers :many
-- The locks are read once, whatever the number of members.
WITH waiting AS MATERIALIZED (
    SELECT (l.classid::bigint << 32) | l.objid::bigint AS key, a.usename::text AS role
    FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.mode = 'ShareLock'
      AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
)
SELECT s.id, s.host, s.pid, extract(epoch FROM now.at - s.opened_at)::float8 AS since,
       extract(epoch FROM now.at - s.beat_at)::float8 AS since_beat,
       extract(epoch FROM CASE WHEN s.advisory THEN s.ttl ELSE s.expires_at - now.at END)::float8 AS remaining,
       CASE WHEN s.lock_key IS NULL THEN 'ttl'
            WHEN EXISTS (SELECT FROM waiting w WHERE w.key = hashtextextended('leasegen.second/' || s.id, 0) AND coalesce(w.role = s.role, true))
            THEN 'lock' ELSE 'polling' END AS detection,
       (SELECT count(*) FROM leasegen.lease l WHERE l.consumer = sqlc.arg(consumer)::text AND l.session = s.id) AS owned,
       (SELECT count(*) FROM leasegen.lease l WHERE l.consumer = sqlc.arg(consumer)::text) AS resources
FROM leasegen.session s CROSS JOIN (SELECT clock_timestamp() AS at) now
WHERE s.state = 'live' AND s.expires_at > now.at AND s.consumers OPERATOR(pg_catalog.@>) ARRAY[sqlc.arg(consumer)::text]
ORDER BY s.opened_at, s.id;

-- name: DeadLetterRange :one
-- Between which ids a number of dead letters beyond one are, and how many there were.
SELECT coalesce(min(r.id), 0)::bigint AS first, coalesce(max(r.id), 0)::bigint AS last, count(*) AS number
FROM (
    (SELECT d.id FROM leasegen.dead_letter d
     WHERE d.consumer = sqlc.arg(consumer)::text AND d.id > sqlc.arg(after)::bigint AND d.id <= sqlc.arg(through)::bigint
     ORDER BY d.consumer, d.id LIMIT sqlc.arg(scan)::bigint)
    UNION ALL
    (SELECT d.id FROM leasegen.dead_letter d
     WHERE sqlc.arg(consumer)::text = '' AND d.id > sqlc.arg(after)::bigint AND d.id <= sqlc.arg(through)::bigint
     ORDER BY d.id LIMIT sqlc.arg(scan)::bigint)
) r;

-- name: DeadLetterRangeBack :one
-- The same from the newest on.
SELECT coalesce(min(r.id), 0)::bigint AS first, coalesce(max(r.id), 0)::bigint AS last, count(*) AS number
FROM (
    (SELECT d.id FROM leasegen.dead_letter d
     WHERE d.consumer = sqlc.arg(consumer)::text AND d.id > sqlc.arg(after)::bigint AND d.id <= sqlc.arg(through)::bigint
     ORDER BY d.consumer DESC, d.id DESC LIMIT sqlc.arg(scan)::bigint)
    UNION ALL
    (SELECT d.id FROM leasegen.dead_letter d
     WHERE sqlc.arg(consumer)::text = '' AND d.id > sqlc.arg(after)::bigint AND d.id <= sqlc.arg(through)::bigint
     ORDER BY d.id DESC LIMIT sqlc.arg(scan)::bigint)
) r;

-- name: DeadLetterEnd :one
SELECT coalesce((SELECT max(d.id) FROM leasegen.dead_letter d), 0)::bigint AS id;

-- name: DeadLettersSince :one
-- An id below those of a consumer's dead letters that died within an age: the least of the first of them. Ids and times
-- rise together, unless the clock is set back; what died before that, at times that are yet to come, may be left out.
SELECT coalesce(min(r.id) - 1, 9223372036854775807)::bigint AS after
FROM (SELECT d.id FROM leasegen.dead_letter d
      WHERE d.consumer = sqlc.arg(consumer)::text AND d.dead_at >= (SELECT clock_timestamp() - sqlc.arg(age)::interval)
      ORDER BY d.consumer, d.dead_at LIMIT sqlc.arg(scan)::bigint) r;

-- name: FindDeadLetters :many
-- Those that a filter selects, of the ids given or between two, so many at most. A's letters are like a's in texts that are
-- compared as bytes.
SELECT d.id, d.consumer, d.kind, left(d.reason, 1024)::text AS reason, d.dead_at, octet_length(d.payload)::bigint AS payload_size,
       (octet_length(d.reason) + coalesce(pg_column_size(d.headers), 0))::bigint AS size
FROM (
    SELECT o.* FROM leasegen.dead_letter o
    WHERE cardinality(sqlc.arg(ids)::bigint[]) = 0 AND o.consumer = sqlc.arg(consumer)::text
      AND o.id > sqlc.arg(after)::bigint AND o.id <= sqlc.arg(through)::bigint
    UNION ALL
    SELECT a.* FROM leasegen.dead_letter a
    WHERE cardinality(sqlc.arg(ids)::bigint[]) = 0 AND sqlc.arg(consumer)::text = ''
      AND a.id > sqlc.arg(after)::bigint AND a.id <= sqlc.arg(through)::bigint
    UNION ALL
    SELECT i.* FROM leasegen.dead_letter i
    WHERE i.id = ANY (sqlc.arg(ids)::bigint[]) AND (sqlc.arg(consumer)::text = '' OR i.consumer = sqlc.arg(consumer)::text)
      AND i.id > sqlc.arg(after)::bigint AND i.id <= sqlc.arg(through)::bigint
) d
WHERE (sqlc.arg(topic)::text = '' OR d.topic LIKE sqlc.arg(topic)::text)
  AND (sqlc.arg(key)::text = '' OR d.key = sqlc.arg(key)::text)
  AND (sqlc.arg(kind)::text = '' OR d.kind = sqlc.arg(kind)::text)
  AND (sqlc.arg(reason)::text = '' OR d.reason LIKE sqlc.arg(reason)::text)
  AND (sqlc.arg(within)::text = '' OR strpos(lower(d.reason COLLATE "C"), lower(sqlc.arg(within)::text COLLATE "C")) > 0
       OR strpos(lower(d.key COLLATE "C"), lower(sqlc.arg(within)::text COLLATE "C")) > 0)
  AND (sqlc.arg(min_age)::interval = '0' OR d.dead_at <= clock_timestamp() - sqlc.arg(min_age)::interval)
  AND (sqlc.arg(max_age)::interval = '0' OR d.dead_at >= clock_timestamp() - sqlc.arg(max_age)::interval)
ORDER BY d.id LIMIT sqlc.arg(max)::bigint;

-- name: ListDeadLetters :many
SELECT d.id, d.consumer, d.resource, d.message_id, d.topic, d.key, d.kind,
       (CASE WHEN sqlc.arg(with_payload)::boolean THEN d.payload END)::bytea AS payload,
       octet_length(d.payload)::int AS size, coalesce(d.headers::text, '')::text AS headers,
       d.published_at, d.failed_at, d.dead_at, d.attempts, d.reason
FROM leasegen.dead_letter d
WHERE d.id = ANY (sqlc.arg(ids)::bigint[])
ORDER BY d.id;

-- name: ReplayDeadLetters :execrows
WITH locked AS (
    SELECT d.id FROM leasegen.dead_letter d WHERE d.id = ANY (sqlc.arg(ids)::bigint[]) ORDER BY d.id FOR UPDATE
), gone AS (
    DELETE FROM leasegen.dead_letter d USING locked k WHERE d.id = k.id RETURNING d.*
)
INSERT INTO leasegen.parked (consumer, resource, lane, message_id, topic, key, kind, payload, headers, published_at,
                             attempt, next_at, error)
SELECT g.consumer, g.resource, g.key, g.message_id, g.topic, g.key, g.kind, g.payload, g.headers, g.published_at,
       0, clock_timestamp(), ''
FROM gone g ORDER BY g.id
ON CONFLICT (consumer, resource, message_id) DO UPDATE SET attempt = 0, next_at = excluded.next_at, error = '';

-- name: PurgeDeadLetters :execrows
WITH locked AS (
    SELECT d.id FROM leasegen.dead_letter d WHERE d.id = ANY (sqlc.arg(ids)::bigint[]) ORDER BY d.id FOR UPDATE
)
DELETE FROM leasegen.dead_letter d USING locked k WHERE d.id = k.id;

-- name: FindParked :many
-- Parked messages that a filter selects, of so many beyond a place in the order of the index; with ids and a resource
-- those alone are looked at. The last row is how far it looked, and at how many.
WITH looked AS MATERIALIZED (
    (SELECT p.seq, p.resource, p.lane, p.key, p.message_id FROM leasegen.parked p
     WHERE sqlc.arg(resource)::text = '' AND p.consumer = sqlc.arg(consumer)::text
       AND (p.resource, p.lane, p.seq) > (sqlc.arg(after_resource)::text, sqlc.arg(after_lane)::text, sqlc.arg(after_seq)::bigint)
     ORDER BY p.resource, p.lane, p.seq LIMIT sqlc.arg(scan)::bigint)
    UNION ALL
    (SELECT p.seq, p.resource, p.lane, p.key, p.message_id FROM leasegen.parked p
     WHERE sqlc.arg(resource)::text <> '' AND cardinality(sqlc.arg(ids)::bigint[]) = 0
       AND p.consumer = sqlc.arg(consumer)::text AND p.resource = sqlc.arg(resource)::text
       AND (p.lane, p.seq) > (sqlc.arg(after_lane)::text, sqlc.arg(after_seq)::bigint)
     ORDER BY p.lane, p.seq LIMIT sqlc.arg(scan)::bigint)
    UNION ALL
    SELECT p.seq, p.resource, p.lane, p.key, p.message_id FROM leasegen.parked p
    WHERE sqlc.arg(resource)::text <> '' AND p.consumer = sqlc.arg(consumer)::text AND p.resource = sqlc.arg(resource)::text
      AND p.message_id = ANY (sqlc.arg(ids)::bigint[]) AND (p.lane, p.seq) > (sqlc.arg(after_lane)::text, sqlc.arg(after_seq)::bigint)
)
SELECT f.seq, f.resource, f.lane, f.looked FROM (
    (SELECT k.seq, k.resource, k.lane, 0::bigint AS looked FROM looked k
     WHERE (sqlc.arg(key)::text = '' OR k.key = sqlc.arg(key)::text)
       AND (cardinality(sqlc.arg(ids)::bigint[]) = 0 OR k.message_id = ANY (sqlc.arg(ids)::bigint[]))
     ORDER BY k.resource, k.lane, k.seq LIMIT sqlc.arg(max)::bigint)
    UNION ALL
    (SELECT k.seq, k.resource, k.lane, (SELECT count(*) FROM looked) FROM looked k
     ORDER BY k.resource DESC, k.lane DESC, k.seq DESC LIMIT 1)
) f
ORDER BY f.looked, f.resource, f.lane, f.seq;

-- name: ListParked :many
SELECT p.seq, p.resource, p.lane, p.message_id, p.topic, p.key, p.kind, octet_length(p.payload)::int AS size, p.attempt, p.next_at,
       p.failed_at, left(p.error, 1024)::text AS error,
       EXISTS (SELECT FROM leasegen.parked e
               WHERE e.consumer = p.consumer AND e.resource = p.resource AND e.lane = p.lane AND e.seq < p.seq)::boolean AS behind
FROM leasegen.parked p
WHERE p.seq = ANY (sqlc.arg(seqs)::bigint[])
ORDER BY p.resource, p.lane, p.seq;

-- name: RetryParked :execrows
-- The leases first, in the order in which commits lock them: so an owner's commit comes wholly before or after.
WITH held AS (
    SELECT l.resource FROM leasegen.lease l
    WHERE l.consumer = sqlc.arg(consumer)::text AND l.resource = ANY (sqlc.arg(resources)::text[])
    ORDER BY l.resource FOR NO KEY UPDATE
)
UPDATE leasegen.parked p SET next_at = least(p.next_at, clock_timestamp())
FROM held h
WHERE p.consumer = sqlc.arg(consumer)::text AND p.resource = h.resource AND p.seq = ANY (sqlc.arg(seqs)::bigint[]);

-- name: ForgetConsumer :execrows
-- The rows stay while the consumer has live members or dead letters.
WITH gone AS (
    SELECT c.name FROM leasegen.consumer c
    WHERE c.name = sqlc.arg(consumer)::text
      AND NOT EXISTS (SELECT FROM leasegen.dead_letter d WHERE d.consumer = c.name)
      AND NOT EXISTS (SELECT FROM leasegen.session s
                      WHERE s.state = 'live' AND s.expires_at > clock_timestamp() AND s.consumers OPERATOR(pg_catalog.@>) ARRAY[c.name])
    FOR UPDATE
), parked AS (
    DELETE FROM leasegen.parked p USING gone g WHERE p.consumer = g.name
), executed AS (
    DELETE FROM leasegen.once o USING gone g WHERE o.consumer = g.name
), paused AS (
    DELETE FROM leasegen.pause p USING gone g WHERE p.consumer = g.name
), leases AS (
    DELETE FROM leasegen.lease l USING gone g WHERE l.consumer = g.name
)
DELETE FROM leasegen.consumer c USING gone g WHERE c.name = g.name;
