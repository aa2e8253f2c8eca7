"""The base of long calls such as streams: their limits, and their wake-ups.

The server limits the number of these calls, sends heartbeats on them, ends those whose clients do not read, and ends
all at shutdown.

One callback on the event loop wakes all streams that wait for events. Sending costs the loop some 70 microseconds per
stream, regardless of size. If many streams were woken for every single event, the loop would do nothing else, and delay
requests and the threads that publish events. So after a batch that has woken many streams, there is a pause in which
events accumulate: then fewer responses carry more events. Text that a model is streaming is less urgent than events, so
it has batches of its own, with longer pauses.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from actors.core.errors import Reason, Rejected
from server.contract.errors import SlowReaderError
from server.contract.limits import HEARTBEAT_SECONDS, STALL_SECONDS, STORE_PAGE_EVENTS
from server.streams.encoding import Outbox

log = logging.getLogger(__name__)

ROUND_SECONDS = 1.0
"""Maximum seconds between two checks of all streams for due heartbeats and for clients that do not read."""


@dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """Time limits of streams, and how many there may be."""

    max_streams: int = 10_000
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    stall_seconds: float = STALL_SECONDS
    store_page: int = STORE_PAGE_EVENTS


class LastingCall(ABC):
    """A long call: it sleeps until new data arrives, handles the data, and repeats this. Use in the event loop only."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._woken = asyncio.Event()
        self.wake = self._woken.set
        """Wakes the call, so that it handles what is new."""

    @abstractmethod
    async def _open(self) -> None:
        """Handle what already exists when the call begins."""

    @abstractmethod
    async def _go_on(self) -> bool:
        """Handle what is new, and return whether the call continues."""

    @abstractmethod
    def close(self) -> None:
        """Unregister the call from the events that wake the call. May be called more than once."""

    @abstractmethod
    def look_after(self, now: float, next_time: float) -> None:
        """Check whether the call needs a heartbeat, and whether its client reads. Called about every second.

        `now` and the time of the next check, `next_time`, are seconds of the event loop's clock.
        """

    async def run(self) -> None:
        """Serve the call to its end. Raises what `_open` and `_go_on` raise."""
        await self._open()
        while await self._go_on():
            await self._woken.wait()


class Stream(LastingCall):
    """A long call that sends responses: at first the data that exists, and after each wake-up the new data.

    Use in the event loop only.
    """

    def __init__(self, streams: Streams, write: Callable[[bytes], Awaitable[None]]) -> None:
        super().__init__(streams)
        self._out = Outbox(write)
        self._task: asyncio.Task[None] | None = None
        self._stalled = False

    async def run(self) -> None:
        """Serve the stream to its end. Raises SlowReaderError if the client does not read, or what sending raises."""
        self._task = asyncio.current_task()
        try:
            await super().run()
        except asyncio.CancelledError:
            if not self._stalled or self._task is None:
                raise
            self._task.uncancel()
            raise SlowReaderError from None

    def look_after(self, now: float, next_time: float) -> None:
        """Wake the stream if a heartbeat will be due by the next check; end the stream if its client does not read."""
        settings = self._streams.settings
        since = self._out.writing_since
        if since is None:
            if next_time >= self._out.sent_at + settings.heartbeat_seconds:
                self.wake()
        elif now >= since + settings.stall_seconds and self._task is not None and not self._stalled:
            self._stalled = True  # a second cancellation would end the call without its status
            self._task.cancel()

    def _silent(self) -> bool:
        """Return whether a heartbeat will be overdue by the next check."""
        settings = self._streams.settings
        slack = min(ROUND_SECONDS, settings.heartbeat_seconds / 10)
        return asyncio.get_running_loop().time() + slack >= self._out.sent_at + settings.heartbeat_seconds


