-- name: Durable :exec
-- The rest of the transaction is on disk before it is answered, whatever the role's default.
SELECT set_config('synchronous_commit', 'on', true);

-- name: Hasty :exec
-- The transaction is answered, and its notifications are sent, before it is on disk.
SELECT set_config('synchronous_commit', 'off', true);

-- name: Notify :exec
SELECT pg_notify(sqlc.arg(channel)::text, sqlc.arg(payload)::text);

-- name: GuardConnection :exec
-- The server ends the connection of a process that is frozen or unreachable after about ttl.
SELECT set_config('idle_session_timeout', sqlc.arg(ttl_ms)::bigint::text, false),
       set_config('tcp_user_timeout', sqlc.arg(ttl_ms)::bigint::text, false),
       set_config('tcp_keepalives_idle', sqlc.arg(keepalive_s)::int::text, false),
       set_config('tcp_keepalives_interval', '1', false),
       set_config('tcp_keepalives_count', '3', false);

-- name: OpenSession :execrows
-- lock_key is 0 where there is no lock. A repeated call, over another connection, holds another.
INSERT INTO leasegen.session (id, host, pid, consumers, topics, ttl, expires_at, advisory, lock_key, backend_pid, server)
SELECT sqlc.arg(id), sqlc.arg(host), sqlc.arg(pid), sqlc.arg(consumers)::text[], sqlc.arg(topics)::text::jsonb, sqlc.arg(ttl)::interval,
       CASE WHEN sqlc.arg(advisory)::boolean THEN 'infinity' ELSE clock_timestamp() + sqlc.arg(ttl)::interval END,
       sqlc.arg(advisory)::boolean, nullif(sqlc.arg(lock_key)::bigint, 0),
       CASE WHEN sqlc.arg(lock_key)::bigint <> 0 THEN pg_backend_pid() END,
       CASE WHEN sqlc.arg(lock_key)::bigint <> 0 THEN leasegen.incarnation() END
ON CONFLICT (id) DO UPDATE SET lock_key = excluded.lock_key, backend_pid = excluded.backend_pid, server = excluded.server
WHERE session.state = 'live' AND session.expires_at > clock_timestamp();

-- name: EndReplaced :exec
-- Ends a session for good; one that was never opened, too: the request for it may be on its way.
INSERT INTO leasegen.session (id, host, pid, consumers, ttl, expires_at, state)
VALUES (sqlc.arg(id), sqlc.arg(host), sqlc.arg(pid), sqlc.arg(consumers)::text[], sqlc.arg(ttl)::interval, clock_timestamp(), 'closed')
ON CONFLICT (id) DO UPDATE SET state = 'closed', expires_at = least(session.expires_at, clock_timestamp())
WHERE session.state = 'live';

-- name: LockReplacedLeases :one
-- In the order that commits lock in.
SELECT count(*) AS leases FROM (
    SELECT FROM leasegen.lease l
    WHERE l.consumer = ANY (ARRAY(SELECT unnest(s.consumers) FROM leasegen.session s WHERE s.id = sqlc.arg(session)::text))
      AND l.session = sqlc.arg(session)::text AND l.wanted
    ORDER BY l.consumer, l.resource FOR NO KEY UPDATE
) locked;

-- name: FreeReplacedLeases :execrows
UPDATE leasegen.lease l SET session = NULL
WHERE l.consumer = ANY (ARRAY(SELECT unnest(s.consumers) FROM leasegen.session s WHERE s.id = sqlc.arg(session)::text))
  AND l.session = sqlc.arg(session)::text AND l.wanted;

-- name: RejoinSession :execrows
-- A session that lost its connection goes on under the lock that its new one holds.
UPDATE leasegen.session
SET lock_key = nullif(sqlc.arg(lock_key)::bigint, 0),
    backend_pid = CASE WHEN sqlc.arg(lock_key)::bigint <> 0 THEN pg_backend_pid() END,
    server = CASE WHEN sqlc.arg(lock_key)::bigint <> 0 THEN leasegen.incarnation() END
WHERE id = sqlc.arg(id) AND state = 'live' AND expires_at > clock_timestamp();

-- name: Heartbeat :execrows
UPDATE leasegen.session SET beat_at = clock_timestamp(), expires_at = clock_timestamp() + ttl
WHERE id = sqlc.arg(id) AND state = 'live' AND expires_at > clock_timestamp();

-- name: SessionHeld :one
-- The heartbeat of a session that lives by its lock writes no rows.
SELECT EXISTS (SELECT FROM leasegen.session
               WHERE id = sqlc.arg(id) AND state = 'live' AND backend_pid = pg_backend_pid())::boolean AS held;

-- name: CloseSession :execrows
UPDATE leasegen.session SET state = 'closed', expires_at = least(expires_at, clock_timestamp())
WHERE id = sqlc.arg(id) AND state = 'live';

-- name: LockSessionLeases :one
-- In the order that commits lock in.
SELECT count(*) AS leases FROM (
    SELECT FROM leasegen.lease l
    WHERE l.consumer = ANY (sqlc.arg(consumers)::text[]) AND l.session = sqlc.arg(session)::text AND l.wanted
    ORDER BY l.consumer, l.resource FOR NO KEY UPDATE
) locked;

-- name: FreeSessionLeases :execrows
-- Rows stay, and with them the epochs.
UPDATE leasegen.lease l SET session = NULL
WHERE l.consumer = ANY (sqlc.arg(consumers)::text[]) AND l.session = sqlc.arg(session)::text AND l.wanted;

