"""Checks which migrations were applied to a database, and whether its tables match them.

A migration is recorded by its name only. A database with a different migration of the same name, or with tables that
were changed by hand, would fail later, in the middle of a conversation. So the tables themselves are compared, too.
"""

from __future__ import annotations

from pathlib import Path

import peewee
from peewee import SqliteDatabase

from actors.adapters.store.migrations import Migrations
from actors.adapters.store.sqlite.engine import raw, sqlite3
from actors.ports import StoreUnusableError

MIGRATIONS = Path(__file__).with_name("migrations")
_HISTORY = "schema_migration"
_OBJECTS = "SELECT type || ' ' || name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"


def schema_of(database: SqliteDatabase, path: Path, directory: Path = MIGRATIONS) -> str:
    """Return the name of the latest migration of the database at `path`; "" if the file is no database of Bedrock.

    Raises StoreUnusableError if a newer version wrote the database, or if its tables differ from those that the applied
    migrations create. Raises what SQLite raises, too.
    """
    had = [migration.name for migration in Migrations(database, directory).known(str(path)) if migration.applied]
    if not had:
        return ""
    latest: str = had[-1]
    if wrong := _difference(database, latest, directory):
        raise StoreUnusableError(
            f"{path} is not as this version makes it: {wrong}; "
            "use the version that wrote it, or restore a backup of this version"
        )
    return latest


def migrate(database: SqliteDatabase, directory: Path = MIGRATIONS) -> None:
    """Apply missing migrations, each in a transaction of its own.

    Raises StoreUnusableError if a newer version wrote the file, if its tables differ from those that the applied
    migrations create, or if a migration fails.
    """
    try:
        schema_of(database, Path(database.database), directory)
        Migrations(database, directory).up()
    except (sqlite3.Error, peewee.PeeweeException) as error:
        raise StoreUnusableError(f"{database.database} cannot be brought up to date: {error}") from error


def _difference(database: SqliteDatabase, latest: str, directory: Path) -> str:
    """Return a description of the first difference between the database's schema and the expected one; "" for none.

    The expected schema is the one that the migrations up to `latest` create.
    """
    found, expected = _objects(raw(database)), _made_by(latest, directory)
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            return f"the {name} is missing"
        if name not in expected:
            return f"it has a {name}, which this version does not know"
        if found[name] != expected[name]:
            return f"the {name} has another definition"
    return ""


def _made_by(latest: str, directory: Path) -> dict[str, str]:
    """Return the SQL, by name, of the tables, indexes and other objects that the migrations up to `latest` create."""
    database = SqliteDatabase(":memory:", thread_safe=False)
    try:
        Migrations(database, directory).up(latest)
        return _objects(raw(database))
    finally:
        database.close()


def _objects(connection: sqlite3.Connection) -> dict[str, str]:
    """Return the SQL, by name, of every table, index, view and trigger, with normalised white space."""
    objects: list[tuple[str, str | None]] = connection.execute(_OBJECTS).fetchall()
    return {name: " ".join((sql or "").split()) for name, sql in objects if _HISTORY not in name}
