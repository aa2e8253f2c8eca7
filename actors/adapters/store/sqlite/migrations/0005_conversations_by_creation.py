"""Lists in the order of creation are read page by page, and a transition does not change this index."""

from __future__ import annotations

from peewee import Database

INDEX = """
    CREATE INDEX conversations_created ON conversations (principal, created_at, id)
    WHERE parent_conversation_id IS NULL
"""


def up(_migrator: object, db: Database) -> None:
    """Create the index."""
    db.execute_sql(INDEX)  # type: ignore[no-untyped-call]
