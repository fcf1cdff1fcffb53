-- Left out by leasegen migrate when the schema exists, so that its owner needs no right
-- to create schemas.
CREATE SCHEMA leasegen;
