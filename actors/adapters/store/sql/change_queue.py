"""The changes that wait for the only thread that writes, and their callers (group commit)."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from actors.ports import FaultPoints, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

ChangeT = TypeVar("ChangeT")

MAX_BATCH = 128
"""Maximum changes that are taken at once: limits how long a change waits for those before it."""
TIDY_SECONDS = 0.25
"""Seconds between two slices of background work under constant load."""


class Ticket(Generic[ChangeT]):
    """A queued change and its waiting caller."""

    __slots__ = ("change", "done", "error", "written")

    def __init__(self, change: ChangeT) -> None:
        self.change = change
        self.error: Exception | None = None
        self.written = False
        """Whether it is written, even if the batch that it was taken with fails."""
        self.done = threading.Lock()  # held until the change is written; cheaper than an Event per change
        self.done.acquire()


class ChangeQueue(ABC, Generic[ChangeT]):
    """Callers queue a change and wait; one thread takes the changes in batches, urgent ones first.

    A subclass says how a batch is written, and what is done between two batches.
    """

    def __init__(
        self, faults: FaultPoints, written: Callable[[int, float], None] | None, *, longest_wait: float
    ) -> None:
        """Make the thread, which the subclass starts once it is ready itself.

        `written` is told of each batch: how many changes it had, and the seconds it took; it must not raise. After
        `longest_wait` seconds background work may be due although no change arrives.
        """
        self._faults = faults
        self._longest_wait = longest_wait
        self._written = written
        self._tidying = False
        self._tidied_at = 0.0
        self._arrived = threading.Condition()  # guards the queues and _closing; the thread waits on it
        self._urgent: deque[Ticket[ChangeT]] = deque()
        self._normal: deque[Ticket[ChangeT]] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)

    def write(self, change: ChangeT, *, urgent: bool = False) -> None:
        """Return once `change` is durable (any thread but the writer's).

        Raises the errors of the change, or StoreUnavailableError.
        """
        ticket = Ticket(change)
        with self._arrived:
            if self._closing:
                raise StoreUnavailableError("the store is closed")
            (self._urgent if urgent else self._normal).append(ticket)
            self._arrived.notify()
        ticket.done.acquire()
        if ticket.error is not None:
            raise ticket.error

    @property
    def waiting(self) -> int:
        """How many changes wait for the next transaction (any thread)."""
        return len(self._urgent) + len(self._normal)

    def tidy(self) -> None:
        """Request background work (any thread)."""
        with self._arrived:
            self._tidying = True
            self._arrived.notify()

    def close(self) -> None:
        """Write the queued changes and end the thread. Idempotent."""
        with self._arrived:
            self._closing = True
            self._arrived.notify()
        self._thread.join()

    # --- on the writer's thread -------------------------------------------------------------------------------

    @abstractmethod
    def _serve(self, batch: list[Ticket[ChangeT]]) -> None:
        """Write the changes, and release their callers, also if it raises: then nothing more is written."""

    @abstractmethod
    def _between(self, batch: int) -> None:
        """Do background work that is due, after `batch` changes were written. An error ends the thread."""

    def _end(self) -> None:
        """Release what the thread has, at its end."""

    def _run(self) -> None:
        try:
            while (batch := self._take()) is not None:
                if batch:
                    self._serve_measured(batch) if self._written is not None else self._serve(batch)
                self._between(len(batch))
        except BaseException:  # noqa: BLE001 -- after any error the callers of this thread must be released
            _log.critical("the store's writer ended; nothing more can be written", exc_info=True)
        finally:
            self._abandon()
            self._end()

    def _take(self) -> list[Ticket[ChangeT]] | None:
        """Wait for changes and return the next batch, urgent ones first.

        Returns [] if there are none but background work may be due, None if the thread should end.
        """
        with self._arrived:
            if not (self._urgent or self._normal or self._closing or self._tidying):
                self._arrived.wait(self._longest_wait)
            if self._closing and not (self._urgent or self._normal):
                return None
            batch: list[Ticket[ChangeT]] = []
            for queue in (self._urgent, self._normal):
                while queue and len(batch) < MAX_BATCH:
                    batch.append(queue.popleft())
            return batch

    def _serve_measured(self, batch: list[Ticket[ChangeT]]) -> None:
        began = time.monotonic()
        self._serve(batch)
        if self._written is not None:
            self._written(len(batch), time.monotonic() - began)

    def _may_tidy(self, batch: int) -> bool:
        """Whether background work is wanted, and no change waits or the last slice was long ago."""
        return self._tidying and (not batch or time.monotonic() - self._tidied_at >= TIDY_SECONDS)

    def _admit(self, ticket: Ticket[ChangeT]) -> bool:
        try:
            self._faults.hit("store.before_savepoint")
        except Exception as error:  # noqa: BLE001 -- an error of a fault point fails this caller only
            ticket.error = StoreUnavailableError(f"nothing was written: {error}")
        return ticket.error is None

    def _abandon(self) -> None:
        with self._arrived:
            self._closing = True
            left = [*self._urgent, *self._normal]
        for ticket in left:
            ticket.error = StoreUnavailableError("the store's writer ended")
            ticket.done.release()


def fail_unwritten(
    batch: list[Ticket[ChangeT]], why: str, error: type[StoreUnavailableError] = StoreUnavailableError
) -> int:
    """Give an error with this text to the callers whose change is neither written nor refused; return how many."""
    lost = [ticket for ticket in batch if ticket.error is None and not ticket.written]
    for ticket in lost:
        ticket.error = error(why)
    return len(lost)
