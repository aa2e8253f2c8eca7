"""Small documents that all servers share, such as the tokens of principals."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peewee import Database

SCHEMA = "CREATE TABLE documents (name text NOT NULL PRIMARY KEY, version bigint NOT NULL, content bytea NOT NULL)"


def up(_migrator: object, db: Database) -> None:
    """Create the table."""
    db.execute_sql(SCHEMA)  # type: ignore[no-untyped-call]
