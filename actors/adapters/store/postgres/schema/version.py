"""Applies migrations to a PostgreSQL database.

Several servers may start at once, and servers of older versions may still use the database. So a migration only adds
what a new version needs. What no version uses any more is removed by a later migration.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import peewee
import psycopg
from playhouse.migrations import Runner  # type: ignore[import-untyped] # playhouse has no stubs

from actors.adapters.store.postgres.engine import Database, reached, words
from actors.ports import StoreUnusableError

if TYPE_CHECKING:
    from actors.adapters.store.postgres.engine import Address

MIGRATIONS = Path(__file__).with_name("migrations")
LOCK = 0x426564726F636B
"""The key of the advisory lock that a server holds while it migrates."""


def migrate(address: Address, directory: Path = MIGRATIONS) -> None:
    """Apply the missing migrations, each in a transaction of its own. One server at a time does so.

    Raises StoreUnusableError if the database cannot be reached or used, if a newer version wrote it, or if a migration
    fails.
    """
    reached(address).close()
    parameters: dict[str, Any] = {name: value for name, value in address.parameters.items() if name != "dbname"}
    name = address.parameters.get("dbname") or address.parameters.get("user", "")
    database = Database(name, **parameters)
    try:
        if not _missing(database, address, directory):
            return
        database.execute_sql("SELECT pg_advisory_lock(%s)", (LOCK,))  # type: ignore[no-untyped-call]
        if _missing(database, address, directory):
            Runner(database, str(directory)).up()
    except (psycopg.Error, peewee.PeeweeException) as error:
        cause = error.__cause__ if isinstance(error.__cause__, psycopg.Error) else error
        said = words(cause) if isinstance(cause, psycopg.Error) else str(cause)
        raise StoreUnusableError(f"{address.shown} cannot be brought up to date: {said}") from None
    finally:
        database.close()


def _missing(database: Database, address: Address, directory: Path) -> bool:
    """Return whether a migration is missing.

    Raises StoreUnusableError if a migration has been applied that this version does not know.
    """
    status = Runner(database, str(directory)).status()
    if unknown := [migration.name for migration in status if migration.path is None]:
        raise StoreUnusableError(f"{address.shown} was written by a newer version: it has {', '.join(unknown)}")
    return not all(migration.applied for migration in status)
