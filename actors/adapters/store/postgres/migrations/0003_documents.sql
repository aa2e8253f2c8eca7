-- Small documents that all servers share, such as the tokens of principals.

CREATE TABLE documents (name text NOT NULL PRIMARY KEY, version bigint NOT NULL, content bytea NOT NULL);
