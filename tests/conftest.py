"""Every run has a directory of its own, and begins by removing what killed runs have left.

No generated example has a deadline: on a busy machine any may take long. What collecting the tests has made, millions
of objects, is kept out of the garbage collector's way: else each collection that a test asks for takes half a second.
"""

import asyncio
import gc
import inspect
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, closing
from pathlib import Path

import psycopg
import pytest
from hypothesis import settings

from tests import leftovers
from tests.support.postgres import PostgresServer
from tests.support.stores import SharedDatabase, closing_stores, with_nodes

settings.register_profile("bedrock", deadline=None)
settings.load_profile("bedrock")

LONG = (
    "tests/property/test_walks.py",
    "tests/unit/test_worked_tasks.py",
    "tests/fault/test_escapes.py",
    "tests/soak/test_soak.py",
    "tests/soak/test_cluster.py",
    "tests/property/test_family.py",
    "tests/upgrade/test_rolling.py",
    "tests/upgrade/test_with_0_2_0.py",
    "tests/upgrade/test_from_0_1_0.py",
)
"""Modules that take longest. They begin first: one that began last would run alone while the other workers are done."""

TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename !~ 'nodes|schema_migration'"

_RUN = pytest.StashKey[Path]()
_PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and not config.option.basetemp:
        config.stash[_RUN] = leftovers.begin()
        config.option.basetemp = str(config.stash[_RUN])


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    run = config.stash.get(_RUN, None)
    if run is not None and config.stash.get(_PASSED, False):
        leftovers.clear(run)


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    gc.disable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    begin = {path: number for number, path in enumerate(LONG)}
    items.sort(key=lambda item: begin.get(item.path.relative_to(config.rootpath).as_posix(), len(LONG)))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is async on a loop of its own; what it takes that is an async context is entered."""

    async def run() -> None:
        async with AsyncExitStack() as stack:
            given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
            for name, value in given.items():
                if isinstance(value, AbstractAsyncContextManager):
                    given[name] = await stack.enter_async_context(value)
            await pyfuncitem.obj(**given)

    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(run())
    return True


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """What failed can be looked at until the next run."""
    session.config.stash[_PASSED] = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """PostgreSQL without any data. Each worker has one, if it needs it."""
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def prepared(postgres: PostgresServer) -> str:
    """The URL of a database that the tests of a worker use one after the other."""
    return postgres.url(postgres.create(with_nodes))


@pytest.fixture
def database(prepared: str) -> Iterator[str]:
    """The URL of a database with tables and servers, and nothing else."""
    yield prepared
    with psycopg.connect(prepared) as connection:  # far cheaper than a database, or a file of a table, for each
        for (table,) in connection.execute(TABLES).fetchall():
            connection.execute(f"DELETE FROM {table}".encode())
        connection.execute("DELETE FROM nodes WHERE name = ''")
        connection.execute("UPDATE nodes SET dead = false, draining = false")


@pytest.fixture
def shared_database(database: str) -> Iterator[SharedDatabase]:
    """The same for servers that share it."""
    with closing(SharedDatabase(database)) as shared:
        yield shared


@pytest.fixture(autouse=True)
def stores_are_closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Close the stores of a test after its other fixtures."""
    with closing_stores(tmp_path_factory.getbasetemp()):
        yield
