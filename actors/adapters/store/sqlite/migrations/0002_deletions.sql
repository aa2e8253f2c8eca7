-- What is deleted is hidden at once and removed little by little: which conversations that is still to be done for.

CREATE TABLE deletions (
    conversation_id TEXT NOT NULL PRIMARY KEY,
    depth INTEGER NOT NULL,
    FOREIGN KEY (conversation_id) REFERENCES conversations(id) ON DELETE CASCADE
);
