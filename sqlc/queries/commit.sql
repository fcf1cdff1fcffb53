-- name: CommitLeases :many
-- The fence: only leases that still have the epoch move, and their rows stay locked, so
-- that the statements after this one in the transaction find the same leases held. A lease
-- that has stored later progress stays as it is: seq tells the statements after this one.
-- Here and below the consumer comes with each row of the input, so that leases are found by their keys, or all of the table are joined at once.
-- Where the planner can look for those of the consumer, or of the session, and ANALYZE has seen few or none, it would compare each of them with
-- each row; coalesce hides the session from it.
WITH input AS MATERIALIZED (
    SELECT sqlc.arg(consumer)::text AS consumer,
           unnest(sqlc.arg(resources)::text[]) AS resource, unnest(sqlc.arg(epochs)::bigint[]) AS epoch,
           unnest(sqlc.arg(seqs)::bigint[]) AS seq,
           unnest(sqlc.arg(moved)::boolean[]) AS moved, unnest(sqlc.arg(positions)::bigint[]) AS pos,
           unnest(sqlc.arg(snaps)::text[]) AS snap, unnest(sqlc.arg(xs)::text[]) AS x,
           unnest(sqlc.arg(late_snaps)::text[]) AS late_snap, unnest(sqlc.arg(late_positions)::bigint[]) AS late_pos,
           unnest(sqlc.arg(marks)::bigint[]) AS mark, unnest(sqlc.arg(trusts)::boolean[]) AS trust
), held AS MATERIALIZED (
    SELECT i.*, (i.seq >= l.seq OR l.seq_epoch <> l.epoch)::boolean AS timely
    FROM input i JOIN leasegen.lease l ON l.consumer = i.consumer AND l.resource = i.resource AND l.epoch = i.epoch
    WHERE coalesce(l.session = sqlc.arg(session)::text, false)
    ORDER BY l.resource FOR NO KEY UPDATE OF l
), stored AS (
    UPDATE leasegen.lease l
    SET seq = i.seq, seq_epoch = l.epoch,
        pos = CASE WHEN i.moved THEN i.pos ELSE l.pos END,
        snap = CASE WHEN i.moved THEN nullif(i.snap, '')::pg_snapshot ELSE l.snap END,
        x = CASE WHEN i.moved THEN nullif(i.x, '')::xid8 ELSE l.x END,
        late_snap = CASE WHEN i.moved THEN nullif(i.late_snap, '')::pg_snapshot ELSE l.late_snap END,
        late_pos = CASE WHEN i.moved THEN i.late_pos ELSE l.late_pos END,
        -- One owner counts once, however often it marks the same message.
        mark_count = CASE WHEN i.mark = 0 THEN 0 WHEN l.mark IS DISTINCT FROM i.mark THEN 1
                          WHEN l.mark_epoch = l.epoch THEN l.mark_count ELSE l.mark_count + 1 END,
        mark_epoch = CASE WHEN i.mark <> 0 THEN l.epoch END,
        mark = nullif(i.mark, 0),
        suspicion = CASE WHEN i.trust THEN 0 ELSE l.suspicion END
    FROM held i
    WHERE i.timely AND l.consumer = i.consumer AND l.resource = i.resource
)
SELECT h.resource::text AS resource FROM held h;

-- name: CommitLease :execrows
-- The same for one lease alone, the common case in an effect transaction. No row is
-- updated when the lease is no longer held, or has stored later progress.
UPDATE leasegen.lease l
SET seq = sqlc.arg(seq)::bigint, seq_epoch = l.epoch,
    pos = CASE WHEN sqlc.arg(moved)::boolean THEN sqlc.arg(position)::bigint ELSE l.pos END,
    snap = CASE WHEN sqlc.arg(moved)::boolean THEN nullif(sqlc.arg(snap)::text, '')::pg_snapshot ELSE l.snap END,
    x = CASE WHEN sqlc.arg(moved)::boolean THEN nullif(sqlc.arg(x)::text, '')::xid8 ELSE l.x END,
    late_snap = CASE WHEN sqlc.arg(moved)::boolean THEN nullif(sqlc.arg(late_snap)::text, '')::pg_snapshot ELSE l.late_snap END,
    late_pos = CASE WHEN sqlc.arg(moved)::boolean THEN sqlc.arg(late_position)::bigint ELSE l.late_pos END,
    mark_count = CASE WHEN sqlc.arg(mark)::bigint = 0 THEN 0 WHEN l.mark IS DISTINCT FROM sqlc.arg(mark)::bigint THEN 1
                      WHEN l.mark_epoch = l.epoch THEN l.mark_count ELSE l.mark_count + 1 END,
    mark_epoch = CASE WHEN sqlc.arg(mark)::bigint <> 0 THEN l.epoch END,
    mark = nullif(sqlc.arg(mark)::bigint, 0),
    suspicion = CASE WHEN sqlc.arg(trust)::boolean THEN 0 ELSE l.suspicion END
