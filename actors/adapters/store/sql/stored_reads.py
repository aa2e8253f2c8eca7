"""The reading methods that the stores on SQLite and PostgreSQL share: they run queries and convert rows to objects."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from actors.adapters.store import audit_rows, pruning, rows
from actors.adapters.store.log_rows import LogRow, events_after, refuse_before, stored_transition
from actors.adapters.store.pruning import Bounds, prunable
from actors.adapters.store.run_outcomes import fate_of, run_of
from actors.adapters.store.sql import listing, queries
from actors.adapters.store.sql.integrity_check import beginning, check
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
from actors.ports.store.conditions import Listed, ListPosition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from actors.adapters.store.pruning import LogPosition as LogPlace
    from actors.adapters.store.sql.dialect import Connection, Dialect
    from actors.core.content import Message
    from actors.ports.store.audit import AuditEntry, AuditFilter, AuditPlace
    from actors.ports.store.conditions import Selection

_log = logging.getLogger(__name__)
Found = TypeVar("Found")


class Reading(Protocol):
    """A function that calls another function with a database connection for reading.

    Raises StoreUnavailableError or StoreDamagedError.
    """

    def __call__(
        self, body: Callable[[Connection], Found], *, at_one_moment: bool = False, texts: str = "strict"
    ) -> Found:
        """Call `body` with a connection, and return its result.

        With `at_one_moment`, all statements of `body` see the same snapshot. `texts` is the error handler for texts
        that are not valid UTF-8, such as "strict" or "replace"; see `bytes.decode`.
        """
        ...


class StoreReads:
    """Implements most reading methods of ports.Store. Safe to call from any thread."""

    def __init__(
        self, read: Reading, dialect: Dialect, visible: Callable[[str], str] = lambda conversation_id: conversation_id
    ) -> None:
        """`read` calls a function with a connection for reading; `dialect` is the SQL of the database.

        `visible` returns "" for the id of a deleted conversation, so that queries find nothing, and any other id
        unchanged.
        """
        self._read = read
        self._dialect = dialect
        self._queries = queries.Queries(dialect)
        self._visible = visible

    # --- conversations ----------------------------------------------------------------------------------------

    def load(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation; None if there is no such conversation; see ports.Store."""
        return self._read(lambda connection: self._load(connection, self._visible(conversation_id)))

    def owner(self, conversation_id: str) -> str | None:
        """Return the principal that a conversation belongs to; None if the conversation is unknown; see ports.Store."""
        return next(iter(self._column(queries.PRINCIPAL, (self._visible(conversation_id),))), None)

    def find_slug(self, principal: str, slug: str) -> str | None:
        """Return the id of the principal's conversation with this slug; None if there is none; see ports.Store."""
        return next(iter(self._column(queries.OF_SLUG, (principal, slug))), None)

    def list(
        self,
        selection: Selection,
        *,
        after: ListPosition | None = None,
        limit: int,
        skipped: Callable[[str], object] = lambda _conversation_id: None,
    ) -> Listed:
        """Return at most `limit` selected conversations after the position `after`; see ports.Store."""

        def body(connection: Connection) -> Listed:
            until = None
            if (query := listing.window_end(selection, after, limit, self._dialect)) is not None:
                row = connection.execute(*query).fetchone()
                until = None if row is None else ListPosition(*row)
            found = connection.execute(*listing.page(selection, after, until, limit, self._dialect)).fetchall()
            more = listing.place_of(found[-1], selection) if len(found) == limit else until
            return Listed(tuple(self._readable(connection, found, skipped)), more)

        return self._read(body, texts="surrogateescape")

    def _readable(
        self, connection: Connection, page: Sequence[rows.Row], skipped: Callable[[str], object]
    ) -> Iterator[ConversationRecord]:
        """Yield the conversation records that the rows of one page of a list contain.

        For each unreadable row, log an error and call `skipped` with its id.
        """
        for row in page:
            try:
                listing.refuse_broken_texts(row)
                yield self._record(connection, row)
            except (msgspec.DecodeError, ValueError, KeyError) as error:
                conversation_id = str(row[0]).encode(errors="replace").decode()
                fields = {"conversation": conversation_id, "error": type(error).__name__}
                _log.error("it cannot be read and is left out", extra=fields)
                skipped(conversation_id)

    def children(self, conversation_id: str) -> tuple[str, ...]:
        """Return the ids of a conversation's sub-agents; see ports.Store."""
        return self._column(queries.CHILDREN, (self._visible(conversation_id),))

    def prunable(self, *, before: int, keep: int, after: str = "", limit: int) -> tuple[str, ...]:
        """Return the ids of at most `limit` conversations whose event log has rows to prune; see ports.Store."""
        return self._column(queries.AGED, {"before": before, "keep": keep, "after": after, "limit": limit})

    def archived(self, *, before: int, after: str = "", limit: int) -> tuple[str, ...]:
        """Return the ids of at most `limit` conversations archived before the time `before`; see ports.Store."""
        return self._column(queries.ARCHIVED, {"before": before, "after": after, "limit": limit})

    def _column(self, query: str, values: Sequence[int | str] | Mapping[str, int | str] = ()) -> tuple[str, ...]:
        return self._read(lambda connection: tuple(value for (value,) in connection.execute(query, values)))

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
        """Return at most `limit` messages whose sequence number is between `after` and `before`; see ports.Store.

        The two bounds themselves are excluded.
        """
        query = _between(self._queries.messages, "sequence_id", before, descending=descending)
        return self._page(rows.message_of, query, (self._visible(conversation_id), after, limit))

    def message(self, conversation_id: str, message_id: str) -> Message | None:
        """Return the message with this id; None if the conversation has none; see ports.Store."""
        visible = self._visible(conversation_id)
        values = visible, rows.message_key(visible, message_id)

        def body(connection: Connection) -> Message | None:
            row = connection.execute(f"{self._queries.messages} AND id = ?", values).fetchone()
            return None if row is None else rows.message_of(row)

        return self._read(body)

    def history(self, conversation_id: str, through: int) -> tuple[Message, ...]:
        """Return all messages up to the sequence number `through`, inclusive; see ports.Store."""
        return self.messages(conversation_id, before=through + 1, limit=queries.ALL)

    def events(self, conversation_id: str, *, after: int, limit: int) -> tuple[StoredEvent, ...]:
        """Return at most `limit` events after the revision `after`; see ports.Store."""
        visible = self._visible(conversation_id)
        bounds = {"id": visible, "next": after + 1, "limit": limit}

        def body(connection: Connection) -> tuple[StoredEvent, ...]:
            found = events_after(connection.execute(self._queries.events, bounds), conversation_id, after, limit)
            if not found:
                begins = beginning(connection, visible, self._queries)
                refuse_before(begins.revision, conversation_id, after)
            return found

        return self._read(body)

    def stopped_runs(
        self,
        conversation_id: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int,
        descending: bool = False,
    ) -> tuple[StoppedRun, ...]:
        """Return at most `limit` runs that ended at revisions between `after` and `before`, exclusive; see ports.Store.

        Each result says how the run ended.
        """
        query = _between(self._queries.runs, "revision", before, descending=descending)
        return self._page(run_of, query, (self._visible(conversation_id), after, limit))

    def stopped_run(self, conversation_id: str, run: str) -> StoppedRun | None:
        """Return how a run ended; None if it has not ended; see ports.Store."""
        query = f"{self._queries.runs} AND run = ? ORDER BY revision DESC LIMIT 1"  # usually the run is a recent one

        def body(connection: Connection) -> StoppedRun | None:
            row = connection.execute(query, (self._visible(conversation_id), run)).fetchone()
            return None if row is None else run_of(row)

        return self._read(body)

    def settled_inputs(
        self,
        conversation_id: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int,
        descending: bool = False,
    ) -> tuple[SettledInput, ...]:
        """Return what became of queued messages, such as delivered or discarded; see ports.Store.

        At most `limit` results are returned; their revisions are between `after` and `before`, exclusive.
        """
        query = _between(self._queries.fates, "revision", before, descending=descending)
        return self._page(fate_of, query, (self._visible(conversation_id), after, limit))

    def _page(
        self, convert: Callable[[rows.Row], Found], query: str, values: tuple[str, int, int]
    ) -> tuple[Found, ...]:
        return self._read(lambda connection: tuple(map(convert, connection.execute(query, values))))

    def snapshot(self, conversation_id: str, recent_messages: int) -> Snapshot | None:
        """Return a conversation's record and latest messages at one moment; None if it is unknown; see ports.Store."""
        conversation_id = self._visible(conversation_id)
        query = f"{self._queries.messages} ORDER BY sequence_id DESC LIMIT ?"

        def body(connection: Connection) -> Snapshot | None:
            record = self._load(connection, conversation_id)
            if record is None:
                return None
            latest = connection.execute(query, (conversation_id, recent_messages)).fetchall()
            return Snapshot(record, tuple(rows.message_of(row) for row in reversed(latest)))

        return self._read(body, at_one_moment=True)

    def transitions(self, conversation_id: str, *, after_step: int, limit: int) -> tuple[StoredTransition, ...]:
        """Return at most `limit` rows of the event log after the step `after_step`; see ports.Store."""
        values = self._visible(conversation_id), after_step, limit
        return self._page(lambda row: stored_transition(LogRow(*row)), self._queries.logged, values)

    def verify(self, conversation_id: str) -> tuple[str, ...]:
        """Verify the stored rows of a conversation, and return a sentence for each violation; see ports.Store."""

        def body(connection: Connection) -> tuple[str, ...]:
            return check(connection, self._visible(conversation_id), self._dialect, self._queries)

        try:
            return self._read(body, at_one_moment=True, texts="replace")
        except StoreDamagedError:
            _log.exception("it cannot be verified", extra={"conversation": conversation_id})
            return ("the database file is damaged, so that not everything of the conversation can be read",)

    def _to_prune(
        self, conversation_id: str, before_revision: int, older_than: int | None
    ) -> tuple[LogPlace, Sequence[LogRow]]:
        """Return the position where the event log begins, and the rows to prune in the next batch.

        Raises StoreError.
        """

        def body(connection: Connection) -> tuple[LogPlace, Sequence[LogRow]]:
            visible = self._visible(conversation_id)
            begins = beginning(connection, visible, self._queries)
            last = connection.execute(queries.LAST_REVISION, (visible,)).fetchone()
            bounds = Bounds(min(before_revision, last[0] if last else 0), older_than)
            log = connection.execute(self._queries.logged, (visible, begins.step, pruning.ROWS + 1))
            return begins, prunable(begins, map(LogRow._make, log), bounds)

        return self._read(body, at_one_moment=True)

    # --- commands and attachments -----------------------------------------------------------------------------

    def command(self, conversation_id: str, request_id: str) -> CommandRecord | None:
        """Return an accepted command of a conversation; None if it has no command `request_id`; see ports.Store."""
        return self._command(self._queries.command, self._visible(conversation_id), request_id)

    def create_command(self, principal: str, request_id: str) -> CommandRecord | None:
        """Return an accepted create command of a principal; None if it has no command `request_id`; see ports.Store."""
        return self._command(queries.CREATE_COMMAND, principal, request_id)

    def _command(self, query: str, whose: str, request_id: str) -> CommandRecord | None:
        row = self._read(lambda connection: connection.execute(query, (whose, request_id)).fetchone())
        return None if row is None else CommandRecord(row[0], row[1], row[2].encode(), row[3])

    def attachment(self, conversation_id: str, attachment_id: str) -> Attachment | None:
        """Return an attachment of a conversation; None if there is none with this id; see ports.Store."""
        values = self._visible(conversation_id), attachment_id
        row = self._read(lambda connection: connection.execute(self._queries.attachment, values).fetchone())
        return None if row is None else Attachment(*row)

    def spendings(self, since: int) -> tuple[Spending, ...]:
        """Return what each principal spent on each day, from the day `since` (days since 1970) on; see ports.Store."""
        return self._read(
            lambda connection: tuple(Spending(*row) for row in connection.execute(queries.SPENDINGS, (since,)))
        )

    def audit(self, wanted: AuditFilter, *, after: AuditPlace | None = None, limit: int) -> tuple[AuditEntry, ...]:
        """Return at most `limit` matching entries of the audit trail after the position `after`; see ports.Store."""
        logged = audit_rows.logged_query(wanted, after, queries.LOG_NOT_DELETED, self._dialect.audited)
        unlogged, values = audit_rows.unlogged_query(wanted, after)

        def body(connection: Connection) -> list[AuditEntry]:
            entries: list[AuditEntry] = []
            if logged is not None:
                rows_of_logs = connection.execute(logged[0], {**logged[1], "limit": limit})
                entries += (audit_rows.logged_entry(*row) for row in rows_of_logs)
            others = connection.execute(unlogged, {**values, "limit": limit})
            entries += (audit_rows.entry_of(number, tuple(row)) for number, *row in others)
            return entries

        return tuple(sorted(self._read(body, at_one_moment=True), key=lambda entry: entry.place)[:limit])

    def _load(self, connection: Connection, conversation_id: str) -> ConversationRecord | None:
        row = connection.execute(self._queries.load, (conversation_id,)).fetchone()
        return None if row is None else self._record(connection, row)

    def _record(self, connection: Connection, row: rows.Row) -> ConversationRecord:
        """Return the record in a row.

        If the stored state is unreadable, log an error and use an Idle state rebuilt from messages and sub-agents.
        """
        record, intact = rows.record_of(row)
        if intact:
            return record
        _log.error("its state cannot be read; it is taken to be idle", extra={"conversation": record.id})
        found = connection.execute(queries.USAGES, (record.id,)).fetchall()
        children = connection.execute(queries.ALL_CHILDREN, (record.id,))
        numbers = [int(digits.group()) for (child,) in children if (digits := re.search(r"\d+$", child))]
        last = found[-1][0] if found else 0
        state = rows.rebuilt_state(record.step, last, [usage for _, usage in found], max(numbers, default=0))
        return msgspec.structs.replace(record, state=state)


def _between(select: str, column: str, before: int | None, *, descending: bool) -> str:
    """Return the query `select` for one page: the rows whose `column` is between two bounds, ordered by `column`.

    The upper bound `before` (exclusive; None for no bound) is written into the query. The query has three parameters:
    the conversation's id, the lower bound (exclusive) of `column`, and the limit.
    """
    order = "DESC" if descending else "ASC"
    bound = "" if before is None else f"AND {column} < {before:d}"
    return f"{select} AND {column} > ? {bound} ORDER BY {column} {order} LIMIT ?"
