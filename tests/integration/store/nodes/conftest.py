"""A database with the nodes' table, and as much of the conversations' as they look at."""

from __future__ import annotations

import importlib
from contextlib import ExitStack
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.integration.store.nodes.stepped import Database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.postgres import PostgresServer

CONVERSATIONS = """
CREATE TABLE conversations (
    id text COLLATE "C" PRIMARY KEY, family text COLLATE "C" NOT NULL, owner bigint,
    state text NOT NULL, user_initiated bigint NOT NULL
)
"""


def make_tables(url: str) -> None:
    nodes = importlib.import_module("actors.adapters.store.postgres.schema.migrations.0002_nodes")
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in (*nodes.SCHEMA, CONVERSATIONS):
            connection.execute(statement.encode())


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
