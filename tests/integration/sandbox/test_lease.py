"""Tools live no longer than the lease of their server, whatever they and the server do."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from actors.adapters.sandbox import toolhost
from actors.adapters.sandbox.host import call_limits, call_processes, kernel
from actors.adapters.sandbox.process_tree import ProcessTree
from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.adapters.store.postgres.nodes.heartbeat import LeaseClock
from actors.core.context import Mode
from actors.ports import ProcessEnd, ProcessLimits, ProcessStartError, SandboxReport, SandboxUnavailableError
from actors.ports.cluster import Lease
from tests.support import processes
from tests.support.footprint import footprint
from tests.support.patience import eventually
from tests.support.trees import TREES, WAYS, Service, host_of_this_process, launch, sandbox_of

ROOT = Path(__file__).parents[3]

ENOUGH = 3.0
"""Seconds in which a busy machine starts a tree."""

COMMANDS = {
    "setsid daemon": TREES["setsid daemon"],
    "double fork": TREES["double fork"],
    "deaf to TERM and INT": TREES["deaf to TERM and INT"],
    "stopped": ("sleep 1000 & sleep 1000 & kill -STOP $! $$; true", 1),
}
"""Commands, and how many `sleep`s each starts at least."""

NOTHING_TO_WATCH = ProcessLimits(processes=0, memory_bytes=0)
"""Limits for which a host has no reason to wake."""

RACES = 25
"""How many trees race against renewals; 1,000 were tried by hand."""

READ_LINKS = "for file in /proc/self/fd/* /proc/$PPID/fd/*; do readlink $file; done; echo over"


class Always(Lease):
    """A lease that its server believes in always, as one does that was stopped after it had looked."""

    def __init__(self, clock: LeaseClock) -> None:
        self._clock = clock

    @property
    def fd(self) -> int | None:
        return self._clock.fd


@pytest.fixture
def clock() -> Iterator[LeaseClock]:
    """A lease that is renewed with the time of its end (`last`)."""
    clock = LeaseClock(0)
    yield clock
    clock.close()


def last(clock: LeaseClock, seconds: float) -> float:
    """Let the lease last for so many seconds from now; return its end on the clock of `time.monotonic`."""
    end = time.monotonic() + seconds
    clock.renew(int(end * 1e9))
    return end


def passed(end: float) -> None:
    """Wait until a time has passed."""
    eventually(lambda: time.monotonic() > end, "the end of the lease")


@contextmanager
def leased(way: str, report: SandboxReport, clock: LeaseClock) -> Iterator[ToolHostSandbox]:
    """A sandbox that holds trees this way, whose hosts alone keep to the lease."""
    sandbox = sandbox_of(way, report, lease=Always(clock))
    try:
        yield sandbox
    finally:
        sandbox.close()


@contextmanager
def leased_in_all_ways(report: SandboxReport, clock: LeaseClock) -> Iterator[dict[str, ToolHostSandbox]]:
    """A sandbox of each way that this machine can hold trees in, and one whose hosts are not forked."""
    with ExitStack() as opened:
        found = {}
        for way in WAYS:
            with suppress(SandboxUnavailableError):
                found[way] = opened.enter_context(leased(way, report, clock))
        found["no forks"] = opened.enter_context(leased("walk", report, clock))
        found["no forks"]._fork_server.stop_forking()
        yield found


def mode_of(way: str) -> Mode:
    return Mode.RESTRICTED if way in {"A", "B"} else Mode.UNRESTRICTED


def started(sandbox: ToolHostSandbox, way: str, command: str, mark: str = "", **changes: object) -> ProcessTree:
    return sandbox.start(launch(command, mark, mode=mode_of(way), **changes), lambda _: None)


def sleeping(mark: str, size: int) -> bool:
    return len(processes.sleepers(mark)) >= size


def test_trees_live_on_with_a_renewed_lease_and_end_with_it(
    report: SandboxReport, clock: LeaseClock, mark: str
) -> None:
    with leased_in_all_ways(report, clock) as sandboxes:
        last(clock, ENOUGH)
        for way, sandbox in sandboxes.items():
            started(sandbox, way, "true").wait()
        before = footprint()
        trees, services = [], []
        for way, sandbox in sandboxes.items():
            last(clock, ENOUGH)
            for kind, (command, size) in COMMANDS.items():
                own = f"{mark} {way} {kind}"
                trees.append(started(sandbox, way, command, own))
                eventually(partial(sleeping, own, size), own)
            first = last(clock, ENOUGH)
            trees.append(started(sandbox, way, "", mark, argv=("import time; time.sleep(1000)",), python=True))
            services.append(Service(sandbox, "setsid cat & cat", mark, mode=mode_of(way), limits=NOTHING_TO_WATCH))
        living = set(processes.sleepers(mark))
        last(clock, ENOUGH + 2)
        passed(first)
        assert living <= set(processes.sleepers(mark)), "the lease has been renewed"
        ends = [tree.wait() for tree in (*trees, *(service.tree for service in services))]
        assert processes.running(mark) == []
        assert {(end.limit, end.killed, end.leaked) for end in ends} == {("lease", True, False)}
        for service in services:
            service.close()
        eventually(lambda: footprint().within(before), "the state before")


SERVER = """
import sys, threading, time
from actors.adapters.sandbox.probe import probe
from actors.adapters.store.postgres.nodes.heartbeat import LeaseClock
from tests.support.trees import TREES, Service, launch, sandbox_of
clock, over = LeaseClock(4.0), threading.Event()
def beat():
    while not over.wait(0.2):
        clock.renew(time.monotonic_ns())
