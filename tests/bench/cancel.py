"""Cancel: from the RPC to the idle state on a watcher's stream, while a model streams and while a tool runs."""

from __future__ import annotations

import asyncio

from tests.bench.clients import Clients, on_loop
from tests.bench.figures import Report, spread
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


async def behind_a_backlog(running: RunningServer) -> list[float]:
    """The same, with 500 messages of other clients for a busy agent in front of the cancel."""
    async with Clients(running) as clients:
        watched = await clients.conversation("claude-sonnet-4-5")
        await watched.watch()
        took = []
        with rush(running, watched.name) as others:
            for _ in range(TIMES // 4):
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
    with provider(pause=0.02) as url, running_server(url) as running:
        report.add("cancel → idle seen, model streaming", "ms", **spread(on_loop(while_streaming(running))))
        report.add("cancel → idle seen, 500 messages waiting", "ms", **spread(on_loop(behind_a_backlog(running))))
        report.add("cancel → idle seen, tool running", "ms", **spread(on_loop(while_a_tool_runs(running))))
