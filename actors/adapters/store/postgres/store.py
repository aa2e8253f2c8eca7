"""The store on PostgreSQL: how it differs from the store on SQLite, and how it is opened.

If the connection is lost during a transaction, it is unknown whether the database committed the transaction. The
callers whose changes it contained get an error that says so, and must read the stored state.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import psycopg

from actors.adapters.store.postgres.engine import (
    Address,
    PostgresConnection,
    Readers,
    address_of,
    connect,
    database_outages,
    reached,
    words,
)
from actors.adapters.store.postgres.nodes.node_statements import CLAIM
from actors.adapters.store.query import Session, heads, not_owner
from actors.adapters.store.store import SqlStore, Ticket, Writer, refusal
from actors.common.machine import OutageLog
from actors.ports import ConversationRecord, DatabaseAwayError, FaultPoints, NoFaultPoints, StoreUnavailableError

# Seconds between searches for deleted conversations whose rows remain; also the pause after a failed removal.
#
# The searches are needed because other servers delete conversations, too.
LOOK_SECONDS = 60.0


class PostgresWriter(Writer):
    """Writes the queued changes over one connection, which only this writer uses."""

    _unavailable = DatabaseAwayError

    def __init__(
        self,
        address: Address,
        session: PostgresConnection,
        faults: FaultPoints,
        outages: OutageLog,
        *,
        written: Callable[[int, float], None] | None = None,
    ) -> None:
        """Start the writer's thread, with `session` as its first connection."""
        super().__init__(faults, written, longest_wait=LOOK_SECONDS)
        self._address = address
        self._session: PostgresConnection | None = session
        self._me = session.me
        self._outages = outages
        self._tidying = True
        self._looked_at = time.monotonic()
        self._thread.start()

    def _between(self, batch: int) -> None:
        now = time.monotonic()
        if now - self._looked_at >= LOOK_SECONDS:
            self._tidying, self._looked_at = True, now
        self._tidy(batch)

    def _not_removed(self, error: Exception) -> None:
        self._outages.failed(f"cannot purge deleted rows; will try again: {words(error)}")
        self._disconnect()

    def _committed(self) -> None:
        self._outages.worked()

    def _refused(self, error: Exception) -> Exception | None:
        match error:
            case psycopg.IntegrityError():
                return refusal(f"{error.diag.constraint_name}: {error.diag.message_primary}")
            case psycopg.DataError():
                return error
            case psycopg.OperationalError() if self._session is not None and not self._session.lost:
                return StoreUnavailableError(f"nothing was written: {words(error)}")
            case psycopg.Error():
                return None  # the database itself fails; for example, it has become read-only
            case _:
                return error

    def _failed(self, batch: list[Ticket], error: BaseException) -> str:
        self._disconnect()
        reason = words(error)
        if any(ticket.lost for ticket in batch):
            self._outages.failed(f"the database may not have applied the write: {reason}")
        return f"the database may not have applied the write: {reason}"

    def _ready(self) -> Session:
        if self._session is not None and self._session.ended:
            self._disconnect()
        if self._session is None:
            self._session = connect(self._address, self._me)
        return self._session

    def _end(self) -> None:
        self._disconnect()

    def _disconnect(self) -> None:
        """Close the connection. If a transaction is open, the database then rolls it back."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


class PostgresStore(SqlStore):
    """Implements ports.Store on a PostgreSQL database that servers share. Thread-safe. Open it with `open_postgres`."""

    _snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
    _writer: PostgresWriter
    sqlite_version = ""

    def claim(
        self, conversation_id: str, taken: Callable[[tuple[str, ...]], object] = lambda _: None
    ) -> ConversationRecord | None:
        unsettled = self._read(lambda session: claimed(session, conversation_id))
        if unsettled is None:
            return None
        if unsettled:
            taken(unsettled)
        return self.load(conversation_id)

    def _database_bytes(self) -> int:
        size = "SELECT pg_database_size(current_database())"
        return self._read(lambda session: int(session.run(size).fetchone()[0]))

    def compact(self, max_bytes: int, *, spare_bytes: int) -> bool:
        return False


def claimed(session: Session, conversation_id: str) -> tuple[str, ...] | None:
    """Take over a top-level conversation with all its sub-agents; None if it does not exist.

    Returns the ids of those with unfinished work, or () if they already belonged to this server. Raises NotOwnerError.
    """
    taken: list[tuple[str, bool]] = []
    for attempt in ("look", "claim"):
        if attempt == "claim":
            taken = session.run(CLAIM, {"id": conversation_id, "me": session.me}).fetchall()
        head = heads(session, [conversation_id]).get(conversation_id)
        if head is None:
            return None
        if head.owned:  # true without a claim if another thread of this server has just claimed it
            return tuple(id_ for id_, unsettled in taken if unsettled)
    raise not_owner(session, conversation_id)


def open_postgres(
    url: str,
    me: int,
    faults: FaultPoints | None = None,
    *,
    written: Callable[[int, float], None] | None = None,
    outages: OutageLog | None = None,
) -> PostgresStore:
    """Open the store in a migrated database. Raises StoreUnusableError.

    `me` is this server's incarnation, which must be in the `nodes` table before the server writes. The fault points
    store.before_begin, store.before_commit and store.after_commit are hit on the writing thread. `written(changes,
    seconds)` is called on that thread after each batch; its arguments are the number of changes and how long writing
    them took.
    """
    address = address_of(url)
    with ExitStack() as opened:
        session = reached(address, me)
        opened.callback(session.close)
        outages = outages or database_outages()
        readers = Readers(address, me, outages)
        opened.callback(readers.close)
        writer = PostgresWriter(address, session, faults or NoFaultPoints(), outages, written=written)
        opened.callback(writer.close)
        return PostgresStore(writer, readers, opened.pop_all())
