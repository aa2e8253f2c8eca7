"""A database with the tables of the store."""

from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest

from actors.adapters.store.postgres.engine import address_of, migrate
from tests.integration.store.nodes.stepped import Database
from tests.support.postgres import PostgresServer

TYPES = {"text": "''", "bigint": "0"}


def make_tables(url: str) -> None:
    """Make those of the store; a conversation needs to say only what it is about."""
    migrate(address_of(url))
    columns = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'conversations'"
    with psycopg.connect(url, autocommit=True) as connection:
        for name, kind in connection.execute(f"{columns} AND is_nullable = 'NO'").fetchall():
            connection.execute(f"ALTER TABLE conversations ALTER {name} SET DEFAULT {TYPES[kind]}".encode())


@pytest.fixture(scope="module")
def url(postgres: PostgresServer) -> Iterator[str]:
    name = postgres.create(make_tables)
    yield postgres.url(name)
    postgres.drop(name)


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    database = Database(url)
    database.ask("TRUNCATE nodes, conversations")
    yield database
    database.close()


@pytest.fixture
def ending() -> Iterator[ExitStack]:
    """What is closed at the end."""
    with ExitStack() as stack:
        yield stack
