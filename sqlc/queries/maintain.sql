-- name: TryMaintain :one
SELECT leasegen.take_turn('maintain')::boolean AS mine;

-- name: Chore :execrows
-- Whether a process is the one that does something for the whole fleet now: the one that did it last,
-- or any when that was long ago.
INSERT INTO leasegen.chore AS c (name, process) VALUES (sqlc.arg(name)::text, sqlc.arg(process)::text)
ON CONFLICT (name) DO UPDATE SET process = excluded.process, at = clock_timestamp()
WHERE c.process = excluded.process OR c.at NOT BETWEEN clock_timestamp() - sqlc.arg(every)::interval AND clock_timestamp();

-- name: ExpireDeadLetters :execrows
-- A sub-select, since a clock that goes on is no condition for an index.
DELETE FROM leasegen.dead_letter
WHERE consumer = sqlc.arg(consumer)::text AND id IN (
    SELECT d.id FROM leasegen.dead_letter d
    WHERE d.consumer = sqlc.arg(consumer)::text AND d.dead_at < (SELECT clock_timestamp() - sqlc.arg(keep)::interval)
    ORDER BY d.consumer, d.dead_at LIMIT sqlc.arg(max)::bigint);

-- name: SkipDeadLetters :one
-- The id that a number of dead letters from one on, newest first, reach; 0 if there are fewer.
SELECT coalesce((
    SELECT o.id FROM leasegen.dead_letter o WHERE o.consumer = sqlc.arg(consumer)::text AND o.id < sqlc.arg(before)::bigint
    ORDER BY o.consumer DESC, o.id DESC OFFSET sqlc.arg(number)::bigint - 1 LIMIT 1), 0)::bigint AS id;

-- name: BoundDeadLetters :execrows
-- The oldest ones.
DELETE FROM leasegen.dead_letter
WHERE consumer = sqlc.arg(consumer)::text AND id IN (
    SELECT d.id FROM leasegen.dead_letter d
    WHERE d.consumer = sqlc.arg(consumer)::text AND d.id < sqlc.arg(before)::bigint
    ORDER BY d.consumer, d.id LIMIT sqlc.arg(max)::bigint);

-- name: ForgetSessions :one
SELECT leasegen.forget_sessions(sqlc.arg(older)::interval)::int AS forgotten;

-- name: HeldBack :one
SELECT h.what::text AS what, h.seconds::bigint AS seconds FROM leasegen.held_back() h;

-- name: DropSegments :one
SELECT leasegen.drop_segments()::int AS dropped;
