"""Send messages at the same time from a process of its own, so that a measurement does not wait behind its sending."""

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


class Rush:
    """A process that sends messages to one conversation."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self, count: int) -> None:
        """Return once that many calls are on their way to the server."""
        self._say(str(count))

    def end(self) -> None:
        """Return once all of them are answered, or refused."""
        self._say("")

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(line, file=self._process.stdin, flush=True)
        assert self._process.stdout.readline() == "ready\n"


@contextlib.contextmanager
def rush(running: RunningServer, name: str) -> Iterator[Rush]:
    """A process that is ready to send."""
    command = [sys.executable, "-m", "tests.bench.rush", "--", running.address, running.token, name]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Rush(process)
        finally:
            process.kill()


async def main() -> None:
    """Send as many messages as each line of standard input says, and wait for the answers at an empty line."""
    arguments = argparse.ArgumentParser()
    for argument in ("address", "token", "name"):
        arguments.add_argument(argument)
    given = arguments.parse_args()
    request = v1.SendMessageRequest(name=given.name, text="more")
    metadata = (("authorization", f"Bearer {given.token}"),)
    async with grpc.aio.insecure_channel(given.address) as channel:
        stub: v1.ConversationServiceAsyncStub = v1.ConversationServiceStub(channel)
        calls: list[grpc.aio.UnaryUnaryCall[v1.SendMessageRequest, v1.SendMessageResponse]] = []
        while line := await asyncio.to_thread(sys.stdin.readline):
            if line.strip():
                calls = [stub.SendMessage(request, metadata=metadata) for _ in range(int(line))]
                await asyncio.sleep(0)  # in which each of them is started
            else:
                await asyncio.gather(*calls, return_exceptions=True)
            print("ready", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
