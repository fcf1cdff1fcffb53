-- The schema trusts no value that other roles can write, no name that they can lock, no key that they can guess.

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

-- role is as whom the session's connection has logged in.
ALTER TABLE leasegen.session ADD COLUMN role text COLLATE "C";
ALTER TABLE leasegen.session ALTER COLUMN role SET DEFAULT session_user;

-- lock_holders are the backends that hold an advisory lock, in whatever mode: any mode keeps others out.
DROP FUNCTION leasegen.lock_holders(bigint);
CREATE FUNCTION leasegen.lock_holders(key bigint) RETURNS TABLE (pid integer, role text, application text, exclusive boolean)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT l.pid, coalesce(a.usename, '')::text, coalesce(a.application_name, ''), l.mode = 'ExclusiveLock'
    FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
      AND l.classid::bigint = ((key >> 32) & 4294967295) AND l.objid::bigint = (key & 4294967295)
$$;

-- lock_gone as before, for a session whose connection is known: every role that may connect can take its
-- lock when it is free, having seen its key in pg_locks. So a session that lives by its lock lives only as
-- long as its own backend holds that. For others the ttl decides what a stranger's lock covers up.
CREATE FUNCTION leasegen.lock_gone(lock_key bigint, server text, advisory boolean, backend integer, role text) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN lock_key IS NULL OR pg_is_in_recovery() THEN false
                WHEN pg_try_advisory_xact_lock_shared(lock_key) THEN advisory OR server = leasegen.incarnation()
                WHEN advisory THEN NOT EXISTS (
                    SELECT FROM leasegen.lock_holders(lock_key) h WHERE h.pid = backend AND coalesce(h.role = lock_gone.role COLLATE "C", true))
                ELSE false END
$$;

CREATE OR REPLACE FUNCTION leasegen.bury_sessions(ids text[])
RETURNS TABLE (id text, host text, pid integer, expired boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s record;
BEGIN
    FOR s IN SELECT * FROM leasegen.session n WHERE n.id = ANY (ids) AND n.state = 'live'
             ORDER BY n.id FOR UPDATE SKIP LOCKED LOOP
        -- The lock is looked at under the row's: a session that comes back with a new
        -- connection writes the key of its new lock there.
        expired := s.expires_at < clock_timestamp();
        IF expired OR leasegen.lock_gone(s.lock_key, s.server, s.advisory, s.backend_pid, s.role) THEN
            UPDATE leasegen.session n SET state = 'dead', expires_at = least(n.expires_at, clock_timestamp() + n.ttl)
            WHERE n.id = s.id;
            id := s.id;
            host := s.host;
            pid := s.pid;
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

-- turn has a row for what one process at a time does. A row, other than an advisory lock, is locked by those only
-- who may call what locks it.
CREATE TABLE leasegen.turn (
    name text COLLATE "C" PRIMARY KEY
);
INSERT INTO leasegen.turn (name) VALUES ('delayed'), ('maintain'), ('segment');

-- take_turn tells whether it is the transaction's turn; the turn ends with it.
CREATE FUNCTION leasegen.take_turn(what text) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM (SELECT t.name FROM leasegen.turn t WHERE t.name = what COLLATE "C" FOR UPDATE SKIP LOCKED) mine)
$$;

-- segment_turn waits for it.
CREATE FUNCTION leasegen.segment_turn() RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT FROM leasegen.turn t WHERE t.name = 'segment' FOR UPDATE
$$;

-- Functions that waited for an advisory lock, whose key everybody can calculate, wait for that.
DO $do$
DECLARE
    f    regprocedure;
    body text;
BEGIN
    FOREACH f IN ARRAY ARRAY['leasegen.ensure_segments(bigint)', 'leasegen.index_log(text)']::regprocedure[] LOOP
        body := replace(pg_get_functiondef(f), $x$PERFORM pg_advisory_xact_lock(hashtextextended('leasegen.segment', 0))$x$,
            'PERFORM leasegen.segment_turn()');
        IF body LIKE '%pg_advisory%' OR body NOT LIKE '%segment_turn()%' THEN
            RAISE EXCEPTION 'function % is not as expected', f;
        END IF;
        EXECUTE body;
    END LOOP;
END $do$;

