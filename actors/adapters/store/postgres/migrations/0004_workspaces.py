"""An index of the conversations that only some nodes can have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peewee import Database

INDEX = "CREATE INDEX conversations_workspace ON conversations (workspace_label) WHERE workspace_label <> ''"


def up(_migrator: object, db: Database) -> None:
    """Create it, empty: no version before gave conversations a workspace."""
    db.execute_sql(INDEX)  # type: ignore[no-untyped-call]
