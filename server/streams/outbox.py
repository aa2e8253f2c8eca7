"""Collects encoded events into responses of limited size.

An encoded event is called a frame. Events that were committed to the store together are sent in one response, unless
they do not fit.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from server.contract.limits import BATCH_BYTES, BATCH_EVENTS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from actors.ports import StoredEvent


def commits(events: Sequence[StoredEvent], frames: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Group encoded events (frames) by the commit that stored the events: events of one commit have the same time.

    Two commits in the same millisecond become one group, which makes no difference to clients.
    """
    group: list[bytes] = []
    at = events[0].at if events else 0
    for event, frame in zip(events, frames, strict=True):
        if event.at != at:
            yield group
            group, at = [], event.at
        group.append(frame)
    if group:
        yield group


def start_of_last_commit(events: Sequence[StoredEvent]) -> int:
    """Return the index of the first event of the last commit, whose other events may be on the next page."""
    index = len(events)
    while index and events[index - 1].at == events[-1].at:
        index -= 1
    return index


class Outbox:
    """The encoded events (frames) that wait to be sent on one stream. Use in the event loop only.

    `write` sends a response, and returns when gRPC has taken it.
    """

    def __init__(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._write = write
        self._frames: list[bytes] = []
        self._bytes = 0
        self.writing_since: float | None = None
        """When the running call of `write` began, in seconds of the event loop's clock; None if none is running."""
        self.sent_at = 0.0
        """When gRPC took the last response, in seconds of the event loop's clock."""

    async def add_events(self, events: Sequence[StoredEvent], frames: Sequence[bytes]) -> None:
        """Queue encoded events, those of one commit in one response if they fit. Send each response that is full."""
        if self._fits(len(frames), sum(map(len, frames))):
            self._queue(frames)
            return
        for group in commits(events, frames):
            await self.add(group)

    async def add(self, frames: Sequence[bytes]) -> None:
        """Queue encoded events, in one response if they fit into one. Sends a response whenever one is full."""
        if not self._fits(len(frames), sum(map(len, frames))):
            await self.flush()
        for frame in frames:
            if not self._fits(1, len(frame)):
                await self.flush()
            self._queue((frame,))

    @property
    def empty(self) -> bool:
        """Whether no encoded events are waiting."""
        return not self._frames

    def _queue(self, frames: Sequence[bytes]) -> None:
        self._frames.extend(frames)
        self._bytes += sum(map(len, frames))

    def _fits(self, count: int, size: int) -> bool:
        return len(self._frames) + count <= BATCH_EVENTS and self._bytes + size <= BATCH_BYTES

    async def flush(self) -> None:
        """Send all queued frames as one response, if there are any."""
        if not self._frames:
            return
        response = b"".join(self._frames)
        self._frames, self._bytes = [], 0
        await self.send(response)

    async def send(self, response: bytes) -> None:
        """Send a response that is already encoded. No frames may be queued."""
        clock = asyncio.get_running_loop().time
        self.writing_since = clock()
        await self._write(response)
        self.writing_since = None
        self.sent_at = clock()
