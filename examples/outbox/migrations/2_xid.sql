-- The migration that leasegen asked for, so that no order that commits late is lost.
ALTER TABLE shop.outbox ADD COLUMN xid xid8;
ALTER TABLE shop.outbox ALTER COLUMN xid SET DEFAULT pg_current_xact_id();
CREATE FUNCTION shop.outbox_xid_first() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_current_xact_id(); RETURN NULL; END $$;
CREATE TRIGGER outbox_xid_first BEFORE INSERT ON shop.outbox
    FOR EACH STATEMENT EXECUTE FUNCTION shop.outbox_xid_first();
CREATE INDEX ON shop.outbox (xid);
CREATE INDEX ON shop.outbox (((CASE WHEN coalesce(customer::text, '') = '' THEN id::bigint ELSE hashtextextended(customer::text, 0) & 9223372036854775807 END % 16)::smallint), id);
