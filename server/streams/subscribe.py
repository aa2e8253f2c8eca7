"""Serves Subscribe and WaitRequestCycle, which follow one conversation; the event hub wakes them for new events.

A call first asks the hub to wake it for events, and reads the store afterwards. An event that is committed after the
snapshot is also published later, so the hub has it; an event that was committed before is part of the snapshot.
Therefore, there is no gap, and the end of a run is either in the store already, or among the events that are published
later.

From then on a stream keeps one number, the last revision that it has sent, and reads the events after it: from the hub
if it still has them, else from the store. The stream keeps no queue; while its client is slow, it reads later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from bedrock import v1

from actors.core import states
from actors.core.errors import Reason, Rejected
from actors.core.notifications import Fate, QueueChanged, RunStop, StateChanged
from actors.core.summary import run_id
from actors.ports import ConversationReader, ConversationRecord, Snapshot, StoredEvent, StoreReader
from actors.publishing.hub import EventBatch, EventHub, TextChunk
from server.contract import limits
from server.contract.errors import ConversationNotFoundError, MalformedRequestError
from server.contract.limits import PAGE_BYTES, RECENT_MESSAGES, SNAPSHOT_MESSAGES_BYTES
from server.queries.read_pool import ReadPool
from server.streams.base import EventEncoder, LastingCall, Stream, Streams, Wakeups, WatchSettings, start_of_last_commit
from server.wire import conversation_messages
from server.wire.events import text_delta
from server.wire.messages import ConversionContext, message, waiting, waiting_message

AT_REST = frozenset(str(kind.__struct_config__.tag) for kind in (states.Idle, states.Error, *states.TERMINAL))
QUESTION = str(states.AwaitingToolApproval.__struct_config__.tag)


class SettledTracker:
    """Follows a conversation's events, and is true once the conversation has settled. Valid only between commits.

    A settled conversation waits for a user's answer, or is idle, failed or ended, with no follow-up queued.
    """

    def __init__(self, record: ConversationRecord) -> None:
        self._kind = str(type(record.state).__struct_config__.tag)
        self._asks = isinstance(record.state, states.ToolExecuting) and bool(record.state.questions)
        self._since = record.revision
        self._follow_ups = {queued.message_id for queued in record.state.ledger.follows}

    def apply(self, event: StoredEvent) -> None:
        """Apply an event. It has no effect if the constructor's record already includes it."""
        if event.revision <= self._since:
            return
        match event.notification:
            case StateChanged(state=summary):
                self._kind, self._asks = summary.kind, bool(summary.questions)
            case QueueChanged(input=queued, delivery="follow_up", fate=fate):
                if fate is Fate.QUEUED:
                    self._follow_ups.add(queued.message_id)
                else:
                    self._follow_ups.discard(queued.message_id)
            case _:
                pass

    def __bool__(self) -> bool:
        return self._kind == QUESTION or self._asks or (self._kind in AT_REST and not self._follow_ups)


@dataclass(frozen=True)
class InitialSnapshot:
    record: ConversationRecord
    snapshot: v1.Event.Snapshot
    """The snapshot without `partial`, the text that the model is streaming, because the store does not contain that."""
    after: int | None
    """The client's last revision, after which its stream resumes; None for a new client."""

    @property
    def slot(self) -> tuple[str, int] | None:
        """The id and the attempt of the model request that is streaming text; None if there is none."""
        state = self.record.state
        if (
            isinstance(state, states.LlmRequesting | states.AwaitingContinuation)
            and state.phase is states.LlmPhase.STREAMING
        ):
            return state.request_id, state.attempt
        return None

    def add_partial(self, chunks: tuple[TextChunk, ...]) -> None:
        """Add the text streamed so far to the snapshot: one part for the answer, one for reasoning."""
        if self.slot is None:
            return
        request_id, attempt = self.slot
        for reasoning in (True, False):
            text = "".join(chunk.text for chunk in chunks if chunk.reasoning is reasoning)
            if text:
                self.snapshot.partial.append(text_delta(request_id, attempt, 0, text, reasoning=reasoning))


def open_stream(
    store: ConversationReader, conversion: ConversionContext, conversation_id: str, request: v1.SubscribeRequest
) -> InitialSnapshot:
    """Read the snapshot with which a stream begins. Blocks; called on a thread of `ReadPool`.

    Raises ConversationNotFoundError, or MalformedRequestError for a revision in the future.
    """
    resuming = request.WhichOneof("start") == "after_revision"
    wanted = request.recent_messages if request.WhichOneof("start") == "recent_messages" else RECENT_MESSAGES[0]
    seen = store.snapshot(conversation_id, 0 if resuming else min(wanted, RECENT_MESSAGES[1]))
    if seen is None:
        raise ConversationNotFoundError(request.name)
    if not resuming:
        return InitialSnapshot(seen.record, _snapshot(conversion, seen), None)
    after = request.after_revision
    if after > seen.record.revision:
        text = f"is later than the latest revision, {seen.record.revision}; take a fresh snapshot"
        raise MalformedRequestError(("after_revision", text))
    return InitialSnapshot(seen.record, _snapshot(conversion, seen), after)


