"""The conversations of one directory are found without reading those of all others."""

from __future__ import annotations

from peewee import Database

INDEX = """
    CREATE INDEX conversations_of_directory ON conversations (principal, archived, cwd, updated_at, id)
    WHERE parent_conversation_id IS NULL
"""


def up(_migrator: object, db: Database) -> None:
    """Create the index."""
    db.execute_sql(INDEX)  # type: ignore[no-untyped-call]
