"""Peers by others, and whole servers beside them. Collected by `make test-peers` only, which installs the peers."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import client, fake_provider, forked_servers, restart_elsewhere, start_server, watch
from tests.peers import installed
from tests.peers.browser import chromium
from tests.support.fake_provider import FakeProvider
from tests.support.patience import PATIENCE
from tests.support.server_process import ServerProcess, Servers, provider

__all__ = ["client", "fake_provider", "forked_servers", "restart_elsewhere", "start_server", "watch"]

collect_ignore_glob = [] if os.environ.get("BEDROCK_PEERS") else ["test_*"]


@dataclass(frozen=True)
class Node:
    """A Node to run programs with."""

    program: Path

    def run(
        self, *arguments: str | Path, folder: Path, env: Mapping[str, str] = {}, seconds: float = PATIENCE
    ) -> subprocess.CompletedProcess[str]:
        """`node ARGUMENTS…` in a folder, to its end. Its environment has PATH, HOME (the folder) and `env`."""
        return subprocess.run(
            [self.program, *arguments],
            cwd=folder,
            env={**installed.node_environment(self.program), "HOME": str(folder), **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )


@pytest.fixture(scope="session")
def node() -> Node:
    program = installed.node_program()
    assert program is not None, "there is no Node; `make test-peers` installs one"
    return Node(program)


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that lives as long as the module's tests, with the demo model; modules with a peer have their own.

    It gets the arguments that its module calls `SERVED`.
    """
    servers = Servers()
    yield servers(tmp_path_factory.mktemp("server"), *getattr(request.module, "SERVED", ()))
    servers.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def scripted(fake_provider: FakeProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of the module whose model is the fake provider."""
    servers = Servers()
    yield servers(tmp_path_factory.mktemp("scripted"), **provider(fake_provider.url))
    servers.close()
