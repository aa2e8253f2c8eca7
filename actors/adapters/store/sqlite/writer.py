"""The only thread that writes (group commit).

Calling threads queue a change and wait. The writer takes all queued changes, urgent ones first, and writes them in one
transaction, with one sync of the disk for all. Inside it every change has a savepoint, so that a refused change does
not affect the others. If the transaction itself fails, nothing is written and all its callers get the error. Only this
thread checkpoints, between transactions, after the callers were woken; under heavy load SQLite does it at the end of a
commit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import peewee

from actors.adapters.store.sqlite.batch_write import write_batch
from actors.adapters.store.sqlite.changes import Change, Deletion
from actors.adapters.store.sqlite.engine import raw, sqlite3
from actors.adapters.store.sqlite.files.write_ahead_log import WriteAheadLog
from actors.ports import FaultPoints, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.adapters.store.sqlite.files.disk_reserve import DiskReserve
    from actors.adapters.store.sqlite.files.open_files import OpenFiles

_log = logging.getLogger(__name__)

MAX_BATCH = 128
"""Maximum changes in one transaction: limits how long a change waits for the current transaction."""
TIDY_SECONDS = 0.25
"""Seconds between two slices of background work under constant load."""
TIDY_AGAIN_SECONDS = 5.0
"""Seconds before background work is retried after a failure."""
WATCH_SECONDS = 1.0
"""Seconds between two checks of the open files while nothing is written."""


class _Ticket:
    """A queued change and its waiting caller."""

    __slots__ = ("change", "done", "error")

    def __init__(self, change: Change) -> None:
        self.change = change
        self.error: Exception | None = None
        self.done = threading.Lock()  # held until the change is written; cheaper than an Event per change
        self.done.acquire()


class Writer:
    """Own the writing connection from start to `close`."""

    def __init__(
        self,
        database: peewee.SqliteDatabase,
        faults: FaultPoints,
        files: OpenFiles | None = None,
        *,
        every_second: Callable[[], None] = lambda: None,
        tidy: Callable[[sqlite3.Connection], bool] = lambda _connection: False,
        space: DiskReserve | None = None,
        written: Callable[[int, float], None] | None = None,
    ) -> None:
        """Start the thread. `files` is None for a database without files.

        `every_second` is called on the writer's thread, and `tidy` in separate transactions while no change waits, as
        long as it returns that there is more to do. `written` is told of each transaction: how many changes it had,
        and the seconds it took; it must not raise.
        """
        self._database = database
        self._files = files
        self._space = space
        self._every_second = every_second
        self._tidy_slice = tidy
        self._written = written
        self._tidying = False
        self._tidied_at = 0.0
        self._tidy_again_at = 0.0
        self._faults = faults
        self._arrived = threading.Condition()  # guards the queues and _closing; the writer waits on it
        self._urgent: deque[_Ticket] = deque()
        self._normal: deque[_Ticket] = deque()
        self._closing = False
        self._log = WriteAheadLog(database)
        self._watched_at = time.monotonic()
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
        """Write the queued changes and end the thread; the connection stays open. Idempotent."""
        with self._arrived:
            self._closing = True
            self._arrived.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            while (batch := self._take()) is not None:
                if batch:
                    self._serve_measured(batch) if self._written is not None else self._serve(batch)
                tidied = self._tidy_if_due(idle=not batch)
                self._log.move_if_due(len(batch) + tidied, self._space)
                self._watch_if_due()
        except BaseException:  # noqa: BLE001 -- after any error the callers of this thread must be released
            _log.critical("the store's writer ended; nothing more can be written", exc_info=True)
        finally:
            self._abandon()

    def _take(self) -> list[_Ticket] | None:
        """Wait for changes and return the next batch, urgent ones first.

        Returns [] if there are none but background work or the periodic check may be due, None if the writer should
        end.
        """
        with self._arrived:
            if not (self._urgent or self._normal or self._closing or self._tidying):
                self._arrived.wait(WATCH_SECONDS)
            if self._closing and not (self._urgent or self._normal):
                return None
            batch: list[_Ticket] = []
            for queue in (self._urgent, self._normal):
                while queue and len(batch) < MAX_BATCH:
                    batch.append(queue.popleft())
            return batch

    def _tidy_if_due(self, *, idle: bool) -> bool:
        """Do a slice of background work if no change waits or the last slice was long ago; return whether it did."""
        if not self._tidying or not (idle or time.monotonic() - self._tidied_at >= TIDY_SECONDS):
            return False
        try:
            self._check_files()
            connection = raw(self._database)
            connection.execute("BEGIN IMMEDIATE")
            self._tidying = self._tidy_slice(connection)
            connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 -- background work is repeated, and no caller waits for it
            _log.warning("what was deleted could not be removed yet: %s", error)
            self._roll_back()
            self._make_room()
            self._tidying = False
            self._tidy_again_at = time.monotonic() + TIDY_AGAIN_SECONDS
        if self._space is not None and self._space.scarce:
            self._log.cut(self._space)
        self._tidied_at = time.monotonic()
        return True

    def _watch_if_due(self) -> None:
        now = time.monotonic()
        if now - self._watched_at >= WATCH_SECONDS:
            self._watched_at = now
            if 0 < self._tidy_again_at <= now:
                self._tidying, self._tidy_again_at = True, 0.0
            self._every_second()
            with suppress(StoreUnavailableError):
                self._check_files()

    def _check_files(self) -> None:
        """Raise StoreUnavailableError if the database or its write-ahead log was removed or replaced.

        Before that, checkpoint an unlinked log, whose content would otherwise be lost.
        """
        if self._files is None:
            return
        try:
            self._files.check()
        except StoreUnavailableError:
            if self._files.database_is_there and not self._database.is_closed():
                self._log.move()
            raise

    def _abandon(self) -> None:
        with self._arrived:
            self._closing = True
            left = [*self._urgent, *self._normal]
        for ticket in left:
            ticket.error = StoreUnavailableError("the store's writer ended")
            ticket.done.release()

    def _serve_measured(self, batch: list[_Ticket]) -> None:
        began = time.monotonic()
        self._serve(batch)
        if self._written is not None:
            self._written(len(batch), time.monotonic() - began)

    def _serve(self, batch: list[_Ticket]) -> None:
        try:
            self._transact(batch)
        except BaseException as error:
            self._roll_back()
            served = self._serve_from_reserve(batch) if isinstance(error, sqlite3.OperationalError) else []
            lost = [ticket for ticket in batch if ticket.error is None and ticket not in served]
            for ticket in lost:
                ticket.error = StoreUnavailableError(f"nothing was written: {error}")
            if not isinstance(error, Exception):
                raise
            if lost:
                _log.error("%d changes were not written: %s", len(lost), error)
        finally:
            for ticket in batch:
                ticket.done.release()

    def _serve_from_reserve(self, batch: list[_Ticket]) -> list[_Ticket]:
        """Retry the deletions in `batch` with the disk space of the reserve; return those that were written."""
        freeing = [ticket for ticket in batch if ticket.error is None and isinstance(ticket.change, Deletion)]
        if not freeing or not self._make_room():
            return []
        try:
            self._transact(freeing)
        except Exception:  # noqa: BLE001 -- the callers get the error of the first attempt
            self._roll_back()
            return []
        return freeing

    def _make_room(self) -> bool:
        """Release the disk reserve and shorten the write-ahead log; return whether there is a reserve at all."""
        if self._space is None:
            return False
        self._space.release()
        self._log.cut(self._space)
        return True

    def _transact(self, batch: list[_Ticket]) -> None:
        self._faults.hit("store.before_begin")
        self._check_files()
        connection = raw(self._database)
        connection.execute("BEGIN IMMEDIATE")
        admitted = {ticket.change: ticket for ticket in batch if self._admit(ticket)}
        for change in write_batch(connection, list(admitted)):
            self._write(admitted[change], connection)
        self._faults.hit("store.before_commit")
        connection.execute("COMMIT")
        self._check_files()
        self._faults.hit("store.after_commit")

    def _admit(self, ticket: _Ticket) -> bool:
        try:
            self._faults.hit("store.before_savepoint")
        except Exception as error:  # noqa: BLE001 -- an error of a fault point fails this caller only
            ticket.error = StoreUnavailableError(f"nothing was written: {error}")
        return ticket.error is None

    def _write(self, ticket: _Ticket, connection: sqlite3.Connection) -> None:
        connection.execute("SAVEPOINT change")
        try:
            ticket.change.apply(connection)
        except Exception as error:
            if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.DataError):
                raise  # an error of the disk, not of the change; SQLite may have rolled back the whole transaction
            ticket.error = error
            connection.execute("ROLLBACK TO change")
        connection.execute("RELEASE change")

    def _roll_back(self) -> None:
        """Roll back the transaction if it is open: SQLite may have ended it already, and a rollback would raise."""
        try:
            connection = raw(self._database)
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except (sqlite3.Error, peewee.PeeweeException):
            _log.exception("the connection is closed; the next change opens another")
            self._database.close()
            if self._files is not None:
                self._files.forget_log()
