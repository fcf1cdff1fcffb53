-- name: Publish :one
-- The rows get their ids in the order of the arrays.
WITH published AS (
    INSERT INTO leasegen.message (topic, key, kind, payload, headers)
    SELECT e.topic, e.key, e.kind, e.payload, nullif(e.headers, '')::jsonb
    FROM (SELECT unnest(sqlc.arg(topics)::text[]) AS topic, unnest(sqlc.arg(keys)::text[]) AS key,
                 unnest(sqlc.arg(kinds)::text[]) AS kind, unnest(sqlc.arg(payloads)::bytea[]) AS payload,
                 unnest(sqlc.arg(headers)::text[]) AS headers) e
    RETURNING id
)
SELECT coalesce(max(id), 0)::bigint AS last FROM published;

-- name: PublishOne :one
-- The same for one event, without arrays to take apart.
INSERT INTO leasegen.message (topic, key, kind, payload, headers)
VALUES (sqlc.arg(topic), sqlc.arg(key), sqlc.arg(kind), sqlc.arg(payload), nullif(sqlc.arg(headers)::text, '')::jsonb)
RETURNING id;

-- name: PublishSelected :one
-- The same for events with ids, of which those published before are left out, and for delayed
-- events. Ids are claimed in their order, so that publishers of the same ones wait for each
-- other rather than deadlock.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), input AS MATERIALIZED (
    SELECT e.*, greatest(c.now + e.after::float8 * interval '1 microsecond', e.at) AS due
    FROM (SELECT unnest(sqlc.arg(topics)::text[]) AS topic, unnest(sqlc.arg(keys)::text[]) AS key,
                 unnest(sqlc.arg(kinds)::text[]) AS kind, unnest(sqlc.arg(payloads)::bytea[]) AS payload,
                 unnest(sqlc.arg(headers)::text[]) AS headers, unnest(sqlc.arg(event_ids)::text[]) AS id,
                 unnest(sqlc.arg(ats)::timestamptz[]) AS at, unnest(sqlc.arg(afters)::bigint[]) AS after,
                 generate_subscripts(sqlc.arg(topics)::text[], 1) AS place) e
    CROSS JOIN clock c
), claim AS (
    SELECT i.topic, i.id, min(i.place) AS place FROM input i WHERE i.id <> '' GROUP BY i.topic, i.id
), claimed AS (
    INSERT INTO leasegen.published_id AS p (topic, id)
    SELECT c.topic, c.id FROM claim c ORDER BY c.topic, c.id
    ON CONFLICT (topic, id) DO UPDATE SET at = clock_timestamp() WHERE p.at < clock_timestamp() - interval '7 days'
    RETURNING p.topic, p.id
), chosen AS MATERIALIZED (
    SELECT i.* FROM input i
    WHERE i.id = '' OR i.place IN (SELECT c.place FROM claim c JOIN claimed d ON d.topic = c.topic AND d.id = c.id)
), waiting AS (
    INSERT INTO leasegen.delayed (due_at, topic, key, kind, payload, headers)
    SELECT i.due, i.topic, i.key, i.kind, i.payload, nullif(i.headers, '')::jsonb
    FROM chosen i CROSS JOIN clock c WHERE i.due > c.now ORDER BY i.place
), published AS (
    INSERT INTO leasegen.message (topic, key, kind, payload, headers)
    SELECT i.topic, i.key, i.kind, i.payload, nullif(i.headers, '')::jsonb
    FROM chosen i CROSS JOIN clock c WHERE i.due <= c.now ORDER BY i.place
    RETURNING id
)
SELECT coalesce(max(id), 0)::bigint AS last FROM published;

-- name: NextDelayed :one
-- How long until the next delayed event is due; -1 when there is none.
SELECT coalesce((SELECT greatest(ceil(extract(epoch FROM d.due_at - clock_timestamp()) * 1000000.0), 0)
                 FROM leasegen.delayed d ORDER BY d.due_at, d.seq LIMIT 1), -1)::bigint AS micros;

-- name: ReleaseDelayed :one
-- Moves delayed events that are due into the log, if it is this transaction's turn.
SELECT r.moved::bigint AS moved, r.last::bigint AS last FROM leasegen.release_delayed(sqlc.arg(max)::bigint) r;

-- name: ForgetIDs :execrows
DELETE FROM leasegen.published_id
WHERE (topic, id) IN (SELECT p.topic, p.id FROM leasegen.published_id p
                      WHERE p.at < (SELECT clock_timestamp() - interval '7 days') ORDER BY p.at LIMIT sqlc.arg(max)::bigint);

-- name: SingleWriter :exec
SELECT pg_advisory_xact_lock(sqlc.arg(key)::bigint);
