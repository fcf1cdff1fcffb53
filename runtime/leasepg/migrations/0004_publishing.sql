-- Events that are published once, by an id of their own, and events that are delayed.

-- published_id keeps out a second event with the same id on the same topic.
CREATE TABLE leasegen.published_id (
    topic text        COLLATE "C" NOT NULL,
    id    text        COLLATE "C" NOT NULL,
    at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic, id)
);

CREATE INDEX published_id_at ON leasegen.published_id (at);

-- delayed holds events until they are due. They join the log in this table's order.
CREATE TABLE leasegen.delayed (
    due_at  timestamptz NOT NULL,
    seq     bigint      NOT NULL GENERATED ALWAYS AS IDENTITY (CACHE 1),
    topic   text        COLLATE "C" NOT NULL,
    key     text        COLLATE "C" NOT NULL,
    kind    text        COLLATE "C" NOT NULL,
    payload bytea       NOT NULL,
    headers jsonb,
    PRIMARY KEY (due_at, seq)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
