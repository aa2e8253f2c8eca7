"""Writes the transitions of several conversations in one SQL statement, which is a transaction by itself.

With a single statement no rows stay locked between two statements, so a server that is suspended in the middle blocks
nobody. This server remembers the latest position (head) of each conversation that it writes. The statement writes only
to the conversations whose stored position is the remembered one, and returns their ids. The changes of the other
conversations, and changes of other kinds, are written one by one afterwards. If one change of the statement violates a
constraint or waits too long for a locked row, the statement writes nothing, and all its changes are written one by
one.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import psycopg
from msgspec import json

from actors.adapters.store.postgres.changes import Change, CommitPart, Transition, filled, heads
from actors.adapters.store.postgres.engine import stored_text
from actors.adapters.store.postgres.statements import LOGGED, NULLABLE, NULLABLE_OF_COMMAND, update_many
from actors.adapters.store.rows import COMMAND, MESSAGE, SPENDING
from actors.adapters.store.run_outcomes import FATE, RUN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from actors.adapters.store.postgres.engine import PostgresConnection
    from actors.adapters.store.sql.commit_rows import Head

KNOWN = 10_000
"""Maximum number of conversations whose heads are remembered; a head takes a few hundred bytes."""

_NOT_WRITTEN = (
    psycopg.IntegrityError,
    psycopg.DataError,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.LockNotAvailable,
)
"""Errors that a single row can cause. The whole statement then fails, and its changes are written one by one."""

_encode = json.Encoder().encode
_ESCAPED = (b"\\u0000", b"\\u0001")
"""The JSON escapes of NUL and U+0001, which PostgreSQL stores as other characters (see PostgresConnection).

They also occur in the JSON for a backslash followed by "u0000". The texts are then searched for NUL without result.
"""


class KnownHeads:
    """Remembers the current positions (heads) of conversations that this server writes.

    Used only by the thread that writes to the database.
    """

    def __init__(self) -> None:
        self._heads: OrderedDict[str, Head] = OrderedDict()

    def of(self, session: PostgresConnection, ids: Sequence[str]) -> dict[str, Head]:
        """Return the heads of those conversations in `ids` that exist; read unknown heads from the database."""
        found = {id_: head for id_ in ids if (head := self._heads.get(id_)) is not None}
        if unknown := [id_ for id_ in ids if id_ not in found]:
            found |= heads(session, unknown)
        return found

    def put(self, head: Head) -> None:
        """Remember a head as the most recently used one, and drop the least recently used one if there are too many."""
        self._heads[head.id] = head
        self._heads.move_to_end(head.id)
        if len(self._heads) > KNOWN:
            self._heads.popitem(last=False)

    def forget(self, ids: Iterable[str]) -> None:
        """Forget the heads of these conversations, because they may be out of date."""
        for id_ in ids:
            self._heads.pop(id_, None)


class WriteBatch:
    """Divides changes into those that one statement can write (`taken`) and those to be written one by one (`left`)."""

    def __init__(self, session: PostgresConnection, changes: Sequence[Change], known: KnownHeads) -> None:
        """Divide `changes` into `taken` and `left`. Reads unknown heads from the database. Raises psycopg.Error."""
        self._known = known
        plain = {change: part for change in changes if isinstance(change, Transition) and (part := change.only)}
        found = known.of(session, [part.id for part in plain.values() if part.fixed is None]) if plain else {}
        self.taken: dict[str, tuple[Change, CommitPart, Head]] = {}
        self.left: list[Change] = []
        for change in changes:
            part = plain.get(change) if isinstance(change, Transition) else None
            # The head is popped, so that a second change of the same conversation is not in the batch.
            head = found.pop(part.id, None) if part else None
            if part and head and part.fits(head):
                self.taken[part.id] = (change, part, head)
            else:
                self.left.append(change)

    def write(self, session: PostgresConnection) -> list[Change]:
        """Write the changes in `taken`, and return those that were not written.

        A change is not written if the stored row is at another position than the remembered head. If the database
        refuses one row, none of the changes is written. Raises psycopg.Error if the connection or the database fails.
        """
        statement, values, after = self._statement()
        try:
            done = {str(id_) for (id_,) in session.execute(statement, values)}
        except _NOT_WRITTEN:
            done = set()
        except BaseException:
            self._known.forget(self.taken)
            raise
        self._known.forget(self.taken.keys() - done)
        for id_ in done:
            self._known.put(after[id_])
        return [change for id_, (change, _, _) in self.taken.items() if id_ not in done]

    def _statement(self) -> tuple[str, dict[str, object], dict[str, Head]]:
        changed: list[dict[str, object]] = []
        tables: dict[str, list[dict[str, object]]] = {
            name: [] for name in ("messages", "log", "runs", "fates", "commands", "spendings")
        }
        after: dict[str, Head] = {}
        for _, part, head in self.taken.values():
            log, log_hash = part.logged(head.log_hash)
            changed.append(part.change(head, log_hash))
            tables["messages"] += (filled(MESSAGE, row, NULLABLE) for row in part.messages)
            tables["log"] += (filled(LOGGED, row, NULLABLE) for row in log)
            tables["runs"] += (filled(RUN, row, NULLABLE) for row in part.runs)
            tables["fates"] += (filled(FATE, row, NULLABLE) for row in part.fates)
            if part.command:
                tables["commands"].append(filled(COMMAND, part.command, NULLABLE_OF_COMMAND))
            if part.spending:
                columns = (*SPENDING, "conversation_id")
                tables["spendings"].append(filled(columns, (*part.spending, part.id), NULLABLE))
            after[part.id] = part.head_after(log_hash)
        used = tuple(name for name, many in tables.items() if many)
        values = {name: _json(tables[name]) for name in used}
        me = next(iter(self.taken.values()))[1].me
        return update_many(used), {"me": me, "conversations": _json(changed), **values}, after


def _json(many: list[dict[str, object]]) -> str:
    """Return rows as JSON, with NUL replaced as in other texts, because PostgreSQL rejects NUL in JSON, too."""
    encoded = _encode(many)
    if any(escaped in encoded for escaped in _ESCAPED):  # rare; otherwise no text has to be searched
        encoded = _encode(
            [
                {name: stored_text(value) if isinstance(value, str) else value for name, value in row.items()}
                for row in many
            ]
        )
    return encoded.decode()
