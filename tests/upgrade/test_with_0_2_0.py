"""From 0.2.0 on clients and servers work with one another both ways, and what 0.2.0 has stored goes on.

The archive has client and server as their wheels hold them, without stubs, built from the commit whose contract is that
of 0.2.0 (the changelog names its hash)::

    git worktree add /tmp/bedrock-0.2.0 9748b85f
    for each in . clients; do (cd /tmp/bedrock-0.2.0/$each && hatchling build -t wheel -d /tmp/wheels); done
    unzip -d client phoenix_bedrock_client-*.whl; unzip -d server phoenix_bedrock-0*.whl
    tar -c client server --exclude='*.pyi' | xz -9e > 0.2.0.tar.xz
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from tests.support.patience import PATIENCE
from tests.support.server_process import ROOT, ServerProcess, Servers
from tests.unit.test_contract import all_methods

HERE = Path(__file__).parent
SEEN = {
    "answered": [
        "That was reasoning",
        "completed",
        [["allow", "echo once", "conversation"]],
        ["ok"],
        ["completed", "completed"],
        "Renamed",
        ["both-ways"],
    ],
    "queued": [
        ["Waits."],
        ["AGENT_BUSY", True],
        [False, True],
        ["discarded"],
        "interrupted",
        "NOT_FOUND",
        ["WORKING_DIRECTORY_INVALID", ["conversation.working_directory"]],
    ],
    "proven": [True, True, [[], []], ["conversation", "event", "message"], "caught_up", ["forked"]],
    "told": [["models/demo"], True, [], "models/demo", True, True],
}


class Old(NamedTuple):
    """Where client and server of 0.2.0 are."""

    client: Path
    server: Path

    @property
    def path(self) -> str:
        return f"{self.server}:{self.client}"


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Old:
    folder = tmp_path_factory.mktemp("0.2.0")
    with tarfile.open(HERE / "0.2.0.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    found = Old(folder / "client", folder / "server")
    where = "import actors, bedrock, server; print([each.__path__[0] for each in (actors, bedrock, server)])"
    said = subprocess.check_output([sys.executable, "-c", where], env={"PYTHONPATH": found.path}, cwd=folder, text=True)
    assert said.strip() == str([f"{found.server}/actors", f"{found.client}/bedrock", f"{found.server}/server"])
    return found


@pytest.fixture
def servers() -> Iterator[Servers]:
    """At the end, all that is told of every conversation is held against its events."""
    made = Servers()
    yield made
    made.close()


def seen(server: ServerProcess, client: Path, folder: Path) -> dict[str, Any]:
    """Return what a client says that it sees of a server."""
    done = subprocess.run(
        [sys.executable, HERE / "both_ways.py", server.address, server.token, folder],
        cwd=folder,
        env={"HOME": str(folder), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(client)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


def test_a_client_of_today_works_with_a_server_of_0_2_0_whose_data_then_goes_on(
    old: Old, servers: Servers, tmp_path: Path
) -> None:
    server = servers(tmp_path, PYTHONPATH=old.path)
    assert seen(server, ROOT / "clients", tmp_path) == SEEN
    stubs = "".join(file.read_text() for file in old.client.glob("bedrock/v1/*_pb2_grpc.py"))
    known = set(re.findall(r"'(/bedrock\.v1\.\w+/\w+)'", stubs))
    methods = {f"/{method.containing_service.full_name}/{method.name}" for method in all_methods()}
    assert known, "the methods of 0.2.0"
    assert known <= methods
    with server.channel() as channel:
        for newer in methods - known:
            call: Any = channel.unary_unary(newer)
            with pytest.raises(grpc.RpcError) as refusal:
                call(b"", metadata=server.metadata, timeout=PATIENCE)
            assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED, newer
    assert server.stop() == 0
    with servers(tmp_path).client() as client:
        talk = client.conversation("both-ways")
        assert talk.ask("think", timeout=PATIENCE).startswith("That was reasoning")
        assert [cycle.stop_reason for cycle in talk.cycles()] == ["completed"] * 3
        for slug in ("both-ways", "queued", "forked"):
            assert client.conversation(slug).verify() == [], slug


def test_a_client_of_0_2_0_works_with_a_server_of_today(old: Old, servers: Servers, tmp_path: Path) -> None:
    assert seen(servers(tmp_path), old.client, tmp_path) == SEEN
