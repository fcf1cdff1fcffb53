CREATE SCHEMA app;

-- A row takes its time between drawing its position and the rest; with app.wait on, until
-- no session holds the advisory lock 77.
CREATE FUNCTION app.dawdle() RETURNS double precision LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    took double precision := random() * 0.003;
BEGIN
    IF current_setting('app.wait', true) = 'on' THEN
        PERFORM pg_advisory_xact_lock_shared(77);
    END IF;
    PERFORM pg_sleep(took);
    RETURN took;
END $$;

CREATE TABLE app.outbox (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    channel     text   NOT NULL,
    customer_id bigint,
    event_type  text   NOT NULL DEFAULT 'placed',
    status      text   NOT NULL DEFAULT 'ready',
    cause       bigint NOT NULL DEFAULT 0,
    n           bigint NOT NULL,
    body        jsonb,
    dawdled     double precision NOT NULL DEFAULT app.dawdle()
);
