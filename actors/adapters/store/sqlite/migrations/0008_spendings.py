"""What model requests of each principal spent, day by day, for quotas of tokens and costs."""

from __future__ import annotations

from peewee import Database

SCHEMA = """
CREATE TABLE spendings (
    principal TEXT NOT NULL,
    day INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    cost_micros INTEGER NOT NULL,
    PRIMARY KEY (day, principal)
)
"""


def up(_migrator: object, db: Database) -> None:
    """Create the table."""
    db.execute_sql(SCHEMA)  # type: ignore[no-untyped-call]
