"""The client, the real server, and a kill -9 in the middle of an answer: the loop goes on and shows everything once."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bedrock import Client, Event

pytestmark = pytest.mark.one_server("the server is restarted")

ROOT = Path(__file__).parents[2]

Start = Callable[[], "subprocess.Popen[bytes]"]


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
        return number


@pytest.fixture
def start(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts the server, always at the same place; returns when it is ready."""
    for name in os.environ:
        if name.startswith(("BEDROCK_", "ANTHROPIC_", "OPENAI_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "clients"), *filter(None, sys.path)]))
    monkeypatch.setenv("BEDROCK_DATA_DIR", str(tmp_path / "data"))
    started: list[subprocess.Popen[bytes]] = []

    def serve() -> subprocess.Popen[bytes]:
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", "server", "--listen", f"127.0.0.1:{port}", "--drain-seconds", "0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        started.append(server)
        assert server.stdout is not None
        assert re.search(rb"ready on", server.stdout.readline())
        return server

    yield serve
    for server in started:
        server.terminate()
        server.wait(30)
        assert server.stdout is not None
        server.stdout.close()


def test_a_killed_server_is_bridged(start: Start, tmp_path: Path) -> None:
    servers = [start()]

    def again(error: Exception, delay: float) -> None:
        if len(servers) == 1:
            servers.append(start())

    with Client(on_disconnect=again) as client:
        conversation = client.create(tmp_path)
        run = conversation.send("count")
        events: list[Event] = []
        for event in run:
            events.append(event)
            if event.kind == "text_delta" and len(servers) == 1 and servers[0].poll() is None:
                servers[0].kill()
                servers[0].wait(30)
        assert run.stop is not None
        assert (run.stop.reason, run.stop.detail) == ("interrupted", "restart")
        revisions = [event.revision for event in events if event.revision]
        assert revisions == list(range(revisions[0], revisions[0] + len(revisions)))
        discarded = [event.proto.stream_discarded for event in events if event.kind == "stream_discarded"]
        assert [slot.attempt for slot in discarded] == [1]
        assert [message.text for message in conversation.messages()] == ["count"]
        assert "hi" in conversation.send("run echo hi").answer()
