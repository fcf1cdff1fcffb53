-- What consumers have executed, by a key of the application.

-- An item is done, or was begun under a lease: (session, resource, epoch), which is NULL once
-- its end is known to be unknown. unknown is what the beginner was told of the execution
-- before. asked are the messages that became dead letters because of that.
CREATE TABLE leasegen.once (
    consumer text        COLLATE "C" NOT NULL,
    key      text        COLLATE "C" NOT NULL,
    done     boolean     NOT NULL,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(), -- begun, or done
    session  text        COLLATE "C",
    resource text        COLLATE "C",
    epoch    bigint,
    unknown  boolean     NOT NULL DEFAULT false,
    asked    bigint[]    NOT NULL DEFAULT '{}',
    PRIMARY KEY (consumer, key)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX once_at ON leasegen.once (consumer, at);

-- still_executing tells whether the lease under which an item was begun has not ended. It is
-- volatile to look with a snapshot of its own: a start that waited for another one, which it
-- then finds, must see the lease of that, too.
CREATE FUNCTION leasegen.still_executing(consumer text, resource text, session text, epoch bigint) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM leasegen.lease l
        JOIN leasegen.consumer c ON c.name = l.consumer
        JOIN leasegen.session s ON s.id = l.session
        WHERE l.consumer = still_executing.consumer COLLATE "C" AND l.resource = still_executing.resource COLLATE "C"
          AND l.session = still_executing.session COLLATE "C" AND l.epoch = still_executing.epoch
          AND (l.expires_at IS NULL OR l.expires_at + c.grace >= clock_timestamp())
          AND s.state <> 'closed' AND s.expires_at + c.grace >= clock_timestamp() AND (s.state = 'live' OR c.grace > '0'))
$$;
