"""A server of one's own: started, found, and gone with its owner, however that one ends."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bedrock import Client, ConversationInfo, v1
from bedrock.cli import exit_codes as exits
from bedrock.cli.commands.chat import ENDS, _farewell
from bedrock.cli.spawned_server import SpawnedServer, server_answers, spawn_if_missing
from bedrock.errors import Misconfigured, ServerUnreachable, Unauthenticated

from tests.support.fake_server import FakeBedrock

ROOT = Path(__file__).parents[3]
SECONDS = 30

SERVER = """
import os, signal, sys, threading
from tests.support.fake_server import FakeBedrock, FakeServer, uses_tool

assert "--until-unused" in sys.argv
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
fake = FakeBedrock()
fake.answers.append(uses_tool("ls", "a.txt", "There is a.txt.", ask=True))
server = FakeServer(fake)
print(f"bedrock ready on {server.address} (data /nowhere)", flush=True)
threading.Thread(target=lambda: (sys.stdin.buffer.read(), stop.set()), daemon=True).start()
stop.wait()
server.stop()
open(os.environ["GOODBYE"], "w").close()
"""

BROKEN = """
import sys
print("bedrock: the data directory is in use by another server", file=sys.stderr)
sys.exit(1)
"""

OWNER = """
import signal, sys
from bedrock.cli.spawned_server import SpawnedServer

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` ignores it
with SpawnedServer() as server:
    print(server.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `server` that comes before the real one."""
    package = tmp_path / "site" / "server"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(SERVER)
    search = [str(package.parent), str(ROOT), str(ROOT / "clients"), *filter(None, sys.path)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(search))
    monkeypatch.setenv("GOODBYE", str(tmp_path / "goodbye"))
    return package / "__main__.py"


class Watched:
    """A process of somebody else, whose end can be waited for."""

    def __init__(self, pid: int) -> None:
        self._fd = os.pidfd_open(pid)

    def ends(self) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        ended = bool(poll.poll(SECONDS * 1000))
        os.close(self._fd)
        return ended


@pytest.fixture
def owner(installed: Path) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield child
    child.kill()
    child.communicate()


def test_a_spawned_server_answers_and_ends_afterwards(installed: Path, tmp_path: Path) -> None:
    with SpawnedServer() as server:
        assert server.pid is not None
        watched = Watched(server.pid)
        assert server_answers(server.address)
        with Client(server.address) as client:
            assert client.server_info().version == "0.1.0"
    assert watched.ends()
    assert (tmp_path / "goodbye").exists()  # it was asked, not killed
    assert not server_answers(server.address)


def test_a_spawned_server_ends_after_an_error(installed: Path) -> None:
    def fail() -> None:
        with SpawnedServer() as server:
            assert server.pid is not None
            watched.append(Watched(server.pid))
            raise RuntimeError("on purpose")

    watched: list[Watched] = []
    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    assert watched[0].ends()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_spawned_server_ends_with_its_owner(owner: subprocess.Popen[str], how: signal.Signals) -> None:
    assert owner.stdout is not None
    watched = Watched(int(owner.stdout.readline()))
    owner.send_signal(how)
    owner.wait(SECONDS)
    assert watched.ends()


def test_a_server_that_does_not_listen_to_reason_is_killed(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed.write_text(SERVER.replace("stop.wait()", "threading.Event().wait()"))
    monkeypatch.setattr("bedrock.cli.spawned_server.STOP_SECONDS", 0.2)
    with SpawnedServer() as server:
        assert server.pid is not None
        watched = Watched(server.pid)
    assert watched.ends()


def test_a_server_that_does_not_start_says_why(installed: Path) -> None:
    installed.write_text(BROKEN)
    with pytest.raises(exits.CommandError, match="in use by another server") as caught, SpawnedServer():
        pass
    assert caught.value.exit_code == exits.UNREACHABLE


def test_a_server_that_is_never_ready_is_an_error(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed.write_text("import sys; sys.stdin.read()")
    monkeypatch.setattr("bedrock.cli.spawned_server.START_SECONDS", 0.2)
    with pytest.raises(exits.CommandError, match="could not be started"), SpawnedServer():
        pass


def test_a_file_named_server_in_the_directory_is_not_started(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    with SpawnedServer() as server:
        assert server_answers(server.address)


def test_a_server_that_answers_is_used(address: str, fake: FakeBedrock) -> None:
    assert server_answers(address)
    assert not server_answers("127.0.0.1:1")
    assert not server_answers("unix:/nowhere")


def test_no_server_answers_without_an_address_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BEDROCK_DATA_DIR", str(tmp_path))
    assert not server_answers(None)
    tmp_path.chmod(0o777)
    with pytest.raises(Misconfigured, match="others may have put files"):
        server_answers(None)


def test_a_server_that_refuses_the_token_is_there(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    def refuse(*_: object) -> None:
        raise Unauthenticated("a valid token is needed", reason="UNAUTHENTICATED")

    monkeypatch.setattr(Client, "server_info", refuse)
    assert server_answers(address)


BACK = "To come back: again s"
RUNS = "Left s. Still running: its run. To stop: bedrock cancel s"
JOB = "Left s. Still running: 1 background job. To stop: bedrock cancel --kill-jobs s"
BOTH = "Left s. Still running: its run, 1 background job. To stop: bedrock cancel --kill-jobs s"
STOPPED = "Left s and stopped 2 background jobs, since the server has ended."


@pytest.mark.parametrize(
    ("ends", "goes_on", "busy", "jobs", "said"),
    [
        (False, None, False, 0, [f"Left s. {BACK}"]),
        (False, None, True, 0, [RUNS, BACK]),
        (False, None, True, 1, [BOTH, BACK]),
        (True, False, False, 0, [f"Left s. {BACK}"]),
        (True, False, False, 2, [f"{STOPPED} {BACK}"]),
        (True, True, False, 0, [f"Left s. {BACK}", ENDS]),  # for another terminal
        (True, True, True, 0, [RUNS, BACK, ENDS]),
        (True, None, False, 0, [f"Left s. {BACK}"]),
        (True, None, False, 1, [JOB, BACK, ENDS]),  # another chat has started it
    ],
)
def test_who_leaves_hears_what_goes_on_or_was_stopped(
    ends: bool, goes_on: bool | None, busy: bool, jobs: int, said: list[str]
) -> None:
    left = v1.Conversation(slug="s", state=v1.ConversationState(busy=busy), background_jobs=["b"] * jobs)
    assert _farewell(ConversationInfo.from_proto(left), "again {}", ends=ends, goes_on=goes_on) == said


def test_a_server_that_another_terminal_starts_at_the_same_moment_is_used(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is out of reach when it is looked for, and has the data directory when one of our own wants it."""
    installed.write_text(BROKEN)
    unreachable = ServerUnreachable("its socket is missing")
    answers: list[bool | Exception] = [unreachable, False, unreachable, True]

    def look(_: str | None) -> bool:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.delenv("BEDROCK_ADDRESS", raising=False)
    monkeypatch.setattr("bedrock.cli.spawned_server.server_answers", look)
    with ExitStack() as stack:
        assert spawn_if_missing(None, stack.enter_context, lambda: None) is None
    assert not answers
    answers += [False, False]
    with pytest.raises(exits.CommandError, match="in use by another server"), ExitStack() as stack:
        spawn_if_missing(None, stack.enter_context, lambda: None)


def test_where_an_address_is_given_no_server_is_started_unless_asked_for(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEDROCK_ADDRESS", "127.0.0.1:1")
    with ExitStack() as stack:
        assert spawn_if_missing(None, stack.enter_context, pytest.fail) is None
        assert spawn_if_missing("127.0.0.1:1", stack.enter_context, pytest.fail) is None
        started = spawn_if_missing(None, stack.enter_context, lambda: None, insist=True)
        assert started is not None
        assert server_answers(started.address)
