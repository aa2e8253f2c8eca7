"""The nodes that share the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peewee import Database

SCHEMA = (
    "CREATE SEQUENCE node_incarnations AS integer",
    # Many versions of few rows: room beside each for the next ones.
    """
    CREATE TABLE nodes (
        incarnation integer NOT NULL PRIMARY KEY,
        name text NOT NULL,
        address text NOT NULL,
        version text NOT NULL,
        labels text[] NOT NULL,
        session boolean NOT NULL,
        lease_seconds double precision NOT NULL,
        expires timestamptz NOT NULL,
        draining boolean NOT NULL DEFAULT FALSE,
        dead boolean NOT NULL DEFAULT FALSE,
        active integer NOT NULL DEFAULT 0
    ) WITH (fillfactor = 20)
    """,
)


def up(_migrator: object, db: Database) -> None:
    """Create the sequence and the table."""
    for statement in SCHEMA:
        db.execute_sql(statement)  # type: ignore[no-untyped-call]
