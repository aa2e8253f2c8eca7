"""The reading methods of the PostgreSQL store, and `claim`, over pooled connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from actors.adapters.store.postgres.owner_sql import MINE_UNSETTLED, claimed
from actors.adapters.store.postgres.postgres_dialect import POSTGRES
from actors.adapters.store.sql.queries import STORED_BYTES
from actors.adapters.store.sql.stored_reads import StoreReads

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.adapters.store.postgres.readers import Readers
    from actors.adapters.store.sql.dialect import Connection
    from actors.ports import ConversationRecord

Found = TypeVar("Found")


class PostgresReads(StoreReads):
    """Implements the reading methods of ports.Store over pooled connections. Safe to call from any thread."""

    def __init__(self, readers: Readers, me: int) -> None:
        super().__init__(self._read_pooled, POSTGRES)
        self._readers = readers
        self._me = me

    def _read_pooled(
        self, body: Callable[[Connection], Found], *, at_one_moment: bool = False, texts: str = "strict"
    ) -> Found:
        """Call `body` with a connection and return its result; see `Reading`.

        `texts` has no effect, because all texts in PostgreSQL are valid UTF-8.
        """
        with self._readers.lend() as session:
            if not at_one_moment:
                return body(session)
            session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            found = body(session)
            session.execute("COMMIT")
            return found

    def claim(
        self, conversation_id: str, taken: Callable[[tuple[str, ...]], object] = lambda _: None
    ) -> ConversationRecord | None:
        """Make this server the owner of a conversation and its sub-agents, and return its record; see ports.Store."""
        unsettled = self._read(lambda connection: claimed(connection, conversation_id, self._me))
        if unsettled is None:
            return None
        if unsettled:
            taken(unsettled)
        return self.load(conversation_id)

    def unsettled(self) -> tuple[str, ...]:
        """Return the ids of the conversations of this server that must be recovered on start; see ports.Store."""
        return self._column(MINE_UNSETTLED, (self._me,))

    def stored_bytes(self, principal: str) -> int:
        """Return the bytes that a principal has stored; for the principal "", the database's size; see ports.Store."""
        query = STORED_BYTES if principal else "SELECT pg_database_size(current_database())"
        return self._read(lambda connection: int(connection.execute(query, {"principal": principal}).fetchone()[0]))
