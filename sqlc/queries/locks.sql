-- Advisory locks of sessions and of LockAdvisory consumers. All of this runs on the session's
-- own connection, to which these locks belong.

-- name: TryLock :one
SELECT pg_try_advisory_lock(sqlc.arg(key)::bigint)::boolean AS held;

-- name: ShowSign :one
-- The sign of a session that comes back, shared: others read who has it before they find a session dead. It is not waited for.
SELECT pg_try_advisory_lock_shared(hashtextextended('leasegen.back/' || sqlc.arg(id)::text, 0))::boolean AS shown;

-- name: HideSign :exec
SELECT pg_advisory_unlock_shared(hashtextextended('leasegen.back/' || sqlc.arg(id)::text, 0))
WHERE sqlc.arg(shown)::boolean;

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
-- The holders of the lock of a consumer. member: it is a session of it, or was until just now. former: it is the connection of a
-- session that has ended, lately or with its lock still held; a server process that began later with the same pid has not that
-- lock. The role of a connection that has ended since is empty.
SELECT h.pid::int AS pid, h.role::text AS role, h.application::text AS application,
       coalesce(bool_or(s.state = 'live' OR s.state = 'closed' AND s.expires_at > clock_timestamp() - interval '10 s'),
           false)::boolean AS member,
       coalesce(bool_or(s.state <> 'live' AND (s.expires_at > clock_timestamp() - interval '10 s' OR EXISTS (
           SELECT FROM leasegen.lock_holders(s.lock_key) k WHERE k.pid = h.pid AND k.exclusive))), false)::boolean AS former
FROM leasegen.lock_holders(sqlc.arg(key)::bigint) h
LEFT JOIN leasegen.session s ON s.backend_pid = h.pid AND coalesce(s.role = nullif(h.role, ''), true)
    AND s.consumers OPERATOR(pg_catalog.@>) ARRAY[sqlc.arg(consumer)::text]
GROUP BY h.pid, h.role, h.application;

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

-- name: PrepareWaiting :exec
-- A connection whose statements wait. The server ends it when its process does not go on soon after one.
SELECT set_config('idle_session_timeout', sqlc.arg(idle_ms)::bigint::text, false), set_config('statement_timeout', '0', false),
       set_config('lock_timeout', sqlc.arg(lock_ms)::bigint::text, false),
       CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL THEN set_config('transaction_timeout', '0', false) END;

-- name: HoldSecond :exec
-- The second lock of a session, shared: only its waiting connection has it so. Others read who holds it, and do not take it.
SELECT pg_advisory_lock_shared(hashtextextended('leasegen.second/' || sqlc.arg(id)::text, 0));

-- name: Aim :exec
-- Locks that the transaction waits for, and for how long: see WaitForLock and WaitForNudge.
SELECT set_config('lock_timeout', sqlc.arg(ms)::bigint::text, true), set_config('lease.watched', sqlc.arg(key)::bigint::text, true);

-- name: Nudge :exec
-- Ends the statements with which sessions wait: one whose process lives waits again, the connection of one that has died ends.
SELECT pg_cancel_backend(h.pid)
FROM (SELECT unnest(sqlc.arg(ids)::text[]) AS id) i
CROSS JOIN LATERAL leasegen.lock_holders(hashtextextended('leasegen.second/' || i.id, 0)) h
WHERE NOT h.exclusive AND h.role = current_user AND h.pid <> pg_backend_pid();

-- name: NudgeBefore :exec
-- Nudge for the session before one in the ring, which is to wait for that one from now on.
SELECT pg_cancel_backend(h.pid)
FROM (
    (SELECT s.id FROM leasegen.session s WHERE s.state = 'live' AND s.id < sqlc.arg(id)::text ORDER BY s.id DESC LIMIT 1)
    UNION ALL
    (SELECT s.id FROM leasegen.session s WHERE s.state = 'live' AND s.id > sqlc.arg(id)::text ORDER BY s.id DESC LIMIT 1)
    LIMIT 1
) i
CROSS JOIN LATERAL leasegen.lock_holders(hashtextextended('leasegen.second/' || i.id, 0)) h
WHERE NOT h.exclusive AND h.role = current_user AND h.pid <> pg_backend_pid();

-- name: WaitForLock :exec
-- Waits until the lock with the key lease.watched is free, at most for lock_timeout. That this is over, or that it was nudged,
-- is no error: the server would log it.
DO $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(current_setting('lease.watched')::bigint);
EXCEPTION WHEN lock_not_available OR query_canceled THEN
    NULL;
END $$;

-- name: WaitForNudge :exec
-- Waits for lock_timeout, or until it is nudged.
DO $$
BEGIN
    PERFORM pg_sleep_for(current_setting('lock_timeout')::interval);
EXCEPTION WHEN query_canceled THEN
    NULL;
END $$;
