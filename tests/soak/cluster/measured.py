"""`make cluster-faults`: how soon all is at rest when a node dies, and a tool that is cancelled at another node; and
what clients notice of nodes that join and leave.

Writes reports/cluster-faults.json, and ends with 1 if a goal of it is missed.
"""

import argparse
import itertools
import os
import select
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from bedrock import Client
from bedrock.errors import BedrockError

from tests.bench.figures import Report, spread
from tests.bench.goals import judged
from tests.soak.cluster.three_nodes import NAMES
from tests.soak.provider import Provider
from tests.support import processes
from tests.support.nodes import LEASE_SECONDS, Nodes
from tests.support.patience import PATIENCE, eventually
from tests.support.proxy import Proxy
from tests.support.server_process import ServerProcess, provider

CONVERSATIONS = (100, 1_000)
"""At work when a node is killed."""
STARTERS = 8
"""Threads that begin conversations."""
MESSAGES = 5
"""Of each conversation of theirs."""
CALLERS = 6
"""Threads that hold conversations while nodes come and go."""
READY_SECONDS = 600.0
"""Until so many conversations are at work."""
_UNSETTLED = "SELECT count(*) FROM conversations WHERE state <> 'idle'"
_DEAD = "SELECT NOT EXISTS (SELECT FROM nodes WHERE incarnation = %s AND NOT dead)"
_INCARNATION = "SELECT max(incarnation) FROM nodes WHERE name = %s"


class Running:
    """Three nodes that have just been started, and the model that they ask."""

    def __init__(self, folder: Path, model: Provider) -> None:
        self.model = model
        self.work = folder / "work"
        self.work.mkdir()
        env = {**provider(model.url), "BEDROCK_TITLES": "false", "BEDROCK_DRAIN_SECONDS": "10"}
        self.nodes = Nodes(folder, env=env)
        self.servers: dict[str, ServerProcess] = {}
        try:
            for name in NAMES:
                self.start(name)
        except BaseException:
            self.close()
            raise

    def start(self, name: str) -> None:
        """Start a node, again."""
        self.servers[name] = self.nodes.start(name)

    def client(self, name: str) -> Client:
        """Return a client of a node, to be closed."""
        return self.servers[name].client()

    def ask(self, query: str, *values: object) -> int:
        """Ask the database for a number."""
        with psycopg.connect(self.nodes.database.url(self.nodes.database_name)) as connection:
            row = connection.execute(query.encode(), values).fetchone()
        assert row is not None
        return int(row[0] or 0)

    def close(self) -> None:
        """End the nodes, whatever it takes, and the database."""
        for server in self.servers.values():
            server.dispose()
        self.nodes.database.close()


@contextmanager
def running() -> Iterator[Running]:
    """Three nodes in a folder of their own, for as long as the context is open."""
    with tempfile.TemporaryDirectory(prefix="bedrock-cluster-") as folder, Provider("figures") as model:
        made = Running(Path(folder), model)
        try:
            yield made
        finally:
            made.close()
        assert not model.faults, model.faults[:3]


def killed(report: Report, count: int) -> None:
    """A node is killed with so many conversations at work."""
    with running() as cluster:
        names = _begin(cluster, count)
        dying, incarnation = cluster.servers[NAMES[0]], cluster.ask(_INCARNATION, NAMES[0])
        began = time.monotonic()
        dying.kill()
        while not cluster.ask(_DEAD, incarnation):
            time.sleep(0.01)
        detected = time.monotonic()
        while cluster.ask(_UNSETTLED):
            time.sleep(0.01)
        rested = time.monotonic() - detected
        with cluster.client(NAMES[1]) as client:
            states = {client.conversation(name).get().state.kind for name in names}
            wrong = [name for name in names[:20] if client.conversation(name).verify()]
        assert states == {"idle"}, states
        assert not wrong, wrong
        report.add(
            f"faults: {count:,} conversations at work, declared dead → all at rest",
            "s",
            value=round(rested, 2),
            killed_to_declared=round(detected - began, 2),
        )


