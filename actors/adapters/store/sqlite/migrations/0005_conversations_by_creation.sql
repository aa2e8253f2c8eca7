-- Lists in the order of creation are read page by page, and a transition does not change this index.

CREATE INDEX conversations_created ON conversations (principal, created_at, id)
WHERE parent_conversation_id IS NULL;
