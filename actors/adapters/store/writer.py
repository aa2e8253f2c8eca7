"""Commits queued changes in groups, over the only connection of this server that writes to the database.

The queue's thread takes all queued changes, urgent ones first, and writes them in one transaction: first the commits to
existing conversations, together; then the others, each after a savepoint, so that a refused change does not affect the
other changes. If the transaction itself fails, nothing is written and the callers
of all its changes get the error.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import TYPE_CHECKING

from actors.adapters.store.change_queue import ChangeQueue, Ticket, fail_unwritten
from actors.adapters.store.changes import Change, Transition
from actors.adapters.store.commits import write_together
from actors.ports import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.adapters.store.query import Session


class Writer(ChangeQueue[Change]):
    """Writes the queued changes over one connection, which it owns until `close`."""

    _begin = "BEGIN"
    _unavailable: type[StoreUnavailableError] = StoreUnavailableError

    @abstractmethod
    def _ready(self) -> Session:
        """Return the session, on which a transaction can begin. Raises StoreUnavailableError."""

    @abstractmethod
    def _refused(self, session: Session, error: Exception) -> Exception | None:
        """Return the exception for the caller of a change that raised `error`; None if the database itself failed."""

    @abstractmethod
    def _failed(self, batch: list[Ticket[Change]], error: BaseException) -> str:
        """Recover after a transaction failed, and return what its callers should know."""

    def _log_lost(self, lost: int, why: str) -> None:
        """Log that `lost` changes were not written."""

    def _committed(self) -> None:
        """Check that the transaction was written to where it belongs. Raises StoreUnavailableError."""

    @abstractmethod
    def _remove_slice(self, session: Session) -> bool:
        """Do some background work in a transaction; return whether any is left."""

    @abstractmethod
    def _not_removed(self, error: Exception) -> None:
        """Recover after background work failed, which is repeated later and for which no caller waits."""

    def _tidy(self, batch: int) -> bool:
        """Do a slice of background work if that is due; return whether it was."""
        due = self._may_tidy(batch)
        if due:
            try:
                session = self._ready()
                session.run(self._begin)
                self._tidying = self._remove_slice(session)
                session.run("COMMIT")
            except Exception as error:  # noqa: BLE001 -- logged, and repeated later
                self._tidying = False
                self._not_removed(error)
            self._tidied_at = time.monotonic()
        return due

    def _serve(self, batch: list[Ticket[Change]]) -> None:
        """Write the changes in one transaction, and wake their callers."""
        try:
            self._transact(batch)
        except BaseException as error:
            why = self._failed(batch, error)
            lost = fail_unwritten(batch, why, self._unavailable)
            if not isinstance(error, Exception):
                raise
            if lost:
                self._log_lost(lost, why)
        finally:
            for ticket in batch:
                ticket.done.release()

    def _transact(self, batch: list[Ticket[Change]]) -> None:
        self._faults.hit("store.before_begin")
        session = self._ready()
        session.run(self._begin)
        for ticket in self._left([ticket for ticket in batch if self._admit(ticket)], session):
            self._write_alone(ticket, session)
        self._faults.hit("store.before_commit")
        session.run("COMMIT")
        self._committed()
        self._faults.hit("store.after_commit")

    def _left(self, tickets: Sequence[Ticket[Change]], session: Session) -> list[Ticket[Change]]:
        """Write the commits that can be written together; return the changes that are to be written one by one."""
        plain = {
            ticket: commit
            for ticket in tickets
            if isinstance(ticket.change, Transition) and (commit := ticket.change.only)
        }
        done = write_together(session, list(plain.values()), self._begin)
        written = {commit.id: ticket for ticket, commit in reversed(plain.items()) if commit.id in done}
        return [ticket for ticket in tickets if ticket not in written.values()]

    def _write_alone(self, ticket: Ticket[Change], session: Session) -> None:
        session.run("SAVEPOINT change")
        try:
            ticket.change.apply(session)
        except Exception as error:
            ticket.error = self._refused(session, error)
            if ticket.error is None:
                raise
            session.run("ROLLBACK TO change")
        session.run("RELEASE change")