-- release_delayed moves delayed events that are due into the log, in their order. One process at a time does
-- it: others move nothing. Consumers do it, who need no right to publish.
CREATE FUNCTION leasegen.release_delayed(most bigint, OUT moved bigint, OUT last bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH due AS MATERIALIZED (
        DELETE FROM leasegen.delayed d
        USING (SELECT n.due_at, n.seq FROM leasegen.delayed n
               WHERE n.due_at <= (SELECT clock_timestamp()) AND (SELECT leasegen.take_turn('delayed'))
               ORDER BY n.due_at, n.seq LIMIT least(most, 10000)) x
        WHERE d.due_at = x.due_at AND d.seq = x.seq
        RETURNING d.due_at, d.seq, d.topic, d.key, d.kind, d.payload, d.headers
    ), moved AS (
        INSERT INTO leasegen.message (topic, key, kind, payload, headers)
        SELECT u.topic, u.key, u.kind, u.payload, u.headers FROM due u ORDER BY u.due_at, u.seq
        RETURNING id
    )
    SELECT count(*)::bigint, coalesce(max(m.id), 0)::bigint FROM moved m
$$;

REVOKE ALL ON FUNCTION leasegen.take_turn(text), leasegen.segment_turn(), leasegen.release_delayed(bigint) FROM PUBLIC;

-- An epoch only rises, and not beyond the time: a row that is made again begins no lower than the one before
-- ended, and none is raised so far that it can rise no more.
DROP TRIGGER epochs_rise ON leasegen.lease;
CREATE TRIGGER epochs_rise BEFORE UPDATE OF epoch ON leasegen.lease
    FOR EACH ROW WHEN (NEW.epoch < OLD.epoch
        OR NEW.epoch > OLD.epoch + 1 AND NEW.epoch > ((date_part('epoch'::text, clock_timestamp()) + 60) * 1000000)::bigint
        OR NEW.epoch > OLD.epoch AND OLD.epoch = 0 AND NEW.epoch < ((date_part('epoch'::text, clock_timestamp()) - 1) * 1000000)::bigint)
    EXECUTE FUNCTION leasegen.refuse_epoch();

CREATE OR REPLACE FUNCTION leasegen.refuse_epoch() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'leasegen: the epoch of % of % only rises, and with the time: % may not follow %',
        OLD.resource, OLD.consumer, NEW.epoch, OLD.epoch USING ERRCODE = 'insufficient_privilege';
END $$;

-- A session that has ended does not live again.
CREATE FUNCTION leasegen.refuse_revival() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'leasegen: session % is %, for good', OLD.id, OLD.state USING ERRCODE = 'insufficient_privilege';
END $$;

CREATE TRIGGER ends_stay BEFORE UPDATE OF state ON leasegen.session
    FOR EACH ROW WHEN (OLD.state <> 'live' AND NEW.state = 'live') EXECUTE FUNCTION leasegen.refuse_revival();

-- The log keeps for a consumer the topics that its members want, as they said when their sessions were opened. A role
-- that may describe consumers cannot say less for them, and have the rest dropped. The owner of the schema can.
CREATE FUNCTION leasegen.keep_wanted() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_has_role(current_user, (SELECT k.relowner FROM pg_class k WHERE k.oid = 'leasegen.consumer'::regclass), 'MEMBER'::text) THEN
        RETURN NEW;
    END IF;
    IF NEW.source <> OLD.source OR NEW.per = 'cluster' AND OLD.per <> 'cluster' AND cardinality(OLD.likes) > 0 THEN
        RAISE EXCEPTION 'leasegen: consumer % reads on what it has read: give another one another name', OLD.name
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF NEW.likes @> OLD.likes THEN
        RETURN NEW;
    END IF;
    IF NOT EXISTS (SELECT FROM leasegen.session s WHERE s.expires_at > clock_timestamp() - interval '9 minutes' AND s.topics ? OLD.name)
       OR EXISTS (
        SELECT FROM leasegen.session s
        WHERE s.expires_at > clock_timestamp() - interval '9 minutes' AND OLD.name = ANY (s.consumers)
          AND (NOT s.topics ? OLD.name OR jsonb_typeof(s.topics -> OLD.name) = 'array' AND EXISTS (
            SELECT FROM jsonb_array_elements_text(s.topics -> OLD.name) w (pattern)
            WHERE replace(replace(replace(replace(w.pattern, '\', '\\'), '%', '\%'), '_', '\_'), '*', '%') <> ALL (NEW.likes))))
    THEN
        RAISE EXCEPTION 'leasegen: members of consumer % want topics that it would read no more', OLD.name
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER wanted_kept BEFORE UPDATE OF per, likes, source ON leasegen.consumer
    FOR EACH ROW WHEN (NOT NEW.likes @> OLD.likes OR NEW.per <> OLD.per OR NEW.source <> OLD.source)
    EXECUTE FUNCTION leasegen.keep_wanted();

-- Functions that do what the application's role may not do check what they are asked for.
DO $do$
DECLARE
    c    record;
    body text;
BEGIN
    FOR c IN SELECT * FROM (VALUES
        ('leasegen.forget_sessions(interval)', 'BEGIN', $x$BEGIN
    older := greatest(older, interval '10 minutes');$x$),
        ('leasegen.forget_streams(interval)', 'BEGIN', $x$BEGIN
    older := greatest(older, interval '1 hour');$x$),
        -- Ids that were drawn in vain need no partition, and no more are made than are soon used.
        ('leasegen.ensure_segments(bigint)', 'BEGIN', $x$BEGIN
    upto := least(upto, (SELECT q.last_value FROM leasegen.message_id_seq q) + 20 * size);$x$),
        ('leasegen.ensure_segments(bigint)', 'WHILE lo <= upto LOOP', $x$lo := greatest(lo, 1 + (SELECT (q.last_value - 1) / size FROM leasegen.message_id_seq q) * size);
    WHILE lo <= upto LOOP$x$)) AS v (f, what, instead) LOOP
        body := pg_get_functiondef(c.f::regprocedure);
        IF position(c.what IN body) = 0 THEN
            RAISE EXCEPTION 'function % is not as expected', c.f;
        END IF;
        EXECUTE overlay(body PLACING c.instead FROM position(c.what IN body) FOR length(c.what));
    END LOOP;
END $do$;

-- expect as before, in a transaction that a handler wrote in: it must still be the one that was begun for it
-- (effects is a mark that only this one carries), as the same role, and able to write.
CREATE FUNCTION leasegen.expect(history text, x text, effects text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('lease.effects', true) IS DISTINCT FROM effects || '/' || current_user::text THEN
        RAISE EXCEPTION 'the handler ended its transaction, or changed its role, by SQL of its own' USING ERRCODE = 'LG002';
    END IF;
    IF 'on' IN (current_setting('transaction_read_only'), current_setting('default_transaction_read_only')) AND NOT pg_is_in_recovery() THEN
        RAISE EXCEPTION 'the handler made its transaction, or those after it, read-only' USING ERRCODE = 'LG002';
    END IF;
    PERFORM leasegen.expect(history, x);
END $$;

-- Rows that no consumer could handle, and that would stop others or the operator's commands, do not come in. Rows that
-- are there already are not looked at.
ALTER TABLE leasegen.message ADD CONSTRAINT message_sane CHECK (
    octet_length(topic) BETWEEN 1 AND 1024 AND octet_length(key) <= 1024 AND octet_length(kind) <= 1024
    AND (headers IS NULL OR jsonb_typeof(headers) = 'object')) NOT VALID;
ALTER TABLE leasegen.delayed ADD CONSTRAINT delayed_sane CHECK (
    octet_length(topic) BETWEEN 1 AND 1024 AND octet_length(key) <= 1024 AND octet_length(kind) <= 1024
    AND (headers IS NULL OR jsonb_typeof(headers) = 'object') AND isfinite(due_at)) NOT VALID;
ALTER TABLE leasegen.parked ADD CONSTRAINT parked_sane CHECK (
    isfinite(next_at) AND isfinite(published_at) AND isfinite(since)) NOT VALID;
ALTER TABLE leasegen.dead_letter ADD CONSTRAINT dead_letter_sane CHECK (
    isfinite(published_at) AND isfinite(failed_at) AND isfinite(dead_at)) NOT VALID;
ALTER TABLE leasegen.lease ADD CONSTRAINT lease_sane CHECK (
    octet_length(resource) <= 1024 AND isfinite(acquired_at)) NOT VALID;
ALTER TABLE leasegen.session ADD CONSTRAINT session_sane CHECK (
    isfinite(opened_at) AND isfinite(beat_at)) NOT VALID;

DO $do$
DECLARE
    body text := pg_get_functiondef('leasegen.ensure_segments(bigint)'::regprocedure);
BEGIN
    IF position('INCLUDING GENERATED' IN body) = 0 THEN
        RAISE EXCEPTION 'function ensure_segments is not as expected';
    END IF;
    EXECUTE replace(body, 'INCLUDING GENERATED', 'INCLUDING GENERATED INCLUDING CONSTRAINTS');
END $do$;

-- serves is the oldest version of the schema whose programs work with this one, too: those that are still running,
-- or are started again, while newer ones are deployed. A migration that they cannot work with raises it.
ALTER TABLE leasegen.origin ADD COLUMN serves integer NOT NULL DEFAULT 10;