WHERE l.consumer = sqlc.arg(consumer)::text AND l.resource = sqlc.arg(resource)::text
  AND l.session = sqlc.arg(session)::text AND l.epoch = sqlc.arg(epoch)::bigint
  AND (sqlc.arg(seq)::bigint >= l.seq OR l.seq_epoch <> l.epoch)
  AND set_config('synchronous_commit', 'on', true) = 'on';

-- name: HoldsLease :one
SELECT EXISTS (SELECT FROM leasegen.lease l
               WHERE l.consumer = sqlc.arg(consumer)::text AND l.resource = sqlc.arg(resource)::text
                 AND l.session = sqlc.arg(session)::text AND l.epoch = sqlc.arg(epoch)::bigint)::boolean AS held;

-- name: ParkAgain :exec
WITH input AS MATERIALIZED (
    SELECT sqlc.arg(consumer)::text AS consumer, unnest(sqlc.arg(resources)::text[]) AS resource, unnest(sqlc.arg(epochs)::bigint[]) AS epoch,
           unnest(sqlc.arg(seqs)::bigint[]) AS seq,
           unnest(sqlc.arg(ids)::bigint[]) AS id, unnest(sqlc.arg(attempts)::int[]) AS attempt,
           unnest(sqlc.arg(micros)::bigint[]) AS micros, unnest(sqlc.arg(errors)::text[]) AS error
)
UPDATE leasegen.parked p
SET attempt = i.attempt, error = i.error,
    next_at = clock_timestamp() + i.micros::float8 * interval '1 microsecond',
    failed_at = coalesce(p.failed_at, CASE WHEN i.attempt > 0 THEN clock_timestamp() END),
    since = CASE WHEN i.attempt > p.attempt OR i.error <> p.error THEN clock_timestamp() ELSE p.since END
FROM input i
JOIN leasegen.lease l ON l.consumer = i.consumer AND l.resource = i.resource
    AND l.epoch = i.epoch AND coalesce(l.session = sqlc.arg(session)::text, false) AND l.seq = i.seq
WHERE p.consumer = i.consumer AND p.resource = i.resource AND p.message_id = i.id;

-- name: ParkNew :exec
-- Copies messages from the log, in the order given.
WITH input AS MATERIALIZED (
    SELECT sqlc.arg(consumer)::text AS consumer, unnest(sqlc.arg(resources)::text[]) AS resource, unnest(sqlc.arg(epochs)::bigint[]) AS epoch,
           unnest(sqlc.arg(seqs)::bigint[]) AS seq,
           unnest(sqlc.arg(ids)::bigint[]) AS id, unnest(sqlc.arg(attempts)::int[]) AS attempt,
           unnest(sqlc.arg(micros)::bigint[]) AS micros, unnest(sqlc.arg(errors)::text[]) AS error,
           unnest(sqlc.arg(lanes)::text[]) AS lane, generate_subscripts(sqlc.arg(ids)::bigint[], 1) AS place
)
INSERT INTO leasegen.parked (consumer, resource, lane, message_id, topic, key, kind, payload, headers, published_at,
                             attempt, next_at, failed_at, error)
SELECT l.consumer, l.resource, i.lane, m.id, m.topic, m.key, m.kind, m.payload, m.headers, m.published_at,
       i.attempt, clock_timestamp() + i.micros::float8 * interval '1 microsecond',
       CASE WHEN i.attempt > 0 THEN clock_timestamp() END, i.error
FROM input i
JOIN leasegen.lease l ON l.consumer = i.consumer AND l.resource = i.resource
    AND l.epoch = i.epoch AND coalesce(l.session = sqlc.arg(session)::text, false) AND l.seq = i.seq
JOIN leasegen.message m ON m.id = i.id
ORDER BY i.place
ON CONFLICT (consumer, resource, message_id) DO NOTHING;

-- name: ParkedDone :exec
WITH input AS MATERIALIZED (
    SELECT sqlc.arg(consumer)::text AS consumer, unnest(sqlc.arg(resources)::text[]) AS resource, unnest(sqlc.arg(epochs)::bigint[]) AS epoch,
           unnest(sqlc.arg(seqs)::bigint[]) AS seq,
           unnest(sqlc.arg(ids)::bigint[]) AS id
)
DELETE FROM leasegen.parked p
USING input i
JOIN leasegen.lease l ON l.consumer = i.consumer AND l.resource = i.resource
    AND l.epoch = i.epoch AND coalesce(l.session = sqlc.arg(session)::text, false) AND l.seq = i.seq
