"""Commits queued changes in groups, over the only connection of this server that writes to PostgreSQL.

The thread that holds the write lock (see ChangeQueue) takes the queued changes, urgent ones first. It writes in a first
transaction those changes that one statement can write together. All others are written in a second transaction, each
after a savepoint, so that a rejected change does not affect the others. If a transaction fails, none of its changes is
written, and their callers get the error. If the connection is lost during a transaction, it is unknown whether the
database committed it: the callers get an error that says so, and must read the stored state.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import psycopg

from actors.adapters.store.postgres.batch_write import KnownHeads, WriteBatch
from actors.adapters.store.postgres.changes import Change, Transition
from actors.adapters.store.postgres.engine import Address, PostgresConnection, connect, words
from actors.adapters.store.postgres.removal import remove_slice
from actors.adapters.store.sql.change_queue import ChangeQueue, Ticket, fail_unwritten
from actors.ports import DatabaseAwayError, FaultPoints, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from actors.ports.store.outage_log import OutageLog

_log = logging.getLogger(__name__)

LOOK_SECONDS = 60.0
"""Seconds between two searches for deleted conversations that still have rows; also the pause after a failed removal.

The searches are needed because other servers delete conversations, too.
"""


class Writer(ChangeQueue[Change]):
    """Writes the queued changes over one connection, which it owns until `close`."""

    def __init__(
        self,
        address: Address,
        session: PostgresConnection,
        faults: FaultPoints,
        outages: OutageLog,
        *,
        written: Callable[[int, float], None] | None = None,
    ) -> None:
        """Start the background thread, and use `session` as the first connection.

        `written` is called after each batch; see ChangeQueue.
        """
        super().__init__(faults, written, longest_wait=LOOK_SECONDS)
        self._address = address
        self._session: PostgresConnection | None = session
        self._outages = outages
        self._known = KnownHeads()
        self._tidying = True
        self._looked_at = time.monotonic()
        self._thread.start()

    def _between(self, batch: int) -> None:
        """Remove some rows of deleted conversations, if no change waits or the last removal was TIDY_SECONDS ago."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_SECONDS:
            self._tidying, self._looked_at = True, now
        if not self._may_tidy(batch):
            return
        try:
            self._tidying = remove_slice(self._connected())
        except Exception as error:  # noqa: BLE001 -- nobody waits for background work, and it is repeated later
            self._outages.failed(f"what was deleted could not be removed yet: {_said(error)}")
            self._disconnect()
            self._tidying = False
        self._tidied_at = time.monotonic()

    def _serve(self, batch: list[Ticket[Change]]) -> None:
        """Write the changes, in at most two transactions, and release the callers that wait for them."""
        try:
            self._transact(batch)
        except BaseException as error:
            self._disconnect()
            lost = fail_unwritten(batch, f"the database may not have written it: {_said(error)}", DatabaseAwayError)
            if not isinstance(error, Exception):
                raise
            if lost:
                self._outages.failed(f"the database may not have written what was sent: {_said(error)}")
        else:
            self._outages.worked()
        finally:
            for ticket in batch:
                ticket.done.release()

    def _transact(self, batch: list[Ticket[Change]]) -> None:
        self._faults.hit("store.before_begin")
        session = self._connected()
        tickets = {ticket.change: ticket for ticket in batch if self._admit(ticket)}
        together = WriteBatch(session, list(tickets), self._known)
        if together.taken:
            self._faults.hit("store.before_commit")
            left = together.write(session)
            self._faults.hit("store.after_commit")
            together.left += left
            for change, _, _ in together.taken.values():
                tickets[change].written = change not in left
        if together.left:
            self._one_by_one(session, [tickets[change] for change in together.left])

    def _one_by_one(self, session: PostgresConnection, tickets: list[Ticket[Change]]) -> None:
        session.execute("BEGIN")
        for ticket in tickets:
            session.execute("SAVEPOINT change")
            if error := self._refused(session, ticket.change):
                ticket.error = error
                session.execute("ROLLBACK TO change")
            session.execute("RELEASE change")
        self._known.forget(_written_by(ticket.change for ticket in tickets))
        self._faults.hit("store.before_commit")
        session.execute("COMMIT")
        self._faults.hit("store.after_commit")
        for ticket in tickets:
            ticket.written = ticket.error is None

    def _refused(self, session: PostgresConnection, change: Change) -> Exception | None:
        """Apply a change; return None, or the exception for the caller if the change is rejected.

        Raises psycopg.Error if the database or the connection fails.
        """
        try:
            change.apply(session)
        except psycopg.OperationalError as error:
            if session.lost:
                raise
            return StoreUnavailableError(f"nothing was written: {words(error)}")
        except psycopg.Error as error:
            if not isinstance(error, psycopg.DataError):
                raise  # the database itself fails; for example, it has become read-only
            return error
        except Exception as error:  # noqa: BLE001 -- raised again in the caller that made the change
            return error
        return None

    def _connected(self) -> PostgresConnection:
        if self._session is not None and self._session.ended:
            self._disconnect()
        if self._session is None:
            self._session = connect(self._address)
        return self._session

    def _end(self) -> None:
        self._disconnect()

    def _disconnect(self) -> None:
        """Close the connection; the database then rolls back an open transaction."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _written_by(changes: Iterable[Change]) -> list[str]:
    return [part.id for change in changes if isinstance(change, Transition) for part in change.parts]


def _said(error: BaseException) -> str:
    return words(error) if isinstance(error, psycopg.Error) else str(error)
