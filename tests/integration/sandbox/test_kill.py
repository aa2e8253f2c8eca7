"""REQ-BED-005: a killed tool leaves no process behind, whoever dies first."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from actors.adapters.sandbox import process_tree
from actors.adapters.sandbox.host import process_walk
from actors.adapters.sandbox.process_tree import HostProcess, ProcessTree
from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.ports import ProcessEnd, ProcessLimits, ProcessStartError, SandboxReport
from tests.support import processes
from tests.support.patience import eventually
from tests.support.trees import BOUND, TREES, host_of_this_process, launch

ROOT = Path(__file__).parents[3]


def ignore(data: bytes) -> None:
    """Nobody watches."""


def grow(sandbox: ToolHostSandbox, mark: str, kind: str) -> tuple[ProcessTree, set[int]]:
    """Start a tree and wait until it is worth killing; also those of its processes that last."""
    command, size = TREES[kind]
    tree = sandbox.start(launch(command, mark), ignore)
    eventually(lambda: len(processes.sleepers(mark)) >= size, f"{size} sleeps of {kind}")
    return tree, set(processes.sleepers(mark))


def waited(tree: ProcessTree) -> ProcessEnd:
    """The end of a tree, waited for no longer than a test may take."""
    ends: list[ProcessEnd] = []
    thread = threading.Thread(target=lambda: ends.append(tree.wait()), daemon=True)
    thread.start()
    thread.join(BOUND)
    assert ends, "wait() did not return"
    return ends[0]


def test_a_tree_that_multiplies_is_killed_as_a_whole(sandbox: ToolHostSandbox, mark: str) -> None:
    command = "f() { if [ $1 -gt 0 ]; then for i in {1..10}; do f $(($1 - 1)) & done; fi; sleep 1000; true; }; f 2"
    tree = sandbox.start(launch(command, mark), ignore)
    eventually(lambda: len(processes.running(mark)) >= 200, "it multiplied")
    tree.kill()
    end = waited(tree)
    assert processes.running(mark) == []
    assert (end.killed, end.leaked) == (True, False)


@pytest.mark.parametrize("kind", TREES)
def test_a_killed_tree_has_no_survivors(sandbox: ToolHostSandbox, mark: str, kind: str) -> None:
    tree, before = grow(sandbox, mark, kind)
    tree.kill()
    end = waited(tree)
    assert processes.running(mark) == []
    assert (end.killed, end.leaked, end.exit_code, end.signal) == (True, False, None, signal.SIGKILL)
    if kind != "fork storm":
        assert set(end.reaped) >= before, "the receipt names every process as the server sees it"


def test_a_tree_that_runs_out_of_time_has_no_survivors(sandbox: ToolHostSandbox, mark: str) -> None:
    command, _ = TREES["nohup setsid daemon that traps"]
    tree = sandbox.start(launch(command, mark, limits=ProcessLimits(wall_seconds=0.3)), ignore)
    end = waited(tree)
    assert processes.running(mark) == []
    assert (end.killed, end.limit, end.leaked) == (True, "wall", False)


def test_what_an_ended_call_left_behind_is_killed(sandbox: ToolHostSandbox, mark: str) -> None:
    left = "setsid sleep 1000 >/dev/null 2>&1 & (sleep 1000 >/dev/null 2>&1 &) ; echo over; exit 3"
    end = waited(sandbox.start(launch(left, mark), ignore))
    assert processes.running(mark) == []
    assert (end.exit_code, end.head, end.killed, end.leaked) == (3, b"over\n", False, False)
    assert len(end.reaped) == 2


def test_killing_everything_one_may_signal_stays_inside_the_namespace(report: SandboxReport, mark: str) -> None:
    if not report.pid_namespace:
        pytest.skip("this machine allows no PID namespace")
    sandbox = ToolHostSandbox(report)
    bystander = subprocess.Popen(["sleep", "1000"])
    try:
        end = waited(sandbox.start(launch("sleep 1000 & kill -9 -1; echo alive; exit 5", mark), ignore))
        assert (end.exit_code, end.head) == (5, b"alive\n")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
        sandbox.close()


@pytest.mark.parametrize("kind", ["deaf to TERM and INT", "double fork", "nohup setsid daemon that traps"])
def test_a_killed_tool_host_takes_its_tree_along(sandbox: ToolHostSandbox, mark: str, kind: str) -> None:
    tree, _ = grow(sandbox, mark, kind)
    os.kill(host_of_this_process(), signal.SIGKILL)
    end = waited(tree)
    assert processes.running(mark) == []
    assert (end.exit_code, end.signal, end.killed, end.leaked) == (None, signal.SIGKILL, False, False)


@pytest.mark.parametrize("kind", ["deaf to TERM and INT", "double fork"])
def test_a_killed_init_takes_its_tree_along(sandbox: ToolHostSandbox, mark: str, kind: str) -> None:
    tree, _ = grow(sandbox, mark, kind)
    (init,) = process_walk.children(host_of_this_process())
    os.kill(init, signal.SIGKILL)
    end = waited(tree)
    assert processes.running(mark) == []
    assert (end.exit_code, end.signal, end.killed, end.leaked) == (None, signal.SIGKILL, False, False)


def test_a_tool_host_that_hangs_is_killed(sandbox: ToolHostSandbox, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "REPORT_SECONDS", 0.2)
    tree, before = grow(sandbox, mark, "nohup setsid daemon that traps")
    host = host_of_this_process()
    os.kill(host, signal.SIGSTOP)
    tree.kill()
    end = waited(tree)
    assert processes.running(mark) == []
    assert (end.killed, end.leaked) == (True, False)
    assert set(end.reaped) >= before
    assert not processes.alive(host)


def test_init_ends_without_being_killed_after_a_program_that_left_nothing(
    sandbox: ToolHostSandbox, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    tree = sandbox.start(launch(f"read line < {go}; echo $line; exit 7"), ignore)
    host = host_of_this_process()
    (init,) = process_walk.children(host)
    os.kill(host, signal.SIGSTOP)
    go.write_text("done\n")
    eventually(lambda: not processes.alive(init), "the end of init")
    os.kill(host, signal.SIGCONT)
    end = waited(tree)
    assert (end.exit_code, end.head, end.killed, end.leaked, end.reaped) == (7, b"done\n", False, False, ())


def test_the_end_of_a_call_does_not_wait_for_its_host_which_is_reaped_all_the_same(
    sandbox: ToolHostSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    waited_for, go_on = threading.Event(), threading.Event()
    ended_within = HostProcess.ended_within

    def later(host: HostProcess, seconds: float) -> bool:
        waited_for.set()
        assert go_on.wait(BOUND)
        return ended_within(host, seconds)

    monkeypatch.setattr(HostProcess, "ended_within", later)
    tree = sandbox.start(launch(f"read line < {go}"), ignore)
    host = host_of_this_process()  # before the program may end
    go.write_text("done\n")
    assert waited(tree).exit_code == 0
    assert waited_for.wait(BOUND)
    go_on.set()
    eventually(lambda: not Path(f"/proc/{host}").exists(), "the end of the host")


def test_a_process_tree_can_be_killed_while_its_output_is_unread(sandbox: ToolHostSandbox, mark: str) -> None:
    stuck, go_on = threading.Event(), threading.Event()

    def block(data: bytes) -> None:
        stuck.set()
        assert go_on.wait(BOUND)

    tree = sandbox.start(launch("setsid sleep 1000 & yes", mark), block)
    assert stuck.wait(BOUND)
    tree.kill()
    eventually(lambda: not processes.running(mark), "death of the tree")
    go_on.set()
    assert waited(tree).killed


def test_kill_is_safe_at_any_time(sandbox: ToolHostSandbox, mark: str) -> None:
    tree = sandbox.start(launch("exit 7", mark), ignore)
    end = waited(tree)
    tree.kill()
    tree.kill()
    assert waited(tree) is end
    assert (end.exit_code, end.killed) == (7, False)
    twice = sandbox.start(launch("sleep 1000", mark), ignore)
    threads = [threading.Thread(target=twice.kill) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert waited(twice).killed


def test_close_kills_all_that_runs_and_starts_nothing_more(sandbox: ToolHostSandbox, mark: str) -> None:
    trees = [sandbox.start(launch("setsid sleep 1000 & sleep 1000", mark), ignore) for _ in range(3)]
    ends: list[ProcessEnd] = []
    waiting = threading.Thread(target=lambda: ends.append(trees[0].wait()))
    waiting.start()
    assert sandbox.live == 3
    sandbox.close()
    waiting.join(BOUND)
    assert processes.running(mark) == []
    assert [end.killed for end in ends] == [True]
    assert sandbox.live == 0
    with pytest.raises(ProcessStartError):
        sandbox.start(launch("echo never", mark), ignore)
    assert sandbox.live == 0


def test_a_signal_reaches_the_program_s_whole_group_and_no_other_process(sandbox: ToolHostSandbox, mark: str) -> None:
    seen = b""
    changed = threading.Condition()

    def watch(data: bytes) -> None:
        nonlocal seen
        with changed:
            seen += data
            changed.notify_all()

    def said(*words: bytes) -> bool:
        with changed:
            return changed.wait_for(lambda: all(word in seen for word in words), BOUND)

    member = "bash -c 'trap \"echo member; exit\" TERM; echo up1; sleep 1000 & wait' &"
    apart = "setsid bash -c 'trap \"echo apart\" TERM USR1; echo up2; while :; do sleep 0.02; done' &"
    tree = sandbox.start(launch(f"trap 'echo main' TERM; {member} {apart} echo up3; wait; wait; cat", mark), watch)
    assert said(b"up1", b"up2", b"up3")
    tree.signal(signal.SIGTERM)
    assert said(b"main", b"member")
    tree.signal(99)
    tree.signal(signal.SIGINT)
    end = waited(tree)
    assert (end.signal, end.killed) == (signal.SIGINT, False)
    assert b"apart" not in end.head
    assert processes.running(mark) == []


def test_a_signal_after_the_end_or_the_kill_does_nothing(sandbox: ToolHostSandbox, mark: str) -> None:
    tree = sandbox.start(launch("exit 3", mark), ignore)
    end = waited(tree)
    tree.signal(signal.SIGTERM)
    assert end.exit_code == 3
    killed = sandbox.start(launch("trap '' TERM; sleep 1000", mark), ignore)
    killed.kill()
    killed.signal(signal.SIGTERM)
    assert waited(killed).killed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_many_signals_at_once_kill_nothing_but_the_program(sandbox: ToolHostSandbox, mark: str, number: int) -> None:
    for _ in range(10):  # the host may end before it has read them all
        tree = sandbox.start(launch("sleep 1000", mark), ignore)
        for _ in range(100):
            tree.signal(number)
        end = waited(tree)
        assert (end.signal, end.leaked) == (number, False)


SERVER = """
import sys, threading
from actors.adapters.sandbox.probe import probe
from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from tests.support.trees import TREES, launch
sandbox = ToolHostSandbox(probe(), pid_namespace=sys.argv[1] == "namespace")
for kind in ("setsid daemon", "double fork", "deaf to TERM and INT", "background job"):
    sandbox.start(launch(TREES[kind][0], sys.argv[2]), lambda data: None)
sandbox.start(launch("yes", sys.argv[2]), lambda data: threading.Event().wait())
print("up", flush=True)
threading.Event().wait()
"""


@contextmanager
def server(kind: str, mark: str) -> Iterator[subprocess.Popen[str]]:
    """A server of its own, with five running trees; one of them writes to nobody."""
    process = subprocess.Popen([sys.executable, "-c", SERVER, kind, mark], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process
    finally:
        with suppress(OSError):
            process.kill()
        process.communicate()


@pytest.mark.parametrize("kind", ["namespace", "walk"])
def test_a_killed_server_leaves_no_process_behind(kind: str, mark: str) -> None:
    with server(kind, mark) as process:
        eventually(lambda: len(processes.sleepers(mark)) >= 9, "five trees")
        hosts = process_walk.children(process.pid)
        assert len(hosts) == 6, "one of them is the fork server"
        process.send_signal(signal.SIGKILL)
        eventually(lambda: not processes.running(mark), "death of all trees")
        eventually(lambda: all(not processes.alive(host) for host in hosts), "end of all tool hosts")
