"""The reading methods of the SQLite store. They use pooled connections and do not find deleted conversations."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from actors.adapters.store.sql.queries import NOT_DELETED, STORED_BYTES, UNSETTLED
from actors.adapters.store.sql.stored_reads import StoreReads
from actors.adapters.store.sqlite.engine import every_text, raw
from actors.adapters.store.sqlite.readers import Readers, read_again
from actors.adapters.store.sqlite.sqlite_dialect import SQLITE

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from actors.adapters.store.sql.dialect import Connection
    from actors.adapters.store.sqlite.engine import sqlite3
    from actors.adapters.store.sqlite.removal import Removal
    from actors.ports import ConversationRecord

Found = TypeVar("Found")

_UNSETTLED = f"SELECT id FROM conversations WHERE ({UNSETTLED}) AND {NOT_DELETED}"  # noqa: S608 -- constants only


class SqliteReads(StoreReads):
    """Implements the reading methods of ports.Store with pooled connections. Safe to call from any thread."""

    def __init__(self, readers: Readers, removal: Removal) -> None:
        super().__init__(self._read_pooled, SQLITE, removal.unless_hidden)
        self._readers = readers
        self._removal = removal

    @read_again
    def _read_pooled(
        self, body: Callable[[Connection], Found], *, at_one_moment: bool = False, texts: str = "strict"
    ) -> Found:
        with self._reading(at_one_moment=at_one_moment) as connection:
            if texts == "strict":
                return body(connection)
            with every_text(connection, texts):
                return body(connection)

    @contextmanager
    def _reading(self, *, at_one_moment: bool = False) -> Generator[sqlite3.Connection]:
        """Lend a pooled connection for the `with` block; with `at_one_moment`, all its reads see the same snapshot."""
        with self._readers.lend() as database:
            connection = raw(database)
            if not at_one_moment:
                yield connection
                return
            connection.execute("BEGIN")
            yield connection
            connection.execute("COMMIT")

    def claim(
        self, conversation_id: str, taken: Callable[[tuple[str, ...]], object] = lambda _: None
    ) -> ConversationRecord | None:
        """Return the record of a conversation; None if there is no such conversation; see ports.Store.

        Nothing has to be claimed, because with SQLite this process owns all conversations.
        """
        return self.load(conversation_id)

    def unsettled(self) -> tuple[str, ...]:
        """Return the ids of the conversations that must be recovered on start; see ports.Store."""
        return self._column(_UNSETTLED)

    def stored_bytes(self, principal: str) -> int:
        """Return the bytes that a principal has stored; see ports.Store.

        For "", return the size of the database file without its free pages.
        """
        return self._read(lambda connection: _stored_bytes(connection, principal))


def _stored_bytes(connection: Connection, principal: str) -> int:
    if principal:
        return int(connection.execute(STORED_BYTES, {"principal": principal}).fetchone()[0])
    pages, free, size = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size
