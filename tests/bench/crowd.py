"""Watchers of one conversation in a process of their own, so that the measuring process does not wait behind them.

Some read all they are sent, the others take the first response and nothing more.
"""

import argparse
import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator

import grpc
from bedrock import v1

from tests.bench.figures import ROOT
from tests.bench.running_server import RunningServer

AT_ONCE = 200
"""Watchers that catch up at the same time."""


@contextlib.contextmanager
def crowd(running_server: RunningServer, name: str, *, reading: int, stuck: int) -> Iterator[None]:
    """So many watchers, all of whom have caught up; each over a connection of its own."""
    counts = ["--reading", str(reading), "--stuck", str(stuck)]
    command = [
        sys.executable,
        "-m",
        "tests.bench.crowd",
        *counts,
        "--",
        running_server.address,
        running_server.token,
        name,
    ]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield
        finally:
            process.kill()


async def watch(channel: grpc.aio.Channel, token: str, name: str, ready: asyncio.Semaphore, *, stuck: bool) -> None:
    """One watcher."""
    stub: v1.ConversationServiceAsyncStub = v1.ConversationServiceStub(channel)
    stream = stub.Subscribe(v1.SubscribeRequest(name=name), metadata=(("authorization", f"Bearer {token}"),))
    async for response in stream:
        for event in response.events:
            if event.HasField("caught_up"):
                ready.release()
        if stuck:
            await asyncio.Event().wait()


async def main() -> None:
    """Watch until standard input closes."""
    arguments = argparse.ArgumentParser()
    for argument in ("address", "token", "name"):
        arguments.add_argument(argument)
    arguments.add_argument("--reading", type=int, required=True)
    arguments.add_argument("--stuck", type=int, required=True)
    given = arguments.parse_args()
    ready = asyncio.Semaphore(0)
    kinds = [False] * given.reading + [True] * given.stuck
    apart = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(given.address, options=apart) for _ in kinds]
    tasks: list[asyncio.Task[None]] = []
    for stuck, channel in zip(kinds, channels, strict=True):
        tasks.append(asyncio.create_task(watch(channel, given.token, given.name, ready, stuck=stuck)))
        if len(tasks) > AT_ONCE:
            await ready.acquire()
    for _ in tasks[:AT_ONCE]:
        await ready.acquire()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for channel in channels:
        await channel.close()


if __name__ == "__main__":
    asyncio.run(main())
