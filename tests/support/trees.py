"""Process trees that try to get away, and how tests find what is left of them."""

import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle, islice

from actors.adapters.sandbox.host import process_walk
from actors.adapters.sandbox.process_tree import ProcessTree
from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.core.context import Mode
from actors.ports import Launch, ProcessEnd, ProcessLimits, SandboxReport, ServiceStreams
from actors.ports.cluster import Lease
from tests.support import processes
from tests.support.patience import eventually
from tests.support.sandbox_reports import sandbox_report

BOUND = 20.0
"""Longest wait, in seconds, for something that should happen."""

MARK = "BEDROCK_TEST_TREE"

DOUBLE_FORK = (
    f"{sys.executable} -I -S -c '"
    "import os\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    """    if os.fork() == 0: os.execvp("sleep", ["sleep", "1000"])\n"""
    "    os._exit(0)\n"
    "os._exit(0)'"
)

TREES: Mapping[str, tuple[str, int]] = {
    "background job": ("sleep 1000 & sleep 1000; true", 2),
    "pipeline in a subshell": ("(sleep 1000 | (sleep 1000; true) | cat) & sleep 1000; true", 3),
    "setsid daemon": ("setsid sleep 1000 & sleep 1000; true", 2),
    "nohup setsid daemon that traps": (
        """nohup setsid bash -c 'trap "" TERM HUP; while :; do sleep 1000; done' & sleep 1000; true""",
        2,
    ),
    "double fork": (f"{DOUBLE_FORK}; sleep 1000; true", 2),
    "deaf to TERM and INT": ("""bash -c 'trap "" TERM INT; sleep 1000 & setsid sleep 1000 & sleep 1000'; true""", 3),
    "fork storm": ("while :; do setsid sleep 1000 & done", 40),
    "deep": ("f() { if [ $1 -gt 0 ]; then (f $(($1 - 1)); true); else sleep 1000; true; fi; }; f 12", 1),
}
"""Commands, and how many `sleep`s each must have started before it is worth killing."""


def launch(command: str, mark: str = "", **changes: object) -> Launch:
    """A launch of `bash -c command` whose whole tree carries `mark` in its environment."""
    fields: dict[str, object] = {
        "argv": ("bash", "-c", command),
        "cwd": "/",
        "env": {"PATH": os.environ["PATH"], MARK: mark},
        "mode": Mode.UNRESTRICTED,
        "limits": ProcessLimits(processes=4_000),
    }
    return Launch(**(fields | changes))  # type: ignore[arg-type]


class Service:
    """A tree with the ends of the pipes that are its stdin and stdout."""

    def __init__(self, sandbox: ToolHostSandbox, command: str, mark: str = "", **changes: object) -> None:
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        self.stdin, self.stdout = os.fdopen(ours_in, "wb", buffering=0), os.fdopen(ours_out, "rb")
        self.said = b""
        """What it wrote to stderr."""
        try:
            streams = ServiceStreams(theirs_in, theirs_out)
            self.tree = sandbox.start(launch(command, mark, service=streams, **changes), self._hear)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)

    def _hear(self, output: bytes) -> None:
        self.said += output

    def close(self) -> None:
        """Close our ends of the pipes."""
        self.stdin.close()
        self.stdout.close()


def bounded(tree: ProcessTree, refused: threading.Event) -> bool:
    """Whether the kernel refused the tree more processes, or its host ended it for having too many. It is killed."""

    def end() -> None:
        ends.append(tree.wait())
        over.set()

    ends: list[ProcessEnd] = []
    over = threading.Event()
    waiting = threading.Thread(target=end)
    waiting.start()
    eventually(lambda: refused.is_set() or over.is_set(), "it was bounded")
    tree.kill()
    waiting.join(BOUND)
    assert ends
    assert not ends[0].leaked
    return refused.is_set() or ends[0].limit == "processes"


def host_of_this_process() -> int:
    """The one tool host of this process."""
    (host,) = hosts_of_this_process()
    return host


def hosts_of_this_process() -> list[int]:
    """All tool hosts of this process; the fork server has no children, and a database may run for other tests."""
    parents = (pid for pid in process_walk.children(os.getpid()) if process_walk.children(pid))
    return [pid for pid in parents if b"tests.support.postgres" not in processes.read(pid, "cmdline")]


WAYS = ("namespace", "walk", "A", "B")
"""How trees are held: unrestricted with a PID namespace and without one, and restricted in each tier."""


def sandbox_of(way: str, report: SandboxReport, lease: Lease | None = None) -> ToolHostSandbox:
    """A sandbox that holds trees this way, to be closed; `report` is what this machine can do without restriction.

    Raises SandboxUnavailableError if this machine cannot.
    """
    if way in {"A", "B"}:
        return ToolHostSandbox(sandbox_report(way), lease=lease)
    return ToolHostSandbox(report, pid_namespace=way == "namespace", lease=lease)


@dataclass(frozen=True)
class Killed:
    """How the kill of one tree went."""

    kind: str
    milliseconds: float
    """From the call of kill() until every process of the tree was known to be dead."""
    survivors: int
    leaked: bool


def kill_trees(sandbox: ToolHostSandbox, way: str, times: int, *, services: bool = False) -> Iterator[Killed]:
    """Let so many trees grow, of each kind in turn, and kill them; `services`: with their own stdin and stdout."""
    mode = Mode.RESTRICTED if way in {"A", "B"} else Mode.UNRESTRICTED
    for kind in islice(cycle(TREES), times):
        yield _kill_one(sandbox, kind, mode, service=services)


def _kill_one(sandbox: ToolHostSandbox, kind: str, mode: Mode, *, service: bool) -> Killed:
    command, size = TREES[kind]
    mark = uuid.uuid4().hex
    if service:
        started = Service(sandbox, command, mark, mode=mode)
        started.close()
        tree = started.tree
    else:
        tree = sandbox.start(launch(command, mark, mode=mode), lambda _: None)
    try:
        eventually(lambda: len(processes.sleepers(mark)) >= size, f"{size} sleeps of {kind}")
    finally:
        began = time.perf_counter()
        tree.kill()
        end = tree.wait()
    milliseconds = (time.perf_counter() - began) * 1000
    survivors = processes.running(mark)
    for pid in survivors:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return Killed(kind, milliseconds, len(survivors), end.leaked)
