"""Many stored conversations: what they cost a server that holds them, and how quickly one of them is awake."""

import tempfile
import threading
import time
from pathlib import Path

import msgspec

from actors.adapters.store.sqlite.store import PeeweeStore, open_store
from actors.ports import Commit
from server.auth.principals import LOCAL
from tests.bench.clients import Clients, Watched, on_loop
from tests.bench.fan_out import change
from tests.bench.figures import Report, rss_mib, spread
from tests.bench.running_server import RunningServer, running_server
from tests.bench.store import record_of

STORED = 100_000
WRITERS = 64
WOKEN = 200


def run(report: Report) -> None:
    with tempfile.TemporaryDirectory(prefix="bedrock-bench-") as folder:
        data = Path(folder) / "data"
        ids = [f"{number:026}" for number in range(STORED)]
        store_parked(data, ids)
        with running_server(data=data) as running:
            memory = rss_mib(running.process.pid)
            name = f"{STORED:,} stored"
            report.add(f"{name}: start to ready", "s", value=round(running.ready_seconds, 3), rss_mib=memory)
            parked, awake = on_loop(_changes(running, ids))
            report.add(f"{name}: a change of a parked one", "ms", **spread(parked))
            report.add(f"{name}: a change of one that is awake", "ms", **spread(awake))


def store_parked(data: Path, ids: list[str]) -> None:
    """Put so many conversations at rest into a database, as their actors would."""
    store = open_store(data)
    rest = iter(ids)
    lock = threading.Lock()
    threads = [threading.Thread(target=_create, args=(store, rest, lock)) for _ in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()


def _create(store: PeeweeStore, rest: object, lock: threading.Lock) -> None:
    while True:
        with lock:
            conversation_id = next(rest, None)  # type: ignore[call-overload]
        if conversation_id is None:
            return
        record = msgspec.structs.replace(record_of(conversation_id), principal=LOCAL)
        store.commit(Commit(record, 0, create=True))


async def _changes(running: RunningServer, ids: list[str]) -> tuple[list[float], list[float]]:
    """Milliseconds of a first and of a second change of some conversations, one after the other."""
    async with Clients(running) as clients:
        some = [Watched(clients.stub, running, f"conversations/{each}") for each in ids[:: STORED // WOKEN]]

        async def changed(watched: Watched, number: int) -> float:
            began = time.perf_counter()
            await change(watched, number)
            return (time.perf_counter() - began) * 1000

        return [await changed(each, 1) for each in some], [await changed(each, 2) for each in some]
