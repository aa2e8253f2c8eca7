"""What is deleted is hidden at once and removed little by little: which conversations that is still to be done for."""

from __future__ import annotations

from peewee import Database

SCHEMA = """
CREATE TABLE deletions (
    conversation_id TEXT NOT NULL PRIMARY KEY,
    depth INTEGER NOT NULL,
    FOREIGN KEY (conversation_id) REFERENCES conversations(id) ON DELETE CASCADE
)
"""


def up(_migrator: object, db: Database) -> None:
    """Create the table."""
    db.execute_sql(SCHEMA)  # type: ignore[no-untyped-call]