WHERE p.consumer = i.consumer AND p.resource = i.resource AND p.message_id = i.id;

-- name: GiveUp :exec
-- Moves messages, from the log or parked, to the dead letters. A repeated call finds
-- them there.
WITH input AS MATERIALIZED (
    SELECT sqlc.arg(consumer)::text AS consumer, unnest(sqlc.arg(resources)::text[]) AS resource, unnest(sqlc.arg(epochs)::bigint[]) AS epoch,
           unnest(sqlc.arg(seqs)::bigint[]) AS seq,
           unnest(sqlc.arg(ids)::bigint[]) AS id, unnest(sqlc.arg(attempts)::int[]) AS attempts,
           unnest(sqlc.arg(reasons)::text[]) AS reason, generate_subscripts(sqlc.arg(ids)::bigint[], 1) AS place
), dead AS MATERIALIZED (
    SELECT i.* FROM input i
    JOIN leasegen.lease l ON l.consumer = i.consumer AND l.resource = i.resource
        AND l.epoch = i.epoch AND coalesce(l.session = sqlc.arg(session)::text, false) AND l.seq = i.seq
), gone AS (
    DELETE FROM leasegen.parked p USING dead d
    WHERE p.consumer = d.consumer AND p.resource = d.resource AND p.message_id = d.id
    RETURNING p.*
), content AS ( -- each of those gone is one of the dead; a full join compares no row with each other one
    SELECT d.resource, d.id, d.attempts, d.reason, d.place, g.failed_at,
           coalesce(g.topic, m.topic) AS topic, coalesce(g.key, m.key) AS key, coalesce(g.kind, m.kind) AS kind,
           coalesce(g.payload, m.payload) AS payload, coalesce(g.headers, m.headers) AS headers, coalesce(g.published_at, m.published_at) AS published_at
    FROM dead d FULL JOIN gone g ON g.resource = d.resource AND g.message_id = d.id
    LEFT JOIN leasegen.message m ON m.id = d.id AND g.message_id IS NULL
    WHERE g.message_id IS NOT NULL OR m.id IS NOT NULL
)
INSERT INTO leasegen.dead_letter (consumer, resource, message_id, topic, key, kind, payload, headers, published_at,
                                  failed_at, attempts, reason)
SELECT sqlc.arg(consumer)::text, c.resource, c.id, c.topic, c.key, c.kind, c.payload, c.headers, c.published_at,
       coalesce(c.failed_at, clock_timestamp()), c.attempts, c.reason
FROM content c
ORDER BY c.place
ON CONFLICT (consumer, resource, message_id) DO NOTHING;

-- name: DueLanes :many
-- Parked messages whose wait is over, the longest over first, from a place on, so many at most. Of
-- them the heads of lanes that the session owns come back, and as the last row how far this looked
-- and at how many. Which of the messages of a lane is its head one index descent tells.
-- In a pipeline with NextLane both go by the time at which it began: a message that becomes due between the two is
-- reported by the second.
WITH looked AS MATERIALIZED (
    SELECT p.next_at, p.seq, p.resource, p.lane FROM leasegen.parked p
    WHERE p.consumer = sqlc.arg(consumer)::text AND p.next_at <= now()
      AND (p.next_at, p.seq) > (sqlc.arg(after_at)::timestamptz, sqlc.arg(after_seq)::bigint)
    ORDER BY p.next_at, p.seq LIMIT sqlc.arg(scan)::bigint
)
SELECT k.next_at, k.seq, k.resource, k.lane, 0::bigint AS looked FROM looked k
WHERE NOT k.resource = ANY (sqlc.arg(exclude)::text[])
  AND (SELECT l.session FROM leasegen.lease l WHERE l.consumer = sqlc.arg(consumer)::text AND l.resource = k.resource) = sqlc.arg(session)::text
  AND k.seq = (SELECT h.seq FROM leasegen.parked h
               WHERE h.consumer = sqlc.arg(consumer)::text AND (h.resource, h.lane, h.seq) >= (k.resource, k.lane, 0)
               ORDER BY h.resource, h.lane, h.seq LIMIT 1)
UNION ALL
(SELECT k.next_at, k.seq, '', '', (SELECT count(*) FROM looked) FROM looked k ORDER BY k.next_at DESC, k.seq DESC LIMIT 1);

