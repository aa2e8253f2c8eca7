"""Commits queued changes in groups, over the only connection that writes to the SQLite database.

One thread at a time holds the write lock. It takes all queued changes, urgent ones first, and writes them in one
transaction, with one sync of the disk for all of them. Every change has a savepoint, so that a refused change does not
affect the other changes. If the transaction itself fails, nothing is written and the callers of all its changes get the
error. The writer's own thread checkpoints the write-ahead log between transactions, after the callers were woken; under
heavy load SQLite itself checkpoints at the end of a commit.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import peewee

from actors.adapters.store.sql.change_queue import ChangeQueue, Ticket, fail_unwritten
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

TIDY_AGAIN_SECONDS = 5.0
"""Seconds before background work is retried after a failure."""
WATCH_SECONDS = 1.0
"""Seconds between two checks of the open files while nothing is written."""


class Writer(ChangeQueue[Change]):
    """Writes the queued changes over one connection, which it owns until `close`."""

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
        """Start the writer's own thread. If `files` is None, the database's files are not checked.

        `every_second` and `tidy` are called on the writer's own thread. `tidy` is called in separate transactions,
        until it returns False because nothing is left to do. `written` is called after each batch; see ChangeQueue.
        """
        super().__init__(faults, written, longest_wait=WATCH_SECONDS)
        self._database = database
        self._files = files
        self._space = space
        self._every_second = every_second
        self._tidy_slice = tidy
        self._tidy_again_at = 0.0
        self._log = WriteAheadLog(database)
        self._watched_at = time.monotonic()
        self._thread.start()

    def _between(self, batch: int) -> None:
        self._tidy_if_due(batch)
        self._log.move_if_due(self._space)
        self._watch_if_due()

    def _has_work(self) -> bool:
        return self._log.due

    def _tidy_if_due(self, batch: int) -> None:
        """Do a slice of background work if that is due; after a failure, retry after TIDY_AGAIN_SECONDS."""
        if not self._may_tidy(batch):
            return
        try:
            self._check_files()
            connection = raw(self._database)
            connection.execute("BEGIN IMMEDIATE")
            self._tidying = self._tidy_slice(connection)
            connection.execute("COMMIT")
            self._log.count(1)
        except Exception as error:  # noqa: BLE001 -- background work is repeated, and no caller waits for it
            _log.warning("what was deleted could not be removed yet: %s", error)
            self._roll_back()
            self._make_room()
            self._tidying = False
            self._tidy_again_at = time.monotonic() + TIDY_AGAIN_SECONDS
        if self._space is not None and self._space.scarce:
            self._log.cut(self._space)
        self._tidied_at = time.monotonic()

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

        If only the log was removed, it is checkpointed first, because its content would otherwise be lost.
        """
        if self._files is None:
            return
        try:
            self._files.check()
        except StoreUnavailableError:
            if self._files.database_is_there and not self._database.is_closed():
                self._log.move()
            raise

    def _serve(self, batch: list[Ticket[Change]]) -> None:
        """Write the changes in one transaction, and wake their callers."""
        self._log.count(len(batch))
        try:
            self._transact(batch)
        except BaseException as error:
            self._roll_back()
            if isinstance(error, sqlite3.OperationalError):
                self._serve_from_reserve(batch)
            lost = fail_unwritten(batch, f"nothing was written: {error}")
            if not isinstance(error, Exception):
                raise
            if lost:
                _log.error("%d changes were not written: %s", lost, error)
        finally:
            for ticket in batch:
                ticket.done.release()

    def _serve_from_reserve(self, batch: list[Ticket[Change]]) -> None:
        """Free the disk space of the reserve, and try again to write the deletions in `batch`, but no other change."""
        freeing = [ticket for ticket in batch if ticket.error is None and isinstance(ticket.change, Deletion)]
        if not freeing or not self._make_room():
            return
        try:
            self._transact(freeing)
        except Exception:  # noqa: BLE001 -- the callers get the error of the first attempt
            self._roll_back()
            return
        for ticket in freeing:
            ticket.written = ticket.error is None

    def _make_room(self) -> bool:
        """Release the disk reserve and shorten the write-ahead log; return whether this store has a reserve at all."""
        if self._space is None:
            return False
        self._space.release()
        self._log.cut(self._space)
        return True

    def _transact(self, batch: list[Ticket[Change]]) -> None:
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

    def _write(self, ticket: Ticket[Change], connection: sqlite3.Connection) -> None:
        connection.execute("SAVEPOINT change")
        try:
            ticket.change.apply(connection)
        except Exception as error:
            if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.DataError):
                raise  # the disk failed, not the change; SQLite may have rolled the transaction back
            ticket.error = error
            connection.execute("ROLLBACK TO change")
        connection.execute("RELEASE change")

    def _roll_back(self) -> None:
        """Roll back the transaction if one is open. SQLite may have ended it already; then a rollback would raise."""
        try:
            connection = raw(self._database)
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except (sqlite3.Error, peewee.PeeweeException):
            _log.exception("the connection is closed; the next change opens another")
            self._database.close()
            if self._files is not None:
                self._files.forget_log()
