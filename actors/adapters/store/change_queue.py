"""A queue of changes for the only connection that writes to a database; queued changes are committed in groups.

Callers queue a change and wait. The queue's thread writes all queued changes in one batch, urgent ones first, and does
background work in between.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from actors.ports import FaultPoints, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

ChangeT = TypeVar("ChangeT")

MAX_BATCH = 128  # changes in one batch, which limits how long a change waits for the changes before it
TIDY_SECONDS = 0.25  # between two slices of background work while changes are always waiting


class Ticket(Generic[ChangeT]):
    """A queued change, with the lock that wakes the waiting caller and the result for that caller."""

    __slots__ = ("change", "done", "error", "written")

    def __init__(self, change: ChangeT) -> None:
        self.change = change
        self.error: Exception | None = None
        self.written = False  # whether the change is durable; other changes of the same batch may not be
        self.done = threading.Lock()  # held until the caller is woken; a Lock is cheaper than an Event
        self.done.acquire()


class ChangeQueue(ABC, Generic[ChangeT]):
    """Lets callers queue a change and wait until it is written.

    A subclass defines how a batch is written, and what is done between two batches.
    """

    def __init__(
        self, faults: FaultPoints, written: Callable[[int, float], None] | None, *, longest_wait: float
    ) -> None:
        """Create the queue's thread. The subclass starts the thread at the end of its own constructor.

        `written` is called after each batch with the number of its changes and the seconds it took; it must not raise.
        After `longest_wait` seconds without a change, the thread checks whether background work is due.
        """
        self._faults = faults
        self._longest_wait = longest_wait
        self._written = written
        self._tidying = False
        self._tidied_at = 0.0
        self._due = threading.Condition()  # guards the queues and _closing; notified when there is something to do
        self._urgent: deque[Ticket[ChangeT]] = deque()
        self._normal: deque[Ticket[ChangeT]] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)

    def write(self, change: ChangeT, *, urgent: bool = False) -> None:
        """Write `change`, and return when it is durable.

        Safe to call from any thread but the queue's own. If the change is rejected, raises the exception that gives the
        reason. Raises StoreUnavailableError if it cannot be written.
        """
        ticket = Ticket(change)
        queue = self._urgent if urgent else self._normal
        with self._due:
            if self._closing:
                raise StoreUnavailableError("the store is closed")
            queue.append(ticket)
            self._due.notify()
        try:
            ticket.done.acquire()
        except BaseException:  # raised by a signal handler, on the main thread
            with self._due, suppress(ValueError):  # a change that is already part of a batch is still written
                queue.remove(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error

    @property
    def waiting(self) -> int:
        """The number of queued changes that no batch contains yet. Safe to call from any thread."""
        return len(self._urgent) + len(self._normal)

    def tidy(self) -> None:
        """Request background work, and return at once. Safe to call from any thread."""
        with self._due:
            self._tidying = True
            self._due.notify()

    def close(self) -> None:
        """Write the queued changes and end the queue's thread. Later changes are refused. Idempotent."""
        with self._due:
            self._closing = True
            self._due.notify()
        self._thread.join()

    # --- on the queue's thread --------------------------------------------------------------------------------

    @abstractmethod
    def _serve(self, batch: list[Ticket[ChangeT]]) -> None:
        """Write the changes of a batch and wake their callers. The callers must be woken even if this method raises.

        If it raises, nothing can be written any more.
        """

    @abstractmethod
    def _between(self, batch: int) -> None:
        """Do the background work that is due, after `batch` changes were written.

        If this method raises, nothing can be written any more.
        """

    def _end(self) -> None:
        """Close the connection, when the queue's thread ends."""

    def _run(self) -> None:
        try:
            while (batch := self._next_batch()) is not None:
                if batch:
                    began = time.monotonic()
                    self._serve(batch)
                    if self._written is not None:
                        self._written(len(batch), time.monotonic() - began)
                self._between(len(batch))
        except BaseException:  # noqa: BLE001 -- the waiting callers must be woken after any error
            self._abandon()
        finally:
            self._end()

    def _next_batch(self) -> list[Ticket[ChangeT]] | None:
        """Wait until there is something to do, and return the next batch, which may be empty; None to end."""
        with self._due:
            if not (self._urgent or self._normal or self._tidying or self._closing):
                self._due.wait(self._longest_wait)
            batch: list[Ticket[ChangeT]] = []
            for queue in (self._urgent, self._normal):
                while queue and len(batch) < MAX_BATCH:
                    batch.append(queue.popleft())
            return None if self._closing and not batch else batch

    def _may_tidy(self, batch: int) -> bool:
        """Return whether background work is requested and may be done now.

        That is so if the last batch had no changes, or if the last slice of background work was TIDY_SECONDS ago.
        """
        return self._tidying and (not batch or time.monotonic() - self._tidied_at >= TIDY_SECONDS)

    def _admit(self, ticket: Ticket[ChangeT]) -> bool:
        try:
            self._faults.hit("store.before_savepoint")
        except Exception as error:  # noqa: BLE001 -- an error of a fault point fails this caller only
            ticket.error = StoreUnavailableError(f"nothing was written: {error}")
        return ticket.error is None

    def _abandon(self) -> None:
        """Refuse all further changes and wake all waiting callers, after an error that no single change has caused."""
        _log.critical("the store's writer ended; nothing more can be written", exc_info=True)
        with self._due:
            self._closing = True
            left = [*self._urgent, *self._normal]
            self._urgent.clear()
            self._normal.clear()
        for ticket in left:
            ticket.error = StoreUnavailableError("the store's writer ended")
            ticket.done.release()


def fail_unwritten(
    batch: list[Ticket[ChangeT]], why: str, error: type[StoreUnavailableError] = StoreUnavailableError
) -> int:
    """Set `error(why)` as the error of all changes that are not written and have no error yet; return their number."""
    lost = [ticket for ticket in batch if ticket.error is None and not ticket.written]
    for ticket in lost:
        ticket.error = error(why)
    return len(lost)
