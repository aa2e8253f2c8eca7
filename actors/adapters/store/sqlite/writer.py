"""Writes changes to SQLite, and looks after the database's files.

The writer's own thread checkpoints the write-ahead log between transactions, after the callers were woken; under heavy
load SQLite itself checkpoints at the end of a commit.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import peewee

from actors.adapters.store.changes import Change, Deletion
from actors.adapters.store.sqlite.engine import SqliteSession, raw, sqlite3
from actors.adapters.store.sqlite.files.write_ahead_log import WriteAheadLog
from actors.adapters.store.writer import Writer
from actors.ports import CommandExistsError, FaultPoints, FencedError, SlugTakenError, StoreError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.adapters.store.change_queue import Ticket
    from actors.adapters.store.query import Session
    from actors.adapters.store.sqlite.files.disk_reserve import DiskReserve
    from actors.adapters.store.sqlite.files.open_files import OpenFiles

_log = logging.getLogger(__name__)

TIDY_AGAIN_SECONDS = 5.0
"""Seconds before background work is retried after a failure."""
WATCH_SECONDS = 1.0
"""Seconds between two checks of the open files while nothing is written."""


class SqliteWriter(Writer):
    """Writes the queued changes over one connection, which it owns until `close`."""

    _begin = "BEGIN IMMEDIATE"

    def __init__(
        self,
        database: peewee.SqliteDatabase,
        faults: FaultPoints,
        files: OpenFiles | None = None,
        *,
        every_second: Callable[[], None] = lambda: None,
        tidy: Callable[[Session], bool] = lambda _session: False,
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
            session = self._ready()
            session.run(self._begin)
            self._tidying = self._tidy_slice(session)
            session.run("COMMIT")
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
        self._log.count(len(batch))
        super()._serve(batch)

    def _ready(self) -> SqliteSession:
        self._check_files()
        return SqliteSession(raw(self._database))

    def _committed(self) -> None:
        self._check_files()

    def _refused(self, session: Session, error: Exception) -> Exception | None:
        if isinstance(error, sqlite3.IntegrityError):
            return _refusal(error)
        # The disk failed, not the change; SQLite may have rolled the transaction back.
        return None if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.DataError) else error

    def _failed(self, batch: list[Ticket[Change]], error: BaseException) -> str:
        self._roll_back()
        if isinstance(error, sqlite3.OperationalError):
            self._serve_from_reserve(batch)
        return f"nothing was written: {error}"

    def _log_lost(self, lost: int, why: str) -> None:
        _log.error("%d changes were not written: %s", lost, why.partition(": ")[2])

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


def _refusal(error: sqlite3.IntegrityError) -> StoreError:
    text = str(error)
    if "conversations.slug" in text:
        return SlugTakenError(text)
    if "commands." in text or "messages.id" in text:
        return CommandExistsError(text)
    return FencedError(text)
