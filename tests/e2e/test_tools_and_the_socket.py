"""What a tool can do with the way in for programs of this machine: nothing, in any mode and tier."""

import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bedrock.types import Mode

from tests.support.patience import within
from tests.support.sandbox_reports import sandbox_report
from tests.support.server_process import ServerProcess, Servers

pytestmark = pytest.mark.one_server("it reaches the server by its socket")

REPORT = sandbox_report()
TRY = """
import os, socket, sys
for path in sys.argv[1:]:
    try:
        if path.endswith(".sock"):
            socket.socket(socket.AF_UNIX).connect(path)
        else:
            open(path).read()
    except OSError as error:
        print("refused:", os.path.basename(path), flush=True)
    else:
        print("reached:", os.path.basename(path), flush=True)
"""


@pytest.fixture(scope="module", params=["A", "B"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Its socket is in the runtime directory, since a socket's path can hold no blank here."""
    if not REPORT.restriction_available or request.param < REPORT.tier:
        pytest.skip(f"this machine cannot keep tier {request.param}: {REPORT.reason}")
    home = tmp_path_factory.mktemp("server") / "with a blank"
    home.mkdir()
    servers = Servers()
    with tempfile.TemporaryDirectory(prefix="bedrock-") as runtime:
        yield servers(home, "--sandbox", request.param, XDG_RUNTIME_DIR=runtime)
        servers.close()


@pytest.mark.parametrize("mode", ["restricted", "unrestricted"])
def test_a_tool_reaches_neither_the_socket_nor_the_token(server: ServerProcess, mode: Mode, tmp_path: Path) -> None:
    script = tmp_path / "try.py"
    script.write_text(TRY)
    socket = server.socket.removeprefix("unix:")
    own = [socket, str(server.data / "token"), str(server.data / "address")]
    command = shlex.join([sys.executable, str(script), *own])
    with server.client() as client:
        if mode == "unrestricted" and not client.server_info().sandbox.hides_server_files:
            pytest.skip("this machine cannot hide the server's files from unrestricted tools")
        conversation = client.create(tmp_path, mode=mode)
        said = within(conversation.send(f"run {command}").answer)
    assert "reached" not in said
    assert [f"refused: {Path(path).name}" in said for path in own] == [True] * len(own), said
