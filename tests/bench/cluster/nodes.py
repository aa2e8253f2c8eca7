"""Nodes of a cluster for the measurements, each a server process, and what their PostgreSQL spends on them."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.bench.figures import cpu_seconds
from tests.bench.running_server import RunningServer, running_server
from tests.support.nodes import free_address
from tests.support.postgres import PostgresServer
from tests.support.processes import children

_COUNTED = """
SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint
"""


@contextlib.contextmanager
def running_nodes(count: int, base_url: str, database: str) -> Iterator[list[RunningServer]]:
    """So many nodes on the database at this URL, whose clients have the same token; asked to stop at the end."""
    with tempfile.TemporaryDirectory(prefix="bedrock-bench-") as folder, contextlib.ExitStack() as opened:
        for_nodes = _private(Path(folder, "nodes.token"), secrets.token_hex(32))
        for_clients = secrets.token_hex(32)
        nodes = []
        for number in range(count):
            address, home = free_address(), Path(folder, str(number))
            (home / "data").mkdir(parents=True, mode=0o700)
            _private(home / "data" / "token", for_clients)
            settings = _private(
                home / "bedrock.toml", f'[cluster]\naddress = "{address}"\ntoken_file = "{for_nodes}"\n'
            )
            server = running_server(
                base_url, home / "data", listen=address, BEDROCK_CONFIG=str(settings), BEDROCK_DATABASE=database
            )
            nodes.append(opened.enter_context(server))
        yield nodes


@dataclass(frozen=True)
class DatabaseCost:
    """What PostgreSQL has spent."""

    cpu: float
    """Seconds, of all its processes."""
    commits: int
    """Transactions that wrote."""
    written: int
    """Bytes of its write-ahead log."""

    def __sub__(self, before: DatabaseCost) -> DatabaseCost:
        return DatabaseCost(self.cpu - before.cpu, self.commits - before.commits, self.written - before.written)


def spent_by(postgres: PostgresServer) -> DatabaseCost:
    """Return what PostgreSQL has spent so far."""
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        ((commits, written),) = connection.execute(_COUNTED).fetchall()
    return DatabaseCost(_cpu_of_all(postgres.pid), commits, written)


def _cpu_of_all(pid: int) -> float:
    """Return what a process and its children have used, those that have ended included."""
    seconds = 0.0
    for child in children(pid):
        with contextlib.suppress(OSError):  # it has ended just now
            seconds += cpu_seconds(child)
    return seconds + cpu_seconds(pid)


def _private(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o600)
    return file