def _snapshot(conversion: ConversionContext, seen: Snapshot) -> v1.Event.Snapshot:
    """The snapshot as an API message, without the oldest messages if they do not fit into a response."""
    record = seen.record
    summary = conversation_messages.summary_of(conversion, record.id, record.state)
    answer = v1.Event.Snapshot(
        conversation=conversation_messages.present(conversion, record),
        pending_approvals=conversation_messages.pending_approvals(conversion, record.id, summary),
        pending_client_tool_calls=conversation_messages.pending_client_tool_calls(conversion, summary),
        pending_questions=conversation_messages.pending_questions(record.id, summary),
        queue=[waiting_message(record.id, *entry) for entry in waiting(record)],
    )
    if isinstance(record.state, states.AwaitingSubAgents):
        answer.sub_agents.CopyFrom(conversation_messages.standing(record.state))
    room = min(SNAPSHOT_MESSAGES_BYTES, PAGE_BYTES - answer.ByteSize())
    recent: list[v1.Message] = []
    for stored in reversed(seen.messages):
        shown = message(conversion, record.id, stored)
        room -= shown.ByteSize()
        if room < 0 and recent:  # the newest is always included
            break
        recent.append(shown)
    answer.messages.extend(reversed(recent))
    return answer


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The parts of the server from which streams get their events. All streams share one object of this class."""

    hub: EventHub
    store: StoreReader
    reads: ReadPool
    encoded: conversation_messages.EncodedConversations
    frames: EventEncoder
    conversion: ConversionContext
    wakeups: Wakeups
    text_wakeups: Wakeups
    """Wakes streams for text that a model is streaming, with longer pauses than those for events."""
    wake: Callable[[tuple[str, ...]], None]
    """Makes actors of conversations record the work that ended with their former owner. Does not block."""
    delivered: Callable[[int], None] | None = None
    """Called with the time of each response's oldest event, in milliseconds since 1970; None to measure no delays."""


