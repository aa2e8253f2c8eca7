"""Slots that principals share. Where there is none left, each of them has its turn."""

from __future__ import annotations

import threading
from collections import Counter, deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from actors.ports import CancelToken


class Place:
    """A place in the queue of a principal, or the slot that it led to."""

    def __init__(self, principal: str, start: Callable[[], bool]) -> None:
        self.principal = principal
        self.start = start


class FairSlots:
    """A number of slots, and a number for each principal.

    Who finds none free waits. A free slot goes to the principal whose last turn is longest ago, and among what waits of
    that principal to what has waited longest: so one that has a thousand waiting delays another by one turn. Any
    thread.
    """

    def __init__(self, limit: int = 0, limit_of: Callable[[str], int] = lambda _principal: 0) -> None:
        """Make `limit` slots, of which a principal may have `limit_of` it; 0: any number."""
        self._limit, self._limit_of = limit, limit_of
        self._lock = threading.Lock()
        self._used: Counter[str] = Counter()
        self._total = 0
        self._queues: dict[str, deque[Place]] = {}
        """What waits, by principal, none of them empty; the next turn is that of the first that may have a slot."""
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """How many wait for a slot."""
        return self._waiting

    def used(self, principal: str) -> int:
        """Return how many slots a principal has; "": all together."""
        return self._used[principal] if principal else self._total

    def pressure(self, principal: str) -> int:
        """Return how many slots would be used if each principal that has some had as many as this one."""
        return self._used[principal] * len(self._used)

    def acquire(self, principal: str, start: Callable[[], bool]) -> Place:
        """Call `start` when there is a slot: now, or later on the thread that released one.

        `start` must not raise. It returns whether it keeps the slot, until `release`; if not, the slot is free again.
        """
        place = Place(principal, start)
        with self._lock:
            self._queues.setdefault(principal, deque()).append(place)
            self._waiting += 1
        self._fill()
        return place

    @contextmanager
    def turn(self, principal: str, cancel: CancelToken) -> Generator[bool]:
        """Wait for a slot and hold it for the block; yield False if `cancel` is cancelled before it begins."""
        called = threading.Event()
        wake = called.set

        def start() -> bool:
            wake()
            return True

        place = self.acquire(principal, start)
        cancel.on_cancel(wake)
        called.wait()
        cancel.forget(wake)
        if self.withdraw(place):
            yield False
            return
        try:
            yield not cancel.cancelled
        finally:
            self.release(principal)

    def release(self, principal: str) -> None:
        """Give back a slot of a principal."""
        self._give_back(principal)
        self._fill()

    def waits(self, place: Place) -> bool:
        """Return whether `start` was not called yet."""
        with self._lock:
            return place in self._queues.get(place.principal, ())

    def withdraw(self, place: Place) -> bool:
        """Stop waiting; return False if `start` was called already, or another call has withdrawn the place."""
        with self._lock:
            queue = self._queues.get(place.principal)
            if queue is None or place not in queue:
                return False
            queue.remove(place)
            self._waiting -= 1
            if not queue:
                del self._queues[place.principal]
            return True

    def _fill(self) -> None:
        """Start what waits, as long as there are slots."""
        while (place := self._next()) is not None:
            if not place.start():
                self._give_back(place.principal)

    def _give_back(self, principal: str) -> None:
        with self._lock:
            self._total -= 1
            self._used[principal] -= 1
            if not self._used[principal]:
                del self._used[principal]

    def _next(self) -> Place | None:
        """Take a slot for whoever has the next turn; None if nobody may have one."""
        with self._lock:
            if not self._queues or 0 < self._limit <= self._total:
                return None
            principal = next((each for each in self._queues if self._may_have(each)), None)
            if principal is None:
                return None
            queue = self._queues.pop(principal)
            place = queue.popleft()
            if queue:
                self._queues[principal] = queue  # at the end: its next turn comes after those of the others
            self._waiting -= 1
            self._total += 1
            self._used[principal] += 1
            return place

    def _may_have(self, principal: str) -> bool:
        limit = self._limit_of(principal)
        return not limit or self._used[principal] < limit
