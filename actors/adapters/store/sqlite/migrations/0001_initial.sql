-- The first schema. Plain SQL, so that it stays what it was when the models change.

CREATE TABLE conversations (
    id TEXT NOT NULL PRIMARY KEY,
    slug TEXT UNIQUE,
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
    always_approved TEXT NOT NULL DEFAULT '[]',
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

CREATE INDEX conversations_parent ON conversations (parent_conversation_id);

CREATE INDEX conversations_listed ON conversations (principal, archived, updated_at, id)
WHERE parent_conversation_id IS NULL;

CREATE INDEX conversations_unsettled ON conversations (id)
WHERE state NOT IN ('idle', 'context_exhausted', 'completed', 'failed')
    OR (user_initiated = 0 AND state = 'idle');

CREATE TABLE prompts (
    conversation_id TEXT NOT NULL PRIMARY KEY,
    text TEXT NOT NULL,
    text_digest TEXT NOT NULL DEFAULT '',
    FOREIGN KEY (conversation_id) REFERENCES conversations(id) ON DELETE CASCADE
);

CREATE TABLE messages (
    id TEXT NOT NULL PRIMARY KEY,
    conversation_id TEXT NOT NULL,
    sequence_id INTEGER NOT NULL,
    message_type TEXT NOT NULL CHECK (message_type IN ('user', 'agent', 'tool', 'system', 'error')),
    actor_kind TEXT NOT NULL CHECK (actor_kind IN ('human', 'llm_agent', 'system')),
    content TEXT NOT NULL,
    display_data TEXT,
    usage_data TEXT,
    created_at TIMESTAMP NOT NULL,
    request_id TEXT NOT NULL DEFAULT '',
    attempt INTEGER NOT NULL DEFAULT 0,
    through_sequence INTEGER NOT NULL DEFAULT 0,
    digest TEXT NOT NULL DEFAULT '',
    FOREIGN KEY (conversation_id) REFERENCES conversations(id) ON DELETE CASCADE
);

CREATE UNIQUE INDEX messages_sequence ON messages (conversation_id, sequence_id);

CREATE TABLE log (
    conversation_id TEXT NOT NULL,
    step INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    at TIMESTAMP NOT NULL,
    first_revision INTEGER NOT NULL,
    count INTEGER NOT NULL,
    prev_hash TEXT NOT NULL,
    hash TEXT NOT NULL,
    notifications TEXT NOT NULL,
    event TEXT NOT NULL,
    context TEXT,
    PRIMARY KEY (conversation_id, first_revision, step),
    FOREIGN KEY (conversation_id) REFERENCES conversations(id) ON DELETE CASCADE
);

CREATE TABLE runs (
    conversation_id TEXT NOT NULL,
    revision INTEGER NOT NULL,
    run TEXT NOT NULL,
    reason TEXT NOT NULL,
    detail TEXT NOT NULL,
    message TEXT NOT NULL,
    last_sequence INTEGER NOT NULL,
    at TIMESTAMP NOT NULL,
    digest TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (conversation_id, revision),
    FOREIGN KEY (conversation_id) REFERENCES conversations(id) ON DELETE CASCADE
);

CREATE TABLE fates (
    conversation_id TEXT NOT NULL,
    revision INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    delivery TEXT NOT NULL,
    fate TEXT NOT NULL,
    input TEXT NOT NULL,
    run TEXT NOT NULL,
    at TIMESTAMP NOT NULL,
    digest TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (conversation_id, revision),
    FOREIGN KEY (conversation_id) REFERENCES conversations(id) ON DELETE CASCADE
);

CREATE TABLE prunings (
    conversation_id TEXT NOT NULL PRIMARY KEY,
    step INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    hash TEXT NOT NULL,
    FOREIGN KEY (conversation_id) REFERENCES conversations(id) ON DELETE CASCADE
);

CREATE TABLE commands (
    conversation_id TEXT,
    principal TEXT,
    request_id TEXT NOT NULL,
    body_hash TEXT NOT NULL,
    answer TEXT NOT NULL,
    at TIMESTAMP NOT NULL,
    digest TEXT NOT NULL DEFAULT '',
    CHECK ((conversation_id IS NULL) <> (principal IS NULL)),
    FOREIGN KEY (conversation_id) REFERENCES conversations(id) ON DELETE CASCADE
);

CREATE UNIQUE INDEX commands_of_conversation ON commands (conversation_id, request_id)
WHERE conversation_id IS NOT NULL;

CREATE UNIQUE INDEX commands_of_principal ON commands (principal, request_id)
WHERE principal IS NOT NULL;

CREATE TABLE attachments (
    conversation_id TEXT NOT NULL,
    id TEXT NOT NULL,
    media_type TEXT NOT NULL,
    data BLOB NOT NULL,
    width INTEGER NOT NULL,
    height INTEGER NOT NULL,
    created_at TIMESTAMP NOT NULL,
    digest TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (conversation_id, id),
    FOREIGN KEY (conversation_id) REFERENCES conversations(id) ON DELETE CASCADE
);
