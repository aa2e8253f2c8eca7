"""The only thread that writes (group commit).

Calling threads queue a change and wait. The writer takes all queued changes, urgent ones first. Those that can be
written in one statement are one transaction; the others are the next one, in which each has a savepoint, so that a
refused change does not affect the others. If a transaction fails, nothing of it is written and its callers get the
error. If the connection is lost while one is under way, it is unknown whether it was carried out: the callers get the
same error, and look.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

import psycopg

from actors.adapters.store.postgres.batch_write import Batch, KnownHeads
from actors.adapters.store.postgres.changes import Change, Transition
from actors.adapters.store.postgres.engine import Address, Session, connect, words
from actors.adapters.store.postgres.removal import remove_slice
from actors.ports import FaultPoints, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_log = logging.getLogger(__name__)

MAX_BATCH = 128
"""Maximum changes that are taken at once: limits how long a change waits for those before it."""
TIDY_SECONDS = 0.25
"""Seconds between two slices of background work under constant load."""
LOOK_SECONDS = 60.0
"""Seconds between two looks for what other servers have deleted and not removed, and after a failure."""


class _Ticket:
    """A queued change and its waiting caller."""

    __slots__ = ("change", "done", "error", "served")

    def __init__(self, change: Change) -> None:
        self.change = change
        self.error: Exception | None = None
        self.served = False
        """Whether it is known what became of the change."""
        self.done = threading.Lock()  # held until the change is written; cheaper than an Event per change
        self.done.acquire()


class Writer:
    """Own the writing connection from start to `close`."""

    def __init__(
        self,
        address: Address,
        session: Session,
        faults: FaultPoints,
        *,
        written: Callable[[int, float], None] | None = None,
    ) -> None:
        """Start the thread, with its first connection.

        `written` is told of each batch: how many changes it had, and the seconds it took; it must not raise.
        """
        self._address = address
        self._session: Session | None = session
        self._faults = faults
        self._written = written
        self._known = KnownHeads()
        self._arrived = threading.Condition()  # guards the queues and _closing; the writer waits on it
        self._urgent: deque[_Ticket] = deque()
        self._normal: deque[_Ticket] = deque()
        self._closing = False
        self._tidying = True
        self._tidied_at = 0.0
        self._looked_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def write(self, change: Change, *, urgent: bool = False) -> None:
        """Return once `change` is durable (any thread but the writer's).

        Raises the errors of the change, or StoreUnavailableError.
        """
        ticket = _Ticket(change)
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
        """Write the queued changes, and end the thread and its connection. Idempotent."""
        with self._arrived:
            self._closing = True
            self._arrived.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            while (batch := self._take()) is not None:
                if batch:
                    began = time.monotonic()
                    self._serve(batch)
                    if self._written is not None:
                        self._written(len(batch), time.monotonic() - began)
                self._tidy_if_due(idle=not batch)
        except BaseException:  # noqa: BLE001 -- after any error the callers of this thread must be released
            _log.critical("the store's writer ended; nothing more can be written", exc_info=True)
        finally:
            self._abandon()
            self._disconnect()

    def _take(self) -> list[_Ticket] | None:
        """Wait for changes and return the next batch, urgent ones first.

        Returns [] if there are none but background work may be due, None if the writer should end.
        """
        with self._arrived:
            if not (self._urgent or self._normal or self._closing or self._tidying):
                self._arrived.wait(LOOK_SECONDS)
            if self._closing and not (self._urgent or self._normal):
                return None
            batch: list[_Ticket] = []
            for queue in (self._urgent, self._normal):
                while queue and len(batch) < MAX_BATCH:
                    batch.append(queue.popleft())
            return batch

    def _tidy_if_due(self, *, idle: bool) -> None:
        """Remove some of what is deleted, if no change waits or the last slice was long ago."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_SECONDS:
            self._tidying, self._looked_at = True, now
        if not self._tidying or not (idle or now - self._tidied_at >= TIDY_SECONDS):
            return
        try:
            self._tidying = remove_slice(self._connected())
        except Exception as error:  # noqa: BLE001 -- background work is repeated, and no caller waits for it
            _log.warning("what was deleted could not be removed yet: %s", _said(error))
            self._disconnect()
            self._tidying = False
        self._tidied_at = time.monotonic()

    def _abandon(self) -> None:
        with self._arrived:
            self._closing = True
            left = [*self._urgent, *self._normal]
        for ticket in left:
            ticket.error = StoreUnavailableError("the store's writer ended")
            ticket.done.release()

    def _serve(self, batch: list[_Ticket]) -> None:
        try:
            self._transact(batch)
        except BaseException as error:
            self._disconnect()
            lost = [ticket for ticket in batch if not ticket.served]
            for ticket in lost:
                ticket.error = StoreUnavailableError(f"the database may not have written it: {_said(error)}")
            if not isinstance(error, Exception):
                raise
            if lost:
                _log.error("the database may not have written %d changes: %s", len(lost), _said(error))
        finally:
            for ticket in batch:
                ticket.done.release()

    def _transact(self, batch: list[_Ticket]) -> None:
        self._faults.hit("store.before_begin")
        session = self._connected()
        tickets = {ticket.change: ticket for ticket in batch if self._admit(ticket)}
        together = Batch(session, list(tickets), self._known)
        if together.taken:
            self._faults.hit("store.before_commit")
            left = together.write(session)
            self._faults.hit("store.after_commit")
            together.left += left
            for change, _, _ in together.taken.values():
                tickets[change].served = change not in left
        if together.left:
            self._one_by_one(session, [tickets[change] for change in together.left])

    def _one_by_one(self, session: Session, tickets: list[_Ticket]) -> None:
        """Write changes in one transaction, in which each has a savepoint."""
        session.execute("BEGIN")
        for ticket in tickets:
            session.execute("SAVEPOINT change")
            if error := self._refused(session, ticket.change):
                ticket.error, ticket.served = error, True
                session.execute("ROLLBACK TO change")
            session.execute("RELEASE change")
        self._known.forget(_written_by(ticket.change for ticket in tickets))
        self._faults.hit("store.before_commit")
        session.execute("COMMIT")
        self._faults.hit("store.after_commit")
        for ticket in tickets:
            ticket.served = True

    def _refused(self, session: Session, change: Change) -> Exception | None:
        """Apply a change, and return what it raises, unless the connection is lost with that."""
        try:
            change.apply(session)
        except psycopg.OperationalError as error:
            if session.lost:
                raise
            return StoreUnavailableError(f"nothing was written: {words(error)}")
        except psycopg.Error as error:
            if not isinstance(error, psycopg.DataError):
                raise  # of the database, which may have become one that only reads, and not of the change
            return error
        except Exception as error:  # noqa: BLE001 -- raised in the caller
            return error
        return None

    def _admit(self, ticket: _Ticket) -> bool:
        try:
            self._faults.hit("store.before_savepoint")
        except Exception as error:  # noqa: BLE001 -- an error of a fault point fails this caller only
            ticket.error, ticket.served = StoreUnavailableError(f"nothing was written: {error}"), True
        return ticket.error is None

    def _connected(self) -> Session:
        """Return the connection; open another if it was lost, also while nothing was written."""
        if self._session is not None and self._session.ended:
            self._disconnect()
        if self._session is None:
            self._session = connect(self._address)
        return self._session

    def _disconnect(self) -> None:
        """Close the connection, which ends an open transaction without a commit."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _written_by(changes: Iterable[Change]) -> list[str]:
    return [part.id for change in changes if isinstance(change, Transition) for part in change.parts]


def _said(error: BaseException) -> str:
    return words(error) if isinstance(error, psycopg.Error) else str(error)
