"""A limited number of slots that principals share fairly: when all are in use, principals get free slots in turn."""

from __future__ import annotations

import threading
from collections import Counter, deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from actors.ports import CancelToken


class SlotRequest:
    """A request for a slot: a place in the queue of its principal, and later the slot itself."""

    def __init__(self, principal: str, start: Callable[[], bool]) -> None:
        self.principal = principal
        self.start = start


class FairSlots:
    """Slots with a total limit and a limit for each principal.

    Requests wait while no slot is free. A free slot goes to the principal that has waited longest since it last got a
    slot (or since its first waiting request), and there to the oldest request. So a principal with a thousand waiting
    requests delays each other principal by one turn only. Safe to call from any thread.
    """

    def __init__(self, limit: int = 0, limit_of: Callable[[str], int] = lambda _principal: 0) -> None:
        """Provide `limit` slots, of which a principal may hold up to `limit_of(principal)`; 0 means no limit."""
        self._limit, self._limit_of = limit, limit_of
        self._lock = threading.Lock()
        self._used: Counter[str] = Counter()
        self._total = 0
        self._queues: dict[str, deque[SlotRequest]] = {}
        """The waiting requests by principal. No queue is empty, and the principal with the next turn comes first."""
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a slot."""
        return self._waiting

    def used(self, principal: str) -> int:
        """Return how many slots a principal holds; the principal "" stands for all principals together."""
        return self._used[principal] if principal else self._total

    def pressure(self, principal: str) -> int:
        """Return the number of slots that `principal` holds, times the number of principals that hold at least one."""
        return self._used[principal] * len(self._used)

    def acquire(self, principal: str, start: Callable[[], bool]) -> SlotRequest:
        """Call `start` when there is a slot: now, or later on the thread that releases one. Return the request.

        `start` must not raise. It returns whether it keeps the slot until `release`; if not, the slot is free again at
        once.
        """
        place = SlotRequest(principal, start)
        with self._lock:
            self._queues.setdefault(principal, deque()).append(place)
            self._waiting += 1
        self._fill()
        return place

    @contextmanager
    def turn(self, principal: str, cancel: CancelToken) -> Generator[bool]:
        """Wait for a slot and hold it during the `with` block. Yield False if `cancel` is cancelled while waiting."""
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
        """Give back a slot that the principal holds."""
        self._give_back(principal)
        self._fill()

    def waits(self, place: SlotRequest) -> bool:
        """Return whether the request still waits for a slot."""
        with self._lock:
            return place in self._queues.get(place.principal, ())

    def withdraw(self, place: SlotRequest) -> bool:
        """Stop waiting. Return False if `start` has already been called or the request has already been withdrawn."""
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
        while (place := self._next()) is not None:
            if not place.start():
                self._give_back(place.principal)

    def _give_back(self, principal: str) -> None:
        with self._lock:
            self._total -= 1
            self._used[principal] -= 1
            if not self._used[principal]:
                del self._used[principal]

    def _next(self) -> SlotRequest | None:
        """Give a free slot to the next waiting request and return this request; None if no request can get a slot."""
        with self._lock:
            if not self._queues or 0 < self._limit <= self._total:
                return None
            principal = next((each for each in self._queues if self._may_have(each)), None)
            if principal is None:
                return None
            queue = self._queues.pop(principal)
            place = queue.popleft()
            if queue:
                self._queues[principal] = queue  # moved to the end: other principals have their turns first
            self._waiting -= 1
            self._total += 1
            self._used[principal] += 1
            return place

    def _may_have(self, principal: str) -> bool:
        limit = self._limit_of(principal)
        return not limit or self._used[principal] < limit
