"""Watchers of one conversation in a process of their own, so that the measuring process does not wait behind them.

Some read all they are sent, the others take the first response and nothing more.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
from bedrock import v1

from tests.bench.figures import ROOT
from tests.bench.running_server import RunningServer

AT_ONCE = 200
"""Watchers that catch up at the same time."""


@dataclass
class Seen:
    """What the crowd has seen when it is dismissed."""

    characters: int = 0
    """Of passing text, by all together."""
    responses: int = 0


class Crowd:
    """A crowd that watches."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.seen = Seen()

    def dismiss(self) -> None:
        """Have them stop, and note what they have seen."""
        out, _ = self._process.communicate("", timeout=30)
        self.seen = Seen(**json.loads(out))


@contextlib.contextmanager
def crowd(
    running_server: RunningServer, name: str, *, reading: int, stuck: int = 0, connections: int = 0
) -> Iterator[Crowd]:
    """So many watchers, all of whom have caught up; each over a connection of its own unless there are fewer."""
    connections = connections or reading + stuck
    counts = ["--reading", str(reading), "--stuck", str(stuck), "--connections", str(connections)]
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
            yield Crowd(process)
        finally:
            process.kill()


async def watch(
    channel: grpc.aio.Channel, token: str, name: str, seen: Seen, ready: asyncio.Semaphore, *, stuck: bool
) -> None:
    """One watcher."""
    stub: v1.ConversationServiceAsyncStub = v1.ConversationServiceStub(channel)
    stream = stub.Subscribe(v1.SubscribeRequest(name=name), metadata=(("authorization", f"Bearer {token}"),))
    async for response in stream:
        seen.responses += 1
        for event in response.events:
            seen.characters += len(event.text_delta.text)
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
    arguments.add_argument("--connections", type=int, required=True)
    given = arguments.parse_args()
    seen, ready = Seen(), asyncio.Semaphore(0)
    kinds = [False] * given.reading + [True] * given.stuck
    apart = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(given.address, options=apart) for _ in range(given.connections)]
    tasks: list[asyncio.Task[None]] = []
    for stuck, channel in zip(kinds, itertools.cycle(channels), strict=False):
        tasks.append(asyncio.create_task(watch(channel, given.token, given.name, seen, ready, stuck=stuck)))
        if len(tasks) > AT_ONCE:
            await ready.acquire()
    for _ in tasks[:AT_ONCE]:
        await ready.acquire()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(json.dumps(vars(seen)), flush=True)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for channel in channels:
        await channel.close()


if __name__ == "__main__":
    asyncio.run(main())
