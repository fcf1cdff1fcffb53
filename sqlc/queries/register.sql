-- name: ConsumerKind :one
SELECT c.per, c.source FROM leasegen.consumer c WHERE c.name = sqlc.arg(name)::text;

-- name: DescribeConsumer :exec
-- Writes only when something differs. A consumer that begins now, and is new, gets the present
-- as its start: the position and the snapshot of this statement, and an xid drawn after it,
-- which is why this is the first statement of its transaction that writes. The row that checkKind
-- refuses does not take effect here either. Patterns only join: members of another version read by
-- theirs. See NarrowConsumer.
INSERT INTO leasegen.consumer AS k (name, per, topics, likes, grace, lock, source, start_pos, start_snap, start_x)
SELECT sqlc.arg(name)::text, sqlc.arg(per)::text, sqlc.arg(topics)::text[], sqlc.arg(likes)::text[], sqlc.arg(grace)::interval,
       sqlc.arg(lock)::text, sqlc.arg(source)::text,
       CASE WHEN sqlc.arg(from_now)::boolean THEN coalesce((SELECT max(m.id) FROM leasegen.message m), 0) ELSE 0 END,
       CASE WHEN sqlc.arg(from_now)::boolean THEN pg_current_snapshot() END,
       CASE WHEN sqlc.arg(from_now)::boolean THEN pg_current_xact_id() END
WHERE NOT EXISTS (
    SELECT FROM leasegen.consumer c
    WHERE c.name = sqlc.arg(name)::text AND c.per = sqlc.arg(per)::text AND c.topics OPERATOR(pg_catalog.@>) sqlc.arg(topics)::text[]
      AND c.likes OPERATOR(pg_catalog.@>) sqlc.arg(likes)::text[] AND c.grace = sqlc.arg(grace)::interval
      AND c.lock = sqlc.arg(lock)::text AND c.source = sqlc.arg(source)::text)
ON CONFLICT (name) DO UPDATE SET per = excluded.per, grace = excluded.grace, lock = excluded.lock,
    topics = ARRAY(SELECT DISTINCT u.pattern FROM unnest(array_cat(k.topics, excluded.topics)) u (pattern) ORDER BY u.pattern),
    likes = ARRAY(SELECT DISTINCT u.pattern FROM unnest(array_cat(k.likes, excluded.likes)) u (pattern) ORDER BY u.pattern)
WHERE k.source = excluded.source;

-- name: ShareTopics :exec
-- Registering a consumer and dropping patterns that it no longer has exclude each other.
SELECT pg_advisory_xact_lock_shared(hashtextextended('leasegen.topics/' || sqlc.arg(consumer)::text, 0));

-- name: TryCloseTopics :one
-- The other side of ShareTopics; who cannot have it tries again later.
SELECT pg_try_advisory_xact_lock(hashtextextended('leasegen.topics/' || sqlc.arg(consumer)::text, 0)) AS closed;

-- name: UnwantedTopics :many
-- The patterns of a consumer that no session has had for a while. None while a session may have
-- others than it says, since it was opened by a program that does not say, or no member says anything.
SELECT u.pattern::text AS pattern
FROM leasegen.consumer c CROSS JOIN LATERAL unnest(c.topics) u (pattern)
WHERE c.name = sqlc.arg(consumer)::text AND c.source = ''
  AND EXISTS (SELECT FROM leasegen.session s WHERE s.expires_at > clock_timestamp() - sqlc.arg(kept)::interval AND s.topics ? c.name)
  AND NOT EXISTS (SELECT FROM leasegen.session s
                  WHERE s.expires_at > clock_timestamp() - sqlc.arg(kept)::interval AND c.name = ANY (s.consumers)
                    AND (NOT s.topics ? c.name OR s.topics -> c.name ? u.pattern));

-- name: NarrowConsumer :exec
UPDATE leasegen.consumer c
SET topics = ARRAY(SELECT u.pattern FROM unnest(c.topics) u (pattern) WHERE u.pattern <> ALL (sqlc.arg(topics)::text[]) ORDER BY u.pattern),
    likes = ARRAY(SELECT u.pattern FROM unnest(c.likes) u (pattern) WHERE u.pattern <> ALL (sqlc.arg(likes)::text[]) ORDER BY u.pattern)
WHERE c.name = sqlc.arg(consumer)::text;

-- name: RegisterResources :execrows
INSERT INTO leasegen.lease (consumer, resource, pos, snap, x)
SELECT c.name, r.resource, c.start_pos, c.start_snap, c.start_x
FROM (SELECT DISTINCT unnest(sqlc.arg(resources)::text[]) AS resource) r
JOIN leasegen.consumer c ON c.name = sqlc.arg(consumer)::text
WHERE NOT EXISTS (SELECT FROM leasegen.lease l WHERE l.consumer = c.name AND l.resource = r.resource)
ORDER BY r.resource COLLATE "C" -- replicas that register the same do not deadlock
ON CONFLICT DO NOTHING;

