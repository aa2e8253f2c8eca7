"""A round: clients at work while the server is killed every few seconds, then silence, and the checks."""

import random
import time
from pathlib import Path

from msgspec import field

from tests.soak.checks import Checked, check
from tests.soak.clients import Site, SoakClient
from tests.soak.outcome import Outcome
from tests.soak.programs import AskProgram, ChatProgram, NodeProgram
from tests.soak.provider import Provider
from tests.soak.python_clients import AsyncioClient, SyncClient
from tests.soak.raw_client import RawClient
from tests.support import processes
from tests.support.patience import eventually
from tests.support.server_process import ServerProcess, provider

ORPHAN_SECONDS = 5.0
"""After which a process of a killed server has outlived it."""
KINDS: tuple[type[SoakClient], ...] = (SyncClient, AsyncioClient, RawClient, AskProgram, ChatProgram)


class ServerOutcome(Outcome):
    """What one round with one server did."""

    kills: int = 0
    clients: list[str] = field(default_factory=list)


class Soak:
    """A state directory: the server's data, the journals, and where the soak stands."""

    def __init__(self, state: Path, seed: int) -> None:
        self.folder = state
        self.seed = seed
        self.journals = state / "journals"
        self.work = state / "work"
        self.home = state / "server"
        for folder in (self.journals, self.work, self.home):
            folder.mkdir(parents=True, exist_ok=True)

    def round(self, number: int, seconds: float, kill_every: tuple[float, float]) -> ServerOutcome:
        """Run one round of so many seconds, the checks apart."""
        outcome, began = ServerOutcome(number), time.monotonic()
        with Provider(f"{number}") as model:
            server = ServerProcess(self.home, **self._settings(model))
            try:
                server = self._work(server, model, outcome, seconds, kill_every)
                outcome.seconds = round(time.monotonic() - began, 1)
                with server.client() as client:
                    outcome.take(check(client, self.journals, self.work / "ledger", number))
                self._end(server, model, outcome)
            finally:
                server.dispose()
        outcome.requests = model.requests
        outcome.wrong += [f"the provider was sent what it refuses: {fault}" for fault in model.faults]
        return outcome

    def check_everything(self) -> Checked:
        """All rounds once more, on a server that has just been started."""
        with Provider("last") as model:
            server = ServerProcess(self.home, **self._settings(model))
            try:
                with server.client() as client:
                    return check(client, self.journals, self.work / "ledger")
            finally:
                server.stop()
                server.dispose()

    def _settings(self, model: Provider) -> dict[str, str]:
        return {**provider(model.url), "BEDROCK_TITLES": "false", "BEDROCK_IDLE_SECONDS": "2"}

    def _work(
        self,
        server: ServerProcess,
        model: Provider,
        outcome: ServerOutcome,
        seconds: float,
        kill_every: tuple[float, float],
    ) -> ServerProcess:
        """Clients and kills; returns the server that is there at the end."""
        chance = random.Random(f"{self.seed}/kills/{outcome.number}")
        site = Site(server.address, server.token, self.work, self.folder, outcome.number, self.seed)
        clients = [kind(site, self.journals) for kind in KINDS]
        if NodeProgram.available():
            clients.append(NodeProgram(site, self.journals))
        outcome.clients = [client.kind for client in clients]
        for client in clients:
            client.start()
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, chance.uniform(*kill_every)))
            server = self._kill(server, model, outcome)
        outcome.end(clients)
        return server

    def _kill(self, server: ServerProcess, model: Provider, outcome: ServerOutcome) -> ServerProcess:
        server.kill()
        outcome.kills += 1
        began = time.monotonic()
        while (left := server.running()) and time.monotonic() < began + ORPHAN_SECONDS:
            time.sleep(0.02)
        if left:
            outcome.wrong.append(f"{len(left)} processes outlived kill {outcome.kills} of the server")
        outcome.wrong += _faults(server)
        port = server.address.rpartition(":")[2]
        return ServerProcess(self.home, listen=f"127.0.0.1:{port}", **self._settings(model))

    def _end(self, server: ServerProcess, model: Provider, outcome: ServerOutcome) -> None:
        """Nothing runs when all is at rest, and nothing when the server has stopped."""
        try:
            eventually(lambda: not processes.sleepers(model.forever), "no tool runs", ORPHAN_SECONDS)
        except AssertionError:
            outcome.wrong.append(f"{len(processes.sleepers(model.forever))} processes of tools were left running")
        code = server.stop()
        if code:
            outcome.wrong.append(f"the server stopped with exit code {code}")
        outcome.wrong += _faults(server)
        if left := server.running():
            outcome.wrong.append(f"{len(left)} processes outlived the stop of the server")


def _faults(server: ServerProcess) -> list[str]:
    return [f"the server's log: {fault.get('message')}" for fault in server.faults()]
