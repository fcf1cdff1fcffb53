-- name: ListConsumers :many
SELECT c.name, c.per,
       (SELECT count(*) FROM leasegen.session s
        WHERE s.state = 'live' AND s.expires_at > clock_timestamp() AND s.consumers @> ARRAY[c.name]) AS members,
       (SELECT count(*) FROM (
            SELECT DISTINCT p.resource, p.lane FROM leasegen.parked p WHERE p.consumer = c.name) k) AS lanes,
       (SELECT count(*) FROM leasegen.dead_letter d WHERE d.consumer = c.name) AS dead_letters
FROM leasegen.consumer c ORDER BY c.name;

-- name: LeaseLags :many
-- Leases with how many messages each is behind, counted up to a bound.
SELECT l.resource, coalesce(CASE WHEN s.state = 'live' AND s.expires_at > clock_timestamp() THEN l.session END, '')::text AS session,
       l.epoch, coalesce(extract(epoch FROM clock_timestamp() - l.acquired_at), 0)::float8 AS since,
       CASE c.per
           WHEN 'topic' THEN (SELECT count(*) FROM (
               SELECT FROM leasegen.message m WHERE m.topic = l.resource AND m.id > l.pos LIMIT sqlc.arg(bound)::bigint) b)
           WHEN 'group' THEN (SELECT count(*) FROM (
               SELECT FROM leasegen.message m WHERE m.id > l.pos AND m.topic LIKE ANY (c.likes) LIMIT sqlc.arg(bound)::bigint) b)
           ELSE 0
       END::bigint AS lag,
       coalesce(p.parked, 0)::bigint AS parked, l.suspicion
FROM leasegen.lease l
JOIN leasegen.consumer c ON c.name = l.consumer
LEFT JOIN leasegen.session s ON s.id = l.session
LEFT JOIN (SELECT k.resource, count(*) AS parked FROM leasegen.parked k
           WHERE k.consumer = sqlc.arg(consumer)::text GROUP BY k.resource) p ON p.resource = l.resource
WHERE l.consumer = sqlc.arg(consumer)::text
ORDER BY lag DESC, l.resource
LIMIT nullif(sqlc.arg(max)::bigint, 0);

-- name: ListMembers :many
SELECT s.id, s.host, s.pid, extract(epoch FROM now.at - s.opened_at)::float8 AS since,
       extract(epoch FROM now.at - s.beat_at)::float8 AS since_beat,
       extract(epoch FROM s.expires_at - now.at)::float8 AS remaining,
       (SELECT count(*) FROM leasegen.lease l WHERE l.consumer = sqlc.arg(consumer)::text AND l.session = s.id) AS owned,
       (SELECT count(*) FROM leasegen.lease l WHERE l.consumer = sqlc.arg(consumer)::text) AS resources
FROM leasegen.session s CROSS JOIN (SELECT clock_timestamp() AS at) now
WHERE s.state = 'live' AND s.expires_at > now.at AND s.consumers @> ARRAY[sqlc.arg(consumer)::text]
ORDER BY s.opened_at, s.id;

-- name: ListDeadLetters :many
SELECT d.id, d.consumer, d.resource, d.message_id, d.topic, d.key, d.kind,
       (CASE WHEN sqlc.arg(with_payload)::boolean THEN d.payload END)::bytea AS payload,
       octet_length(d.payload)::int AS size, coalesce(d.headers::text, '')::text AS headers,
       d.published_at, d.failed_at, d.dead_at, d.attempts, d.reason
FROM leasegen.dead_letter d
WHERE (sqlc.arg(consumer)::text = '' OR d.consumer = sqlc.arg(consumer)::text)
  AND (cardinality(sqlc.arg(ids)::bigint[]) = 0 OR d.id = ANY (sqlc.arg(ids)::bigint[]))
  AND (sqlc.arg(topic)::text = '' OR d.topic LIKE sqlc.arg(topic)::text)
  AND (sqlc.arg(key)::text = '' OR d.key = sqlc.arg(key)::text)
  AND (sqlc.arg(reason)::text = '' OR d.reason LIKE sqlc.arg(reason)::text)
ORDER BY d.id LIMIT nullif(sqlc.arg(max)::bigint, 0);

-- name: ReplayDeadLetters :execrows
WITH picked AS (
    SELECT d.id FROM leasegen.dead_letter d
    WHERE (sqlc.arg(consumer)::text = '' OR d.consumer = sqlc.arg(consumer)::text)
      AND (cardinality(sqlc.arg(ids)::bigint[]) = 0 OR d.id = ANY (sqlc.arg(ids)::bigint[]))
      AND (sqlc.arg(topic)::text = '' OR d.topic LIKE sqlc.arg(topic)::text)
      AND (sqlc.arg(key)::text = '' OR d.key = sqlc.arg(key)::text)
      AND (sqlc.arg(reason)::text = '' OR d.reason LIKE sqlc.arg(reason)::text)
    ORDER BY d.id LIMIT nullif(sqlc.arg(max)::bigint, 0)
    FOR UPDATE
), gone AS (
    DELETE FROM leasegen.dead_letter d USING picked p WHERE d.id = p.id RETURNING d.*
)
INSERT INTO leasegen.parked (consumer, resource, lane, message_id, topic, key, kind, payload, headers, published_at,
                             attempt, next_at, error)
SELECT g.consumer, g.resource, g.key, g.message_id, g.topic, g.key, g.kind, g.payload, g.headers, g.published_at,
       0, clock_timestamp(), ''
FROM gone g ORDER BY g.id
ON CONFLICT (consumer, resource, message_id) DO UPDATE SET attempt = 0, next_at = excluded.next_at, error = '';

-- name: PurgeDeadLetters :execrows
WITH picked AS (
    SELECT d.id FROM leasegen.dead_letter d
    WHERE (sqlc.arg(consumer)::text = '' OR d.consumer = sqlc.arg(consumer)::text)
      AND (cardinality(sqlc.arg(ids)::bigint[]) = 0 OR d.id = ANY (sqlc.arg(ids)::bigint[]))
      AND (sqlc.arg(topic)::text = '' OR d.topic LIKE sqlc.arg(topic)::text)
      AND (sqlc.arg(key)::text = '' OR d.key = sqlc.arg(key)::text)
      AND (sqlc.arg(reason)::text = '' OR d.reason LIKE sqlc.arg(reason)::text)
    ORDER BY d.id LIMIT nullif(sqlc.arg(max)::bigint, 0)
    FOR UPDATE
)
DELETE FROM leasegen.dead_letter d USING picked p WHERE d.id = p.id;
