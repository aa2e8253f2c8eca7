"""What the creator of a conversation chose for it; apart, since transitions rewrite the conversation's row."""

from __future__ import annotations

from peewee import Database

SCHEMA = """
CREATE TABLE profiles (
    conversation_id TEXT NOT NULL PRIMARY KEY,
    profile TEXT NOT NULL,
    profile_digest TEXT NOT NULL DEFAULT '',
    FOREIGN KEY (conversation_id) REFERENCES conversations(id) ON DELETE CASCADE
)
"""


def up(_migrator: object, db: Database) -> None:
    """Create the table."""
    db.execute_sql(SCHEMA)  # type: ignore[no-untyped-call]
