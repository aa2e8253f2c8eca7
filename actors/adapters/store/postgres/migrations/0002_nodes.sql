-- The nodes that share the database.

CREATE SEQUENCE node_incarnations AS integer;

-- Many versions of few rows: room beside each for the next ones.
CREATE TABLE nodes (
    incarnation integer NOT NULL PRIMARY KEY,
    name text NOT NULL,
    address text NOT NULL,
    version text NOT NULL,
    labels text[] NOT NULL,
    session boolean NOT NULL,
    lease_seconds double precision NOT NULL,
    expires timestamptz NOT NULL,
    draining boolean NOT NULL DEFAULT FALSE,
    dead boolean NOT NULL DEFAULT FALSE,
    active integer NOT NULL DEFAULT 0
) WITH (fillfactor = 20);
