"""A tool that kills those who keep it, its tool host and init, does not get away, and is never said to be gone if it
may live."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.adapters.sandbox import control_groups
from actors.adapters.sandbox.control_groups import ControlGroups
from actors.adapters.sandbox.probe import landlock_abi
from actors.adapters.sandbox.process_tree import ProcessTree
from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.core.context import Mode
from actors.ports import ProcessEnd, SandboxReport
from tests.support import processes
from tests.support.patience import eventually
from tests.support.trees import launch

KILLER = """
import os, resource, signal, sys
def parent(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
told, *sheds = sys.argv[1:]
keepers = [str(os.getppid()), str(parent(os.getppid()))]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        if "limit" in sheds:
            resource.setrlimit(resource.RLIMIT_RTTIME, (5, 5))
        environment = {} if "environment" in sheds else dict(os.environ)
        os.execve(sys.executable, ["python", "-I", "-S", "-c", DAEMON, told, *keepers], environment)
    os._exit(0)
signal.pause()
"""

DAEMON = """
import os, signal, sys
told, init, host = sys.argv[1:]
refused = 0
if told:
    open(told + ".new", "w").write(str(os.getpid()))
    os.rename(told + ".new", told)
for pid, number in ((host, signal.SIGSTOP), (init, signal.SIGKILL), (host, signal.SIGKILL)):
    try:
        os.kill(int(pid), number)
    except PermissionError:
        refused += 1
if not told:
    sys.stdout.write(f"{os.getpid()} {refused} ")
    sys.stdout.flush()
signal.pause()
"""


def program(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", f"DAEMON = {DAEMON!r}\n{KILLER}", *arguments)


def killer(sandbox: ToolHostSandbox, told: Path, *sheds: str) -> tuple[ProcessTree, int]:
    """A tool whose daemon has killed host and init, and the daemon's process id."""
    tree = sandbox.start(launch("", argv=program(str(told), *sheds)), lambda _: None)
    eventually(told.exists, "the daemon's beginning")
    return tree, int(told.read_text())


@pytest.fixture
def unheld(report: SandboxReport) -> Iterator[ToolHostSandbox]:
    """A sandbox where nothing keeps a tool from killing its keepers."""
    sandbox = ToolHostSandbox(report, pid_namespace=False)
    yield sandbox
    sandbox.close()


@pytest.mark.parametrize("sheds", [(), ("environment",), ("limit",)])
def test_what_is_left_is_found_by_its_marks_and_killed(
    unheld: ToolHostSandbox, tmp_path: Path, sheds: tuple[str, ...]
) -> None:
    tree, daemon = killer(unheld, tmp_path / "pid", *sheds)
    end = tree.wait()
    assert not processes.alive(daemon)
    assert daemon in end.reaped
    assert end.leaked, "nobody can be certain that these were all"


def test_processes_without_marks_are_reported_as_leaked(unheld: ToolHostSandbox, tmp_path: Path) -> None:
    tree, daemon = killer(unheld, tmp_path / "pid", "environment", "limit")
    try:
        assert tree.wait().leaked
        assert processes.alive(daemon), "otherwise the test proves nothing"
    finally:
        os.kill(daemon, 9)


def test_what_is_left_when_the_server_ends_is_looked_for_again(
    report: SandboxReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = ToolHostSandbox(report, pid_namespace=False)
    with monkeypatch.context() as patched:
        patched.setattr(control_groups, "kill_orphans", lambda *_, grouped: (set(), False))
        tree, daemon = killer(sandbox, tmp_path / "pid")
        assert tree.wait().leaked
    assert processes.alive(daemon), "otherwise the test proves nothing"
    sandbox.close()
    assert not processes.alive(daemon)


def test_no_process_leaves_its_control_group(report: SandboxReport, tmp_path: Path) -> None:
    groups = ControlGroups()
    if not groups.controllers:
        pytest.skip("this user may not make control groups here")
    sandbox = ToolHostSandbox(report, pid_namespace=False, groups=groups)
    tree, daemon = killer(sandbox, tmp_path / "pid", "environment", "limit")
    end: ProcessEnd = tree.wait()
    assert not processes.alive(daemon)
    assert not end.leaked, "who is in no group is dead"
    sandbox.close()


@pytest.mark.parametrize("abi", [5, 7])
def test_a_restricted_tool_cannot_kill_its_keepers_without_a_namespace(abi: int) -> None:
    if landlock_abi() < abi:
        pytest.skip(f"this kernel has no Landlock {abi}")
    sandbox = ToolHostSandbox(SandboxReport("B", abi, pid_namespace=False))
    said = b""

    def hear(output: bytes) -> None:
        nonlocal said
        said += output

    tree = sandbox.start(launch("", argv=program(""), mode=Mode.RESTRICTED), hear)
    eventually(lambda: said.endswith(b" "), "the daemon's answer")
    daemon, refused = map(int, said.split())
    tree.kill()
    end = tree.wait()
    sandbox.close()
    assert (refused, end.leaked) == (3, False)
    assert not processes.alive(daemon)