-- name: RegisterTopics :one
-- Topics of the log from one on, so many, found by one index descent each. last is empty at the end.
WITH RECURSIVE known AS (
    (SELECT m.topic, 1::bigint AS place FROM leasegen.message m WHERE m.topic >= sqlc.arg(first)::text ORDER BY m.topic LIMIT 1)
    UNION ALL
    SELECT n.topic, k.place + 1 FROM known k CROSS JOIN LATERAL (
        SELECT m.topic FROM leasegen.message m WHERE m.topic > k.topic ORDER BY m.topic LIMIT 1) n
    WHERE k.place < sqlc.arg(max)::bigint
), made AS (
    INSERT INTO leasegen.lease (consumer, resource, pos, snap, x)
    SELECT c.name, k.topic, c.start_pos, c.start_snap, c.start_x
    FROM known k JOIN leasegen.consumer c ON c.name = sqlc.arg(consumer)::text
    WHERE k.topic LIKE ANY (c.likes)
      AND (SELECT l.consumer FROM leasegen.lease l WHERE l.consumer = c.name AND l.resource = k.topic) IS NULL
    ORDER BY k.place
    ON CONFLICT DO NOTHING
)
SELECT coalesce((SELECT k.topic FROM known k WHERE k.place = sqlc.arg(max)::bigint), '')::text AS last;

-- name: RegisterSlots :execrows
INSERT INTO leasegen.lease (consumer, resource, pos, snap, x)
SELECT c.name, n.slot::text, c.start_pos, c.start_snap, c.start_x
FROM leasegen.consumer c
CROSS JOIN LATERAL (SELECT generate_series(0, o.slots - 1) AS slot FROM leasegen.origin o) n
WHERE c.name = sqlc.arg(consumer)::text
  AND NOT EXISTS (SELECT FROM leasegen.lease l WHERE l.consumer = c.name AND l.resource = n.slot::text)
ON CONFLICT DO NOTHING;

-- name: RegisterStreams :one
-- Streams become wanted; those that are cost a read. Tells the members when some became so. Every member hears of a message at
-- once: a row that another one is changing is not waited for, but returned, to be looked at again.
WITH asked AS (
    SELECT DISTINCT unnest(sqlc.arg(resources)::text[]) AS resource
), resting AS MATERIALIZED (
    SELECT l.resource FROM asked a JOIN leasegen.lease l ON l.consumer = sqlc.arg(consumer)::text AND l.resource = a.resource
    WHERE NOT l.wanted ORDER BY l.resource COLLATE "C" FOR NO KEY UPDATE OF l SKIP LOCKED
), roused AS (
    UPDATE leasegen.lease l SET wanted = true
    WHERE l.consumer = sqlc.arg(consumer)::text AND l.resource = ANY (ARRAY(SELECT r.resource FROM resting r)) AND NOT l.wanted
    RETURNING l.resource
), made AS (
    INSERT INTO leasegen.lease (consumer, resource, pos, snap, x)
    SELECT c.name, a.resource, c.start_pos, c.start_snap, c.start_x
    FROM asked a JOIN leasegen.consumer c ON c.name = sqlc.arg(consumer)::text
    WHERE NOT EXISTS (SELECT FROM leasegen.lease l WHERE l.consumer = c.name AND l.resource = a.resource)
    ORDER BY a.resource COLLATE "C"
    ON CONFLICT (consumer, resource) DO NOTHING
    RETURNING resource
)
SELECT ARRAY(
    SELECT l.resource FROM asked a JOIN leasegen.lease l ON l.consumer = sqlc.arg(consumer)::text AND l.resource = a.resource
    WHERE NOT l.wanted EXCEPT SELECT r.resource FROM resting r)::text[] AS left_over,
    (SELECT count(pg_notify(sqlc.arg(channel)::text, sqlc.arg(payload)::text))
     WHERE EXISTS (SELECT FROM made) OR EXISTS (SELECT FROM roused))::bigint AS told;

