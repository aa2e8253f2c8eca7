-- What the creator of a conversation chose for it; apart, since transitions rewrite the conversation's row.

CREATE TABLE profiles (
    conversation_id TEXT NOT NULL PRIMARY KEY,
    profile TEXT NOT NULL,
    profile_digest TEXT NOT NULL DEFAULT '',
    FOREIGN KEY (conversation_id) REFERENCES conversations(id) ON DELETE CASCADE
);
