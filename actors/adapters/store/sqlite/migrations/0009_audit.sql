-- The log tells who sent a command and what decided about calls; what is in no log is in a table of its own.

ALTER TABLE log ADD COLUMN audit TEXT;

CREATE INDEX log_audited ON log (at, conversation_id, step) WHERE audit IS NOT NULL;

CREATE TABLE audit (
    id INTEGER NOT NULL PRIMARY KEY,
    at TIMESTAMP NOT NULL,
    outcome TEXT NOT NULL,
    reason TEXT NOT NULL,
    principal TEXT NOT NULL,
    conversation_id TEXT NOT NULL,
    count INTEGER NOT NULL DEFAULT 1,
    origin TEXT NOT NULL
);

CREATE INDEX audit_at ON audit (at, id);
