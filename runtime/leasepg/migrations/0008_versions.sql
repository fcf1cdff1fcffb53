-- Versions of a consumer that run side by side while it is deployed.

-- topics are the patterns of the session's consumers, by consumer. What a consumer reads
-- (consumer.topics, and the same as likes) is what any of its members wants.
ALTER TABLE leasegen.session ADD COLUMN topics jsonb NOT NULL DEFAULT '{}';

-- since is when a message was set aside, or its attempt last rose.
ALTER TABLE leasegen.parked ADD COLUMN since timestamptz NOT NULL DEFAULT clock_timestamp();
