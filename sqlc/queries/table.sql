-- Consumers that read a table of the application. The statements that read that table are generated beside
-- the consumer; here is what is noted about it in leasegen's own tables.

-- name: SourceTop :one
-- The greatest position that a consumer may have passed, and of what.
SELECT c.source, (CASE WHEN c.source = '' THEN 0 ELSE leasegen.table_top(c.source) END)::bigint AS top
FROM leasegen.consumer c WHERE c.name = sqlc.arg(name)::text;

-- name: ForeignCursors :one
-- Whether the cursors of a consumer are of another cluster.
SELECT c.foreign_cursors FROM leasegen.consumer c WHERE c.name = sqlc.arg(name)::text;

-- name: LockForeignCursors :one
SELECT c.foreign_cursors FROM leasegen.consumer c WHERE c.name = sqlc.arg(name)::text FOR NO KEY UPDATE;

-- name: CursorsToMend :many
SELECT l.resource, l.pos, l.snap::text AS snap, coalesce(l.late_snap::text, '')::text AS late_snap, l.late_pos
FROM leasegen.lease l WHERE l.consumer = sqlc.arg(consumer)::text AND l.snap IS NOT NULL ORDER BY l.resource;

-- name: ParkMissed :exec
-- Sets rows aside that a cursor of another cluster has not passed, due at once.
INSERT INTO leasegen.parked (consumer, resource, lane, message_id, topic, key, kind, payload, published_at, attempt, next_at, error)
SELECT sqlc.arg(consumer)::text, sqlc.arg(resource)::text, i.key, i.id, i.topic, i.key, i.kind, i.payload, clock_timestamp(), 0, clock_timestamp(), ''
FROM (SELECT unnest(sqlc.arg(ids)::bigint[]) AS id, unnest(sqlc.arg(topics)::text[]) AS topic, unnest(sqlc.arg(keys)::text[]) AS key,
             unnest(sqlc.arg(kinds)::text[]) AS kind, unnest(sqlc.arg(payloads)::bytea[]) AS payload) i
ORDER BY i.id
ON CONFLICT (consumer, resource, message_id) DO NOTHING;

-- name: MendCursors :exec
-- The cursors of a consumer are of this cluster from now on: positions stay, and everything up
-- to them counts as passed.
UPDATE leasegen.lease l
SET session = NULL, late_snap = NULL, late_pos = 0, snap = pg_current_snapshot(), x = pg_current_xact_id()
WHERE l.consumer = sqlc.arg(consumer)::text AND l.snap IS NOT NULL;

-- name: MendStart :exec
UPDATE leasegen.consumer c
SET foreign_cursors = false,
    start_snap = CASE WHEN c.start_snap IS NOT NULL THEN pg_current_snapshot() END,
    start_x = CASE WHEN c.start_snap IS NOT NULL THEN pg_current_xact_id() END
WHERE c.name = sqlc.arg(name)::text;

-- name: DescribeTableConsumer :exec
-- Writes only when something differs. The start is that of the first registration. A process that repeats what
-- the source is answers for it: see leasegen.distrust.
INSERT INTO leasegen.consumer (name, per, topics, likes, grace, lock, source, start_pos, start_snap, start_x)
SELECT sqlc.arg(name)::text, sqlc.arg(per)::text, '{}', '{}', sqlc.arg(grace)::interval, sqlc.arg(lock)::text,
       sqlc.arg(source)::text, sqlc.arg(start_pos)::bigint, nullif(sqlc.arg(start_snap)::text, '')::pg_snapshot,
       nullif(sqlc.arg(start_x)::text, '')::xid8
WHERE NOT EXISTS (
    SELECT FROM leasegen.consumer c
    WHERE c.name = sqlc.arg(name)::text AND c.per = sqlc.arg(per)::text AND cardinality(c.likes) = 0
      AND c.grace = sqlc.arg(grace)::interval AND c.lock = sqlc.arg(lock)::text
      AND c.source = sqlc.arg(source)::text AND c.writer = current_user)
ON CONFLICT (name) DO UPDATE SET per = excluded.per, topics = excluded.topics, likes = excluded.likes,
    grace = excluded.grace, lock = excluded.lock, source = excluded.source
WHERE consumer.source = excluded.source;