-- name: NextLane :one
-- In how many microseconds the next lane that the session owns is due, or, where many messages wait
-- that are none's head, at least; -1 when none waits.
WITH waiting AS MATERIALIZED (
    SELECT p.next_at, p.seq, p.resource, p.lane FROM leasegen.parked p
    WHERE p.consumer = sqlc.arg(consumer)::text AND p.next_at > now()
    ORDER BY p.next_at, p.seq LIMIT sqlc.arg(scan)::bigint
)
SELECT (CASE WHEN n.at IS NULL THEN -1 ELSE greatest(extract(epoch FROM n.at - clock_timestamp()) * 1000000.0, 0) END)::bigint AS micros
FROM (SELECT coalesce(
    (SELECT k.next_at FROM waiting k
     WHERE NOT k.resource = ANY (sqlc.arg(exclude)::text[])
       AND (SELECT l.session FROM leasegen.lease l WHERE l.consumer = sqlc.arg(consumer)::text AND l.resource = k.resource) = sqlc.arg(session)::text
       AND k.seq = (SELECT h.seq FROM leasegen.parked h
                    WHERE h.consumer = sqlc.arg(consumer)::text AND (h.resource, h.lane, h.seq) >= (k.resource, k.lane, 0)
                    ORDER BY h.resource, h.lane, h.seq LIMIT 1)
     LIMIT 1),
    (SELECT max(k.next_at) FROM waiting k HAVING count(*) = sqlc.arg(scan)::bigint)) AS at) n;

-- name: ParkedLanes :many
-- The head of each lane of some resources that the session owns, found by one index descent each,
-- soonest first; of one resource at most so many.
WITH RECURSIVE head AS (
    SELECT n.resource, n.lane, n.next_at
    FROM (SELECT DISTINCT unnest(sqlc.arg(resources)::text[]) AS resource) r
    CROSS JOIN LATERAL (
        SELECT p.resource, p.lane, p.next_at FROM leasegen.parked p
        WHERE p.consumer = sqlc.arg(consumer)::text AND (p.resource, p.lane) >= (r.resource, '') AND p.resource <= r.resource
        ORDER BY p.resource, p.lane, p.seq LIMIT 1) n
    UNION ALL
    SELECT n.resource, n.lane, n.next_at FROM head h CROSS JOIN LATERAL (
        SELECT p.resource, p.lane, p.next_at FROM leasegen.parked p
        WHERE p.consumer = sqlc.arg(consumer)::text AND (p.resource, p.lane) > (h.resource, h.lane) AND p.resource <= h.resource
        ORDER BY p.resource, p.lane, p.seq LIMIT 1) n
)
SELECT o.resource, o.lane,
       greatest(extract(epoch FROM o.next_at - clock_timestamp()) * 1000000.0, 0)::bigint AS due_in_micros
FROM (
    SELECT h.resource, h.lane, h.next_at,
           row_number() OVER (PARTITION BY h.resource ORDER BY h.next_at, h.lane) AS place
    FROM head h
    JOIN leasegen.lease l ON l.consumer = sqlc.arg(consumer)::text AND l.resource = h.resource
    WHERE l.session = sqlc.arg(session)::text AND NOT h.resource = ANY (sqlc.arg(exclude)::text[])
) o
WHERE o.place <= sqlc.arg(per_resource)::bigint
ORDER BY o.next_at, o.resource, o.lane
LIMIT sqlc.arg(max)::bigint;

-- name: FetchParked :many
SELECT i.item::int AS item, p.message_id, p.topic, p.key, p.kind,
       (CASE WHEN octet_length(p.payload) <= sqlc.arg(max_payload)::int THEN p.payload END)::bytea AS payload,
       octet_length(p.payload)::int AS size, coalesce(p.headers::text, '')::text AS headers, p.published_at, p.attempt,
       p.error, (p.next_at <= clock_timestamp())::boolean AS due,
       (extract(epoch FROM clock_timestamp() - p.since) * 1000000.0)::bigint AS waited_micros
FROM (SELECT unnest(sqlc.arg(items)::int[]) AS item, unnest(sqlc.arg(resources)::text[]) AS resource,
             unnest(sqlc.arg(lanes)::text[]) AS lane) i
CROSS JOIN LATERAL (
    SELECT p.* FROM leasegen.parked p
    WHERE p.consumer = sqlc.arg(consumer)::text AND (p.resource, p.lane, p.seq) > (i.resource, i.lane, 0)
      AND (p.resource, p.lane, p.seq) <= (i.resource, i.lane, 9223372036854775807)
    ORDER BY p.resource, p.lane, p.seq LIMIT sqlc.arg(per_lane)::bigint
) p
ORDER BY i.item, p.seq
LIMIT sqlc.arg(max)::bigint;