class Streams:
    """All streams and other long calls of this server. Use in the event loop only."""

    def __init__(self, settings: WatchSettings) -> None:
        self.settings = settings
        self.closing = False
        self._streams: set[LastingCall] = set()
        self._empty = asyncio.Event()
        """Set during shutdown, when no stream is left."""
        self._rounds: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._streams)

    async def attend(self, begin: Callable[[], LastingCall]) -> None:
        """Serve a stream to its end, and return if the stream ends without an error. `begin` creates the stream.

        Raises Rejected (TOO_MANY_STREAMS, SHUTTING_DOWN), and what the stream raises.
        """
        if self.closing:
            raise Rejected(Reason.SHUTTING_DOWN)
        if len(self._streams) >= self.settings.max_streams:
            raise Rejected(Reason.TOO_MANY_STREAMS)
        stream = begin()
        self._streams.add(stream)
        self._keep_rounds()
        try:
            await stream.run()
        finally:
            stream.close()
            self._streams.discard(stream)
            if self.closing and not self._streams:
                self._empty.set()

    def shut_down(self) -> None:
        """Make every stream send what it has, and then end with the refusal SHUTTING_DOWN."""
        self.closing = True
        for stream in tuple(self._streams):
            stream.wake()
        if not self._streams:
            self._empty.set()

    async def ended(self, seconds: float) -> None:
        """Wait until all streams have ended after `shut_down`, at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            log.warning("%d streams were not ended in time", len(self._streams))

    def _keep_rounds(self) -> None:
        """Schedule the next check of the streams for heartbeats and stalled clients, as long as there are streams."""
        if self._rounds is None and self._streams:
            interval = min(ROUND_SECONDS, self.settings.heartbeat_seconds / 10, self.settings.stall_seconds / 10)
            self._rounds = asyncio.get_running_loop().call_later(interval, self._round, interval)

    def _round(self, interval: float) -> None:
        """Check every stream for heartbeats and stalled clients.

        One timer for all streams is cheaper than one for each.
        """
        self._rounds = None
        now = asyncio.get_running_loop().time()
        for stream in tuple(self._streams):
            stream.look_after(now, now + interval)
        self._keep_rounds()


EVENTS_PAUSE_SECONDS = 0.000_3
"""After a batch, the pause is this number of seconds per stream woken for events: four times what sending takes."""
TEXT_PAUSE_SECONDS = 0.001
"""After a batch, the pause is this number of seconds per stream woken for text that a model is streaming.

A single stream thus gets text at once, and fifty or more streams get it twenty times a second.
"""
TEXT_LONGEST_SECONDS = 0.05
"""The longest pause, in seconds, after a batch of streams that were woken for text."""
SHORTEST_SECONDS = 0.002
"""Pauses of fewer seconds than this are left out: after a batch of few streams, the next batch follows at once."""
LONGEST_SECONDS = 0.1
AT_ONCE = 16
"""Maximum streams woken in one iteration of the event loop, so that requests get a turn before the other streams."""


class Wakeups:
    """Collects the streams to be woken, and schedules one callback on the event loop for all of them."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        pause_seconds: float = EVENTS_PAUSE_SECONDS,
        longest_seconds: float = LONGEST_SECONDS,
    ) -> None:
        """Begin without streams to wake.

        A batch is followed by a pause of `pause_seconds` for each stream woken, but of at most `longest_seconds`.
        """
        self._loop = loop
        self._pause = pause_seconds
        self._longest = longest_seconds
        self._waiting: deque[Callable[[], None]] = deque()
        self._crossing = False
        self._not_before = 0.0

    def wake(self, watcher: Callable[[], None]) -> None:
        """Schedule a call of `watcher`, which wakes a stream, on the event loop. Safe on any thread; never blocks.

        If no batch is scheduled yet, this schedules one. Two threads may both do so, which only costs one more
        callback. No stream is missed, because `watcher` is queued before the flag `_crossing` is read, and the flag is
        cleared before the queue is read.
        """
        self._waiting.append(watcher)
        if self._crossing:
            return
        self._crossing = True
        with suppress(RuntimeError):  # the loop is closed, so no stream is left
            self._loop.call_soon_threadsafe(self._cross)

    def _cross(self) -> None:
        if self._loop.time() < self._not_before:
            self._loop.call_at(self._not_before, self._arrive)
        else:
            self._arrive()

    def _arrive(self) -> None:
        """Wake the streams that are queued now. Those queued during the batch are woken by the next batch.

        Otherwise a batch would never end under steady load, and would have no pause after it.
        """
        self._rouse(len(self._waiting), 0)

    def _rouse(self, left: int, woken: int) -> None:
        count = min(left, AT_ONCE, len(self._waiting))
        for _ in range(count):
            self._waiting.popleft()()
        left, woken = left - count, woken + count
        if left and count:
            self._loop.call_soon(self._rouse, left, woken)
            return
        pause = min(woken * self._pause, self._longest)
        if pause >= SHORTEST_SECONDS:
            self._not_before = self._loop.time() + pause
        self._crossing = False
        if self._waiting:
            self._crossing = True
            self._loop.call_soon(self._cross)