-- name: ParkRows :exec
-- Sets rows aside as ParkNew does with messages of the log. Their content is a copy for people
-- who look; they are handled as the table then has them.
WITH input AS MATERIALIZED ( -- as of CommitLeases
    SELECT sqlc.arg(consumer)::text AS consumer, unnest(sqlc.arg(resources)::text[]) AS resource, unnest(sqlc.arg(epochs)::bigint[]) AS epoch,
           unnest(sqlc.arg(seqs)::bigint[]) AS seq,
           unnest(sqlc.arg(ids)::bigint[]) AS id, unnest(sqlc.arg(attempts)::int[]) AS attempt,
           unnest(sqlc.arg(micros)::bigint[]) AS micros, unnest(sqlc.arg(errors)::text[]) AS error,
           unnest(sqlc.arg(lanes)::text[]) AS lane, unnest(sqlc.arg(topics)::text[]) AS topic,
           unnest(sqlc.arg(keys)::text[]) AS key, unnest(sqlc.arg(kinds)::text[]) AS kind,
           unnest(sqlc.arg(payloads)::bytea[]) AS payload, generate_subscripts(sqlc.arg(ids)::bigint[], 1) AS place
)
INSERT INTO leasegen.parked (consumer, resource, lane, message_id, topic, key, kind, payload, published_at,
                             attempt, next_at, failed_at, error)
SELECT l.consumer, l.resource, i.lane, i.id, i.topic, i.key, i.kind, i.payload, clock_timestamp(),
       i.attempt, clock_timestamp() + i.micros::float8 * interval '1 microsecond',
       CASE WHEN i.attempt > 0 THEN clock_timestamp() END, i.error
FROM input i
JOIN leasegen.lease l ON l.consumer = i.consumer AND l.resource = i.resource
    AND l.epoch = i.epoch AND coalesce(l.session = sqlc.arg(session)::text, false) AND l.seq = i.seq
ORDER BY i.place
ON CONFLICT (consumer, resource, message_id) DO NOTHING;

-- name: GiveUpRows :exec
-- Moves rows, from the table or parked, to the dead letters. The copy made when a row was
-- parked is kept: the row may be gone.
WITH input AS MATERIALIZED ( -- as of CommitLeases
    SELECT sqlc.arg(consumer)::text AS consumer, unnest(sqlc.arg(resources)::text[]) AS resource, unnest(sqlc.arg(epochs)::bigint[]) AS epoch,
           unnest(sqlc.arg(seqs)::bigint[]) AS seq,
           unnest(sqlc.arg(ids)::bigint[]) AS id, unnest(sqlc.arg(attempts)::int[]) AS attempts,
           unnest(sqlc.arg(reasons)::text[]) AS reason, unnest(sqlc.arg(topics)::text[]) AS topic,
           unnest(sqlc.arg(keys)::text[]) AS key, unnest(sqlc.arg(kinds)::text[]) AS kind,
           unnest(sqlc.arg(payloads)::bytea[]) AS payload, generate_subscripts(sqlc.arg(ids)::bigint[], 1) AS place
), dead AS MATERIALIZED (
    SELECT i.* FROM input i
    JOIN leasegen.lease l ON l.consumer = i.consumer AND l.resource = i.resource
        AND l.epoch = i.epoch AND coalesce(l.session = sqlc.arg(session)::text, false) AND l.seq = i.seq
), gone AS (
    DELETE FROM leasegen.parked p USING dead d
    WHERE p.consumer = d.consumer AND p.resource = d.resource AND p.message_id = d.id
    RETURNING p.*
)
INSERT INTO leasegen.dead_letter (consumer, resource, message_id, topic, key, kind, payload, published_at,
                                  failed_at, attempts, reason)
SELECT sqlc.arg(consumer)::text, d.resource, d.id, coalesce(g.topic, d.topic), coalesce(g.key, d.key), coalesce(g.kind, d.kind),
       coalesce(g.payload, d.payload), coalesce(g.published_at, clock_timestamp()),
       coalesce(g.failed_at, clock_timestamp()), d.attempts, d.reason
FROM dead d FULL JOIN gone g ON g.resource = d.resource AND g.message_id = d.id
ORDER BY d.place
ON CONFLICT (consumer, resource, message_id) DO NOTHING;

