"""The reads of the store: fixed SQL on hot paths, peewee queries elsewhere."""

from __future__ import annotations

import logging
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from peewee import SQL

from actors.adapters.store import audit_rows, rows
from actors.adapters.store.log_rows import LogRow, events_after, refuse_before, stored_transition
from actors.adapters.store.run_outcomes import fate_of, run_of
from actors.adapters.store.sqlite import listing
from actors.adapters.store.sqlite.engine import raw, sqlite3
from actors.adapters.store.sqlite.integrity_check import (
    ALL,
    FATES,
    LOGGED,
    MESSAGES,
    RECORDS,
    RUNS,
    beginning,
    check,
    every_text,
)
from actors.adapters.store.sqlite.readers import Readers, read_again
from actors.adapters.store.sqlite.schema import tables as schema
from actors.ports import (
    Attachment,
    CommandRecord,
    ConversationRecord,
    SettledInput,
    Snapshot,
    Spending,
    StoppedRun,
    StoreDamagedError,
    StoredEvent,
    StoredTransition,
)
from actors.ports.store.conditions import Listed, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from actors.adapters.store.sqlite.removal import Removal
    from actors.core.content import Message
    from actors.ports.store.audit import AuditEntry, AuditFilter, AuditPlace
    from actors.ports.store.conditions import Selection

_log = logging.getLogger(__name__)
Found = TypeVar("Found")

_LOAD = f"""
SELECT {RECORDS}, text, profile FROM conversations
LEFT JOIN prompts ON prompts.conversation_id = id LEFT JOIN profiles ON profiles.conversation_id = id
WHERE id = ? AND {schema.NOT_DELETED}
"""  # noqa: S608
_STORED_BYTES = f"""
WITH owned AS (SELECT id FROM conversations WHERE principal = :principal AND {schema.NOT_DELETED})
SELECT
(SELECT coalesce(sum(octet_length(content)), 0) FROM messages WHERE conversation_id IN owned)
+ (SELECT coalesce(sum(octet_length(data)), 0) FROM attachments WHERE conversation_id IN owned)
+ (SELECT coalesce(sum(octet_length(profile)), 0) FROM profiles WHERE conversation_id IN owned)
"""  # noqa: S608
_EVENTS = """
SELECT first_revision, at, notifications FROM log
WHERE conversation_id = :id AND count > 0 AND first_revision >= coalesce(
    (SELECT first_revision FROM log WHERE conversation_id = :id AND first_revision <= :next
    ORDER BY first_revision DESC LIMIT 1), 0)
ORDER BY first_revision LIMIT :limit
"""
_AGED = f"""
SELECT id FROM conversations WHERE id > :after AND {schema.NOT_DELETED}
AND created_at < :before AND last_seq > :keep AND :before > (
    SELECT at FROM log WHERE conversation_id = id ORDER BY first_revision, step LIMIT 1)
ORDER BY id LIMIT :limit
"""  # noqa: S608
_ARCHIVED = f"""
SELECT id FROM conversations WHERE id > :after AND archived_at < :before AND parent_conversation_id IS NULL
AND {schema.NOT_DELETED} ORDER BY id LIMIT :limit
"""  # noqa: S608

_LOG_NOT_DELETED = "conversation_id NOT IN (SELECT conversation_id FROM deletions)"


