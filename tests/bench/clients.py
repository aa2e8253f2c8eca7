"""gRPC clients for the measurements: bare stubs on one asyncio loop, so that the client costs as little as it can."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
from bedrock import v1

from tests.bench.running_server import RunningServer

Result = TypeVar("Result")
_RUNNER = asyncio.Runner()


def on_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """Run on the one event loop of this process: grpc.aio does not survive a second one."""
    return _RUNNER.run(work)


@dataclass
class Watched:
    """A conversation and a watcher on it, over its own stream."""

    stub: v1.ConversationServiceAsyncStub
    running_server: RunningServer
    name: str
    events: int = 0
    stopped: asyncio.Queue[float] = field(default_factory=asyncio.Queue)
    streaming: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Queue[float] = field(default_factory=asyncio.Queue)
    tool_running: asyncio.Event = field(default_factory=asyncio.Event)
    watching: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    async def watch(self) -> None:
        """Read events until cancelled."""
        self._task = asyncio.create_task(self._read())
        await self.watching.wait()

    async def close(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def turn(self, text: str = "go on") -> float:
        """Send a message, wait for the end of its run; milliseconds."""
        began = time.perf_counter()
        await self.send(text)
        return (await self.stopped.get() - began) * 1000

    async def send(self, text: str) -> None:
        self.streaming.clear()
        self.tool_running.clear()
        await self.stub.SendMessage(
            v1.SendMessageRequest(name=self.name, text=text), metadata=self.running_server.metadata
        )

    async def cancel(self) -> float:
        """Cancel and wait for the idle state on the stream; milliseconds."""
        while not self.idle.empty():
            self.idle.get_nowait()
        began = time.perf_counter()
        request = v1.CancelConversationRequest(name=self.name)
        await self.stub.CancelConversation(request, metadata=self.running_server.metadata)
        return (await self.idle.get() - began) * 1000

    async def cancel_if_busy(self) -> None:
        """Leave nothing running, however a race went."""
        request = v1.CancelConversationRequest(name=self.name, discard_queued=True)
        await self.stub.CancelConversation(request, metadata=self.running_server.metadata)

    async def _read(self) -> None:
        request = v1.SubscribeRequest(name=self.name)
        async for response in self.stub.Subscribe(request, metadata=self.running_server.metadata):
            now = time.perf_counter()
            self.events += len(response.events)
            for event in response.events:
                self._note(event, now)

    def _note(self, event: v1.Event, now: float) -> None:
        kind = event.WhichOneof("event")
        if kind == "caught_up":
            self.watching.set()
        elif kind == "run_stopped":
            self.stopped.put_nowait(now)
        elif kind in ("text_delta", "tool_output_delta"):
            self.streaming.set()
        elif kind == "state_changed":
            state = event.state_changed.state.kind
            if state == v1.STATE_KIND_IDLE:
                self.idle.put_nowait(now)
            elif state == v1.STATE_KIND_TOOL_EXECUTING:
                self.tool_running.set()


class Clients:
    """A channel to a server, and the conversations and watchers opened over it."""

    def __init__(self, running_server: RunningServer) -> None:
        self.running_server = running_server
        self._channel = grpc.aio.insecure_channel(running_server.address)
        self.stub: v1.ConversationServiceAsyncStub = v1.ConversationServiceStub(self._channel)

    async def __aenter__(self) -> Clients:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def conversation(self, model: str = "") -> Watched:
        request = v1.CreateConversationRequest(
            conversation=v1.Conversation(
                working_directory="/tmp", model=f"models/{model}" if model else "", mode=v1.MODE_UNRESTRICTED
            )
        )
        answer = await self.stub.CreateConversation(request, metadata=self.running_server.metadata)
        return Watched(self.stub, self.running_server, answer.conversation.name)

    async def watchers(self, count: int, name: str) -> AsyncIterator[Watched]:
        for _ in range(count):
            watched = Watched(self.stub, self.running_server, name)
            await watched.watch()
            yield watched
