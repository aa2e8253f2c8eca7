"""Fan-out: one conversation's events to 100 watchers, each on its own stream; a bare gRPC server does the same."""

import asyncio
import time

from bedrock import v1
from google.protobuf.field_mask_pb2 import FieldMask

from tests.bench import bare_grpc
from tests.bench.clients import Clients, Watched, on_loop
from tests.bench.figures import Report, cpu_seconds, floor_of, rss_mib, spread
from tests.bench.results import ROUNDS, middle
from tests.bench.running_server import RunningServer, running_server

WATCHERS = 100
BURST = 2_000
AT_ONCE = 50


async def change(watched: Watched, number: int) -> None:
    """One durable event: a new title."""
    conversation = v1.Conversation(name=watched.name, title=f"title {number}")
    request = v1.UpdateConversationRequest(conversation=conversation, update_mask=FieldMask(paths=["title"]))
    await watched.stub.UpdateConversation(request, metadata=watched.running_server.metadata)


async def caught_up(watchers: list[Watched], events: int) -> None:
    while any(watched.events < events for watched in watchers):
        await asyncio.sleep(0.002)


async def burst(running: RunningServer) -> tuple[float, float]:
    """Events delivered a second, and the server's CPU microseconds for each."""
    async with Clients(running) as clients, Clients(running) as others:
        source = await clients.conversation("demo")
        watchers = [watched async for watched in others.watchers(WATCHERS, source.name)]
        first = [watched.events for watched in watchers]
        assert len(set(first)) == 1
        cpu, began = cpu_seconds(running.process.pid), time.perf_counter()
        for start in range(0, BURST, AT_ONCE):
            await asyncio.gather(*(change(source, start + n) for n in range(AT_ONCE)))
        await caught_up(watchers, first[0] + BURST)
        seconds = time.perf_counter() - began
        cpu = cpu_seconds(running.process.pid) - cpu
        for watched in watchers:
            await watched.close()
        delivered = BURST * WATCHERS
        return delivered / seconds, cpu / delivered * 1e6


async def replay(running: RunningServer) -> float:
    """Events a second when 100 watchers read the same log of BURST events from its start."""
    async with Clients(running) as clients, Clients(running) as others:
        source = await clients.conversation("demo")
        for start in range(0, BURST, AT_ONCE):
            await asyncio.gather(*(change(source, start + n) for n in range(AT_ONCE)))
        request = v1.SubscribeRequest(name=source.name, after_revision=0, until_settled=True)

        async def read() -> int:
            count = 0
            async for response in others.stub.Subscribe(request, metadata=running.metadata):
                count += len(response.events)
            return count

        began = time.perf_counter()
        counts = await asyncio.gather(*(read() for _ in range(WATCHERS)))
        return sum(counts) / (time.perf_counter() - began)


async def paced(running: RunningServer) -> list[float]:
    """Milliseconds from a change's RPC to each watcher, ten changes a second."""
    async with Clients(running) as clients, Clients(running) as others:
        source = await clients.conversation("demo")
        arrived: asyncio.Queue[float] = asyncio.Queue()

        async def read() -> None:
            request = v1.SubscribeRequest(name=source.name)
            async for response in others.stub.Subscribe(request, metadata=running.metadata):
                for event in response.events:
                    if event.WhichOneof("event") in ("caught_up", "conversation_updated"):
                        arrived.put_nowait(time.perf_counter())

        tasks = [asyncio.create_task(read()) for _ in range(WATCHERS)]
        for _ in range(WATCHERS):
            await arrived.get()
        took = []
        for number in range(30):
            began = time.perf_counter()
            await change(source, number)
            took += [(await arrived.get() - began) * 1000 for _ in range(WATCHERS)]
            await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return took


def run(report: Report) -> None:
    """Measure Bedrock and a bare server in turn; of each figure the median of the rounds counts."""
    live, floor, replayed, memory = [], [], [], []
    changes, bare_changes = [], []
    with running_server() as running, running_server(module=bare_grpc.MODULE) as bare:
        for _ in range(ROUNDS):
            before = rss_mib(running.process.pid)
            live.append(on_loop(burst(running)))
            memory.append(rss_mib(running.process.pid) - before)
            floor.append(on_loop(burst(bare)))
            replayed.append(on_loop(replay(running)))
            changes += on_loop(paced(running))
            bare_changes += on_loop(paced(bare))
    rate, bare_rate = (middle([each for each, _ in runs], 0) for runs in (live, floor))
    report.add(
        "fan-out: live, 100 watchers",
        "events/s",
        value=round(rate),
        floor=round(bare_rate),
        of_floor=round(rate / bare_rate, 2),
        server_cpu_us=middle([cpu for _, cpu in live]),
        floor_cpu_us=middle([cpu for _, cpu in floor]),
        rss_mib=round(memory[0], 1),
    )
    report.add("fan-out: replay, 100 watchers", "events/s", value=round(middle(replayed, 0)))
    report.add("fan-out: paced, change → watcher", "ms", **spread(changes), **floor_of(bare_changes))