def _begin(cluster: Running, count: int) -> list[str]:
    """Let so many conversations of the first node wait for the model; returns their names."""
    names: list[str] = []

    def start(number: int) -> None:
        with cluster.client(NAMES[0]) as client:
            for each in range(number, count, STARTERS):
                conversation = client.create(cluster.work)
                conversation.send(f"#do hang t-{each}")
                names.append(conversation.name)

    threads = [threading.Thread(target=start, args=(number,)) for number in range(STARTERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(lambda: cluster.model.requests >= count, "all wait for the model", READY_SECONDS)
    assert cluster.ask(_UNSETTLED) == count
    return names


def cancelled(report: Report, times: int) -> None:
    """A tool is cancelled at a node that does not own its conversation, so often."""
    dead_ms: list[float] = []
    answered_ms: list[float] = []
    with running() as cluster, cluster.client(NAMES[0]) as owner, cluster.client(NAMES[1]) as other:
        forever = cluster.model.forever
        for number in range(times):
            conversation = owner.create(cluster.work, mode="unrestricted")
            elsewhere = other.conversation(conversation.name)
            conversation.send(f"#do stay t-{number}")
            eventually(lambda: len(processes.sleepers(forever)) == 2, "the tool has started both")
            with _watched(processes.sleepers(forever)) as ended:
                began = time.monotonic()
                elsewhere.cancel()
                answered_ms.append((time.monotonic() - began) * 1e3)
                dead_ms.append((ended() - began) * 1e3)
    report.add("faults: cancel at another node → tool dead", "ms", **spread(dead_ms))
    report.add("faults: cancel at another node → answered", "ms", **spread(answered_ms))


@contextmanager
def _watched(pids: list[int]) -> Iterator[Callable[[], float]]:
    """What waits for the end of the last of these processes, and returns when that was."""
    descriptors = [os.pidfd_open(pid) for pid in pids]
    times: list[float] = []

    def watch() -> None:
        for descriptor in descriptors:
            select.select([descriptor], [], [], PATIENCE)
            times.append(time.monotonic())

    thread = threading.Thread(target=watch)
    thread.start()

    def ended() -> float:
        thread.join()
        return max(times)

    try:
        yield ended
    finally:
        thread.join()
        for descriptor in descriptors:
            os.close(descriptor)


class Caller(threading.Thread):
    """Holds one conversation after the other through any node, until it is told to stop; counts what fails."""

    def __init__(self, address: str, token: str, work: Path, number: int) -> None:
        super().__init__(daemon=True)
        self._client = Client(address, token=token, timeout=PATIENCE)
        self._work, self._number = work, number
        self.stopping = threading.Event()
        self.took: list[float] = []
        """Seconds of each message, from when it was sent to its answer."""
        self.failed: list[str] = []

    def run(self) -> None:
        with self._client:
            for number in itertools.count():
                if self.stopping.is_set():
                    return
                try:
                    self._talk(f"t-{self._number}-{number}")
                except (BedrockError, AssertionError) as error:
                    self.failed.append(f"{type(error).__name__}: {error}"[:200])

    def _talk(self, token: str) -> None:
        conversation = self._client.create(self._work)
        for message in range(MESSAGES):
            began = time.monotonic()
            assert f"ok {token}-{message}" in str(conversation.ask(f"#do say {token}-{message}")), "another answer"
            self.took.append(time.monotonic() - began)


def come_and_gone(report: Report, times: int) -> None:
    """A node is told to stop and started again, so often, while clients talk."""
    with running() as cluster:
        addresses = [cluster.nodes.address(name) for name in NAMES]
        with Proxy(*addresses, seed=1) as front:
            callers = [
                Caller(front.address, cluster.nodes.clients_token, cluster.work, number) for number in range(CALLERS)
            ]
            for caller in callers:
                caller.start()
            try:
                for number in range(times):
                    name = NAMES[number % len(NAMES)]
                    eventually(lambda: all(caller.took for caller in callers), "all talk")
                    assert cluster.servers[name].stop() == 0, "a node did not stop as it should"
                    cluster.start(name)
            finally:
                for caller in callers:
                    caller.stopping.set()
                for caller in callers:
                    caller.join()
    failed = [text for caller in callers for text in caller.failed]
    took = [seconds for caller in callers for seconds in caller.took]
    for text in failed[:10]:
        print(f"  {text}", file=sys.stderr)
    report.add("faults: messages while nodes leave and join", "s", **spread(took), times=times, failed=len(failed))


def main() -> int:
    """Measure all, or what is named."""
    parser = argparse.ArgumentParser(prog="make cluster-faults")
    parser.add_argument("--conversations", type=int, nargs="*", default=CONVERSATIONS)
    parser.add_argument("--cancels", type=int, default=200)
    parser.add_argument("--joins", type=int, default=9)
    options = parser.parse_args()
    report = Report("cluster-faults")
    report.machine["lease_seconds"] = LEASE_SECONDS
    for count in options.conversations:
        killed(report, count)
    if options.cancels:
        cancelled(report, options.cancels)
    if options.joins:
        come_and_gone(report, options.joins)
    report.write()
    missed = [label for label, row in judged(report.by_name).items() if not row["reached"]]
    for label in missed:
        print(f"missed: {label}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
