-- name: TryMaintain :one
SELECT leasegen.take_turn('maintain')::boolean AS mine;

-- name: ExpireDeadLetters :execrows
DELETE FROM leasegen.dead_letter
WHERE consumer = sqlc.arg(consumer)::text AND dead_at < clock_timestamp() - sqlc.arg(keep)::interval;

-- name: BoundDeadLetters :execrows
DELETE FROM leasegen.dead_letter d
WHERE d.consumer = sqlc.arg(consumer)::text AND d.id <= (
    SELECT o.id FROM leasegen.dead_letter o WHERE o.consumer = sqlc.arg(consumer)::text
    ORDER BY o.id DESC OFFSET sqlc.arg(max)::bigint LIMIT 1);

-- name: ForgetSessions :one
SELECT leasegen.forget_sessions(sqlc.arg(older)::interval)::int AS forgotten;

-- name: DropSegments :one
SELECT leasegen.drop_segments()::int AS dropped;
