"""A queue of changes for the only connection that writes to a database; queued changes are committed in groups.

Only the thread that holds the write lock writes to the database. A caller that finds the write lock free takes it and
writes its change itself, so that a lone commit needs no other thread. Callers that come while another thread writes
wait; then one of them is woken with the write lock, and writes the changes of all of them in one batch. Background work
is done by the queue's own thread, which gets the write lock once such work is due.
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

MAX_BATCH = 128
"""Maximum number of changes in one batch, which limits how long a change waits for the changes before it."""
TIDY_SECONDS = 0.25
"""Seconds between two slices of background work while changes are always waiting."""


class Ticket(Generic[ChangeT]):
    """A queued change, with the lock that wakes the waiting caller and the result for that caller."""

    __slots__ = ("change", "done", "error", "leads", "written")

    def __init__(self, change: ChangeT) -> None:
        self.change = change
        self.error: Exception | None = None
        self.written = False
        """Whether the change is durable; other changes of the same batch may not be."""
        self.leads = False
        """Whether the caller was woken because it now holds the write lock."""
        self.done = threading.Lock()  # held until the caller is woken; a Lock is cheaper than an Event
        self.done.acquire()


class ChangeQueue(ABC, Generic[ChangeT]):
    """Lets callers queue a change and wait. One of them writes all queued changes, urgent ones first.

    A subclass defines how a batch is written, and what the queue's own thread does between two batches.
    """

    def __init__(
        self, faults: FaultPoints, written: Callable[[int, float], None] | None, *, longest_wait: float
    ) -> None:
        """Create the queue's thread. The subclass starts the thread at the end of its own constructor.

        `written` is called after each batch with the number of its changes and the seconds it took; it must not raise.
        After `longest_wait` seconds without a request, the thread checks on its own whether background work is due.
        """
        self._faults = faults
        self._longest_wait = longest_wait
        self._written = written
        self._tidying = False
        self._tidied_at = 0.0
        self._lock = threading.Lock()  # guards the queues, _writing, _closing, _asking and _handed
        self._due = threading.Condition(self._lock)
        """The queue's thread waits on this until background work is due, and then until it gets the write lock."""
        self._urgent: deque[Ticket[ChangeT]] = deque()
        self._normal: deque[Ticket[ChangeT]] = deque()
        self._writing = False
        """Whether a thread holds the write lock, that is, may write to the database.

        That thread passes the write lock on to a waiting thread if there is one.
        """
        self._asking, self._handed = False, False
        """`_asking`: the queue's thread waits for the write lock.

        `_handed`: that thread was just given the write lock.
        """
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)

    def write(self, change: ChangeT, *, urgent: bool = False) -> None:
        """Write `change`, and return when it is durable.

        Safe to call from any thread that does not hold the write lock (that thread would deadlock). If the change is
        rejected, raises the exception that gives the reason. Raises StoreUnavailableError if it cannot be written.
        """
        ticket = Ticket(change)
        try:
            with self._lock:
                if self._closing:
                    raise StoreUnavailableError("the store is closed")
                (self._urgent if urgent else self._normal).append(ticket)
                leads, self._writing = not self._writing, True
            while leads or self._woken_to_write(ticket):
                self._write_next()
                leads = False
        except BaseException:  # raised by a signal handler, on the main thread
            self._leave(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error

    @property
    def waiting(self) -> int:
        """The number of queued changes that no batch contains yet. Safe to call from any thread."""
        return len(self._urgent) + len(self._normal)

    def tidy(self) -> None:
        """Request background work, and return at once. Safe to call from any thread."""
        with self._lock:
            self._tidying = True
            self._due.notify()

    def close(self) -> None:
        """Write the queued changes and end the queue's thread. Later changes are refused. Idempotent."""
        with self._lock:
            self._closing = True
            self._due.notify()
        self._thread.join()

    # --- while holding the write lock -------------------------------------------------------------------------

    @abstractmethod
    def _serve(self, batch: list[Ticket[ChangeT]]) -> None:
        """Write the changes of a batch and wake their callers. The callers must be woken even if this method raises.

        If it raises, nothing can be written any more.
        """

    @abstractmethod
    def _between(self, batch: int) -> None:
        """Do the background work that is due, after `batch` changes were written.

        Called on the queue's thread. If this method raises, nothing can be written any more.
        """

    def _has_work(self) -> bool:
        """Return whether the queue's thread must do something before the next change is written; False by default."""
        return False

    def _end(self) -> None:
        """Close the connection. Called on the queue's thread when it ends."""

    def _write_next(self) -> None:
        try:
            with self._lock:
                batch = self._take()
            self._serve_measured(batch)
        except BaseException:  # noqa: BLE001 -- the errors of changes are in their tickets; this one ends all writing
            self._abandon()
        with self._lock:
            self._hand_over()

    def _hand_over(self) -> None:
        """Pass on the write lock: to the queue's thread if it has work, else to a waiting caller; else free it.

        The caller of this method holds `_lock`.
        """
        if self._closing or self._asking or self._has_work():
            self._handed = True
            self._due.notify()
        elif queue := self._urgent or self._normal:
            queue[0].leads = True
            queue[0].done.release()
        else:
            self._writing = False

    def _woken_to_write(self, ticket: Ticket[ChangeT]) -> bool:
        """Wait until the change is written; return True if this caller was woken to write a batch first."""
        ticket.done.acquire()
        leads, ticket.leads = ticket.leads, False
        return leads

    def _leave(self, ticket: Ticket[ChangeT]) -> None:
        """Withdraw the change of a caller that stops waiting.

        If the caller was just given the write lock, passes it on. A change that is already part of a batch is still
        written.
        """
        with self._lock:
            for queue in (self._urgent, self._normal):
                with suppress(ValueError):
                    queue.remove(ticket)
            if ticket.leads:
                self._hand_over()

    def _take(self) -> list[Ticket[ChangeT]]:
        """Remove the next batch from the queues and return it, urgent changes first. The caller holds `_lock`."""
        batch: list[Ticket[ChangeT]] = []
        for queue in (self._urgent, self._normal):
            while queue and len(batch) < MAX_BATCH:
                batch.append(queue.popleft())
        return batch

    def _run(self) -> None:
        """Run the queue's thread: whenever background work is due, write the queued changes, then do the work."""
        try:
            while (batch := self._turn()) is not None:
                if batch:
                    self._serve_measured(batch)
                self._between(len(batch))
                with self._lock:
                    self._hand_over()
        except BaseException:  # noqa: BLE001 -- the waiting callers must be woken after any error
            self._abandon()
        finally:
            self._end()

    def _turn(self) -> list[Ticket[ChangeT]] | None:
        """Wait until background work may be due and no other thread writes; then take the write lock.

        Returns the next batch, or None when the thread has to end. It then keeps the write lock, so that no other
        thread writes.
        """
        with self._lock:
            if not (self._handed or self._closing or self._tidying):
                self._due.wait(self._longest_wait)
            self._asking = True
            while self._writing and not self._handed:
                self._due.wait()
            self._writing, self._asking, self._handed = True, False, False
            batch = self._take()
            return None if self._closing and not batch else batch

    def _serve_measured(self, batch: list[Ticket[ChangeT]]) -> None:
        began = time.monotonic()
        self._serve(batch)
        if self._written is not None:
            self._written(len(batch), time.monotonic() - began)

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
        with self._lock:
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