class StoreReads:
    """Implement ports.StoreReader and the other reads of ports.Store over pooled connections. Any thread."""

    def __init__(self, readers: Readers, removal: Removal) -> None:
        self._readers = readers
        self._removal = removal

    # --- conversations ----------------------------------------------------------------------------------------

    @read_again
    def load(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record; None if there is none; see ports.Store."""
        with self._reading() as connection:
            return self._load(connection, self._visible(conversation_id))

    def claim(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record; None if there is none: this process owns everything; see ports.Store."""
        return self.load(conversation_id)

    @read_again
    def owner(self, conversation_id: str) -> str | None:
        """Return the principal of a conversation; see ports.Store."""
        conversation_id, table = self._visible(conversation_id), schema.Conversation
        return next(iter(self._column(table.select(table.principal).where(table.id == conversation_id))), None)

    @read_again
    def find_slug(self, principal: str, slug: str) -> str | None:
        """Return the conversation of a principal with this slug; see ports.Store."""
        table = schema.Conversation
        found = table.select(table.id).where(table.principal == principal, table.slug == slug)
        return next(iter(self._column(found)), None)

    @read_again
    def list(
        self,
        selection: Selection,
        *,
        after: Place | None = None,
        limit: int,
        skipped: Callable[[str], object] = lambda _conversation_id: None,
    ) -> Listed:
        """Return the next conversations of a list; see ports.Store."""
        with self._readers.lend() as database, every_text(raw(database), "surrogateescape"):
            connection, until = raw(database), None
            if (query := listing.window_end(selection, after, limit)) is not None:
                row = connection.execute(*query).fetchone()
                until = None if row is None else Place(*row)
            found = connection.execute(*listing.page(selection, after, until, limit)).fetchall()
            more = listing.place_of(found[-1], selection) if len(found) == limit else until
            return Listed(tuple(self._readable(connection, found, skipped)), more)

    def _readable(
        self, connection: sqlite3.Connection, page: Sequence[rows.Row], skipped: Callable[[str], object]
    ) -> Iterator[ConversationRecord]:
        """Yield the records of rows; an unreadable one is reported and skipped, so that the others are listed."""
        for row in page:
            try:
                listing.refuse_broken_texts(row)
                yield self._record(connection, row)
            except (msgspec.DecodeError, ValueError, KeyError) as error:
                conversation_id = str(row[0]).encode(errors="replace").decode()
                fields = {"conversation": conversation_id, "error": type(error).__name__}
                _log.error("it cannot be read and is left out", extra=fields)
                skipped(conversation_id)

    @read_again
    def children(self, conversation_id: str) -> tuple[str, ...]:
        """Return the ids of its sub-agents; see ports.Store."""
        table = schema.Conversation
        of_parent = table.parent_conversation == self._visible(conversation_id)
        return self._column(table.select(table.id).where(of_parent, SQL(schema.NOT_DELETED)))

    @read_again
    def unsettled(self) -> tuple[str, ...]:
        """Return the conversations to recover on start; see ports.Store."""
        return self._column(
            schema.Conversation.select(schema.Conversation.id).where(
                SQL(f"({schema.UNSETTLED}) AND {schema.NOT_DELETED}")
            )
        )

    def prunable(self, *, before: int, keep: int, after: str = "", limit: int) -> tuple[str, ...]:
        """Return conversations whose log may be pruned; see ports.Store."""
        return self._ids(_AGED, {"before": before, "keep": keep, "after": after, "limit": limit})

    def archived(self, *, before: int, after: str = "", limit: int) -> tuple[str, ...]:
        """Return conversations archived before a time; see ports.Store."""
        return self._ids(_ARCHIVED, {"before": before, "after": after, "limit": limit})

    @read_again
    def _ids(self, query: str, values: dict[str, int | str]) -> tuple[str, ...]:
        with self._reading() as connection:
            return tuple(id_ for (id_,) in connection.execute(query, values))

    # --- messages and events ----------------------------------------------------------------------------------

    def messages(
        self,
        conversation_id: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int,
        descending: bool = False,
    ) -> tuple[Message, ...]:
        """Return a page of messages; see ports.Store."""
        query = _between(MESSAGES, "sequence_id", before, descending=descending)
        return self._page(rows.message_of, query, (self._visible(conversation_id), after, limit))

    @read_again
    def message(self, conversation_id: str, message_id: str) -> Message | None:
        """Return a message; see ports.Store."""
        visible = self._visible(conversation_id)
        with self._reading() as connection:
            key = rows.message_key(visible, message_id)
            row = connection.execute(f"{MESSAGES} AND id = ?", (visible, key)).fetchone()
        return None if row is None else rows.message_of(row)

    def history(self, conversation_id: str, through: int) -> tuple[Message, ...]:
        """Return all messages up to a sequence; see ports.Store."""
        return self.messages(conversation_id, before=through + 1, limit=ALL)

    @read_again
    def events(self, conversation_id: str, *, after: int, limit: int) -> tuple[StoredEvent, ...]:
        """Return events after a revision; see ports.Store."""
        bounds = {"id": self._visible(conversation_id), "next": after + 1, "limit": limit}
        with self._reading() as connection:
            found = events_after(connection.execute(_EVENTS, bounds), conversation_id, after, limit)
            if not found:
                refuse_before(beginning(connection, conversation_id).revision, conversation_id, after)
            return found

    def stopped_runs(
        self,
        conversation_id: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int,
        descending: bool = False,
    ) -> tuple[StoppedRun, ...]:
        """Return a page of stopped runs; see ports.Store."""
        query = _between(RUNS, "revision", before, descending=descending)
        return self._page(run_of, query, (self._visible(conversation_id), after, limit))

    @read_again
    def stopped_run(self, conversation_id: str, run: str) -> StoppedRun | None:
        """Return how a run ended; see ports.Store."""
        query = f"{RUNS} AND run = ? ORDER BY revision DESC LIMIT 1"  # most often it is a late one
        with self._reading() as connection:
            row = connection.execute(query, (self._visible(conversation_id), run)).fetchone()
        return None if row is None else run_of(row)

    def settled_inputs(
        self,
        conversation_id: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int,
        descending: bool = False,
    ) -> tuple[SettledInput, ...]:
        """Return a page of settled inputs; see ports.Store."""
        query = _between(FATES, "revision", before, descending=descending)
        return self._page(fate_of, query, (self._visible(conversation_id), after, limit))

    @read_again
    def _page(
        self, convert: Callable[[rows.Row], Found], query: str, values: tuple[str, int, int]
    ) -> tuple[Found, ...]:
        with self._reading() as connection:
            return tuple(map(convert, connection.execute(query, values)))

    @read_again
    def snapshot(self, conversation_id: str, recent_messages: int) -> Snapshot | None:
        """Return the record and its latest messages at one moment; see ports.Store."""
        conversation_id = self._visible(conversation_id)
        query = f"{MESSAGES} ORDER BY sequence_id DESC LIMIT ?"
        with self._reading(at_one_moment=True) as connection:
            record = self._load(connection, conversation_id)
            if record is None:
                return None
            latest = connection.execute(query, (conversation_id, recent_messages)).fetchall()
            return Snapshot(record, tuple(rows.message_of(row) for row in reversed(latest)))

    @read_again
    def transitions(self, conversation_id: str, *, after_step: int, limit: int) -> tuple[StoredTransition, ...]:
        """Return rows of the log; see ports.Store."""
        with self._reading() as connection:
            found = connection.execute(LOGGED, (self._visible(conversation_id), after_step, limit))
            return tuple(stored_transition(LogRow(*row)) for row in found)

    def verify(self, conversation_id: str) -> tuple[str, ...]:
        """Return the findings of a verification, as text; see ports.Store."""
        try:
            return self._checked(conversation_id)
        except StoreDamagedError:
            _log.exception("it cannot be verified", extra={"conversation": conversation_id})
            return ("the database file is damaged, so that not everything of the conversation can be read",)

    @read_again
    def _checked(self, conversation_id: str) -> tuple[str, ...]:
        with self._reading(at_one_moment=True) as connection:
            return check(connection, self._visible(conversation_id))

    # --- commands and attachments -----------------------------------------------------------------------------

    def command(self, conversation_id: str, request_id: str) -> CommandRecord | None:
        """Return an accepted command of a conversation; see ports.Store."""
        return self._command("conversation_id", self._visible(conversation_id), request_id)

    def create_command(self, principal: str, request_id: str) -> CommandRecord | None:
        """Return an accepted create command of a principal; see ports.Store."""
        return self._command("principal", principal, request_id)

    @read_again
    def _command(self, owner: str, value: str, request_id: str) -> CommandRecord | None:
        query = f"SELECT request_id, body_hash, answer, at FROM commands WHERE {owner} = ? AND request_id = ?"  # noqa: S608
        with self._reading() as connection:
            row = connection.execute(query, (value, request_id)).fetchone()
        return None if row is None else CommandRecord(row[0], row[1], row[2].encode(), row[3])

    @read_again
    def attachment(self, conversation_id: str, attachment_id: str) -> Attachment | None:
        """Return an attachment; None if there is none; see ports.Store."""
        query = "SELECT id, media_type, data, width, height FROM attachments WHERE conversation_id = ? AND id = ?"
        with self._reading() as connection:
            row = connection.execute(query, (self._visible(conversation_id), attachment_id)).fetchone()
        return None if row is None else Attachment(*row)

    @read_again
    def spendings(self, since: int) -> tuple[Spending, ...]:
        """Return what principals spent on each day from `since` on; see ports.Store."""
        query = "SELECT principal, day, tokens, cost_micros FROM spendings WHERE day >= ?"
        with self._reading() as connection:
            return tuple(Spending(*row) for row in connection.execute(query, (since,)))

    @read_again
    def audit(self, wanted: AuditFilter, *, after: AuditPlace | None = None, limit: int) -> tuple[AuditEntry, ...]:
        """Return the next entries of the audit trail; see ports.Store."""
        logged = audit_rows.logged_query(wanted, after, _LOG_NOT_DELETED)
        unlogged, values = audit_rows.unlogged_query(wanted, after)
        entries: list[AuditEntry] = []
        with self._reading(at_one_moment=True) as connection:
            if logged is not None:
                rows_of_logs = connection.execute(logged[0], {**logged[1], "limit": limit})
                entries += (audit_rows.logged_entry(*row) for row in rows_of_logs)
            others = connection.execute(unlogged, {**values, "limit": limit})
            entries += (audit_rows.entry_of(number, tuple(row)) for number, *row in others)
        return tuple(sorted(entries, key=lambda entry: entry.place)[:limit])

    @read_again
    def stored_bytes(self, principal: str) -> int:
        """Return the bytes that a principal has stored, "": of the database; see ports.Store."""
        with self._reading() as connection:
            if principal:
                return int(connection.execute(_STORED_BYTES, {"principal": principal}).fetchone()[0])
            pages, free, size = (
                int(connection.execute(f"PRAGMA {name}").fetchone()[0])
                for name in ("page_count", "freelist_count", "page_size")
            )
            return (pages - free) * size

    def _visible(self, conversation_id: str) -> str:
        """Return the id; "" for a deleted conversation, so that queries find nothing."""
        return self._removal.unless_hidden(conversation_id)

    @contextmanager
    def _reading(self, *, at_one_moment: bool = False) -> Generator[sqlite3.Connection]:
        """Yield a connection from the pool; with `at_one_moment` all its reads see the same snapshot."""
        with self._readers.lend() as database:
            connection = raw(database)
            if not at_one_moment:
                yield connection
                return
            connection.execute("BEGIN")
            yield connection
            connection.execute("COMMIT")

    def _column(self, query: Any) -> tuple[str, ...]:
        with self._readers.lend() as database:
            return tuple(value for (value,) in query.tuples().execute(database))

    def _load(self, connection: sqlite3.Connection, conversation_id: str) -> ConversationRecord | None:
        row = connection.execute(_LOAD, (conversation_id,)).fetchone()
        return None if row is None else self._record(connection, row)

    def _record(self, connection: sqlite3.Connection, row: rows.Row) -> ConversationRecord:
        """Return the record; with an unreadable state, log an error and return it as Idle."""
        record, intact = rows.record_of(row)
        if intact:
            return record
        _log.error("its state cannot be read; it is taken to be idle", extra={"conversation": record.id})
        found = connection.execute(
            "SELECT sequence_id, usage_data FROM messages WHERE conversation_id = ? ORDER BY sequence_id", (record.id,)
        ).fetchall()
        children = connection.execute("SELECT id FROM conversations WHERE parent_conversation_id = ?", (record.id,))
        numbers = [int(digits.group()) for (child,) in children if (digits := re.search(r"\d+$", child))]
        last = found[-1][0] if found else 0
        state = rows.rebuilt_state(record.step, last, [usage for _, usage in found], max(numbers, default=0))
        return msgspec.structs.replace(record, state=state)


def _between(select: str, column: str, before: int | None, *, descending: bool) -> str:
    """Return a query for a page, with the parameters (conversation, after, limit)."""
    order = "DESC" if descending else "ASC"
    bound = "" if before is None else f"AND {column} < {before:d}"
    return f"{select} AND {column} > ? {bound} ORDER BY {column} {order} LIMIT ?"
