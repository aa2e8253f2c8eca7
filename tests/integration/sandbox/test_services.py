"""A service: a program that the server speaks with through its stdin and stdout, held like any other tree."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from actors.adapters.sandbox.host import process_walk
from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.core.context import Mode
from actors.ports import ProcessStartError, SandboxReport, SandboxUnavailableError
from tests.support import processes
from tests.support.footprint import assert_nothing_left, footprint
from tests.support.patience import eventually
from tests.support.trees import BOUND, Service, host_of_this_process, sandbox_of

ROOT = Path(__file__).parents[3]

ECHO = 'while read -r line; do echo "got $line"; echo "heard $line" >&2; done; echo over'
"""Answers each line, and ends at the end of its stdin."""

OPENED: list[Service] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    for service in OPENED:
        service.close()
    OPENED.clear()


def served(sandbox: ToolHostSandbox, command: str, mark: str = "", **changes: object) -> Service:
    OPENED.append(Service(sandbox, command, mark, **changes))
    return OPENED[-1]


def test_it_is_spoken_with_and_only_its_stderr_is_output(sandbox: ToolHostSandbox) -> None:
    service = served(sandbox, ECHO)
    for word in (b"one", b"two"):
        service.stdin.write(word + b"\n")
        assert service.stdout.readline() == b"got " + word + b"\n"
    service.stdin.close()
    assert service.stdout.read() == b"over\n"
    end = service.tree.wait()
    assert (end.exit_code, end.killed, end.leaked, end.head) == (0, False, False, b"heard one\nheard two\n")
    assert service.said == end.head


def test_much_passes_in_both_directions(sandbox: ToolHostSandbox) -> None:
    service = served(sandbox, "cat")
    sent = os.urandom(1 << 22)

    def write() -> None:
        service.stdin.write(sent)
        service.stdin.close()

    writer = threading.Thread(target=write)
    writer.start()
    got = service.stdout.read()
    writer.join(BOUND)
    assert got == sent
    assert service.tree.wait().exit_code == 0


def test_it_has_only_the_standard_streams(sandbox: ToolHostSandbox) -> None:
    service = served(sandbox, "ls -1 /proc/$$/fd; read -r line")
    assert [service.stdout.readline() for _ in range(3)] == [b"0\n", b"1\n", b"2\n"]
    service.stdin.close()
    assert [line for line in service.stdout.read().split() if line != b"255"] == []
    service.tree.wait()


def test_nobody_else_holds_its_streams(sandbox: ToolHostSandbox, mark: str) -> None:
    service = served(sandbox, "exec >&-; sleep 1000; true", mark)
    assert service.stdout.read() == b"", "neither host nor init keeps a stdout open that the program has closed"
    service.tree.kill()
    service.tree.wait()
    deaf = served(sandbox, "exec <&-; echo up; sleep 1000; true", mark)
    assert deaf.stdout.readline() == b"up\n"
    with pytest.raises(BrokenPipeError):
        deaf.stdin.write(b"x")
    deaf.tree.kill()
    deaf.tree.wait()


def test_what_it_left_behind_is_killed_at_its_end(sandbox: ToolHostSandbox, mark: str) -> None:
    service = served(sandbox, "sleep 1000 & setsid sleep 1000 & read -r line", mark)
    eventually(lambda: len(processes.sleepers(mark)) == 2, "its children")
    service.stdin.close()
    end = service.tree.wait()
    assert processes.running(mark) == []
    assert (end.leaked, len(end.reaped)) == (False, 2)
    assert service.stdout.read() == b"", "its stdout ends with its tree"


@pytest.mark.parametrize("victim", ["host", "init"])
def test_a_service_whose_keeper_is_killed_goes_with_it(sandbox: ToolHostSandbox, mark: str, victim: str) -> None:
    service = served(sandbox, "setsid sleep 1000 & sleep 1000; true", mark)
    eventually(lambda: len(processes.sleepers(mark)) == 2, "its tree")
    host = host_of_this_process()
    os.kill(host if victim == "host" else process_walk.children(host)[0], signal.SIGKILL)
    end = service.tree.wait()
    assert processes.running(mark) == []
    assert (end.signal, end.leaked) == (signal.SIGKILL, False)
    assert service.stdout.read() == b""


def test_a_service_that_does_not_start_leaves_nothing(sandbox: ToolHostSandbox) -> None:
    served(sandbox, "true").tree.wait()
    OPENED.pop().close()
    before = footprint()
    with pytest.raises(ProcessStartError, match="No such file"):
        Service(sandbox, "", argv=("no-such-program",))
    assert_nothing_left(before)


def test_services_leave_no_descriptor_thread_or_process(sandbox: ToolHostSandbox) -> None:
    served(sandbox, "true").tree.wait()
    OPENED.pop().close()
    before = footprint()
    for command in ("cat", "exit 3", "sleep 1000"):
        service = Service(sandbox, command)
        service.tree.kill()
        service.tree.wait()
        service.close()
    eventually(lambda: footprint().within(before), "the state before")


def test_it_starts_without_a_fork_server_too(report: SandboxReport, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = sandbox_of("walk", report)
    sandbox._fork_server.stop_forking()
    try:
        service = served(sandbox, ECHO)
        service.stdin.write(b"one\n")
        assert service.stdout.readline() == b"got one\n"
        service.tree.kill()
        assert service.tree.wait().killed
    finally:
        sandbox.close()


@pytest.mark.parametrize("tier", ["A", "B"])
def test_a_restricted_service_writes_nowhere_but_to_its_streams(
    report: SandboxReport, tier: str, tmp_path: Path
) -> None:
    try:
        sandbox = sandbox_of(tier, report)
    except SandboxUnavailableError as why:
        pytest.skip(f"this machine cannot keep tier {tier}: {why}")
    try:
        command = f'echo x > {tmp_path}/file; echo x > "$HOME/file" && echo mine; {ECHO}'
        service = served(sandbox, command, mode=Mode.RESTRICTED)
        service.stdin.write(b"one\n")
        assert service.stdout.readline() == b"mine\n"
        assert service.stdout.readline() == b"got one\n"
        service.stdin.close()
        service.tree.wait()
        assert list(tmp_path.iterdir()) == []
    finally:
        sandbox.close()


SERVER = """
import sys, threading
from actors.adapters.sandbox.probe import probe
from tests.support.trees import TREES, Service, sandbox_of
sandbox = sandbox_of(sys.argv[1], probe("none"))
kept = [Service(sandbox, TREES[kind][0], sys.argv[2]) for kind in ("setsid daemon", "double fork", "background job")]
kept.append(Service(sandbox, "yes", sys.argv[2]))
print("up", flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize("way", ["namespace", "walk"])
def test_a_killed_server_leaves_no_service_behind(way: str, mark: str) -> None:
    server = subprocess.Popen([sys.executable, "-c", SERVER, way, mark], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "up\n"
        eventually(lambda: len(processes.sleepers(mark)) >= 6, "three trees")
        hosts = process_walk.children(server.pid)
        server.send_signal(signal.SIGKILL)
        eventually(lambda: not processes.running(mark), "death of all services")
        eventually(lambda: all(not processes.alive(host) for host in hosts), "end of all tool hosts")
    finally:
        with suppress(OSError):
            server.kill()
        server.communicate()
