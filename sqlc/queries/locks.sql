-- Advisory locks of sessions and of LockAdvisory consumers. All of this runs on the session's
-- own connection, to which these locks belong.

-- name: TryLock :one
SELECT pg_try_advisory_lock(sqlc.arg(key)::bigint)::boolean AS held;

-- name: TryLocks :one
-- Whether all of the locks were to be had.
SELECT coalesce(bool_and(pg_try_advisory_lock(k.key)), true)::boolean AS held
FROM (SELECT unnest(sqlc.arg(keys)::bigint[]) AS key) k;

-- name: Unlock :exec
SELECT pg_advisory_unlock(k.key) FROM (SELECT unnest(sqlc.arg(keys)::bigint[]) AS key) k;

-- name: LeasesUnchanged :one
-- Whether the leases of leaders have stayed as they were, each the one of its consumer.
SELECT (count(*) = cardinality(sqlc.arg(consumers)::text[]))::boolean AS unchanged
FROM (SELECT unnest(sqlc.arg(consumers)::text[]) AS consumer, unnest(sqlc.arg(epochs)::bigint[]) AS epoch) i
JOIN leasegen.lease l ON l.consumer = i.consumer AND l.resource = '*' AND l.epoch = i.epoch
WHERE l.session = sqlc.arg(session)::text;

-- name: EndHolders :exec
-- Ends the session's former connection, of which the lock was, if the server still has it.
SELECT pg_terminate_backend(h.pid, 1000) FROM leasegen.lock_holders(sqlc.arg(key)::bigint) h WHERE h.pid = sqlc.arg(pid)::int;

-- name: ConsumerHolders :many
-- The holders of the lock of a consumer, and whether each is a session of it, or was until just now.
SELECT h.pid::int AS pid, h.role::text AS role, h.application::text AS application,
       EXISTS (SELECT FROM leasegen.session s
               WHERE s.backend_pid = h.pid AND coalesce(s.role = h.role, true)
                 AND (s.state = 'live' OR s.state = 'closed' AND s.expires_at > clock_timestamp() - interval '10 s')
                 AND s.consumers OPERATOR(pg_catalog.@>) ARRAY[sqlc.arg(consumer)::text])::boolean AS member
FROM leasegen.lock_holders(sqlc.arg(key)::bigint) h;

-- name: NamedHolders :many
-- A holder of a lock whose key all processes calculate from its name, and which a transaction wants to share: it waits for
-- exclusive holders only.
SELECT h.pid::int AS pid, h.role::text AS role, h.application::text AS application
FROM leasegen.lock_holders(hashtextextended(sqlc.arg(name)::text, 0)) h
WHERE h.pid <> pg_backend_pid() AND h.exclusive
LIMIT 1;

-- name: BoundLocks :exec
-- No statement of the transaction waits longer for a lock.
SELECT set_config('lock_timeout', '5s', true);
