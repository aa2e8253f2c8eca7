"""Serves WaitRequestCycle, which waits for the end of a run: an agent's work from a user's message to its answer.

A waiting call first asks the event hub, which publishes events, to wake it, and reads the store afterwards. So the end
of the run is either already in the store, or among the events that are published later.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from actors.core.errors import Reason, Rejected
from actors.core.notifications import RunStop
from actors.core.summary import run_id
from server.contract import limits
from server.contract.errors import ConversationNotFoundError
from server.streams.base import LastingCall, Streams

if TYPE_CHECKING:
    from bedrock import v1

    from server.streams.subscribe import Sources


class RunWaits:
    """Serves the calls of WaitRequestCycle, which count as streams. Use in the event loop only."""

    def __init__(self, streams: Streams, sources: Sources) -> None:
        self._streams = streams
        self.sources = sources

    async def until_ended(self, conversation_id: str, run: str, request: v1.WaitRequestCycleRequest) -> None:
        """Wait until the run has ended or the request's timeout has passed. Return in both cases.

        Raises Rejected (TOO_MANY_STREAMS, SHUTTING_DOWN), ConversationNotFoundError or StoreError.
        """
        timeout = request.timeout.ToNanoseconds() / 1e9 if request.HasField("timeout") else limits.MAX_WAIT_SECONDS
        try:
            async with asyncio.timeout(timeout):
                await self._streams.attend(lambda: _RunWait(self._streams, self.sources, conversation_id, run, request))
        except TimeoutError:
            pass


class _RunWait(LastingCall):
    """One call of WaitRequestCycle. Use in the event loop only, except the functions that the hub calls."""

    def __init__(
        self, streams: Streams, sources: Sources, conversation_id: str, run: str, request: v1.WaitRequestCycleRequest
    ) -> None:
        super().__init__(streams)
        self._sources = sources
        self._conversation_id = conversation_id
        self._run = run
        self._request = request
        self._position = 0
        """The revision up to which the events were searched for the end of the run."""
        self._ended = False
        self._watch = sources.hub.attach(conversation_id, self._on_publish, _ignore_text)

    def close(self) -> None:
        """Stop receiving events from the hub. May be called more than once."""
        self._watch.close()

    def look_after(self, now: float, next_time: float) -> None:
        """Do nothing: this call sends nothing before its end, so no heartbeat is due, and no client can be too slow."""

    def _on_publish(self) -> None:
        """Wake the call for an event. The thread that publishes the event calls this."""
        self._sources.wakeups.wake(self.wake)

    async def _open(self) -> None:
        await self._sources.reads(self._look)

    async def _go_on(self) -> bool:
        """Look for the end of the run in the new events, and return whether to continue waiting."""
        self._woken.clear()
        closing = self._streams.closing  # read before the events, so that an end just before the shutdown is seen
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
        """Read from the store whether the run has ended. Blocks; called on a thread of `ReadPool`.

        Raises ConversationNotFoundError if there is no such run.
        """
        record = self._sources.store.load(self._conversation_id)
        self._ended = self._sources.store.stopped_run(self._conversation_id, self._run) is not None
        if self._ended:
            return
        if record is None or not record.state.ledger.live or run_id(record.id, record.state.ledger.run) != self._run:
            raise ConversationNotFoundError(self._request.name)
        self._position = record.last_seq


def _ignore_text() -> None:
    """Do nothing, because text that a model is streaming cannot end a run."""
