"""What all processes of a call may have together: bounded by the kernel where it can be, else counted by the host.

Nothing here grows without an end of its own: a limit that failed would cost a few hundred megabytes for a moment.
"""

import os
import sys
from collections.abc import Iterator

import pytest

from actors.adapters.sandbox.control_groups import ControlGroups
from actors.adapters.sandbox.probe import landlock_abi
from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.core.context import Mode
from actors.ports import ProcessEnd, ProcessLimits, SandboxReport
from tests.fault.escapes import namespaces_possible
from tests.support import processes
from tests.support.trees import launch

MEGABYTE = 1 << 20
LIMIT = 192 * MEGABYTE

MEMORY = {
    "private, of several processes": """
for _ in range(5):
    if os.fork() == 0:
        held = bytearray(os.urandom(1 << 16)) * (80 << 4)
        time.sleep(60)
""",
    "shared, filled by a child that is gone": """
held = mmap.mmap(-1, 400 << 20)
if os.fork() == 0:
    for at in range(0, 400 << 20, 1 << 16):
        held[at:at + (1 << 16)] = bytes(range(256)) * 256
    os._exit(0)
os.wait()
""",
    "in a file that is nowhere": """
file = os.memfd_create("x")
for _ in range(400):
    os.write(file, bytes(range(256)) * 4096)
""",
    "in files of children": """
for _ in range(5):
    if os.fork() == 0:
        file = os.memfd_create("x")
        for _ in range(80):
            os.write(file, bytes(range(256)) * 4096)
        time.sleep(60)
""",
}
HONEST = {
    "what was forked is shared": """
held = bytearray(os.urandom(1 << 16)) * (120 << 4)
for _ in range(5):
    if os.fork() == 0:
        sum(held[::4096])
        time.sleep(1.5)
        os._exit(0)
""",
    "a large address space": "held = mmap.mmap(-1, 4 << 30)",
    "a file that is only read": """
file = open(sys.executable, "rb")
held = [mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) for _ in range(60)]
print(sum(sum(each[::4096]) for each in held) > 0)
""",
}
WAYS = {
    "B": SandboxReport("B", min(landlock_abi(), 7), pid_namespace=False),
    "A": SandboxReport("A", min(landlock_abi(), 7), pid_namespace=True),
    "unrestricted": SandboxReport("none", 0, pid_namespace=False),
}


ALL = [(way, by) for way in WAYS for by in ("kernel", "host")]


@pytest.fixture
def sandbox(way: str, by: str) -> Iterator[ToolHostSandbox]:
    """A sandbox that holds calls this way, bounded by control groups or, as where there are none, by its hosts."""
    groups = ControlGroups() if by == "kernel" else None
    if groups is not None and groups.controllers != {"pids", "memory"}:
        pytest.skip("this user may not make control groups here")
    if way == "A" and not namespaces_possible():
        pytest.skip("this kernel allows no namespaces")
    if way != "unrestricted" and not landlock_abi():
        pytest.skip("this kernel has no Landlock")
    made = ToolHostSandbox(WAYS[way], groups=groups)
    yield made
    made.close()


def run(sandbox: ToolHostSandbox, script: str, mark: str, then: str = "time.sleep(60)") -> ProcessEnd:
    mode = Mode.RESTRICTED if sandbox.report.restriction_available else Mode.UNRESTRICTED
    program = (sys.executable, "-I", "-S", "-c", f"import mmap, os, sys, time\n{script}\n{then}")
    limits = ProcessLimits(wall_seconds=20, memory_bytes=LIMIT, processes=80)
    end = sandbox.start(launch("", mark, argv=program, mode=mode, limits=limits), lambda _: None).wait()
    assert processes.running(mark) == []
    return end


@pytest.mark.parametrize(
    ("way", "by", "kind"),
    [*(("B", "host", kind) for kind in MEMORY), *(("B", "kernel", kind) for kind in (*MEMORY,)[:2]),
     *((way, "host", (*MEMORY,)[1]) for way in ("A", "unrestricted"))],
)  # fmt: skip
def test_all_memory_of_a_call_is_bounded(sandbox: ToolHostSandbox, kind: str, mark: str) -> None:
    end = run(sandbox, MEMORY[kind], mark)
    assert (end.limit, end.killed, end.leaked) == ("memory", True, False), end


@pytest.mark.parametrize(("way", "by"), [("B", "host")])
@pytest.mark.parametrize("kind", HONEST)
def test_shared_memory_counts_once_or_not_at_all(sandbox: ToolHostSandbox, kind: str, mark: str) -> None:
    end = run(sandbox, HONEST[kind], mark, then="time.sleep(1)")
    assert (end.exit_code, end.limit) == (0, ""), end


@pytest.mark.parametrize(("way", "by"), ALL)
def test_too_many_processes_are_refused_or_ended(sandbox: ToolHostSandbox, mark: str) -> None:
    bomb = "for _ in range(400):\n    try:\n        if os.fork() == 0: time.sleep(60)\n    except OSError: sys.exit(5)"
    end = run(sandbox, bomb, mark)
    assert end.exit_code == 5 or end.limit == "processes", end
    assert len(end.reaped) <= 400


def test_nothing_is_left_of_control_groups() -> None:
    groups = ControlGroups()
    if not groups.controllers:
        pytest.skip("this user may not make control groups here")
    folders = [folder for folder, *_ in groups.describe(ProcessLimits(), 0)]
    sandbox = ToolHostSandbox(WAYS["unrestricted"], groups=groups)
    end = sandbox.start(launch("cat /proc/self/cgroup"), lambda _: None).wait()
    sandbox.close()
    assert end.head.count(b"/call-") == len(folders)
    assert not [folder for folder in folders if os.path.exists(os.path.dirname(folder))]