-- name: LockSession :one
-- A key-share lock lets heartbeats pass and keeps BuryExpired away.
SELECT id FROM leasegen.session
WHERE id = sqlc.arg(id) AND state = 'live' AND expires_at > clock_timestamp()
FOR KEY SHARE;

-- name: BuryExpired :execrows
-- Moves sessions from live to dead, for good, under a lock that excludes heartbeats. It waits
-- for others that do the same: what they bury is to be found dead by the next statement.
WITH expired AS (
    SELECT id FROM leasegen.session
    WHERE state = 'live' AND expires_at < clock_timestamp()
    ORDER BY id FOR UPDATE
)
UPDATE leasegen.session s SET state = 'dead' FROM expired e WHERE s.id = e.id;

-- name: NotifyIfBuried :exec
-- Tells the other members when this transaction moved a session.
SELECT pg_notify(sqlc.arg(channel)::text, sqlc.arg(payload)::text)
WHERE EXISTS (SELECT FROM leasegen.session s WHERE s.state = 'dead' AND s.xmin = pg_current_xact_id_if_assigned()::xid);

-- name: LookAround :many
-- The eight live sessions that follow one in the ring, and itself while it lives. key is 0 where there is no lock.
-- proves: when the lock is free, that is for the end of the connection that held it. gone: it is free. answers: it is, and the
-- second lock is held by another connection of the same role. comes: it is, and a connection comes back with the session's sign.
-- remaining: seconds until the session expires. ends, in the row of its own: Ends.
SELECT s.id, 0::bigint AS key, false AS proves, false AS gone, false AS answers, false AS comes, 0::float8 AS remaining,
       -- Read before the locks: an end that is counted between the two is one more. Connections to the database that an operator or
       -- an error ended: not those whose process died. -1: the server tells late.
       (CASE WHEN current_setting('server_version_num')::int < 150000 THEN -1
             ELSE pg_stat_get_db_sessions_killed(d.oid) + pg_stat_get_db_sessions_fatal(d.oid) END)::bigint AS ends
FROM leasegen.session s JOIN pg_catalog.pg_database d ON d.datname = current_database()
WHERE s.id = sqlc.arg(id)::text AND s.state = 'live'
UNION ALL
SELECT g.id, coalesce(g.lock_key, 0)::bigint AS key,
       (g.lock_key IS NOT NULL AND (g.advisory OR g.server = leasegen.incarnation()))::boolean AS proves,
       g.gone::boolean AS gone,
       CASE WHEN g.gone THEN EXISTS (
           SELECT FROM leasegen.lock_holders(hashtextextended('leasegen.second/' || g.id, 0)) h
           WHERE NOT h.exclusive AND coalesce(h.role = g.role, true)) ELSE false END::boolean AS answers,
       CASE WHEN g.gone THEN EXISTS (
           SELECT FROM leasegen.lock_holders(hashtextextended('leasegen.back/' || g.id, 0)) h
           WHERE NOT h.exclusive AND coalesce(h.role = g.role, true)) ELSE false END::boolean AS comes,
       extract(epoch FROM CASE WHEN g.advisory THEN g.ttl ELSE g.expires_at - clock_timestamp() END)::float8 AS remaining,
       0::bigint AS ends
FROM (
    SELECT n.*, leasegen.lock_gone(n.lock_key, n.server, n.advisory, n.backend_pid, n.role) AS gone FROM (
        (SELECT s.id, s.expires_at, s.ttl, s.lock_key, s.server, s.advisory, s.backend_pid, s.role FROM leasegen.session s
         WHERE s.state = 'live' AND s.id > sqlc.arg(id)::text ORDER BY s.id LIMIT 8)
        UNION ALL
        (SELECT s.id, s.expires_at, s.ttl, s.lock_key, s.server, s.advisory, s.backend_pid, s.role FROM leasegen.session s
         WHERE s.state = 'live' AND s.id < sqlc.arg(id)::text ORDER BY s.id LIMIT 8)
        LIMIT 8
    ) n
    OFFSET 0 -- lock_gone is asked once
) g;

-- name: BuryGone :many
-- Buries sessions that have expired, and those whose connection with the key given has ended, and with it the one that
-- holds their second lock. One that has come back has another key, one that is about to has its sign. ends, where it is not -1: as
-- LookAround told it; with another value by now none is buried that has not expired.
SELECT b.id::text AS id, b.host::text AS host, b.pid::int AS pid, b.expired::boolean AS expired
FROM (SELECT unnest(sqlc.arg(ids)::text[]) AS id, unnest(sqlc.arg(keys)::bigint[]) AS key) k
JOIN leasegen.session s ON s.id = k.id AND s.state = 'live'
    AND (s.expires_at < clock_timestamp()
         OR s.lock_key = k.key
         AND (sqlc.arg(ends)::bigint < 0 OR sqlc.arg(ends)::bigint = (
             SELECT pg_stat_get_db_sessions_killed(d.oid) + pg_stat_get_db_sessions_fatal(d.oid)
             FROM pg_catalog.pg_database d WHERE d.datname = current_database()))
         AND NOT EXISTS (
             SELECT FROM (VALUES ('leasegen.second/'), ('leasegen.back/')) n (name)
             CROSS JOIN LATERAL leasegen.lock_holders(hashtextextended(n.name || s.id, 0)) h
             WHERE NOT h.exclusive AND coalesce(h.role = s.role, true)))
CROSS JOIN LATERAL leasegen.bury_sessions(ARRAY[s.id]) b;
