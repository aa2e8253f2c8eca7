-- The conversations of one directory are found without reading those of all others.

CREATE INDEX conversations_of_directory ON conversations (principal, archived, cwd, updated_at, id)
WHERE parent_conversation_id IS NULL;
