"""A conversation that a test writes itself, and watchers of it without a network between."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from bedrock import v1
from msgspec.structs import replace

from actors.core.content import Message, MessageType, Text, ToolUse
from actors.core.context import Limits, Mode, ToolGroup
from actors.core.notifications import Durable, MessageAdded, StateChanged, TextDelta
from actors.core.states import Ledger, LlmPhase, LlmRequesting
from actors.core.summary import StateSummary
from actors.ports import Commit, LogEntry, Store, StoredEvent
from actors.publishing.hub import EventHub
from actors.runtime.services import SystemClock
from server.auth.principals import LOCAL
from server.queries.read_pool import ReadPool
from server.streams.base import EventEncoder, Wakeups, WatchSettings
from server.streams.subscribe import Sources, SubscribeStreams
from server.wire.conversation_messages import EncodedConversations
from server.wire.messages import ConversionContext
from tests.support.commit_builder import record_of
from tests.support.stores import new_store

PATIENCE = 10.0
"""Longest wait, in seconds, for what should be there at once."""
FACTS = ConversionContext({"bash": ToolGroup.BASH}, lambda model: 1_000, Limits())
ID = "c1"
NAME = f"conversations/{ID}"


class Author:
    """Writes a conversation as its actor would: commit, then publish."""

    def __init__(self, store: Store, hub: EventHub, conversation_id: str = ID, **fields: Any) -> None:
        self.store = store
        self.hub = hub
        settings = {"slug": f"slug-{conversation_id}", "mode": Mode.UNRESTRICTED, "principal": LOCAL} | fields
        self.record = record_of(conversation_id, epoch=1, step=1, **settings)
        self.messages = 0
        store.commit(Commit(record=self.record, expected_step=0, log=(LogEntry(1, 1, b"{}", 1, ()),), create=True))

    @property
    def head(self) -> int:
        return self.record.revision

    def store_only(self, *notifications: Durable, **fields: Any) -> tuple[StoredEvent, ...]:
        """Commit one transition, each a millisecond after the one before; returns what is to be published."""
        before = self.record
        at = fields.pop("at", before.updated_at + 1)
        messages = tuple(each.message for each in notifications if isinstance(each, MessageAdded))
        entry = LogEntry(before.step + 1, at, b"{}", before.revision + 1, notifications)
        last = before.revision + len(notifications)
        fields["state"] = fields.get("state") or before.state
        self.record = replace(before, updated_at=at, step=before.step + 1, revision=last, **fields)
        self.store.commit(Commit(record=self.record, expected_step=before.step, messages=messages, log=(entry,)))
        return tuple(StoredEvent(before.revision + 1 + index, at, each) for index, each in enumerate(notifications))

    def publish(self, events: tuple[StoredEvent, ...]) -> None:
        self.hub.publish(self.record.id, events, self.record)

    def commit(self, *notifications: Durable, **options: Any) -> None:
        """Commit and publish one transition."""
        self.publish(self.store_only(*notifications, **options))

    def says(self, text: str = "hi", **fields: Any) -> MessageAdded:
        """The next message of the conversation, yet to be committed."""
        self.messages += 1
        message = Message(
            id=f"m{self.messages}",
            sequence=self.messages,
            type=fields.pop("type", MessageType.USER),
            content=fields.pop("content", (Text(text),)),
            created_at=self.messages,
            **fields,
        )
        return MessageAdded(message)

    def streams(self, request_id: str = "r1", attempt: int = 1) -> None:
        """Commit that the answer of a request has begun to arrive."""
        state = LlmRequesting(Ledger(run=1, live=True), request_id, attempt, LlmPhase.STREAMING, 1)
        summary = StateSummary("llm_requesting", request_id=request_id, attempt=attempt, phase="streaming")
        self.commit(StateChanged(summary, ()), state=state)

    def runs_tool(self, tool_use_id: str) -> None:
        """Commit that a tool call is at work."""
        call = ToolUse(tool_use_id, "bash", "{}")
        summary = StateSummary("tool_executing", busy=True, attempt=1, current_call=call)
        self.commit(StateChanged(summary, ()))

    def token(self, text: str, request_id: str = "r1", attempt: int = 1, *, reasoning: bool = False) -> None:
        self.hub.text_delta(self.record.id, self.head, TextDelta(request_id, attempt, text, reasoning))


def changed(kind: str) -> StateChanged:
    return StateChanged(StateSummary(kind), ())


class Stream:
    """What one watcher was sent."""

    def __init__(self) -> None:
        self.raw: list[bytes] = []
        self.responses: list[v1.SubscribeResponse] = []
        self.gate = asyncio.Event()
        """Cleared: the reader takes nothing."""
        self.gate.set()
        self.writing = False
        self._arrived = asyncio.Event()
        self.task: asyncio.Task[None]

    @property
    def events(self) -> list[v1.Event]:
        return [event for response in self.responses for event in response.events]

    @property
    def revisions(self) -> list[int]:
        return [event.revision for event in self.events if event.revision]

    @property
    def kinds(self) -> list[str]:
        return [str(event.WhichOneof("event")) for event in self.events]

    @property
    def text(self) -> str:
        """All deltas of text in order."""
        return "".join(event.text_delta.text for event in self.events)

    async def write(self, response: bytes) -> None:
        self.writing = True
        await self.gate.wait()
        self.writing = False
        self.raw.append(response)
        self.responses.append(v1.SubscribeResponse.FromString(response))
        self._arrived.set()

    async def until(self, there: Callable[[], bool]) -> None:
        """Wait for responses until `there` holds; a stream that has failed raises its error."""
        async with asyncio.timeout(PATIENCE):
            while not there():
                self._arrived.clear()
                arrived = asyncio.create_task(self._arrived.wait())
                await asyncio.wait((arrived, self.task), return_when=asyncio.FIRST_COMPLETED)
                arrived.cancel()
                if self.task.done() and not there():
                    self.task.result()
                    raise AssertionError(f"the stream ended with {self.kinds}")

    async def revision(self, revision: int) -> None:
        await self.until(lambda: revision in self.revisions)

    async def kind(self, kind: str) -> None:
        await self.until(lambda: kind in self.kinds)

    async def end(self) -> None:
        """Wait for the end of the stream; raises what it raised."""
        async with asyncio.timeout(PATIENCE):
            await asyncio.shield(self.task)


class WatchHarness:
    """Watchers over a store and a hub, on the running loop."""

    def __init__(self, settings: WatchSettings, store: Store | None = None) -> None:
        self.store = store or new_store()
        self.hub = EventHub()
        self.woken: list[str] = []
        self.reads = ReadPool(2)
        encoded = EncodedConversations(FACTS)
        self.frames = EventEncoder(self.store, FACTS, encoded, SystemClock())
        loop = asyncio.get_running_loop()
        self.watchers = SubscribeStreams(
            Sources(
                hub=self.hub,
                store=self.store,
                reads=self.reads,
                encoded=encoded,
                frames=self.frames,
                conversion=FACTS,
                wakeups=Wakeups(loop),
                text_wakeups=Wakeups(loop),
                wake=self.woken.extend,
            ),
            settings,
        )
        self.author = Author(self.store, self.hub)
        self._streams: list[Stream] = []

    def watch(self, **request: Any) -> Stream:
        """Open a stream; it runs until the test is over."""
        stream = Stream()
        asked = v1.SubscribeRequest(name=NAME, **request)
        stream.task = asyncio.create_task(self.watchers.serve(ID, asked, stream.write))
        self._streams.append(stream)
        return stream

    async def caught_up(self, **request: Any) -> Stream:
        """Open a stream, and wait until it has caught up."""
        stream = self.watch(**request)
        await stream.kind("caught_up")
        return stream

    async def close(self) -> None:
        for stream in self._streams:
            stream.task.cancel()
        await asyncio.gather(*(stream.task for stream in self._streams), return_exceptions=True)
        self.reads.close()


@asynccontextmanager
async def watch_harness(store: Store | None = None, **settings: Any) -> AsyncIterator[WatchHarness]:
    """A harness whose hub must have no watcher attached at the end."""
    made = WatchHarness(WatchSettings(**{"heartbeat_seconds": 60.0, "stall_seconds": 60.0, **settings}), store)
    try:
        yield made
    finally:
        await made.close()
        assert made.hub.watchers() == 0
        assert len(made.watchers) == 0
