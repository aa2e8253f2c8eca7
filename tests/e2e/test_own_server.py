"""`bedrock chat` with a server that it starts: others use it as well, and no process is left."""

from __future__ import annotations

import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bedrock import Client
from bedrock.cli.commands.chat import ENDS
from bedrock.testing.processes import alive, read

from tests.support.patience import eventually
from tests.support.terminals import Terminal

pytestmark = pytest.mark.one_server("the command starts its own server")

ROOT = Path(__file__).parents[2]
SECONDS = 60

OWNER = """
import sys
from bedrock.cli.spawned_server import SpawnedServer

with SpawnedServer() as server:
    print(server.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The settings of a newcomer: no server, no key, an empty data directory."""
    for name in os.environ:
        if name.startswith(("BEDROCK_", "ANTHROPIC_", "OPENAI_")):
            monkeypatch.delenv(name)
    search = os.pathsep.join([str(ROOT), str(ROOT / "clients"), *filter(None, sys.path)])
    monkeypatch.setenv("PYTHONPATH", search)
    monkeypatch.setenv("BEDROCK_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("BEDROCK_LISTEN", "127.0.0.1:0")
    return dict(os.environ)


def processes_of(data: Path) -> list[int]:
    """The processes that have this data directory in their environment."""
    mark = f"BEDROCK_DATA_DIR={data}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                marked = mark in (entry / "environ").read_bytes().split(b"\0")
            except OSError:  # ended meanwhile, or somebody else's
                continue
            if marked:
                found.append(int(entry.name))
    return found


@pytest.fixture
def owner(environ: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
    )
    yield child
    child.kill()
    child.communicate()


def test_the_server_ends_when_its_owner_is_killed(owner: subprocess.Popen[str], tmp_path: Path) -> None:
    assert owner.stdout is not None
    server = os.pidfd_open(int(owner.stdout.readline()))
    try:
        owner.send_signal(signal.SIGKILL)
        owner.wait(SECONDS)
        poll = select.poll()
        poll.register(server, select.POLLIN)
        assert poll.poll(SECONDS * 1000)
    finally:
        os.close(server)
    assert not (tmp_path / "data" / "address").exists()  # it had the time to say goodbye
    assert processes_of(tmp_path / "data") == []


@pytest.mark.parametrize("how", ["make", "ignored"])
def test_a_chat_and_its_server_end_when_the_terminal_is_closed(
    environ: dict[str, str], tmp_path: Path, how: str
) -> None:
    """As with Ctrl-D, under make too, and also where SIGHUP is ignored: the end of the terminal itself is noticed."""
    program = f"{shlex.quote(sys.executable)} -P -m bedrock.cli chat"
    makefile = tmp_path / "Makefile"
    makefile.write_text(f"run:\n\t@{program}\n")
    commands = {
        "make": [shutil.which("make") or "make", "-f", str(makefile)],
        "ignored": ["/bin/sh", "-c", f"trap '' HUP; exec {program}"],
    }
    with Terminal(environ=environ, command=commands[how], cwd=tmp_path) as terminal:
        terminal.idles()
        assert processes_of(tmp_path / "data")
        terminal.hang_up()
        terminal.ends()
    ended(tmp_path / "data")


def ended(data: Path) -> None:
    """Wait until no process of this data directory is left."""
    eventually(lambda: not processes_of(data), f"the end of {processes_of(data)}")


def works(screen: list[str]) -> bool:
    return any(row.startswith("bash 1/1 ") for row in screen)


def servers(data: Path) -> list[int]:
    """The servers that were started for this data directory, without the processes that they have started."""
    return [pid for pid in processes_of(data) if b"--until-unused" in read(pid, "cmdline")]


def test_terminals_that_are_opened_at_the_same_moment_have_one_server(environ: dict[str, str], tmp_path: Path) -> None:
    with ExitStack() as terminals:
        opened = [terminals.enter_context(Terminal(environ=environ, cwd=tmp_path)) for _ in range(2)]
        for terminal in opened:
            terminal.idles()
        assert len(servers(tmp_path / "data")) == 1
        for terminal in opened:
            terminal.keys("/quit\r")
            assert terminal.ends() == 0
    ended(tmp_path / "data")


def waiting_for(gate: Path) -> str:
    """What makes the demo model run a command that ends when there is a file."""
    return f"run until [ -e {gate} ]; do sleep 0.1; done\r"


def test_the_server_goes_on_for_a_second_terminal_and_ends_after_it(environ: dict[str, str], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with ExitStack() as terminals:
        first = terminals.enter_context(Terminal("chat", environ=environ, cwd=tmp_path))
        first.idles()
        second = terminals.enter_context(Terminal(environ=environ, cwd=tmp_path))
        second.idles()
        (server,) = servers(tmp_path / "data")
        second.keys(waiting_for(gate))
        second.until(works)
        first.keys("/quit\r")
        assert first.ends() == 0
        assert "The server and its background jobs stop when no client is connected" in " ".join(first.rows)
        gate.touch()
        second.idles()
        assert alive(server)
        second.keys("/quit\r")
        assert second.ends() == 0
        assert "To come back: bedrock chat -r " in " ".join(second.rows)
    ended(tmp_path / "data")


def test_the_server_ends_after_a_stream_of_its_gateway_has_ended(environ: dict[str, str], tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Terminal("chat", environ={**environ, "BEDROCK_HTTP_LISTEN": "127.0.0.1:0"}, cwd=tmp_path) as terminal:
        terminal.idles()
        headers = {"Authorization": f"Bearer {(data / 'token').read_text().strip()}", "Accept": "text/event-stream"}
        url = f"{(data / 'gateway').read_text().strip()}/v1/conversations:watch"
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as stream:
            assert stream.readline() == b"event: reset\n"
        terminal.keys("/quit\r")
        assert terminal.ends() == 0
    ended(data)


@pytest.mark.parametrize("how", ["left", "killed"])
def test_a_run_goes_on_without_any_client_and_the_server_ends_after_it(
    environ: dict[str, str], tmp_path: Path, how: str
) -> None:
    gate = tmp_path / "gate"
    with Terminal("chat", environ=environ, columns=140, cwd=tmp_path) as terminal:
        terminal.idles()
        terminal.keys(waiting_for(gate))
        terminal.until(works)
        if how == "killed":
            os.kill(terminal.pid, signal.SIGKILL)
            terminal.ends()
        else:
            terminal.keys("/quit\r")
            assert terminal.ends() == 0
            *_, left, back, ends = terminal.rows
            slug = back.rpartition(" ")[2]
            assert left == f"Left {slug}. Still running: its run. To stop: bedrock cancel {slug}"
            assert ends == ENDS
    with Client() as client:
        (conversation,) = client.conversations()
        assert conversation.state.busy
        gate.touch()
        (cycle,) = client.conversation(conversation.name).cycles()
        assert client.conversation(conversation.name).wait_for_cycle(cycle).stop_reason == "completed"
    ended(tmp_path / "data")