-- name: SweepStreams :one
-- Streams with work become wanted: keys of the log from one on, so many, found by one index descent
-- each, whose messages their cursor has not passed. The cursor's rule is that of stream_unread; no row
-- can be late for a snapshot that all transactions before x are visible in. last is empty at the
-- end.
WITH RECURSIVE known AS (
    (SELECT m.key, 1::bigint AS place FROM leasegen.message m WHERE m.key >= sqlc.arg(first)::text ORDER BY m.key LIMIT 1)
    UNION ALL
    SELECT n.key, k.place + 1 FROM known k CROSS JOIN LATERAL (
        SELECT m.key FROM leasegen.message m WHERE m.key > k.key ORDER BY m.key LIMIT 1) n
    WHERE k.place < sqlc.arg(max)::bigint
), made AS (
    INSERT INTO leasegen.lease (consumer, resource, pos, snap, x)
    SELECT c.name, k.key, c.start_pos, c.start_snap, c.start_x
    FROM known k
    JOIN leasegen.consumer c ON c.name = sqlc.arg(consumer)::text
    LEFT JOIN LATERAL (SELECT * FROM leasegen.lease l WHERE l.consumer = c.name AND l.resource = k.key OFFSET 0) l ON true
    CROSS JOIN LATERAL (
        SELECT CASE WHEN l.resource IS NULL THEN c.start_pos ELSE l.pos END AS pos,
               CASE WHEN l.resource IS NULL THEN c.start_snap ELSE l.snap END AS snap,
               CASE WHEN l.resource IS NULL THEN c.start_x ELSE l.x END AS x) at
    WHERE l.wanted IS DISTINCT FROM true
      AND (EXISTS (SELECT FROM leasegen.message m WHERE m.key = k.key AND m.id > at.pos AND m.topic LIKE ANY (c.likes))
        OR at.pos > (SELECT coalesce(pg_sequence_last_value('leasegen.message_id_seq'::regclass), 0)) -- the log was set back
        OR pg_snapshot_xmin(at.snap) < at.x AND (
            EXISTS (SELECT FROM (SELECT pg_snapshot_xip(at.snap) AS xid) r JOIN leasegen.message m ON m.xid = r.xid
                    WHERE m.key = k.key AND m.id + 0 <= at.pos AND m.topic LIKE ANY (c.likes))
            OR EXISTS (SELECT FROM leasegen.message m
                       WHERE m.xid >= pg_snapshot_xmax(at.snap) AND m.xid < at.x
                         AND m.key = k.key AND m.id + 0 <= at.pos AND m.topic LIKE ANY (c.likes))))
    ORDER BY k.place
    ON CONFLICT (consumer, resource) DO UPDATE SET wanted = true WHERE NOT lease.wanted
    RETURNING resource
), told AS (
    SELECT pg_notify(sqlc.arg(channel)::text, sqlc.arg(payload)::text) WHERE EXISTS (SELECT FROM made)
)
SELECT coalesce((SELECT k.key FROM known k WHERE k.place = sqlc.arg(max)::bigint), '')::text AS last, (SELECT count(*) FROM told) AS told;

-- name: SweepUnindexed :exec
-- The same for all keys at once, which count as having work, while the log has no index by key.
WITH made AS (
    INSERT INTO leasegen.lease (consumer, resource, pos, snap, x)
    SELECT c.name, k.key, c.start_pos, c.start_snap, c.start_x
    FROM leasegen.consumer c
    JOIN (SELECT DISTINCT m.key FROM leasegen.message m JOIN leasegen.consumer d ON d.name = sqlc.arg(consumer)::text
          WHERE m.topic LIKE ANY (d.likes)) k ON true
    WHERE c.name = sqlc.arg(consumer)::text
      AND NOT EXISTS (SELECT FROM leasegen.lease l WHERE l.consumer = c.name AND l.resource = k.key AND l.wanted)
    ORDER BY k.key
    ON CONFLICT (consumer, resource) DO UPDATE SET wanted = true WHERE NOT lease.wanted
    RETURNING resource
)
SELECT pg_notify(sqlc.arg(channel)::text, sqlc.arg(payload)::text) WHERE EXISTS (SELECT FROM made);

-- name: SweepParked :one
-- Streams with parked messages become wanted, from one on, so many.
WITH RECURSIVE known AS (
    (SELECT p.resource, 1::bigint AS place FROM leasegen.parked p
     WHERE p.consumer = sqlc.arg(consumer)::text AND p.resource >= sqlc.arg(first)::text ORDER BY p.resource, p.lane, p.seq LIMIT 1)
    UNION ALL
    SELECT n.resource, k.place + 1 FROM known k CROSS JOIN LATERAL (
        SELECT p.resource FROM leasegen.parked p
        WHERE p.consumer = sqlc.arg(consumer)::text AND p.resource > k.resource ORDER BY p.resource, p.lane, p.seq LIMIT 1) n
    WHERE k.place < sqlc.arg(max)::bigint
), made AS (
    UPDATE leasegen.lease l SET wanted = true
    WHERE l.consumer = sqlc.arg(consumer)::text AND l.resource = ANY (ARRAY(SELECT k.resource FROM known k)) AND NOT l.wanted
    RETURNING l.resource
), told AS (
    SELECT pg_notify(sqlc.arg(channel)::text, sqlc.arg(payload)::text) WHERE EXISTS (SELECT FROM made)
)
SELECT coalesce((SELECT k.resource FROM known k WHERE k.place = sqlc.arg(max)::bigint), '')::text AS last, (SELECT count(*) FROM told) AS told;

-- name: LogIndexed :one
SELECT (o.indexes OPERATOR(pg_catalog.@>) ARRAY[sqlc.arg(what)::text] AND NOT EXISTS (
    SELECT FROM leasegen.segment s WHERE to_regclass('leasegen.' || s.name || '_' || sqlc.arg(what)::text) IS NULL))::boolean AS done
FROM leasegen.origin o;

-- name: IndexLog :one
SELECT leasegen.index_log(sqlc.arg(what)::text)::int AS left_over;

-- name: SetSlots :exec
SELECT leasegen.set_slots(sqlc.arg(slots)::int);
