-- name: Durable :exec
-- The rest of the transaction is on disk before it is answered, whatever the role's default.
SELECT set_config('synchronous_commit', 'on', true);

-- name: Notify :exec
SELECT pg_notify(sqlc.arg(channel)::text, sqlc.arg(payload)::text);

-- name: OpenSession :exec
INSERT INTO leasegen.session (id, host, pid, consumers, ttl, expires_at)
VALUES (sqlc.arg(id), sqlc.arg(host), sqlc.arg(pid), sqlc.arg(consumers)::text[], sqlc.arg(ttl)::interval,
        clock_timestamp() + sqlc.arg(ttl)::interval)
ON CONFLICT (id) DO NOTHING;

-- name: Heartbeat :execrows
UPDATE leasegen.session SET beat_at = clock_timestamp(), expires_at = clock_timestamp() + ttl
WHERE id = sqlc.arg(id) AND state = 'live' AND expires_at > clock_timestamp();

-- name: CloseSession :execrows
UPDATE leasegen.session SET state = 'closed' WHERE id = sqlc.arg(id) AND state = 'live';

-- name: LockSessionLeases :one
-- In the order that commits lock in.
SELECT count(*) AS leases FROM (
    SELECT FROM leasegen.lease l
    WHERE l.consumer = ANY (sqlc.arg(consumers)::text[]) AND l.session = sqlc.arg(session)::text
    ORDER BY l.consumer, l.resource FOR NO KEY UPDATE
) locked;

-- name: FreeSessionLeases :execrows
-- Rows stay, and with them the epochs.
UPDATE leasegen.lease l SET session = NULL
WHERE l.consumer = ANY (sqlc.arg(consumers)::text[]) AND l.session = sqlc.arg(session)::text;

-- name: LockSession :one
-- A key-share lock lets heartbeats pass and keeps BuryExpired away.
SELECT id FROM leasegen.session
WHERE id = sqlc.arg(id) AND state = 'live' AND expires_at > clock_timestamp()
FOR KEY SHARE;

-- name: BuryExpired :execrows
-- Moves sessions from live to dead, for good, under a lock that excludes heartbeats.
WITH expired AS (
    SELECT id FROM leasegen.session
    WHERE state = 'live' AND expires_at < clock_timestamp()
    FOR UPDATE SKIP LOCKED
)
UPDATE leasegen.session s SET state = 'dead' FROM expired e WHERE s.id = e.id;

-- name: NotifyIfBuried :exec
-- Tells the other members when this transaction moved a session.
SELECT pg_notify(sqlc.arg(channel)::text, sqlc.arg(payload)::text)
WHERE EXISTS (SELECT FROM leasegen.session s WHERE s.state = 'dead' AND s.xmin = pg_current_xact_id()::xid);
