-- What others can write to, lock or guess is not trusted.

-- writer is the role that last said what the consumer reads (source).
ALTER TABLE leasegen.consumer ADD COLUMN writer text COLLATE "C";

CREATE FUNCTION leasegen.note_writer() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.writer := current_user;
    RETURN NEW;
END $$;

CREATE TRIGGER writer_noted BEFORE INSERT OR UPDATE OF source ON leasegen.consumer
    FOR EACH ROW EXECUTE FUNCTION leasegen.note_writer();

-- speaks_for tells whether a role could do by itself what the current role can: the same role, a
-- member of it, a superuser, or the owner of this schema, whose functions everybody runs.
CREATE FUNCTION leasegen.speaks_for(role oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce((SELECT r.rolsuper OR pg_has_role(r.oid, current_user, 'MEMBER'::text)
                         OR EXISTS (SELECT FROM pg_class k WHERE k.oid = 'leasegen.consumer'::regclass AND k.relowner = r.oid)
                     FROM pg_roles r WHERE r.oid = role), false)
$$;

-- source_table finds the table that a source names: an ordinary or partitioned one, never a view,
-- a foreign table or a temporary one. It looks at the catalogs only. NULL if there is none.
CREATE FUNCTION leasegen.source_table(source text) RETURNS regclass
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text;
BEGIN
    name := source::jsonb ->> 'table';
    RETURN (SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = split_part(name, '.', 1) AND c.relname = split_part(name, '.', 2)
              AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
              AND EXISTS (SELECT FROM pg_attribute a
                          WHERE a.attrelid = c.oid AND a.attname = source::jsonb ->> 'position' AND NOT a.attisdropped
                            AND a.atttypid IN ('int8'::regtype, 'int4'::regtype, 'int2'::regtype)));
EXCEPTION WHEN data_exception THEN
    RETURN NULL; -- no JSON
END $$;

-- distrust tells why the table of a source is not read by the current role; empty if it may be.
-- Reading a table runs code of its owner (expressions of indexes, casts, policies) with the rights of
-- who reads it. So it is read only where the table's owner, or the role that wrote down its name,
-- could do as much by itself. Programs know their tables by what was generated and do not ask.
CREATE FUNCTION leasegen.distrust(source text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET lock_timeout = '500ms' AS $$
DECLARE
    tab CONSTANT regclass := leasegen.source_table(source);
BEGIN
    IF tab IS NULL THEN
        RETURN 'its table is gone, or is not an ordinary table with such a position';
    END IF;
    IF NOT leasegen.speaks_for((SELECT c.relowner FROM pg_class c WHERE c.oid = tab))
       AND NOT EXISTS (SELECT FROM leasegen.consumer k JOIN pg_roles r ON r.rolname = k.writer
                       WHERE k.source = distrust.source COLLATE "C" AND leasegen.speaks_for(r.oid)) THEN
        RETURN format('reading table %s would run code of role %s as role %s; ask as the role that the consumer runs as',
            tab, (SELECT r.rolname FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner WHERE c.oid = tab), current_user);
    END IF;
    IF NOT has_table_privilege(tab, 'SELECT'::text) THEN
        RETURN format('role %s may not read table %s', current_user, tab);
    END IF;
    IF row_security_active(tab) THEN
        RETURN format('row-level security hides rows of table %s from role %s', tab, current_user);
    END IF;
    EXECUTE format('SELECT FROM ONLY %s LIMIT 0', tab);
    RETURN '';
EXCEPTION WHEN lock_not_available THEN
    RETURN format('table %s is locked', tab);
END $$;

-- source_top is the greatest position in a source's table; 0 if it is empty or gone.
CREATE FUNCTION leasegen.source_top(source text) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tab CONSTANT regclass := leasegen.source_table(source);
    top bigint;
BEGIN
    IF tab IS NOT NULL THEN
        EXECUTE format('SELECT max(o.%I) FROM %s o', source::jsonb ->> 'position', tab) INTO top;
    END IF;
    RETURN coalesce(top, 0);
END $$;

-- table_top is source_top for a source that a row of leasegen.consumer names.
CREATE OR REPLACE FUNCTION leasegen.table_top(source text) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    reason CONSTANT text := leasegen.distrust(source);
BEGIN
    IF reason <> '' THEN
        RAISE EXCEPTION '%', reason USING ERRCODE = 'LG003';
    END IF;
    RETURN leasegen.source_top(source);
END $$;

-- table_lag counts the rows of a resource beyond a position, up to a bound, those too that the
-- consumer will pass over; 0 where the table is not to be read.
CREATE OR REPLACE FUNCTION leasegen.table_lag(source text, resource text, pos bigint, bound bigint) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s   jsonb;
    lag bigint;
BEGIN
    IF leasegen.distrust(source) <> '' THEN
        RETURN 0;
    END IF;
    s := source::jsonb;
    EXECUTE format('SELECT count(*) FROM (SELECT FROM %s o WHERE %s o.%I > $1 LIMIT $2) b', leasegen.source_table(source), CASE
        WHEN s ->> 'topic' <> '' THEN format('o.%I = %L AND', s ->> 'topic', resource)
        WHEN (s ->> 'slots')::int > 0 THEN format(
            '(CASE WHEN coalesce(o.%1$I::text, %4$L) = %4$L THEN o.%2$I::bigint '
            'ELSE hashtextextended(o.%1$I::text, 0) & 9223372036854775807 END %% %3$s)::smallint = %5$s AND',
            s ->> 'key', s ->> 'position', (s ->> 'slots')::int, '', resource::smallint)
        ELSE '' END, s ->> 'position') INTO lag USING pos, bound;
    RETURN coalesce(lag, 0);
EXCEPTION WHEN data_exception OR undefined_column OR undefined_function THEN
    RETURN 0; -- a source or a resource that no program has written
END $$;

-- table_unseen tells, for many cursors on a source's table, which of them have passed the positions
-- of rows that came after them: the table, or its sequence, was set back. It looks at the first rows
-- that began after the cursor, by their xids, and at no others.
CREATE OR REPLACE FUNCTION leasegen.table_unseen(source text, positions bigint[], xs text[]) RETURNS SETOF integer
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tab CONSTANT regclass := leasegen.source_table(source);
BEGIN
    IF tab IS NOT NULL THEN
        RETURN QUERY EXECUTE format(
            'SELECT c.item::int FROM unnest($1, $2::xid8[]) WITH ORDINALITY c (pos, x, item) '
            'WHERE EXISTS (SELECT FROM (SELECT o.%1$I AS pos FROM %3$s o WHERE o.%2$I >= c.x ORDER BY o.%2$I LIMIT 100) n WHERE n.pos <= c.pos)',
            source::jsonb ->> 'position', source::jsonb ->> 'xid', tab) USING positions, xs;
    END IF;
END $$;
