"""A server whose clients reach it through another node, so that nearly every call of a test is forwarded."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.support.nodes import free_address
from tests.support.patience import PATIENCE
from tests.support.postgres import PostgresServer
from tests.support.server_process import ROOT, ServerProcess

WANTED = os.environ.get("BEDROCK_E2E_NODES") == "2"
"""Whether the tests of this folder are run against two nodes: those that can be, and no others."""


class OwnerBehindAnother(ServerProcess):
    """The node that owns the conversations, and runs their tools; `address` leads to the node `other`.

    There is a proxy: it has conversations made at the owner, and everything else called at the other node.
    """

    def __init__(
        self, folder: Path, *arguments: str, postgres: PostgresServer, listen: str = "127.0.0.1:0", **options: str
    ) -> None:
        """Start both nodes, alike, on a database of their own. `listen` must be left as it is."""
        assert listen == "127.0.0.1:0", "a server whose addresses matter is started for tests marked one_server"
        self._opened = ExitStack()
        with ExitStack() as opened:
            database = postgres.create()
            opened.callback(postgres.drop, database)
            options["BEDROCK_DATABASE"] = postgres.url(database)
            nodes = folder / "nodes"
            nodes.mkdir()
            _write_private(nodes / "database", options["BEDROCK_DATABASE"])
            _write_private(nodes / "token", secrets.token_hex(32))
            at = free_address()
            super().__init__(folder, *_joined(nodes, "owner", at, arguments), listen=at, **options)
            opened.callback(super().dispose)
            home = _other_home(folder)
            (home / "data").mkdir(parents=True, mode=0o700)
            _write_private(home / "data" / "token", self.token)
            at = free_address()
            self.other = ServerProcess(home, *_joined(nodes, "other", at, arguments), listen=at, **options)
            opened.callback(self.other.dispose)
            self.owner = self.address
            """Where the owner itself listens."""
            self.address = opened.enter_context(_Proxy(self.address, self.other.address)).address
            self._opened = opened.pop_all()

    @property
    def pids(self) -> set[int]:
        return {self.pid, self.other.pid}

    def faults(self) -> list[dict[str, object]]:
        return super().faults() + self.other.faults()

    def stop(self) -> int:
        return self.other.stop() or super().stop()

    def dispose(self) -> None:
        self._opened.close()


class _Proxy:
    """The process of a proxy in front of two nodes."""

    def __init__(self, owner: str, other: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.call_proxy", owner, other],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'clients'}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        assert self.address, "the proxy did not start"

    def __enter__(self) -> _Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait(PATIENCE)


def database_of(folder: Path) -> dict[str, str]:
    """Return the variable that names the database of the server of a folder; {} if it is one server with SQLite."""
    named = folder / "nodes" / "database"
    return {"BEDROCK_DATABASE": named.read_text()} if named.exists() else {}


def _other_home(folder: Path) -> Path:
    return folder / "nodes" / "home"


def _write_private(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o600)


def _joined(nodes: Path, name: str, address: str, arguments: tuple[str, ...]) -> list[str]:
    """Return the arguments of a server that make it a node: its settings file is copied, with one more table."""
    given = list(arguments)
    settings = ""
    if "--config" in given:
        at = given.index("--config")
        settings = Path(given[at + 1]).read_text()
        del given[at : at + 2]
    file = nodes / f"{name}.toml"
    _write_private(
        file, f'{settings}\n[cluster]\nname = "{name}"\naddress = "{address}"\ntoken_file = "{nodes / "token"}"\n'
    )
    return ["--config", str(file), *given]
