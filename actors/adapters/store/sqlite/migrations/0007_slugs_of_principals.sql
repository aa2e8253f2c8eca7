-- Each principal has slugs of its own. A constraint of a column cannot be dropped, so the table is made again.

CREATE TABLE conversations_again (
    id TEXT NOT NULL PRIMARY KEY,
    slug TEXT,
    cwd TEXT NOT NULL,
    parent_conversation_id TEXT,
    user_initiated BOOLEAN NOT NULL,
    state TEXT NOT NULL DEFAULT 'idle',
    state_data TEXT,
    state_updated_at TIMESTAMP NOT NULL,
    created_at TIMESTAMP NOT NULL,
    updated_at TIMESTAMP NOT NULL,
    archived BOOLEAN NOT NULL DEFAULT FALSE,
    archived_at TIMESTAMP,
    mode TEXT NOT NULL DEFAULT 'restricted',
    model TEXT NOT NULL DEFAULT '',
    title TEXT NOT NULL DEFAULT '',
    labels TEXT NOT NULL DEFAULT '{}',
    approval_policy TEXT NOT NULL DEFAULT 'auto',
    approval_rules TEXT NOT NULL DEFAULT '[]',
    follow_up_policy TEXT NOT NULL DEFAULT 'always',
    budget TEXT NOT NULL DEFAULT '{}',
    continued_from TEXT NOT NULL DEFAULT '',
    continued_by TEXT NOT NULL DEFAULT '',
    node TEXT NOT NULL DEFAULT '',
    epoch INTEGER NOT NULL DEFAULT 0,
    step INTEGER NOT NULL DEFAULT 0,
    last_seq INTEGER NOT NULL DEFAULT 0,
    digest TEXT NOT NULL DEFAULT '',
    log_hash TEXT NOT NULL DEFAULT '',
    workspace_label TEXT NOT NULL DEFAULT '',
    principal TEXT NOT NULL DEFAULT '',
    FOREIGN KEY (parent_conversation_id) REFERENCES conversations(id) ON DELETE CASCADE
);

INSERT INTO conversations_again (id, slug, cwd, parent_conversation_id, user_initiated, state, state_data, state_updated_at, created_at, updated_at, archived, archived_at, mode, model, title, labels, approval_policy, approval_rules, follow_up_policy, budget, continued_from, continued_by, node, epoch, step, last_seq, digest, log_hash, workspace_label, principal) SELECT id, slug, cwd, parent_conversation_id, user_initiated, state, state_data, state_updated_at, created_at, updated_at, archived, archived_at, mode, model, title, labels, approval_policy, approval_rules, follow_up_policy, budget, continued_from, continued_by, node, epoch, step, last_seq, digest, log_hash, workspace_label, principal FROM conversations;

DROP TABLE conversations;

ALTER TABLE conversations_again RENAME TO conversations;

CREATE UNIQUE INDEX conversations_slug ON conversations (principal, slug);

CREATE INDEX conversations_parent ON conversations (parent_conversation_id);

CREATE INDEX conversations_listed ON conversations (principal, archived, updated_at, id)
WHERE parent_conversation_id IS NULL;

CREATE INDEX conversations_of_directory ON conversations (principal, archived, cwd, updated_at, id)
WHERE parent_conversation_id IS NULL;

CREATE INDEX conversations_created ON conversations (principal, created_at, id)
WHERE parent_conversation_id IS NULL;

CREATE INDEX conversations_unsettled ON conversations (id)
WHERE state NOT IN ('idle', 'context_exhausted', 'completed', 'failed')
    OR (user_initiated = 0 AND state = 'idle');
