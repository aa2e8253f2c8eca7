"""Three nodes and their database, and what must hold whenever one of them stops or dies."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

import psycopg
from bedrock import Client
from msgspec import Struct

from tests.soak.cluster.clocks import SetClock
from tests.soak.cluster.networks import HOST, Networks
from tests.soak.cluster.witness import introduced, make_watched, strangers
from tests.support import processes
from tests.support.nodes import LEASE_SECONDS, Nodes
from tests.support.patience import PATIENCE
from tests.support.proxy import Proxy
from tests.support.server_process import ServerProcess

NAMES = ("one", "two", "three")
DEAD_SECONDS = 60.0
"""Until a node that is gone has been declared dead, at the latest: longer than its lease, and than the judges need."""
WORK_SECONDS = 10.0
"""For which a disturbance waits for work that it could harm."""
END_SECONDS = 30.0
"""Until a node that was declared dead has ended, or tools have whose node is gone."""
SKEWED = "three"
"""The node with a clock of its own."""
DISK_MIB = 512
DECLARED_DEAD = "was declared dead"
STORE_AWAY = ("StoreUnavailableError", "the database", "changes not stored yet; retrying")
"""What nodes log as faults while the database is away."""
_OF_NAME = "SELECT max(incarnation) FROM nodes WHERE name = %s"
_ALIVE = "SELECT count(*) FROM nodes WHERE incarnation = %s AND NOT dead"


class World(Struct, frozen=True):
    """What surrounds the nodes, as far as the machine can give it."""

    networks: Networks | None = None
    """Each node has an interface of its own; all listen on 127.0.0.1 without it."""
    clock: bool = False
    """One node has a clock that can be set."""
    small_disk: bool = False
    """The database has a disk of its own that can be filled."""
    programs: Path | None = None
    """Where the programs of PostgreSQL are, if not those of the tests."""

    @property
    def host(self) -> str:
        """Where the nodes reach what this process serves."""
        return "127.0.0.1" if self.networks is None else HOST


class Happened(Struct, frozen=True):
    """One disturbance, on the monotonic clock."""

    kind: str
    begin: float
    end: float


class Cluster:
    """Three nodes, each with a way of its own to the database, and a balancer in front of them. Close it."""

    def __init__(self, folder: Path, env: dict[str, str], *, forever: str, seed: str, world: World = World()) -> None:  # noqa: B008 -- immutable
        """`forever`: what tools sleep for that never end."""
        self.wrong: list[str] = []
        self.happened: list[Happened] = []
        self.folder = folder / "work"
        """Working directory of conversations."""
        self.random = random.Random(seed)
        self._forever = forever
        self._opened = ExitStack()
        self._started = 0
        try:
            self.clock = SetClock(folder) if world.clock else None
            """The one of the node `SKEWED`."""
            room = DISK_MIB if world.small_disk else 0
            self.nodes = Nodes(
                folder, env=env, made_by=make_watched, networks=world.networks, room=room, programs_in=world.programs
            )
            self._opened.callback(self.nodes.database.close)
            socket, self.networks = self.nodes.database.socket, world.networks
            self.ways = {name: self._opened.enter_context(Proxy(socket, host=world.host)) for name in NAMES}
            """To the database."""
            addresses = [self.nodes.address(name) for name in NAMES]
            self.front = self._opened.enter_context(Proxy(*addresses, seed=self.random.getrandbits(32)))
            self.servers: dict[str, ServerProcess] = {}
            for name in NAMES:
                self.start(name)
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """Of the database, without a proxy."""
        return self.nodes.database.url(self.nodes.database_name)

    def close(self) -> None:
        """End what still runs, whatever it takes."""
        for server in getattr(self, "servers", {}).values():
            server.dispose()
        self._opened.close()

    def address(self, name: str) -> str:
        """Return where clients call a node."""
        return f"http://{self.nodes.address(name)}"

    def client(self, name: str) -> Client:
        """Return a client of a node, to be closed."""
        return Client(self.address(name), token=self.nodes.clients_token, timeout=PATIENCE)

    def end(self) -> None:
        """Stop all nodes as they should be stopped; notes what is left of them, and what they should not have done."""
        for server in self.servers.values():
            self.stop(server)
        for name in NAMES:
            self.ways[name].cut()
        self.wrong += strangers(self.url)

    def disturb(self, kind: str, how: Callable[[Cluster], None]) -> None:
        """Let one thing happen; returns when all nodes are there again."""
        began = time.monotonic()
        how(self)
        self.happened.append(Happened(kind, began, time.monotonic()))

    def start(self, name: str) -> None:
        """Start a node, again."""
        self._started += 1
        url = f"postgresql://postgres@{self.ways[name].address}/{self.nodes.database_name}"
        env = self.clock.env if self.clock is not None and name == SKEWED else {}
        env["BEDROCK_DATABASE"] = introduced(url, f"{name}-{self._started}")
        self.servers[name] = self.nodes.start(name, **env)

    def any(self, count: int = 1) -> list[str]:
        """Return the names of some nodes."""
        return self.random.sample(NAMES, count)

    def other(self, name: str) -> str:
        """Return the name of another node."""
        return self.random.choice([each for each in NAMES if each != name])

    def at_work(self, count: int = 1) -> list[str]:
        """Return the names of some nodes, each with a tool that never ends by itself."""
        names = self.any(count)
        for name in names:
            until = time.monotonic() + WORK_SECONDS
            while not self._tools(self.servers[name]) and time.monotonic() < until:
                time.sleep(0.02)
        return names

    def stop(self, server: ServerProcess) -> None:
        """Tell a node to stop; notes what is left of it."""
        if code := server.stop():
            self.wrong.append(f"a node that was told to stop ended with {code}")
        if left := server.running():
            self.wrong.append(f"{len(left)} processes outlived a node that was told to stop")
        self._look_at_log(server)

    def replace(self, name: str) -> None:
        """Start a node in the place of one that was declared dead, once that one has ended."""
        server = self.servers[name]
        try:
            server.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.wrong.append("a node that was declared dead goes on")
            server.kill()
        self.start(name)
        self.forget(server)

    def replace_dead(self) -> None:
        """Start nodes in the place of those that were declared dead, once nobody judges any more."""
        time.sleep(1.5 * LEASE_SECONDS)
        for name, server in self.servers.items():
            if server.process.poll() is not None or not self.is_alive(self.incarnation(name)):
                server.foreseen = DECLARED_DEAD
                self.replace(name)

    def await_dead(self, server: ServerProcess, incarnation: int) -> None:
        """Wait until others have declared it dead; none of its tools may be alive then."""
        until = time.monotonic() + DEAD_SECONDS
        while self.is_alive(incarnation):
            if time.monotonic() > until:
                self.wrong.append("a node that is gone was not declared dead")
                return
            time.sleep(0.02)
        if left := self._tools(server):
            self.wrong.append(f"{len(left)} processes of tools outlived the declaration that their node is dead")

    def forget(self, server: ServerProcess) -> None:
        """Notes what is left of a process that is gone: nothing."""
        until = time.monotonic() + END_SECONDS
        while (left := server.running()) and time.monotonic() < until:
            time.sleep(0.02)
        if left:
            self.wrong.append(f"{len(left)} processes outlived their node")
        self._look_at_log(server)

    def incarnation(self, name: str) -> int:
        """Return the number of the node that has a name now."""
        return int(self.ask(_OF_NAME, name))

    def is_alive(self, incarnation: int) -> bool:
        """Return whether the database has a node for alive."""
        return bool(self.ask(_ALIVE, incarnation))

    def ask(self, query: str, value: object) -> int:
        """Ask the database for a number; it may have crashed just before."""
        until = time.monotonic() + DEAD_SECONDS
        while True:
            with suppress(psycopg.OperationalError):
                with psycopg.connect(self.url) as connection:
                    row = connection.execute(query.encode(), (value,)).fetchone()
                return int(row[0] or 0) if row else 0
            assert time.monotonic() < until, "the database does not come back"
            time.sleep(0.05)

    def note_deaths(self, incarnations: Iterable[int]) -> None:
        """Notes which of these nodes, all of which live, the database has for dead."""
        dead = [number for number in incarnations if not self.is_alive(number)]
        self.wrong += [f"node {number} was declared dead though it lived" for number in dead]

    def _look_at_log(self, server: ServerProcess) -> None:
        messages = [str(fault["message"]) for fault in server.faults()]
        self.wrong += [f"a node's log: {text}" for text in messages if not any(away in text for away in STORE_AWAY)]

    def _tools(self, server: ServerProcess) -> set[int]:
        return set(processes.sleepers(self._forever)) & set(server.running())
