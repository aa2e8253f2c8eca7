"""A round: clients at work through any of three nodes while these and the database are disturbed, then the checks."""

import random
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import field

from tests.soak.checks import check
from tests.soak.clients import Site, SoakClient
from tests.soak.cluster.clients import Pause, Probe, StayingClient
from tests.soak.cluster.disturbances import KINDS
from tests.soak.cluster.three_nodes import NAMES, Cluster, Happened, World
from tests.soak.outcome import Outcome
from tests.soak.provider import Provider
from tests.soak.rounds import ORPHAN_SECONDS
from tests.support import processes
from tests.support.patience import eventually
from tests.support.server_process import provider

CALM_SECONDS = (0.5, 3.0)
"""Between two disturbances."""
ROAM_SECONDS = (0.5, 3.0)
"""After which every client has to connect again, to any node."""


class ClusterOutcome(Outcome):
    """What one round with three nodes did."""

    disturbances: dict[str, int] = field(default_factory=dict)
    longest_pause: dict[str, float] = field(default_factory=dict)
    """Seconds for which a conversation took no command, at most, by what happened meanwhile; "" for nothing."""


class Round:
    """One round in a folder of its own: journals, working directory, and the nodes' folders with their logs."""

    def __init__(
        self,
        folder: Path,
        number: int,
        seed: int,
        kinds: Sequence[type[SoakClient]],
        world: World = World(),  # noqa: B008 -- immutable
    ) -> None:
        self._world = world
        self._folder, self._seed, self._kinds = folder, seed, kinds
        self._journals, self._work = folder / "journals", folder / "work"
        self._work.mkdir(parents=True)
        self._outcome = ClusterOutcome(number)

    def run(self, disturbances: Iterable[str]) -> ClusterOutcome:
        """Work for as long as something happens, then check."""
        outcome, began = self._outcome, time.monotonic()
        name = f"{self._seed}/cluster/{outcome.number}"
        with Provider(f"{outcome.number}", host=self._world.host) as model:
            env = {**provider(model.url), "BEDROCK_TITLES": "false", "BEDROCK_IDLE_SECONDS": "2"}
            cluster = Cluster(self._folder, env, forever=model.forever, seed=name, world=self._world)
            try:
                self._work_with(cluster, disturbances, random.Random(f"{name}/calm"))
                outcome.seconds = round(time.monotonic() - began, 1)
                self._check(cluster)
                self._end(cluster, model)
            finally:
                cluster.close()
        outcome.requests = model.requests
        outcome.wrong += [*cluster.wrong, *(f"the provider refuses: {fault}" for fault in model.faults)]
        return outcome

    def _work_with(self, cluster: Cluster, disturbances: Iterable[str], chance: random.Random) -> None:
        site = Site(
            cluster.front.address,
            cluster.nodes.clients_token,
            self._work,
            self._folder,
            self._outcome.number,
            self._seed,
        )
        probes = [Probe(site, self._journals, name, cluster.address(name)) for name in NAMES]
        staying = [StayingClient(site, self._journals, name, cluster.address(name)) for name in NAMES]
        clients: list[SoakClient] = [*probes, *staying]
        clients += [kind(site, self._journals) for kind in self._kinds]
        over = threading.Event()
        roaming = threading.Thread(target=self._roam, args=(cluster, over))
        for thread in (*clients, roaming):
            thread.start()
        try:
            for kind in disturbances:
                time.sleep(chance.uniform(*CALM_SECONDS))
                cluster.disturb(kind, KINDS[kind])
            time.sleep(CALM_SECONDS[1])
        finally:
            self._outcome.end(clients)
            over.set()
            roaming.join()
        for happened in cluster.happened:
            self._outcome.disturbances[happened.kind] = self._outcome.disturbances.get(happened.kind, 0) + 1
        self._outcome.longest_pause = longest_pauses(
            [pause for probe in probes for pause in probe.pauses], cluster.happened
        )

    def _roam(self, cluster: Cluster, over: threading.Event) -> None:
        """Connections end again and again, and the next ones go to any node."""
        chance = random.Random(f"{self._seed}/roam/{self._outcome.number}")
        while not over.wait(chance.uniform(*ROAM_SECONDS)):
            cluster.front.cut()

    def _check(self, cluster: Cluster) -> None:
        with cluster.client(NAMES[0]) as client:
            self._outcome.take(check(client, self._journals, self._work / "ledger"))

    def _end(self, cluster: Cluster, model: Provider) -> None:
        """No tool runs when all is at rest, and nothing when the nodes have stopped."""
        try:
            eventually(lambda: not processes.sleepers(model.forever), "no tool runs", ORPHAN_SECONDS)
        except AssertionError:
            self._outcome.wrong.append(f"{len(processes.sleepers(model.forever))} processes of tools were left running")
        cluster.end()


def longest_pauses(pauses: Iterable[Pause], happened: Sequence[Happened]) -> dict[str, float]:
    """The longest pause in which, or just before which, each kind of thing happened."""
    longest: dict[str, float] = {}
    for pause in pauses:
        during = {each.kind for each in happened if each.begin <= pause.end and each.end >= pause.begin} or {""}
        for kind in during:
            longest[kind] = max(longest.get(kind, 0.0), round(pause.end - pause.begin, 2))
    return longest
