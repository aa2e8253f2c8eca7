"""Applies migrations to a PostgreSQL database, and reports its condition.

Several servers may start at once, and servers of older versions may still use the database. So a migration only adds
what a new version needs; a later migration removes objects that no version uses any more.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import peewee
import psycopg

from actors.adapters.store.migrations import Migrations
from actors.adapters.store.postgres.engine import (
    FITNESS,
    Address,
    Database,
    address_of,
    opened,
    reached,
    refuse_unfit,
    words,
)
from actors.adapters.store.postgres.nodes.node_statements import LEASED
from actors.ports import StoreError, StoreUnusableError

MIGRATIONS = Path(__file__).with_name("migrations")
LOCK = 0x426564726F636B  # the key of the advisory lock that a server holds while it migrates


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
        migrations = Migrations(database, directory)
        if all(migration.applied for migration in migrations.known(address.shown)):
            return
        database.execute_sql("SELECT pg_advisory_lock(%s)", (LOCK,))  # type: ignore[no-untyped-call]
        migrations.known(address.shown)
        migrations.up()
    except (psycopg.Error, peewee.PeeweeException) as error:
        cause = error.__cause__ if isinstance(error.__cause__, psycopg.Error) else error
        said = words(cause) if isinstance(cause, psycopg.Error) else str(cause)
        raise StoreUnusableError(f"{address.shown} cannot be upgraded: {said}") from None
    finally:
        database.close()


# --- the condition of a database, for its operator ----------------------------------------------------------

REPORT_SECONDS = 3  # time limit in seconds for the connection, and for each statement

_ABOUT = f"SELECT current_setting('server_version'), extract(epoch FROM clock_timestamp())::float8, {FITNESS}"  # noqa: S608 -- only constants
_TABLES = """
SELECT to_regclass('schema_migration') IS NOT NULL, to_regclass('nodes') IS NOT NULL, coalesce(current_schema(), ''),
       coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)
"""
_APPLIED = "SELECT name FROM schema_migration"


class LivingNode(NamedTuple):
    """A node with a valid lease."""

    name: str
    address: str
    lease_seconds: float
    draining: bool


class DatabaseReport(NamedTuple):
    """The findings about a database that could be reached."""

    shown: str  # the database's URL, without the password
    version: str
    encoding: str
    unfit: str  # why Bedrock cannot use the database; "" if it can
    clock_ahead: float  # by how many seconds the database's clock is ahead of this machine's clock, estimated
    schema: str  # the schema that has Bedrock's tables or would get them; "" if there is none
    may_create: bool  # whether the database user may create tables in the schema `schema`
    empty: bool  # whether no migration has been applied, so that the database has no tables of Bedrock yet
    missing: tuple[str, ...]  # the names of the migrations that the next start would apply
    unknown: tuple[str, ...]  # the names of applied migrations that this version of Bedrock does not know
    nodes: tuple[LivingNode, ...]


def database_report(url: str, directory: Path = MIGRATIONS) -> DatabaseReport:
    """Examine a database and return the findings.

    Raises StoreUnusableError if the database cannot be reached, or if the URL is invalid.
    """
    address = address_of(url)
    try:
        with opened(address, _limit, connect_timeout=REPORT_SECONDS, application_name="bedrock report") as connection:
            return _looked_at(connection, address.shown, directory)
    except psycopg.Error as error:
        raise StoreUnusableError(f"{address.shown} cannot be opened: {words(error)}") from None


def _limit(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    connection.execute(f"SET statement_timeout = '{REPORT_SECONDS}s'".encode())


def _looked_at(connection: psycopg.Connection[tuple[Any, ...]], shown: str, directory: Path) -> DatabaseReport:
    before = time.time()
    ((version, clock, *fitness),) = connection.execute(_ABOUT.encode()).fetchall()
    ahead = clock - (before + time.time()) / 2
    ((has_tables, has_nodes, schema, may_create),) = connection.execute(_TABLES.encode()).fetchall()
    applied = {name for (name,) in connection.execute(_APPLIED.encode())} if has_tables else set[str]()
    known = {path.stem for path in directory.glob("[0-9]*.*")}
    return DatabaseReport(
        shown,
        str(version),
        str(fitness[1]),
        _unfit(fitness),
        ahead,
        schema=schema,
        may_create=may_create,
        empty=not applied,
        missing=tuple(sorted(known - applied)),
        unknown=tuple(sorted(applied - known)),
        nodes=tuple(LivingNode(*row) for row in connection.execute(LEASED.encode())) if has_nodes else (),
    )


def _unfit(fitness: list[Any]) -> str:
    try:
        refuse_unfit(*fitness)
    except StoreError as error:
        return str(error)
    return ""
