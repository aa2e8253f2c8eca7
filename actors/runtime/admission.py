"""Admission control: limits of model requests and open files, fair turns for principals, and the pace of reads."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator
from contextlib import contextmanager

from actors.common import machine
from actors.ports import CancelToken, Clock

# The file descriptors that a tool call needs in this process: sockets, pipes, and a handle to kill its process.
FILES_PER_TOOL = 6
# The file descriptors that a model request needs: one for its socket, and one for name resolution.
FILES_PER_REQUEST = 2
# For how many seconds a count of open files is reused: counting thousands of them takes a millisecond.
COUNT_SECONDS = 0.05


class FileRoom:
    """Admits new work only while enough file descriptors are free. Thread-safe.

    Some descriptors are reserved: for clients that connect to cancel, for reads of the store, and for running work.
    """

    def __init__(
        self, limit: Callable[[], int] = machine.max_open_files, count: Callable[[], int] = machine.open_files
    ) -> None:
        self._limit, self._count = limit, count
        self._lock = threading.Lock()
        self._counted_at = float("-inf")
        self._open = 0

    @property
    def reserved(self) -> int:
        """The number of file descriptors that new work cannot use."""
        return min(max(self._limit() // 8, 32), 512)

    def reserve(self, files: int) -> bool:
        """Whether this many descriptors can be opened now; if so, they count as open until the next count."""
        with self._lock:
            now = time.monotonic()
            if now - self._counted_at >= COUNT_SECONDS:
                self._open, self._counted_at = self._count(), now
            if self._open + files > self._limit() - self.reserved:
                return False
            self._open += files
            return True

    def refusal(self, purpose: str) -> str:
        """Why `reserve` returned False, with the limit, as part of a sentence."""
        return (
            f"this server has too few file descriptors left for {purpose} (ulimit -n is {self._limit():,}, of which "
            f"{self.reserved} are reserved for cancels and running work)"
        )


class Admission:
    """Limits the number of model requests in flight in this process. Thread-safe."""

    def __init__(self, limit: int, room: FileRoom | None = None) -> None:
        self._room = room or FileRoom()
        self.limit = limit
        self._lock = threading.Lock()
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def acquire(self) -> str:
        """Admit one request, which counts until `release`; return why not, without a period, or "" if admitted."""
        with self._lock:
            if self._in_flight == self.limit:
                return f"this server has reached its limit of {self.limit:,} model requests in flight"
            if not self._room.reserve(FILES_PER_REQUEST):
                return self._room.refusal("another model request")
            self._in_flight += 1
            return ""

    def release(self) -> None:
        with self._lock:
            self._in_flight -= 1


class SlotRequest:
    """A request for a slot: at first a place in its principal's queue, and later the slot itself."""

    def __init__(self, principal: str, start: Callable[[], bool]) -> None:
        self.principal = principal
        self.start = start


class FairSlots:
    """Slots with a total limit and a limit for each principal. Thread-safe.

    A free slot goes to the waiting principal whose last turn was longest ago, and there to the oldest request. A
    thousand waiting requests therefore delay another principal by only one turn.
    """

    def __init__(self, limit: int = 0, limit_of: Callable[[str], int] = lambda _principal: 0) -> None:
        """Provide `limit` slots, of which a principal may hold up to `limit_of(principal)`; 0 means no limit."""
        self._limit, self._limit_of = limit, limit_of
        self._lock = threading.Lock()
        self._used: Counter[str] = Counter()
        self._total = 0
        # The waiting requests by principal. No queue is empty, and the principal with the next turn comes first.
        self._queues: dict[str, deque[SlotRequest]] = {}
        self._waiting = 0

    @property
    def waiting(self) -> int:
        return self._waiting

    def used(self, principal: str) -> int:
        """How many slots a principal holds; the principal "" stands for all principals together."""
        return self._used[principal] if principal else self._total

    def pressure(self, principal: str) -> int:
        """The number of slots that `principal` holds, times the number of principals that hold at least one."""
        return self._used[principal] * len(self._used)

    def acquire(self, principal: str, start: Callable[[], bool]) -> SlotRequest:
        """Call `start` when there is a slot: now, or later on the thread that releases one.

        `start` must not raise. It returns whether it keeps the slot until `release`.
        """
        place = SlotRequest(principal, start)
        with self._lock:
            self._queues.setdefault(principal, deque()).append(place)
            self._waiting += 1
        self._fill()
        return place

    @contextmanager
    def hold(self, principal: str, cancel: CancelToken) -> Generator[bool]:
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


# From this many model requests in flight on, answers are read with pauses.
MANY_STREAMS = 20
# The interval between two reads of one answer, in seconds: users hardly notice if text comes more often.
READ_INTERVAL = 0.1
# How many reads at the beginning of an answer are made without pauses, to avoid a delay of the first text.
OPENING_READS = 8


class ReadPace:
    """Delays the reads of one answer, so that a busy server needs fewer and larger reads. Not thread-safe.

    There are no pauses while few requests are in flight, or before the first text; data that arrives during a pause
    waits in the socket. Principals share the reads: `pressure` is the number of requests of this answer's principal,
    times the number of principals that have any. `cancel` ends a pause.
    """

    def __init__(self, clock: Clock, pressure: Callable[[], int], cancel: CancelToken) -> None:
        self._clock = clock
        self._pressure = pressure
        self._cancel = cancel
        self._opening = OPENING_READS
        self._last_read = float("-inf")

    def wait(self, *, text: bool) -> None:
        """Block until the next read is due, or until a cancel. `text` says whether the answer's text has begun."""
        self._opening = 0 if text else max(0, self._opening - 1)
        if not self._opening and self._pressure() >= MANY_STREAMS:
            pause = self._last_read + READ_INTERVAL - self._clock.monotonic()
            if pause > 0:
                self._cancel.wait(pause)
        self._last_read = self._clock.monotonic()
