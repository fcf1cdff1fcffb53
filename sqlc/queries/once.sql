-- name: StartOnce :one
-- Notes the beginning of an execution, unless the item is done, or being executed under
-- another lease that has not ended. An item that somebody noted since this statement began
-- looks busy; the next look tells.
WITH held AS (
    SELECT l.resource FROM leasegen.lease l
    WHERE l.consumer = sqlc.arg(consumer)::text AND l.resource = sqlc.arg(resource)::text
      AND l.session = sqlc.arg(session)::text AND l.epoch = sqlc.arg(epoch)::bigint
), begun AS (
    INSERT INTO leasegen.once AS o (consumer, key, done, session, resource, epoch)
    SELECT sqlc.arg(consumer)::text, sqlc.arg(key)::text, false, sqlc.arg(session)::text, sqlc.arg(resource)::text, sqlc.arg(epoch)::bigint
    FROM held
    ON CONFLICT (consumer, key) DO UPDATE
    SET session = excluded.session, resource = excluded.resource, epoch = excluded.epoch, at = clock_timestamp(),
        unknown = CASE WHEN o.session = excluded.session AND o.resource = excluded.resource AND o.epoch = excluded.epoch
                       THEN o.unknown -- the reply was lost
                       ELSE NOT sqlc.arg(message)::bigint = ANY (o.asked) END,
        asked = array_remove(o.asked, sqlc.arg(message)::bigint)
    WHERE NOT o.done
      AND (o.session = excluded.session AND o.resource = excluded.resource AND o.epoch = excluded.epoch
           OR o.session IS NULL OR NOT leasegen.still_executing(o.consumer, o.resource, o.session, o.epoch))
    RETURNING o.unknown
)
SELECT EXISTS (SELECT FROM held)::boolean AS held, EXISTS (SELECT FROM begun)::boolean AS begun,
       coalesce((SELECT b.unknown FROM begun b), false)::boolean AS unknown,
       EXISTS (SELECT FROM leasegen.once o WHERE o.consumer = sqlc.arg(consumer)::text
                 AND o.key = sqlc.arg(key)::text AND o.done)::boolean AS done;

-- name: EndOnce :exec
-- How executions have ended that leases of this session began.
WITH input AS MATERIALIZED ( -- as of CommitLeases
    SELECT sqlc.arg(consumer)::text AS consumer, unnest(sqlc.arg(resources)::text[]) AS resource, unnest(sqlc.arg(epochs)::bigint[]) AS epoch,
           unnest(sqlc.arg(seqs)::bigint[]) AS seq, unnest(sqlc.arg(keys)::text[]) AS key,
           unnest(sqlc.arg(dones)::boolean[]) AS done, unnest(sqlc.arg(asked)::bigint[]) AS asked
), told AS MATERIALIZED (
    SELECT i.* FROM input i
    JOIN leasegen.lease l ON l.consumer = i.consumer AND l.resource = i.resource
        AND l.epoch = i.epoch AND coalesce(l.session = sqlc.arg(session)::text, false) AND l.seq = i.seq
), failed AS (
    DELETE FROM leasegen.once o USING told t
    WHERE NOT t.done AND t.asked = 0
      AND o.consumer = t.consumer AND o.key = t.key AND NOT o.done
      AND o.session = sqlc.arg(session)::text AND o.resource = t.resource AND o.epoch = t.epoch
)
UPDATE leasegen.once o
SET done = t.done, at = clock_timestamp(), session = NULL, resource = NULL, epoch = NULL,
    asked = CASE WHEN t.done THEN '{}' ELSE array_append(o.asked, t.asked) END
FROM told t
WHERE (t.done OR t.asked <> 0)
  AND o.consumer = t.consumer AND o.key = t.key AND NOT o.done
  AND o.session = sqlc.arg(session)::text AND o.resource = t.resource AND o.epoch = t.epoch;

-- name: NoteOnce :execrows
-- Waits for another transaction that is noting the same item.
INSERT INTO leasegen.once AS o (consumer, key, done) VALUES (sqlc.arg(consumer)::text, sqlc.arg(key)::text, true)
ON CONFLICT (consumer, key) DO UPDATE
SET done = true, at = clock_timestamp(), session = NULL, resource = NULL, epoch = NULL, asked = '{}'
WHERE NOT o.done;

-- name: ForgetOnce :execrows
DELETE FROM leasegen.once
WHERE consumer = sqlc.arg(consumer)::text AND key IN (
    SELECT o.key FROM leasegen.once o
    WHERE o.consumer = sqlc.arg(consumer)::text AND o.at < (SELECT clock_timestamp() - sqlc.arg(keep)::interval)
      AND (o.done OR o.session IS NULL OR NOT leasegen.still_executing(o.consumer, o.resource, o.session, o.epoch))
    ORDER BY o.at LIMIT sqlc.arg(max)::bigint);
