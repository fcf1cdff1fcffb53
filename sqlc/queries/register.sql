-- name: DescribeConsumer :exec
-- Writes only when something differs.
INSERT INTO leasegen.consumer (name, per, topics, likes, grace)
SELECT sqlc.arg(name)::text, sqlc.arg(per)::text, sqlc.arg(topics)::text[], sqlc.arg(likes)::text[], sqlc.arg(grace)::interval
WHERE NOT EXISTS (
    SELECT FROM leasegen.consumer c
    WHERE c.name = sqlc.arg(name)::text AND c.per = sqlc.arg(per)::text AND c.topics = sqlc.arg(topics)::text[]
      AND c.likes = sqlc.arg(likes)::text[] AND c.grace = sqlc.arg(grace)::interval)
ON CONFLICT (name) DO UPDATE SET per = excluded.per, topics = excluded.topics, likes = excluded.likes, grace = excluded.grace;

-- name: RegisterResources :execrows
INSERT INTO leasegen.lease (consumer, resource)
SELECT DISTINCT sqlc.arg(consumer)::text, r.resource
FROM (SELECT unnest(sqlc.arg(resources)::text[]) AS resource) r
WHERE NOT EXISTS (SELECT FROM leasegen.lease l WHERE l.consumer = sqlc.arg(consumer)::text AND l.resource = r.resource)
ON CONFLICT DO NOTHING;

-- name: RegisterLog :execrows
-- Every topic of the log, found by one index descent each.
WITH RECURSIVE known AS (
    (SELECT m.topic FROM leasegen.message m ORDER BY m.topic LIMIT 1)
    UNION ALL
    SELECT n.topic FROM known k CROSS JOIN LATERAL (
        SELECT m.topic FROM leasegen.message m WHERE m.topic > k.topic ORDER BY m.topic LIMIT 1) n
)
INSERT INTO leasegen.lease (consumer, resource)
SELECT sqlc.arg(consumer)::text, k.topic FROM known k
WHERE k.topic LIKE ANY (sqlc.arg(likes)::text[])
  AND NOT EXISTS (SELECT FROM leasegen.lease l WHERE l.consumer = sqlc.arg(consumer)::text AND l.resource = k.topic)
ON CONFLICT DO NOTHING;
