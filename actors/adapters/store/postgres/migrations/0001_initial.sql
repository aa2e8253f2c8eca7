-- The tables as of the first version that stores conversations in PostgreSQL.
--
-- The columns are those of SQLite, with the same digests, and a few more outside the digests: who owns a conversation, at
-- the top of which family it is, and what SQLite finds in JSON. Ids are compared byte by byte, so that every database
-- orders them alike. Rows of a conversation have no foreign keys: the update of its row proves that it exists.

CREATE TABLE conversations (
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    family text COLLATE "C" NOT NULL,
    owner bigint,
    slug text COLLATE "C",
    cwd text COLLATE "C" NOT NULL,
    parent_conversation_id text COLLATE "C",
    user_initiated bigint NOT NULL,
    state text COLLATE "C" NOT NULL,
    state_data text NOT NULL,
    state_updated_at bigint NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    archived bigint NOT NULL,
    archived_at bigint,
    mode text NOT NULL,
    model text NOT NULL,
    title text COLLATE "C" NOT NULL,
    labels text NOT NULL,
    approval_policy text NOT NULL,
    approval_rules text NOT NULL,
    follow_up_policy text NOT NULL,
    budget text NOT NULL,
    continued_from text NOT NULL,
    continued_by text NOT NULL,
    node text NOT NULL,
    epoch bigint NOT NULL,
    step bigint NOT NULL,
    last_seq bigint NOT NULL,
    digest text NOT NULL,
    log_hash text NOT NULL,
    workspace_label text NOT NULL,
    principal text COLLATE "C" NOT NULL
) WITH (fillfactor = 70);

CREATE UNIQUE INDEX conversations_slug ON conversations (principal, slug);

CREATE INDEX conversations_parent ON conversations (parent_conversation_id)
WHERE parent_conversation_id IS NOT NULL;

CREATE INDEX conversations_family ON conversations (family);

CREATE INDEX conversations_owner ON conversations (owner) WHERE owner IS NOT NULL;

CREATE INDEX conversations_listed ON conversations (principal, archived, updated_at, id)
WHERE parent_conversation_id IS NULL;

CREATE INDEX conversations_of_directory ON conversations (principal, archived, cwd, updated_at, id)
WHERE parent_conversation_id IS NULL;

CREATE INDEX conversations_created ON conversations (principal, created_at, id)
WHERE parent_conversation_id IS NULL;

CREATE INDEX conversations_unsettled ON conversations (owner, id)
WHERE state NOT IN ('idle', 'context_exhausted', 'completed', 'failed')
    OR (user_initiated = 0 AND state = 'idle');

CREATE TABLE prompts (
    conversation_id text COLLATE "C" NOT NULL PRIMARY KEY,
    text text NOT NULL,
    text_digest text NOT NULL
);

CREATE TABLE profiles (
    conversation_id text COLLATE "C" NOT NULL PRIMARY KEY,
    profile text NOT NULL,
    profile_digest text NOT NULL,
    forked_from text COLLATE "C" NOT NULL
);

CREATE TABLE messages (
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    conversation_id text COLLATE "C" NOT NULL,
    sequence_id bigint NOT NULL,
    message_type text NOT NULL CHECK (message_type IN ('user', 'agent', 'tool', 'system', 'error')),
    actor_kind text NOT NULL CHECK (actor_kind IN ('human', 'llm_agent', 'system')),
    content text NOT NULL,
    display_data text,
    usage_data text,
    created_at bigint NOT NULL,
    request_id text NOT NULL,
    attempt bigint NOT NULL,
    through_sequence bigint NOT NULL,
    digest text NOT NULL
);

CREATE UNIQUE INDEX messages_sequence ON messages (conversation_id, sequence_id);

CREATE TABLE log (
    conversation_id text COLLATE "C" NOT NULL,
    step bigint NOT NULL,
    epoch bigint NOT NULL,
    at bigint NOT NULL,
    first_revision bigint NOT NULL,
    count bigint NOT NULL,
    prev_hash text NOT NULL,
    hash text NOT NULL,
    notifications text NOT NULL,
    event text NOT NULL,
    context text,
    audit text,
    principal text COLLATE "C" NOT NULL,
    PRIMARY KEY (conversation_id, first_revision, step)
);

CREATE INDEX log_audited ON log (at, conversation_id, step) WHERE audit IS NOT NULL;

CREATE TABLE runs (
    conversation_id text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    run text COLLATE "C" NOT NULL,
    reason text NOT NULL,
    detail text NOT NULL,
    message text NOT NULL,
    last_sequence bigint NOT NULL,
    at bigint NOT NULL,
    digest text NOT NULL,
    PRIMARY KEY (conversation_id, revision)
);

CREATE TABLE fates (
    conversation_id text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    message_id text NOT NULL,
    delivery text NOT NULL,
    fate text NOT NULL,
    input text NOT NULL,
    run text NOT NULL,
    at bigint NOT NULL,
    digest text NOT NULL,
    PRIMARY KEY (conversation_id, revision)
);

CREATE TABLE prunings (
    conversation_id text COLLATE "C" NOT NULL PRIMARY KEY,
    step bigint NOT NULL,
    revision bigint NOT NULL,
    hash text NOT NULL
);

CREATE TABLE commands (
    conversation_id text COLLATE "C",
    principal text COLLATE "C",
    request_id text COLLATE "C" NOT NULL,
    body_hash text NOT NULL,
    answer text NOT NULL,
    at bigint NOT NULL,
    digest text NOT NULL,
    CHECK ((conversation_id IS NULL) <> (principal IS NULL))
);

CREATE UNIQUE INDEX commands_of_conversation ON commands (conversation_id, request_id)
WHERE conversation_id IS NOT NULL;

CREATE UNIQUE INDEX commands_of_principal ON commands (principal, request_id)
WHERE principal IS NOT NULL;

CREATE TABLE attachments (
    conversation_id text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    media_type text NOT NULL,
    data bytea NOT NULL,
    width bigint NOT NULL,
    height bigint NOT NULL,
    created_at bigint NOT NULL,
    digest text NOT NULL,
    PRIMARY KEY (conversation_id, id)
);

-- Images are compressed already.
ALTER TABLE attachments ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE spendings (
    principal text COLLATE "C" NOT NULL,
    day bigint NOT NULL,
    tokens bigint NOT NULL,
    cost_micros bigint NOT NULL,
    PRIMARY KEY (day, principal)
) WITH (fillfactor = 50);

CREATE TABLE deletions (
    conversation_id text COLLATE "C" NOT NULL PRIMARY KEY,
    depth bigint NOT NULL
);

CREATE TABLE audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at bigint NOT NULL,
    outcome text NOT NULL,
    reason text NOT NULL,
    principal text COLLATE "C" NOT NULL,
    conversation_id text COLLATE "C" NOT NULL,
    count bigint NOT NULL,
    origin text NOT NULL
);

CREATE INDEX audit_at ON audit (at, id);
