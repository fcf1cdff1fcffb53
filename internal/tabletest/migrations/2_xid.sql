ALTER TABLE app.outbox ADD COLUMN xid xid8;
ALTER TABLE app.outbox ALTER COLUMN xid SET DEFAULT pg_current_xact_id();
CREATE FUNCTION app.outbox_xid_first() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_current_xact_id(); RETURN NULL; END $$;
CREATE TRIGGER outbox_xid_first BEFORE INSERT ON app.outbox
    FOR EACH STATEMENT EXECUTE FUNCTION app.outbox_xid_first();
CREATE INDEX ON app.outbox (xid);
CREATE INDEX ON app.outbox (channel, id);
CREATE INDEX ON app.outbox (((CASE WHEN coalesce(customer_id::text, '') = '' THEN id::bigint ELSE hashtextextended(customer_id::text, 0) & 9223372036854775807 END % 16)::smallint), id);