-- name: TableFacts :one
-- Facts of the catalogs on a table and its columns. Numbers are 0 and texts empty for what
-- is not there. An index counts that leads with the column and holds all rows; one of two columns, if it is read in the order of both.
SELECT c.relkind::text AS kind, has_table_privilege(c.oid, 'SELECT') AS readable,
       (row_security_active(c.oid) AND (
            EXISTS (SELECT FROM pg_catalog.pg_policy y WHERE y.polrelid = c.oid AND NOT y.polpermissive)
            OR NOT EXISTS (SELECT FROM pg_catalog.pg_policy y WHERE y.polrelid = c.oid AND y.polcmd IN ('r', '*')
                             AND pg_get_expr(y.polqual, y.polrelid) = 'true'
                             AND (0::oid = ANY (y.polroles) OR EXISTS (SELECT FROM unnest(y.polroles) r (oid) WHERE pg_has_role(r.oid, 'USAGE'))))))::boolean AS rows_hidden,
       coalesce(p.attnum, 0)::int AS position_place, coalesce(format_type(p.atttypid, NULL), '')::text AS position_type,
       coalesce(p.attnotnull, false)::boolean AS position_set,
       coalesce(x.attnum, 0)::int AS xid_place, coalesce(format_type(x.atttypid, NULL), '')::text AS xid_type,
       coalesce((SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_catalog.pg_attrdef d
                 WHERE d.adrelid = c.oid AND d.adnum = x.attnum), '')::text AS xid_default,
       coalesce(s.cache, 0)::bigint AS sequence_cache, coalesce(s.rises, false)::boolean AS sequence_rises,
       coalesce(s.name, '')::text AS sequence, coalesce(has_sequence_privilege(s.sole, 'USAGE, SELECT'), false)::boolean AS sequence_readable,
       EXISTS (SELECT FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc f ON f.oid = t.tgfoid
               WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A') AND t.tgqual IS NULL
                 AND t.tgtype::int & 7 = 6 AND f.prosrc ILIKE '%pg_current_xact_id%')::boolean AS xid_first,
       EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL
                 AND i.indkey[0] = p.attnum)::boolean AS position_indexed,
       EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisvalid AND i.indkey[0] = x.attnum)::boolean AS xid_indexed,
       (sqlc.arg(topic)::text = '' OR EXISTS (
            SELECT FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute k ON k.attrelid = c.oid AND k.attname = sqlc.arg(topic)::text AND k.attnum = i.indkey[0]
            WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL AND i.indkey[1] = p.attnum AND i.indoption[0] = i.indoption[1]
              AND i.indcollation[0] = k.attcollation
              AND EXISTS (SELECT FROM pg_catalog.pg_opclass f WHERE f.oid = i.indclass[0] AND f.opcname::text NOT LIKE '%pattern%')))::boolean AS topic_indexed,
       (sqlc.arg(slots)::int = 0 OR EXISTS (
            SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL AND i.indkey[0] = 0
              AND i.indkey[1] = p.attnum AND i.indoption[0] = i.indoption[1] AND pg_get_indexdef(i.indexrelid, 1, false) LIKE '%hashtextextended%'))::boolean AS slot_indexed
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_attribute p ON p.attrelid = c.oid AND p.attname = sqlc.arg(position)::text AND NOT p.attisdropped
LEFT JOIN pg_catalog.pg_attribute x ON x.attrelid = c.oid AND x.attname = sqlc.arg(xid)::text AND NOT x.attisdropped
LEFT JOIN LATERAL (
    SELECT max(q.seqcache) AS cache, bool_and(q.seqincrement > 0 AND NOT q.seqcycle) AS rises,
           CASE WHEN count(*) = 1 THEN max(q.seqrelid) END AS sole,
           CASE WHEN count(*) = 1 THEN (SELECT format('%I.%I', d.nspname, e.relname) FROM pg_catalog.pg_class e
               JOIN pg_catalog.pg_namespace d ON d.oid = e.relnamespace WHERE e.oid = max(q.seqrelid)) END AS name
    FROM pg_catalog.pg_sequence q JOIN (
        SELECT e.objid AS oid FROM pg_catalog.pg_depend e
        WHERE e.classid = 'pg_class'::regclass AND e.refclassid = 'pg_class'::regclass
          AND e.refobjid = c.oid AND e.refobjsubid = p.attnum
        UNION
        SELECT e.refobjid FROM pg_catalog.pg_attrdef a JOIN pg_catalog.pg_depend e ON e.classid = 'pg_attrdef'::regclass AND e.objid = a.oid
          AND e.refclassid = 'pg_class'::regclass
        WHERE a.adrelid = c.oid AND a.adnum = p.attnum
    ) o ON o.oid = q.seqrelid) s ON true
WHERE n.nspname = sqlc.arg(schema)::text AND c.relname = sqlc.arg(name)::text;
