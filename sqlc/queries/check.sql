-- name: ServerFacts :one
SELECT current_setting('server_version_num')::int AS version, pg_is_in_recovery() AS in_recovery,
       current_setting('transaction_read_only')::text AS read_only,
       current_setting('transaction_isolation')::text AS isolation, pg_backend_pid() AS pid,
       (to_regclass('leasegen.migration') IS NOT NULL)::boolean AS migrated,
       current_user::text AS role,
       ((SELECT p.name::text FROM unnest(current_schemas(true)) WITH ORDINALITY p (name, place)
         WHERE left(p.name::text, 8) <> 'pg_temp_' ORDER BY p.place LIMIT 1) = 'pg_catalog')::boolean AS catalog_first;

-- name: Origin :one
SELECT o.system_identifier AS recorded, (SELECT c.system_identifier FROM pg_control_system() c)::bigint AS actual
FROM leasegen.origin o;

-- name: SchemaVersion :one
SELECT coalesce(max(m.version), 0)::int AS version FROM leasegen.migration m;

-- name: SchemaServes :one
SELECT o.serves FROM leasegen.origin o;

-- name: RecordMigration :exec
INSERT INTO leasegen.migration (version, name) VALUES (sqlc.arg(version), sqlc.arg(name));

-- name: MissingGrants :one
-- The rights that consumers need and the current role lacks.
SELECT coalesce(string_agg(n.need, ', '), '')::text AS missing
FROM (VALUES
    ('SELECT on message', has_table_privilege('leasegen.message', 'SELECT')),
    ('SELECT on segment', has_table_privilege('leasegen.segment', 'SELECT')),
    ('SELECT on message_id_seq', has_sequence_privilege('leasegen.message_id_seq', 'SELECT')),
    ('INSERT on session', has_table_privilege('leasegen.session', 'INSERT')),
    ('UPDATE on session', has_column_privilege('leasegen.session', 'expires_at', 'UPDATE')
        AND has_column_privilege('leasegen.session', 'lock_key', 'UPDATE')),
    ('INSERT on consumer', has_table_privilege('leasegen.consumer', 'INSERT')),
    ('SELECT on lease', has_table_privilege('leasegen.lease', 'SELECT')),
    ('INSERT on lease', has_column_privilege('leasegen.lease', 'resource', 'INSERT')),
    ('UPDATE on lease', has_column_privilege('leasegen.lease', 'epoch', 'UPDATE')
        AND has_column_privilege('leasegen.lease', 'rested_at', 'UPDATE')),
    ('SELECT on parked', has_table_privilege('leasegen.parked', 'SELECT')),
    ('INSERT and DELETE on parked', has_table_privilege('leasegen.parked', 'INSERT')
        AND has_table_privilege('leasegen.parked', 'DELETE')),
    ('UPDATE on parked', has_column_privilege('leasegen.parked', 'since', 'UPDATE')),
    ('SELECT on dead_letter', has_table_privilege('leasegen.dead_letter', 'SELECT')),
    ('INSERT and DELETE on dead_letter', has_table_privilege('leasegen.dead_letter', 'INSERT')
        AND has_table_privilege('leasegen.dead_letter', 'DELETE')),
    ('DELETE on published_id', has_table_privilege('leasegen.published_id', 'DELETE')),
    ('SELECT on delayed', has_table_privilege('leasegen.delayed', 'SELECT')),
    ('INSERT, UPDATE and DELETE on once', has_table_privilege('leasegen.once', 'INSERT')
        AND has_table_privilege('leasegen.once', 'UPDATE') AND has_table_privilege('leasegen.once', 'DELETE')),
    ('INSERT and UPDATE on chore', has_table_privilege('leasegen.chore', 'INSERT') AND has_table_privilege('leasegen.chore', 'UPDATE')),
    ('EXECUTE on ensure_segments', has_function_privilege('leasegen.ensure_segments(bigint)', 'EXECUTE')),
    ('EXECUTE on drop_segments', has_function_privilege('leasegen.drop_segments()', 'EXECUTE')),
    ('EXECUTE on forget_sessions', has_function_privilege('leasegen.forget_sessions(interval)', 'EXECUTE')),
    ('EXECUTE on forget_streams', has_function_privilege('leasegen.forget_streams(interval, text, text)', 'EXECUTE')),
    ('EXECUTE on take_turn', has_function_privilege('leasegen.take_turn(text)', 'EXECUTE')),
    ('EXECUTE on release_delayed', has_function_privilege('leasegen.release_delayed(bigint)', 'EXECUTE')),
    ('SELECT and UPDATE on pause', has_table_privilege('leasegen.pause', 'SELECT')
        AND has_column_privilege('leasegen.pause', 'paused_at', 'UPDATE')),
    ('EXECUTE on index_log', has_function_privilege('leasegen.index_log(text)', 'EXECUTE'))
) AS n (need, held)
WHERE NOT n.held;