class SubscribeStreams(Streams):
    """Serves Subscribe and WaitRequestCycle, which counts as a stream. Use only on the event loop."""

    def __init__(self, sources: Sources, settings: WatchSettings) -> None:
        super().__init__(settings)
        self._sources = sources

    async def serve(
        self, conversation_id: str, request: v1.SubscribeRequest, write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Serve a stream to its end.

        Raises Rejected (TOO_MANY_STREAMS, SHUTTING_DOWN), ConversationNotFoundError, MalformedRequestError,
        SlowReaderError or StoreError.
        """
        await self.attend(lambda: SubscribeStream(self, self._sources, conversation_id, request, write))

    async def until_ended(self, conversation_id: str, run: str, request: v1.WaitRequestCycleRequest) -> None:
        """Wait for the run's end or the timeout.

        Raises Rejected (TOO_MANY_STREAMS, SHUTTING_DOWN), ConversationNotFoundError or StoreError.
        """
        timeout = request.timeout.ToNanoseconds() / 1e9 if request.HasField("timeout") else limits.MAX_WAIT_SECONDS
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.attend(lambda: _RunWait(self, self._sources, conversation_id, run, request))


class SubscribeStream(Stream):
    def __init__(
        self,
        watchers: SubscribeStreams,
        sources: Sources,
        conversation_id: str,
        request: v1.SubscribeRequest,
        write: Callable[[bytes], Awaitable[None]],
    ) -> None:
        super().__init__(watchers, write)
        self._sources = sources
        self._conversation_id = conversation_id
        self._request = request
        self._deltas = not request.omit_deltas
        self._position = 0
        """The revision up to which the client has the events, from the snapshot or from this stream."""
        self._settled: SettledTracker | None = None
        """Becomes true when nothing will change without new input, so that the stream ends; None if it continues."""
        self._watch = sources.hub.attach(conversation_id, self._on_publish, self._on_text)

    def close(self) -> None:
        self._watch.close()

    def _on_publish(self) -> None:
        self._sources.wakeups.wake(self.wake)

    def _on_text(self) -> None:
        self._sources.text_wakeups.wake(self.wake)

    async def _open(self) -> None:
        sources = self._sources
        opening = await sources.reads(
            open_stream, sources.store, sources.conversion, self._conversation_id, self._request
        )
        running = {job.handle for job in opening.record.state.ledger.running_jobs}
        if running.difference(opening.snapshot.conversation.background_jobs):
            sources.wake((self._conversation_id,))
        if self._request.until_settled:
            self._settled = SettledTracker(opening.record)
        if self._deltas and opening.slot is not None:
            opening.add_partial(self._watch.read_text(*opening.slot))
        await self._out.add([self._sources.frames.snapshot(opening.snapshot)])
        if opening.after is None:
            self._position = opening.record.revision
        else:
            self._position = opening.after
            await self._replay()  # may raise RevisionTooOldError, before anything is sent
        await self._out.add([self._sources.frames.caught_up(self._position)])

    async def _go_on(self) -> bool:
        self._woken.clear()
        closing = self._streams.closing  # read first, so that no event from before the shutdown is lost
        batch = self._watch.read(self._position, live_text=self._deltas)
        while batch.behind and not batch.deleted and await self._replay():
            batch = self._watch.read(self._position, live_text=self._deltas)
        await self._enqueue(batch)
        if batch.deleted:
            await self._out.add([self._sources.frames.deleted()])
        if self._out.empty and self._silent():
            await self._out.add([self._sources.frames.heartbeat(self._position)])
        await self._out.flush()
        if self._sources.delivered is not None and batch.events:
            self._sources.delivered(batch.events[0].event.at)
        if batch.deleted or self._settled:
            return False
        if closing:
            raise Rejected(Reason.SHUTTING_DOWN)
        return True

    async def _replay(self) -> bool:
        began = self._position
        full = True
        while full:
            events, frames, full = await self._sources.reads(self._page, self._position)
            await self._out.add_events(events, frames)
            self._took(events)
        return self._position > began

    def _page(self, after: int) -> tuple[Sequence[StoredEvent], list[bytes], bool]:
        """Stored events with encodings, and whether there may be more; a commit is split only if larger than a page.

        Blocks; called on a thread of `ReadPool`.
        """
        limit = self._streams.settings.store_page
        events = self._sources.store.events(self._conversation_id, after=after, limit=limit)
        full = len(events) == limit
        if full:
            events = events[: start_of_last_commit(events)] or events
        return events, self._sources.frames.stored(self._conversation_id, events), full

    async def _enqueue(self, batch: EventBatch) -> None:
        frames = self._sources.frames
        response = frames.response(self._conversation_id, batch) if self._out.empty else None
        if response is None:
            await self._split(batch)
        elif response:
            await self._out.send(response)
        self._took(batch.stored)

    async def _split(self, batch: EventBatch) -> None:
        frames = self._sources.frames
        if batch.events:
            await self._out.add_events(batch.stored, frames.live(self._conversation_id, batch.events))
        if batch.text is not None:
            await self._out.add(frames.text(batch.text))
        if batch.output is not None:
            await self._out.add(frames.output(batch.output))

    def _took(self, events: Sequence[StoredEvent]) -> None:
        if self._settled is not None:
            for event in events:
                self._settled.apply(event)
        if events:
            self._position = events[-1].revision


class _RunWait(LastingCall):
    """One WaitRequestCycle call. Use only on the event loop, except the functions that the hub calls."""

    def __init__(
        self, streams: Streams, sources: Sources, conversation_id: str, run: str, request: v1.WaitRequestCycleRequest
    ) -> None:
        super().__init__(streams)
        self._sources = sources
        self._conversation_id = conversation_id
        self._run = run
        self._request = request
        self._position = 0
        self._ended = False
        self._watch = sources.hub.attach(conversation_id, self._on_publish, _ignore_text)

    def close(self) -> None:
        self._watch.close()

    def look_after(self, now: float, next_time: float) -> None:
        """Do nothing: this call sends nothing before its end, so no heartbeat is due and no client is too slow."""

    def _on_publish(self) -> None:
        self._sources.wakeups.wake(self.wake)

    async def _open(self) -> None:
        await self._sources.reads(self._look)

    async def _go_on(self) -> bool:
        self._woken.clear()
        closing = self._streams.closing  # read first, so that a run's end just before the shutdown is seen
        batch = self._watch.read(self._position, live_text=False)
        while batch.behind and not batch.deleted and not self._ended:
            await self._sources.reads(self._look)
            batch = self._watch.read(self._position, live_text=False)
        if batch.deleted:
            raise ConversationNotFoundError(self._request.name)
        for event in batch.stored:
            self._position = event.revision
            self._ended |= isinstance(event.notification, RunStop) and event.notification.run == self._run
        if closing and not self._ended:
            raise Rejected(Reason.SHUTTING_DOWN)
        return not self._ended

    def _look(self) -> None:
        """Check in the store whether the run has ended. Blocks; called on a thread of `ReadPool`.

        Raises ConversationNotFoundError.
        """
        record = self._sources.store.load(self._conversation_id)
        self._ended = self._sources.store.stopped_run(self._conversation_id, self._run) is not None
        if self._ended:
            return
        if record is None or not record.state.ledger.live or run_id(record.id, record.state.ledger.run) != self._run:
            raise ConversationNotFoundError(self._request.name)
        self._position = record.revision


def _ignore_text() -> None:
    """Do nothing: streamed text cannot end a run."""
