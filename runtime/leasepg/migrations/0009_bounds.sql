-- Statements that cost what they are about, whatever else there is.

-- steady_segment tells ANALYZE not to believe its samples: after one transaction that wrote most of
-- a partition they say that xid has one value, and every look for another one would read it all.
CREATE FUNCTION leasegen.steady_segment(segment text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('ALTER TABLE leasegen.%I ALTER COLUMN xid SET (n_distinct = -1), ALTER COLUMN topic SET (n_distinct = -1), '
        'ALTER COLUMN key SET (n_distinct = -1)', segment);
END $$;

-- A trigger, so that no function that adds partitions can forget it.
CREATE FUNCTION leasegen.steady_new_segment() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM leasegen.steady_segment(NEW.name);
    RETURN NULL;
END $$;

CREATE TRIGGER steady AFTER INSERT ON leasegen.segment
    FOR EACH ROW EXECUTE FUNCTION leasegen.steady_new_segment();

ALTER TABLE leasegen.message ALTER COLUMN xid SET (n_distinct = -1, n_distinct_inherited = -1),
    ALTER COLUMN topic SET (n_distinct = -1, n_distinct_inherited = -1), ALTER COLUMN key SET (n_distinct = -1, n_distinct_inherited = -1);

SELECT leasegen.steady_segment(s.name) FROM leasegen.segment s;

-- It takes effect when a partition is analyzed.
ANALYZE leasegen.message;

REVOKE ALL ON FUNCTION leasegen.steady_segment(text), leasegen.steady_new_segment() FROM PUBLIC;

-- written as before, of transactions that have ended: what others wrote is not there yet, however
-- much that is.
CREATE OR REPLACE FUNCTION leasegen.written(xids xid8[], likes text[]) RETURNS TABLE (xid xid8, id bigint, slot smallint)
LANGUAGE sql STABLE ROWS 100 SET search_path = pg_catalog, pg_temp SET jit = off SET enable_seqscan = off AS $$
    SELECT m.xid, m.id, m.slot
    FROM (SELECT unnest(xids) AS xid) r
    CROSS JOIN LATERAL (SELECT m.* FROM leasegen.message m WHERE m.xid = r.xid OFFSET 0) m
    WHERE pg_visible_in_snapshot(r.xid, pg_current_snapshot()) AND m.topic LIKE ANY (likes)
$$;
