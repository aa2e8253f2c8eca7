"""Cancel: from the RPC to the idle state on a watcher's stream, while a model streams and while a tool runs."""

import asyncio

from tests.bench import bare_grpc
from tests.bench.clients import Clients, on_loop
from tests.bench.figures import Report, floor_of, spread
from tests.bench.results import ROUNDS
from tests.bench.running_server import RunningServer, provider, running_server
from tests.bench.rush import rush

TIMES = 200


async def while_streaming(running: RunningServer) -> list[float]:
    async with Clients(running) as clients:
        watched = await clients.conversation("claude-sonnet-4-5")
        await watched.watch()
        took = []
        for _ in range(TIMES):
            await watched.send("go on")
            await watched.streaming.wait()
            took.append(await watched.cancel())
        await watched.close()
        return took


async def behind_a_backlog(running: RunningServer, *, streams: bool = True) -> list[float]:
    """The same, with 500 messages of other clients for a busy agent in front of the cancel.

    `streams`: whether there is an agent, and a model that streams.
    """
    async with Clients(running) as clients:
        watched = await clients.conversation("claude-sonnet-4-5")
        await watched.watch()
        took = []
        with rush(running, watched.name) as others:
            for _ in range(TIMES // 4):
                if streams:
                    await watched.send("go on")
                    await watched.streaming.wait()
                await asyncio.to_thread(others.begin, 500)
                took.append(await watched.cancel())
                await asyncio.to_thread(others.end)
                await watched.cancel_if_busy()
        await watched.close()
        return took


async def while_a_tool_runs(running: RunningServer) -> list[float]:
    async with Clients(running) as clients:
        watched = await clients.conversation("demo")
        await watched.watch()
        took = []
        for _ in range(TIMES // 4):
            await watched.send("run sleep 1000")
            await watched.tool_running.wait()
            took.append(await watched.cancel())
        await watched.close()
        return took


def run(report: Report) -> None:
    """Measure cancels; those behind messages also at a bare gRPC server, in turn."""
    with provider(pause=0.02) as url, running_server(url) as running:
        report.add("cancel → idle seen, model streaming", "ms", **spread(on_loop(while_streaming(running))))
        took, floor = [], []
        with running_server(module=bare_grpc.MODULE) as bare:
            for _ in range(ROUNDS):
                took += on_loop(behind_a_backlog(running))
                floor += on_loop(behind_a_backlog(bare, streams=False))
        report.add("cancel → idle seen, 500 messages waiting", "ms", **spread(took), **floor_of(floor))
        report.add("cancel → idle seen, tool running", "ms", **spread(on_loop(while_a_tool_runs(running))))
