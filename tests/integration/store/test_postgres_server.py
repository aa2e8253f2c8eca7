"""The PostgreSQL that tests use ends with the tests, however they end."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.bench.cluster.nodes import spent_by
from tests.support import postgres
from tests.support.patience import PATIENCE, eventually
from tests.support.postgres import ROOT, PostgresServer

KILLED = """
import os, signal
from tests.support.postgres import PostgresServer
server = PostgresServer()
print(server.url(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_left_of_a_server_whose_tests_are_killed() -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    directory = Path(parse_qs(urlsplit(killed.stdout.strip()).query)["host"][0])
    assert directory.name.startswith("bedrock-postgres-")
    eventually(lambda: not directory.exists(), "its files are removed")
    processes = [Path("/proc", pid) for pid in os.listdir("/proc") if pid.isdecimal()]
    assert not [process for process in processes if str(directory) in _command(process)]


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_text(errors="replace")
    except OSError:
        return ""


def test_what_a_server_spends_is_counted(request: pytest.FixtureRequest) -> None:
    server: PostgresServer = request.getfixturevalue("postgres")
    before = spent_by(server)
    server.execute("CREATE TABLE spent ()", server.create())
    spent = spent_by(server) - before
    assert (spent.commits >= 2, spent.written > 0, spent.cpu >= 0) == (True, True, True)
    assert "postgres" in _command(Path("/proc", str(server.pid)))


def test_a_machine_without_its_programs_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(postgres.PROGRAMS, raising=False)
    monkeypatch.setattr(postgres, "PACKAGE", "not_there_at_all")
    with pytest.raises(RuntimeError, match=r"package not_there_at_all: run `make setup`"):
        postgres.programs()
