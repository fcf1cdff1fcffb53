-- A position, a snapshot and a transaction id mean something only in the history of the server
-- that gave them. After the promotion of a standby that lacked writes, or a recovery to an earlier
-- time, the same numbers are given out again, to other rows.

-- history names the past of this server: the cluster, and the timeline, which every promotion and
-- every recovery to a point in time changes at once. Where the timeline cannot be asked for, the
-- server's start stands for it. It fails on a standby.
CREATE FUNCTION leasegen.history() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    cluster CONSTANT bigint := (SELECT c.system_identifier FROM pg_control_system() c);
BEGIN
    RETURN cluster || '/' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8);
EXCEPTION WHEN insufficient_privilege OR feature_not_supported THEN
    RETURN cluster || '/' || extract(epoch FROM pg_postmaster_start_time());
END $$;

-- expect fails, and with it the transaction, unless this is the server's history and x an xid of its
-- past. What is empty is not looked at.
CREATE FUNCTION leasegen.expect(history text, x text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF history <> '' AND leasegen.history() <> history THEN
        RAISE EXCEPTION 'the server has another history, %, than the session, %', leasegen.history(), history USING ERRCODE = 'LG001';
    END IF;
    IF x <> '' AND x::xid8 >= pg_snapshot_xmax(pg_current_snapshot()) THEN
        RAISE EXCEPTION 'the position is from the future: transaction % has not begun', x USING ERRCODE = 'LG001';
    END IF;
END $$;

-- table_unseen tells, for many cursors on a source's table, which of them have passed the positions
-- of rows that came after them: the table, or its sequence, was set back. It looks at the first rows
-- that began after the cursor, by their xids, and at no others.
CREATE FUNCTION leasegen.table_unseen(source text, positions bigint[], xs text[]) RETURNS SETOF integer
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s   CONSTANT jsonb := source::jsonb;
    tab CONSTANT regclass := to_regclass(format('%I.%I', split_part(s ->> 'table', '.', 1), split_part(s ->> 'table', '.', 2)));
BEGIN
    IF tab IS NOT NULL THEN
        RETURN QUERY EXECUTE format(
            'SELECT c.item::int FROM unnest($1, $2::xid8[]) WITH ORDINALITY c (pos, x, item) '
            'WHERE EXISTS (SELECT FROM (SELECT o.%1$I AS pos FROM %3$s o WHERE o.%2$I >= c.x ORDER BY o.%2$I LIMIT 100) n WHERE n.pos <= c.pos)',
            s ->> 'position', s ->> 'xid', tab) USING positions, xs;
    END IF;
END $$;
