-- An index of the conversations that only some nodes can have.

CREATE INDEX conversations_workspace ON conversations (workspace_label) WHERE workspace_label <> '';
