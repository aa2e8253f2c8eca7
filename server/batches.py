"""Puts frames into responses: everything that waits goes into one, and a commit is not torn apart without need."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

from actors.ports import StoredEvent
from server.limits import BATCH_BYTES, BATCH_EVENTS
from server.status import Stalled


def commits(events: Sequence[StoredEvent], frames: Sequence[bytes]) -> Iterator[list[bytes]]:
    """The frames, put together by commit: the events of one commit have the same time.

    Commits of the same millisecond count as one, which keeps together what belongs together all the more.
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
    """The index of the first event of the last commit, of which more may follow."""
    index = len(events)
    while index and events[index - 1].at == events[-1].at:
        index -= 1
    return index


class Outbox:
    """What waits for one watcher. Event loop only.

    Args:
        write: Sends a response, and returns when the transport has taken it.
        stall_seconds: How long that may take before the watcher counts as stalled.
    """

    def __init__(self, write: Callable[[bytes], Awaitable[None]], stall_seconds: float) -> None:
        self._write = write
        self._stall_seconds = stall_seconds
        self._frames: list[bytes] = []
        self._bytes = 0

    async def add(self, group: Iterable[bytes]) -> None:
        """Queue frames that belong together; sends what is full. Raises Stalled."""
        frames = list(group)
        if not self._fits(len(frames), sum(map(len, frames))):
            await self.flush()
        for frame in frames:
            if not self._fits(1, len(frame)):
                await self.flush()
            self._frames.append(frame)
            self._bytes += len(frame)

    def _fits(self, count: int, size: int) -> bool:
        return len(self._frames) + count <= BATCH_EVENTS and self._bytes + size <= BATCH_BYTES

    async def flush(self) -> bool:
        """Send what is queued; returns whether there was anything. Raises Stalled."""
        if not self._frames:
            return False
        response = b"".join(self._frames)
        self._frames, self._bytes = [], 0
        try:
            async with asyncio.timeout(self._stall_seconds):
                await self._write(response)
        except TimeoutError:
            raise Stalled from None
        return True