clock.renew(time.monotonic_ns())
threading.Thread(target=beat).start()
trees = []
for way in ("namespace", "walk"):
    sandbox = sandbox_of(way, probe("none"), lease=clock)
    for kind in ("setsid daemon", "double fork"):
        trees.append(sandbox.start(launch(TREES[kind][0], sys.argv[1]), lambda _: None))
    trees.append(Service(sandbox, "yes >&2", sys.argv[1]).tree)
print("up", flush=True)
print(*(tree.wait().limit for tree in trees), flush=True)
over.set()
"""


def test_trees_of_a_server_that_is_stopped_end_with_its_lease(mark: str) -> None:
    server = subprocess.Popen([sys.executable, "-c", SERVER, mark], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "up\n"
        eventually(lambda: len(processes.sleepers(mark)) == 8, "its trees")
        server.send_signal(signal.SIGSTOP)
        eventually(lambda: set(processes.running(mark)) <= {server.pid}, "the end of all trees")
        server.send_signal(signal.SIGCONT)
        assert server.stdout.readline() == "lease lease lease lease lease lease\n"
    finally:
        with suppress(OSError):
            server.kill()
        server.communicate()


def test_no_tool_is_started_once_the_lease_is_over(report: SandboxReport, clock: LeaseClock, mark: str) -> None:
    with leased("walk", report, clock) as sandbox:
        end = last(clock, ENOUGH)
        tree, description, _ = sandbox._spawn(launch("sleep 1000", mark), lambda _: None)
        before = footprint()
        passed(end)
        tree.begin(description)  # as by a server that was stopped in between
        with pytest.raises(ProcessStartError, match="cannot start tools"):
            tree.await_begin()
        tree.kill()
        assert tree.wait().reaped == ()
        with pytest.raises(ProcessStartError, match="cannot start tools"):
            started(sandbox, "walk", "sleep 1000", mark)
        sandbox._lease = clock
        with pytest.raises(ProcessStartError, match=r"responds$"):  # the server's own words, without the host's
            started(sandbox, "walk", "sleep 1000", mark)
        last(clock, ENOUGH)
        assert started(sandbox, "walk", "true").wait().exit_code == 0
        assert processes.running(mark) == []
        eventually(lambda: footprint().within(before), "no more than before")


def test_a_lease_that_was_closed_is_over_and_its_number_is_nobody_elses(report: SandboxReport) -> None:
    before = footprint()
    clock = LeaseClock(0)
    with leased("walk", report, clock) as sandbox:
        last(clock, ENOUGH)
        started(sandbox, "walk", "true").wait()
        clock.close()
        with open(os.devnull) as other:  # has the number that the lease had
            sandbox._fork_server.replace(sandbox._fork_server._starts)
            with pytest.raises(ProcessStartError, match="cannot start tools"):
                started(sandbox, "walk", "true")
            assert os.readlink(f"/proc/self/fd/{other.fileno()}") == os.devnull
    eventually(lambda: footprint().within(before), "the state before")


def test_a_program_that_is_late_is_not_executed() -> None:
    host = object.__new__(toolhost.Host)
    host.pipes, host.namespace, host.lease = call_processes.Pipes(), False, call_processes.LeaseFile(-1)
    host.launch = {"cwd": b"/", "limits": {"processes": 0, **dict.fromkeys(call_limits.LIMITS, 0)}, "mark": 0}
    host.launch |= {"streams": (), "restrict": None, "python": False, "argv": [b"true"], "env": {}}
    host.lease.until = time.monotonic_ns()
    child = os.fork()
    if child == 0:
        call_processes.become(host, 0, -1)
    pipes = host.pipes
    os.close(pipes.report_end)
    assert os.read(pipes.report, 100) == b"lease %d" % errno.ETIME
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 127
    kernel.close(pipes.report, pipes.output, pipes.output_end, pipes.status, pipes.status_end)
    kernel.close(pipes.life, pipes.life_end)


def test_no_program_sees_the_lease(report: SandboxReport, clock: LeaseClock) -> None:
    with leased_in_all_ways(report, clock) as sandboxes:
        for way, sandbox in sandboxes.items():
            last(clock, ENOUGH)
            end: ProcessEnd = started(sandbox, way, READ_LINKS).wait()
            assert end.head.endswith(b"over\n")
            assert b"bedrock-lease" not in end.head, "neither its own nor those of init"
            service = Service(sandbox, READ_LINKS, mode=mode_of(way))
            assert b"bedrock-lease" not in service.stdout.read()
            service.tree.wait()
            service.close()


def test_hosts_without_a_lease_have_none_and_wait_for_nothing(sandbox: ToolHostSandbox) -> None:
    tree = sandbox.start(launch("echo; sleep 1000"), lambda _: None)
    host = host_of_this_process()
    assert not [name for name in processes.files(host) if "bedrock-lease" in name]
    tree.kill()
    tree.wait()
    assert not call_processes.LeaseFile(-1).over()


def test_renewals_race_with_starts_and_ends(report: SandboxReport, clock: LeaseClock, mark: str) -> None:
    chance = random.Random(1)
    ended = 0
    with leased("namespace", report, clock) as namespaces, leased("walk", report, clock) as walks:
        last(clock, ENOUGH)
        for sandbox in (namespaces, walks):
            started(sandbox, "walk", "true").wait()
        passed(last(clock, ENOUGH / 4))
        before = footprint()
        for _ in range(RACES):
            passed(last(clock, 0))
            last(clock, chance.uniform(0, 0.1))
            try:
                tree = started(chance.choice((namespaces, walks)), "walk", "setsid sleep 1000 & sleep 1000; true", mark)
            except ProcessStartError:
                continue  # the lease was over before it began: how often is up to chance
            for _ in range(chance.randrange(4)):
                time.sleep(chance.uniform(0, 0.03))
                last(clock, chance.uniform(0, 0.05))
            end = tree.wait()
            assert (end.limit, end.leaked) == ("lease", False)
            assert processes.running(mark) == []
            ended += 1
        assert ended
        eventually(lambda: footprint().within(before), "the state before")
