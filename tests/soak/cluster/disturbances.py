"""What happens to three nodes and their database, one thing after the other, and what must hold at once."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import psycopg
from msgspec import Struct

from tests.e2e import processes
from tests.e2e.nodes import LEASE_SECONDS, Nodes
from tests.e2e.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.server_process import ServerProcess

NAMES = ("one", "two", "three")
DEAD_SECONDS = 60.0
"""Until a node that is gone has been declared dead, at the latest: longer than its lease, and than the judges need."""
WORK_SECONDS = 10.0
"""For which a disturbance waits for work that it could harm."""
END_SECONDS = 30.0
"""Until a node that was declared dead has ended, or tools have whose node is gone."""
BLINK_SECONDS = 1.0
"""Shorter than a lease."""
DECLARED_DEAD = "declared dead by another one"
STORE_AWAY = ("StoreUnavailableError", "the database may not have written", "not stored yet; trying again")
"""What nodes log as faults while the database is away."""


class Happened(Struct, frozen=True):
    """One disturbance, on the monotonic clock."""

    kind: str
    begin: float
    end: float


class Cluster:
    """Three nodes, each with a way of its own to the database, and a balancer in front of them. Close it."""

    def __init__(self, folder: Path, env: dict[str, str], *, forever: str, seed: str) -> None:
        """`forever`: what tools sleep for that never end."""
        self.wrong: list[str] = []
        self.happened: list[Happened] = []
        self._forever = forever
        self._random = random.Random(seed)
        self._opened = ExitStack()
        try:
            self.nodes = Nodes(folder, env=env)
            self._opened.callback(self.nodes.database.close)
            self._ways = {name: self._opened.enter_context(Proxy(self.nodes.database.socket)) for name in NAMES}
            addresses = [self.nodes.address(name) for name in NAMES]
            self.front = self._opened.enter_context(Proxy(*addresses, seed=self._random.getrandbits(32)))
            self.servers: dict[str, ServerProcess] = {}
            for name in NAMES:
                self._start(name)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End what still runs, whatever it takes."""
        for server in getattr(self, "servers", {}).values():
            server.dispose()
        self._opened.close()

    def end(self) -> None:
        """Stop all nodes as they should be stopped; notes what is left of them."""
        for server in self.servers.values():
            self._stop(server)
        for name in NAMES:
            self._ways[name].cut()

    def disturb(self, kind: str) -> None:
        """Let one thing happen; returns when all nodes are there again. `kind`: of `KINDS`."""
        began = time.monotonic()
        KINDS[kind](self)
        self.happened.append(Happened(kind, began, time.monotonic()))

    def _start(self, name: str) -> None:
        port = self._ways[name].address
        self.servers[name] = self.nodes.start(
            name, BEDROCK_DATABASE=f"postgresql://postgres@{port}/{self.nodes.database_name}"
        )

    def _any(self, count: int = 1) -> list[str]:
        return self._random.sample(NAMES, count)

    def _at_work(self, count: int = 1) -> list[str]:
        """Some nodes, each with a tool that never ends by itself."""
        names = self._any(count)
        for name in names:
            until = time.monotonic() + WORK_SECONDS
            while not self._tools(self.servers[name]) and time.monotonic() < until:
                time.sleep(0.02)
        return names

    def _kill(self) -> None:
        """One is killed, and others declare it dead; or it comes back first."""
        self._kill_together(1)

    def _kill_two(self) -> None:
        """Two are killed, and come back, at the same moment."""
        self._kill_together(2)

    def _kill_together(self, count: int) -> None:
        names = self._at_work(count)
        killed = [self.servers[name] for name in names]
        incarnations = [self._incarnation(name) for name in names]
        for server in killed:
            server.process.kill()
        for server in killed:
            server.kill()
        if self._random.random() < 0.7:
            for server, incarnation in zip(killed, incarnations, strict=True):
                self._await_dead(server, incarnation)
        for server, name in zip(killed, names, strict=True):
            self._start(name)
            self._forget(server)

    def _freeze(self) -> None:
        """One stands still for longer than its lease: it is dead for all others, and for itself when it goes on."""
        (name,) = self._at_work()
        server, incarnation = self.servers[name], self._incarnation(name)
        server.foreseen = DECLARED_DEAD
        server.process.send_signal(signal.SIGSTOP)
        try:
            self._await_dead(server, incarnation)
        finally:
            server.process.send_signal(signal.SIGCONT)
        self._await_end(server)
        self._start(name)
        self._forget(server)

    def _blink(self) -> None:
        """One stands still for less than its lease: nothing comes of it."""
        (name,) = self._any()
        server = self.servers[name]
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(BLINK_SECONDS)
        server.process.send_signal(signal.SIGCONT)

    def _partition(self) -> None:
        """Nothing gets from one to the database, or back, for longer than its lease; connections stay open."""
        (name,) = self._at_work()
        server, incarnation = self.servers[name], self._incarnation(name)
        server.foreseen = DECLARED_DEAD
        self._ways[name].freeze()
        try:
            self._await_dead(server, incarnation)
        finally:
            self._ways[name].thaw()
        self._await_end(server)
        self._start(name)
        self._forget(server)

    def _cut(self) -> None:
        """One loses its connections to the database, and may connect again at once."""
        self._ways[self._any()[0]].cut()

    def _lose_answers(self) -> None:
        """What one says reaches the database; the answers, also to its commits, do not come back."""
        (name,) = self._any()
        way = self._ways[name]
        way.hold_answers()
        time.sleep(BLINK_SECONDS)
        way.cut()
        way.thaw()

    def _restart(self) -> None:
        """One is told to stop, and started again."""
        (name,) = self._any()
        self._stop(self.servers[name])
        self._start(name)

    def _crash_database(self) -> None:
        """The database crashes, and is back after a while."""
        self.nodes.database.crash()
        time.sleep(self._random.uniform(0, LEASE_SECONDS))
        self.nodes.database.start()

    def _crash_database_and_kill(self) -> None:
        """A node is killed while the database is away, and comes back when it is there again."""
        (name,) = self._at_work()
        server = self.servers[name]
        self.nodes.database.crash()
        server.kill()
        self.nodes.database.start()
        self._start(name)
        self._forget(server)

    def _stop(self, server: ServerProcess) -> None:
        if code := server.stop():
            self.wrong.append(f"a node that was told to stop ended with {code}")
        if left := server.running():
            self.wrong.append(f"{len(left)} processes outlived a node that was told to stop")
        self._look_at_log(server)

    def _await_end(self, server: ServerProcess) -> None:
        try:
            server.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.wrong.append("a node that was declared dead goes on")
            server.kill()

    def _await_dead(self, server: ServerProcess, incarnation: int) -> None:
        """Until others have declared it dead; none of its tools may be alive then."""
        until = time.monotonic() + DEAD_SECONDS
        while not self._is_dead(incarnation):
            if time.monotonic() > until:
                self.wrong.append("a node that is gone was not declared dead")
                return
            time.sleep(0.02)
        if left := self._tools(server):
            self.wrong.append(f"{len(left)} processes of tools outlived the declaration that their node is dead")

    def _forget(self, server: ServerProcess) -> None:
        """Nothing is left of a process that is gone."""
        until = time.monotonic() + END_SECONDS
        while (left := server.running()) and time.monotonic() < until:
            time.sleep(0.02)
        if left:
            self.wrong.append(f"{len(left)} processes outlived their node")
        self._look_at_log(server)

    def _look_at_log(self, server: ServerProcess) -> None:
        messages = [str(fault["message"]) for fault in server.faults()]
        self.wrong += [f"a node's log: {text}" for text in messages if not any(away in text for away in STORE_AWAY)]

    def _tools(self, server: ServerProcess) -> set[int]:
        return set(processes.sleepers(self._forever)) & set(server.running())

    def _incarnation(self, name: str) -> int:
        return int(self._ask("SELECT max(incarnation) FROM nodes WHERE name = %s", name))

    def _is_dead(self, incarnation: int) -> bool:
        return not self._ask("SELECT count(*) FROM nodes WHERE incarnation = %s AND NOT dead", incarnation)

    def _ask(self, query: str, value: object) -> int:
        """Ask the database; it may have crashed just before."""
        until = time.monotonic() + DEAD_SECONDS
        while True:
            with suppress(psycopg.OperationalError):
                with psycopg.connect(self.nodes.database.url(self.nodes.database_name)) as connection:
                    row = connection.execute(query.encode(), (value,)).fetchone()
                assert row is not None
                return int(row[0] or 0)
            assert time.monotonic() < until, "the database does not come back"
            time.sleep(0.05)


KINDS: dict[str, Callable[[Cluster], None]] = {
    "kill": Cluster._kill,
    "kill two": Cluster._kill_two,
    "freeze": Cluster._freeze,
    "blink": Cluster._blink,
    "partition": Cluster._partition,
    "cut": Cluster._cut,
    "lost answers": Cluster._lose_answers,
    "restart": Cluster._restart,
    "crash of the database": Cluster._crash_database,
    "crash of the database and kill": Cluster._crash_database_and_kill,
}
"""What may happen, by name."""
