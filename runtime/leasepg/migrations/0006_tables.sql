-- Consumers that read a table of the application (consumer.source): how far behind they are,
-- and their cursors after a restore.

-- foreign_cursors: the cursors are of the cluster that the schema was restored from. Only the
-- program knows which rows of its table they have not passed; it mends them when it starts.
ALTER TABLE leasegen.consumer ADD COLUMN foreign_cursors boolean NOT NULL DEFAULT false;

-- table_top is the greatest position in a source's table; 0 if it is empty or gone.
CREATE FUNCTION leasegen.table_top(source text) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s   CONSTANT jsonb := source::jsonb;
    tab CONSTANT regclass := to_regclass(format('%I.%I', split_part(s ->> 'table', '.', 1), split_part(s ->> 'table', '.', 2)));
    top bigint;
BEGIN
    IF tab IS NOT NULL THEN
        EXECUTE format('SELECT max(o.%I) FROM %s o', s ->> 'position', tab) INTO top;
    END IF;
    RETURN coalesce(top, 0);
END $$;

-- table_lag counts the rows of a resource beyond a position, up to a bound, those too that the
-- consumer will pass over. What it makes SQL of are names, quoted, and it runs as its caller.
CREATE FUNCTION leasegen.table_lag(source text, resource text, pos bigint, bound bigint) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s   CONSTANT jsonb := source::jsonb;
    tab CONSTANT regclass := to_regclass(format('%I.%I', split_part(s ->> 'table', '.', 1), split_part(s ->> 'table', '.', 2)));
    lag bigint;
BEGIN
    IF tab IS NOT NULL THEN
        EXECUTE format('SELECT count(*) FROM (SELECT FROM %s o WHERE %s o.%I > $1 LIMIT $2) b', tab, CASE
            WHEN s ->> 'topic' <> '' THEN format('o.%I = %L AND', s ->> 'topic', resource)
            WHEN (s ->> 'slots')::int > 0 THEN format(
                '(CASE WHEN coalesce(o.%1$I::text, %4$L) = %4$L THEN o.%2$I::bigint '
                'ELSE hashtextextended(o.%1$I::text, 0) & 9223372036854775807 END %% %3$s)::smallint = %5$s AND',
                s ->> 'key', s ->> 'position', (s ->> 'slots')::int, '', resource::smallint)
            ELSE '' END, s ->> 'position') INTO lag USING pos, bound;
    END IF;
    RETURN coalesce(lag, 0);
END $$;

-- restamp makes a copy of the schema that was restored into another cluster usable: xids of the
-- old cluster mean nothing here. What was late for a cursor of the log is parked, due at once;
-- everything else counts as long visible. Of consumers of tables it only notes that their
-- cursors are foreign. Run it while no process uses the copy.
CREATE FUNCTION leasegen.restamp() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    LOCK TABLE leasegen.message, leasegen.lease, leasegen.session IN ACCESS EXCLUSIVE MODE;
    -- What was late for the start of a resource that has no lease yet gets one.
    INSERT INTO leasegen.lease (consumer, resource, pos, snap, x)
    SELECT c.name, CASE c.per WHEN 'topic' THEN m.topic WHEN 'partition' THEN m.slot::text WHEN 'stream' THEN m.key ELSE '*' END,
           c.start_pos, c.start_snap, c.start_x
    FROM leasegen.consumer c
    JOIN leasegen.message m ON m.id <= c.start_pos AND m.topic LIKE ANY (c.likes)
    WHERE c.source = '' AND c.start_snap IS NOT NULL AND NOT pg_visible_in_snapshot(m.xid, c.start_snap)
    ON CONFLICT DO NOTHING;
    INSERT INTO leasegen.parked (consumer, resource, lane, message_id, topic, key, kind, payload, headers,
                                 published_at, attempt, next_at, error)
    SELECT l.consumer, l.resource, m.key, m.id, m.topic, m.key, m.kind, m.payload, m.headers,
           m.published_at, 0, clock_timestamp(), ''
    FROM leasegen.lease l
    JOIN leasegen.consumer c ON c.name = l.consumer
    JOIN leasegen.message m ON m.id <= l.pos AND m.topic LIKE ANY (c.likes)
        AND CASE c.per WHEN 'topic' THEN m.topic = l.resource WHEN 'partition' THEN m.slot::text = l.resource
                       WHEN 'stream' THEN m.key = l.resource ELSE true END
    WHERE c.source = '' AND l.snap IS NOT NULL AND NOT pg_visible_in_snapshot(m.xid, l.snap)
      AND NOT (l.late_snap IS NOT NULL AND m.id <= l.late_pos AND pg_visible_in_snapshot(m.xid, l.late_snap))
    ORDER BY m.id
    ON CONFLICT DO NOTHING;
    UPDATE leasegen.message SET xid = '3'; -- older than any snapshot
    UPDATE leasegen.segment SET closed_xid = NULL;
    UPDATE leasegen.lease l SET session = NULL, late_snap = NULL, late_pos = 0, wanted = true,
        snap = CASE WHEN snap IS NOT NULL THEN pg_current_snapshot() END,
        x = CASE WHEN snap IS NOT NULL THEN pg_current_xact_id() END
    FROM leasegen.consumer c WHERE c.name = l.consumer AND c.source = '';
    UPDATE leasegen.lease l SET session = NULL FROM leasegen.consumer c WHERE c.name = l.consumer AND c.source <> '';
    UPDATE leasegen.consumer SET start_snap = pg_current_snapshot(), start_x = pg_current_xact_id()
    WHERE start_snap IS NOT NULL AND source = '';
    UPDATE leasegen.consumer SET foreign_cursors = true WHERE source <> '';
    UPDATE leasegen.session SET state = 'dead' WHERE state = 'live';
    UPDATE leasegen.origin SET recorded_at = clock_timestamp(),
        system_identifier = (SELECT c.system_identifier FROM pg_control_system() c);
END $$;

REVOKE ALL ON FUNCTION leasegen.restamp() FROM PUBLIC;
