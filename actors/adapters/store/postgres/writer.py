"""Writes changes to PostgreSQL.

If the connection is lost during a transaction, it is unknown whether the database committed it: the callers get an
error that says so, and must read the stored state.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg

from actors.adapters.store.postgres.engine import Address, PostgresConnection, connect, words
from actors.adapters.store.removal import remove_slice
from actors.adapters.store.writer import Writer
from actors.ports import (
    CommandExistsError,
    DatabaseAwayError,
    FaultPoints,
    FencedError,
    SlugTakenError,
    StoreError,
    StoreUnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.adapters.store.change_queue import Ticket
    from actors.adapters.store.changes import Change
    from actors.adapters.store.query import Session
    from actors.ports.store.outage_log import OutageLog

LOOK_SECONDS = 60.0
"""Seconds between two searches for deleted conversations that still have rows; also the pause after a failed removal.

The searches are needed because other servers delete conversations, too.
"""


class PostgresWriter(Writer):
    """Writes the queued changes over one connection, which it owns until `close`."""

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
        """Start the background thread, and use `session` as the first connection.

        `written` is called after each batch; see ChangeQueue.
        """
        super().__init__(faults, written, longest_wait=LOOK_SECONDS)
        self._address = address
        self._session: PostgresConnection | None = session
        self._me = session.me
        self._outages = outages
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
            self._tidying = self._removed_slice()
        except Exception as error:  # noqa: BLE001 -- nobody waits for background work, and it is repeated later
            self._outages.failed(f"what was deleted could not be removed yet: {_said(error)}")
            self._disconnect()
            self._tidying = False
        self._tidied_at = time.monotonic()

    def _removed_slice(self) -> bool:
        session = self._connected()
        session.run("BEGIN")
        more = remove_slice(session)
        session.run("COMMIT")
        return more

    def _ready(self) -> Session:
        return self._connected()

    def _committed(self) -> None:
        self._outages.worked()

    def _refused(self, session: Session, error: Exception) -> Exception | None:
        match error:
            case psycopg.IntegrityError():
                return _refusal(error)
            case psycopg.DataError():
                return error
            case psycopg.OperationalError() if self._session is not None and not self._session.lost:
                return StoreUnavailableError(f"nothing was written: {words(error)}")
            case psycopg.Error():
                return None  # the database itself fails; for example, it has become read-only
            case _:
                return error

    def _failed(self, batch: list[Ticket[Change]], error: BaseException) -> str:
        self._disconnect()
        return f"the database may not have written it: {_said(error)}"

    def _log_lost(self, lost: int, why: str) -> None:
        self._outages.failed(why.replace("written it", "written what was sent", 1))

    def _connected(self) -> PostgresConnection:
        if self._session is not None and self._session.ended:
            self._disconnect()
        if self._session is None:
            self._session = connect(self._address, self._me)
        return self._session

    def _end(self) -> None:
        self._disconnect()

    def _disconnect(self) -> None:
        """Close the connection; the database then rolls back an open transaction."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _said(error: BaseException) -> str:
    return words(error) if isinstance(error, psycopg.Error) else str(error)


def _refusal(error: psycopg.IntegrityError) -> StoreError:
    constraint = error.diag.constraint_name or ""
    text = f"{constraint}: {error.diag.message_primary}"
    if constraint == "conversations_slug":
        return SlugTakenError(text)
    if constraint.startswith("commands_") or constraint == "messages_pkey":
        return CommandExistsError(text)
    return FencedError(text)
