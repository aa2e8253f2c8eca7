"""The reading methods that the stores on SQLite and PostgreSQL share: they run queries and convert rows to objects."""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from queue import LifoQueue
from typing import Any, Generic, TypeVar

import msgspec
from peewee import fn

from actors import ports
from actors.adapters.store import listing, removal, rows
from actors.adapters.store.integrity import check
from actors.adapters.store.models import (
    IS_UNSETTLED,
    Attachments,
    Commands,
    Fates,
    Log,
    Messages,
    Profiles,
    Records,
    Runs,
    Spendings,
    fields,
)
from actors.adapters.store.query import ALL, MINE, Param, Session, Statement, of_conversation, undeleted
from actors.core.content import Message
from actors.ports.records import AuditEntry, AuditFilter, AuditPlace
from actors.ports.store import Listed, ListPosition, Selection

_log = logging.getLogger(__name__)
Found = TypeVar("Found")
SessionT = TypeVar("SessionT", bound=Session)

READERS = 16  # maximum number of connections in use; further reads wait until one is free

_ID = Param("id")
_KNOWN = (Records.id == _ID) & undeleted(Records.id)


def _pages(model: Any, column: Any) -> tuple[Statement, Statement]:
    """Queries for a page of rows between two values of a column, in ascending and in descending order."""
    page = of_conversation(model).where(column > Param("after"), column < Param("before")).limit(Param("limit"))
    return Statement(page.order_by(column)), Statement(page.order_by(column.desc()))


_LOAD = Statement(listing.RECORDS.where(_KNOWN))
_PRINCIPAL = Statement(Records.select(Records.principal).where(_KNOWN))
_LAST_REVISION = Statement(Records.select(Records.revision).where(_KNOWN))
_OF_SLUG = Statement(
    Records.select(Records.id).where(Records.principal == Param("principal"), Records.slug == Param("slug"))
)
_ALL_CHILDREN = Records.select(Records.id).where(Records.parent_conversation_id == _ID)
_CHILDREN_WITH_DELETED = Statement(_ALL_CHILDREN)
_CHILDREN = Statement(_ALL_CHILDREN.where(undeleted(Records.id)))
_AGED_AND_ARCHIVED = (
    Records.select(Records.id)
    .where(Records.id > Param("after"), undeleted(Records.id))
    .order_by(Records.id)
    .limit(Param("limit"))
)
_FIRST_AT: Any = (
    Log.select(Log.at).where(Log.conversation_id == Records.id).order_by(Log.first_revision, Log.step).limit(1)
)
_AGED = Statement(
    _AGED_AND_ARCHIVED.where(
        Records.created_at < Param("before"), Records.revision > Param("keep"), Param("before") > _FIRST_AT
    )
)
_ARCHIVED = Statement(
    _AGED_AND_ARCHIVED.where(Records.archived_at < Param("before"), Records.parent_conversation_id.is_null())
)
_UNSETTLED = Statement(Records.select(Records.id).where(MINE, IS_UNSETTLED, undeleted(Records.id)))
_MESSAGES = _pages(Messages, Messages.sequence_id)
_MESSAGE = Statement(of_conversation(Messages).where(Messages.id == Param("key")))
_USAGES = Statement(
    Messages.select(Messages.sequence_id, Messages.usage_data)
    .where(Messages.conversation_id == _ID)
    .order_by(Messages.sequence_id)
)
_RUNS, _FATES = _pages(Runs, Runs.revision), _pages(Fates, Fates.revision)
_RUN = Statement(  # latest first, because the wanted run is usually a recent one
    of_conversation(Runs).where(Runs.run == Param("run")).order_by(Runs.revision.desc()).limit(1)
)
_EARLIER = Log.alias()
_EVENTS = Statement(
    Log.select(Log.first_revision, Log.at, Log.notifications)
    .where(
        Log.conversation_id == _ID,
        undeleted(Log.conversation_id),
        Log.count > 0,
        Log.first_revision
        >= fn.coalesce(
            _EARLIER.select(_EARLIER.first_revision)
            .where(_EARLIER.conversation_id == _ID, _EARLIER.first_revision <= Param("next"))
            .order_by(_EARLIER.first_revision.desc())
            .limit(1),
            0,
        ),
    )
    .order_by(Log.first_revision)
    .limit(Param("limit"))
)
_COMMANDS = Commands.select(Commands.request_id, Commands.body_hash, Commands.answer, Commands.at).where(
    Commands.request_id == Param("request")
)
_COMMAND = Statement(_COMMANDS.where(Commands.conversation_id == _ID, undeleted(Commands.conversation_id)))
_CREATE_COMMAND = Statement(_COMMANDS.where(Commands.principal == _ID))
_ATTACHMENT = Statement(
    Attachments.select(*fields(Attachments)[1:6]).where(
        Attachments.conversation_id == _ID,
        Attachments.id == Param("attachment"),
        undeleted(Attachments.conversation_id),
    )
)
_SPENDINGS = Statement(Spendings.select().where(Spendings.day >= Param("since")))
_OF_MINE = Records.select(Records.id).where(Records.principal == Param("principal"), undeleted(Records.id))
_STORED_BYTES = tuple(
    Statement(
        column.model.select(fn.coalesce(fn.sum(fn.octet_length(column)), 0)).where(
            column.model.conversation_id.in_(_OF_MINE)
        )
    )
    for column in (Messages.content, Attachments.data, Profiles.profile)
)


class ReaderPool(ABC, Generic[SessionT]):
    """Lends up to READERS connections.

    The connections do not belong to threads, because each would then stay open after its thread had ended.
    """

    def __init__(self) -> None:
        self._places: LifoQueue[SessionT | None] = LifoQueue()  # None stands for a connection that is not open
        for _ in range(READERS):
            self._places.put(None)
        self._closed = False

    @contextmanager
    def lend(self, texts: str = "strict") -> Generator[SessionT]:
        """Lend a connection for the duration of the `with` block. Raises StoreUnavailableError or StoreDamagedError.

        `texts` names the error handler with which texts in the database are decoded (see `bytes.decode`).
        """
        session = self._places.get()
        try:
            if self._closed:
                raise ports.StoreUnavailableError("the store is closed")
            session = self._usable(session, texts)
            yield session
        except BaseException as error:
            if session is not None and not (isinstance(error, ports.StoreError) and session.recovered()):
                session.close()
                session = None
            explained = self._explained(error)
            if explained is None or explained is error:
                raise
            raise explained from error
        finally:
            self._places.put(session)

    @abstractmethod
    def _usable(self, session: SessionT | None, texts: str) -> SessionT:
        """Return `session` if it is usable. Otherwise open a new one and return that."""

    @abstractmethod
    def _explained(self, error: BaseException) -> ports.StoreError | None:
        """Convert a database error to an exception of the store port; return None for any other error."""

    def close(self) -> None:
        self._closed = True
        for _ in range(READERS):
            if (session := self._places.get()) is not None:
                session.close()
        for _ in range(READERS):
            self._places.put(None)


class StoreReads(ABC):
    """Implements most reading methods of ports.Store. Thread-safe."""

    _snapshot = "BEGIN"  # begins a transaction in which all statements see the same data

    def __init__(self, readers: ReaderPool[Any]) -> None:
        self._readers = readers

    @abstractmethod
    def _database_bytes(self) -> int: ...
    def _read(self, body: Callable[[Session], Found], *, at_one_moment: bool = False, texts: str = "strict") -> Found:
        with self._readers.lend(texts) as session:
            if not at_one_moment:
                return body(session)
            session.run(self._snapshot)
            found = body(session)
            session.run("COMMIT")
            return found

    # --- conversations ----------------------------------------------------------------------------------------

    def load(self, conversation_id: str) -> ports.ConversationRecord | None:
        return self._read(lambda session: self._load(session, conversation_id))

    def owner(self, conversation_id: str) -> str | None:
        return next(iter(self._column(_PRINCIPAL, id=conversation_id)), None)

    def find_slug(self, principal: str, slug: str) -> str | None:
        return next(iter(self._column(_OF_SLUG, principal=principal, slug=slug)), None)

    def list(
        self,
        selection: Selection,
        *,
        after: ListPosition | None = None,
        limit: int,
        skipped: Callable[[str], object] = lambda _conversation_id: None,
    ) -> Listed:

        def body(session: Session) -> Listed:
            until = None
            if (query := listing.window_end(selection, after, limit)) is not None:
                row = session.execute(query).fetchone()
                until = None if row is None else ListPosition(*row)
            found = session.execute(listing.page(selection, after, until, limit)).fetchall()
            more = listing.place_of(found[-1], selection) if len(found) == limit else until
            return Listed(tuple(self._readable(session, found, skipped)), more)

        return self._read(body, texts="surrogateescape")

    def _readable(
        self, session: Session, page: Sequence[rows.Row], skipped: Callable[[str], object]
    ) -> Iterator[ports.ConversationRecord]:
        for row in page:
            try:
                listing.refuse_broken_texts(row)
                yield self._record(session, row)
            except rows.UNREADABLE as error:
                conversation_id = str(row[0]).encode(errors="replace").decode()
                fields = {"conversation": conversation_id, "error": type(error).__name__}
                _log.error("the conversation cannot be read and is omitted", extra=fields)
                skipped(conversation_id)

    def children(self, conversation_id: str) -> tuple[str, ...]:
        return self._column(_CHILDREN, id=conversation_id)

    def prunable(self, *, before: int, keep: int, after: str = "", limit: int) -> tuple[str, ...]:
        return self._column(_AGED, before=before, keep=keep, after=after, limit=limit)

    def archived(self, *, before: int, after: str = "", limit: int) -> tuple[str, ...]:
        return self._column(_ARCHIVED, before=before, after=after, limit=limit)

    def _column(self, statement: Statement, **values: Any) -> tuple[str, ...]:
        return self._all(lambda row: str(row[0]), statement, **values)

    # --- messages and events ----------------------------------------------------------------------------------

    def messages(
        self, conversation_id: str, *, after: int = 0, before: int | None = None, limit: int, descending: bool = False
    ) -> tuple[Message, ...]:
        return self._page(rows.message_of, _MESSAGES[descending], before, id=conversation_id, after=after, limit=limit)

    def message(self, conversation_id: str, message_id: str) -> Message | None:
        key = rows.message_key(conversation_id, message_id)
        return self._one(rows.message_of, _MESSAGE, id=conversation_id, key=key)

    def history(self, conversation_id: str, through: int) -> tuple[Message, ...]:
        return self.messages(conversation_id, before=through + 1, limit=ALL)

    def events(self, conversation_id: str, *, after: int, limit: int) -> tuple[ports.StoredEvent, ...]:

        def body(session: Session) -> tuple[ports.StoredEvent, ...]:
            logged = session.execute(_EVENTS, id=conversation_id, next=after + 1, limit=limit)
            found = tuple(islice(rows.events_of(logged, after), limit))
            begins = found[0].revision - 1 if found else rows.beginning(session, conversation_id).revision
            if after < begins:
                text = f"the events of {conversation_id} are stored only after revision {begins}"
                raise ports.RevisionTooOldError(text, oldest=begins)
            return found

        return self._read(body)

    def stopped_runs(
        self, conversation_id: str, *, after: int = 0, before: int | None = None, limit: int, descending: bool = False
    ) -> tuple[ports.StoppedRun, ...]:
        return self._page(rows.run_of, _RUNS[descending], before, id=conversation_id, after=after, limit=limit)

    def stopped_run(self, conversation_id: str, run: str) -> ports.StoppedRun | None:
        return self._one(rows.run_of, _RUN, id=conversation_id, run=run)

    def settled_inputs(
        self, conversation_id: str, *, after: int = 0, before: int | None = None, limit: int, descending: bool = False
    ) -> tuple[ports.SettledInput, ...]:
        return self._page(rows.fate_of, _FATES[descending], before, id=conversation_id, after=after, limit=limit)

    def _page(
        self, convert: Callable[[rows.Row], Found], page: Statement, before: int | None, **values: Any
    ) -> tuple[Found, ...]:
        return self._all(convert, page, before=ALL if before is None else before, **values)

    def _all(self, convert: Callable[[rows.Row], Found], statement: Statement, **values: Any) -> tuple[Found, ...]:
        return self._read(lambda session: tuple(map(convert, session.execute(statement, **values))))

    def _one(self, convert: Callable[[rows.Row], Found], statement: Statement, **values: Any) -> Found | None:
        def body(session: Session) -> Found | None:
            row = session.execute(statement, **values).fetchone()
            return None if row is None else convert(row)

        return self._read(body)

    def snapshot(self, conversation_id: str, recent_messages: int) -> ports.Snapshot | None:

        def body(session: Session) -> ports.Snapshot | None:
            record = self._load(session, conversation_id)
            if record is None:
                return None
            latest = session.execute(
                _MESSAGES[True], id=conversation_id, after=0, before=ALL, limit=recent_messages
            ).fetchall()
            return ports.Snapshot(record, tuple(rows.message_of(row) for row in reversed(latest)))

        return self._read(body, at_one_moment=True)

    def transitions(self, conversation_id: str, *, after_step: int, limit: int) -> tuple[ports.StoredTransition, ...]:
        return self._all(rows.stored_transition, rows.LOGGED, id=conversation_id, after=after_step, limit=limit)

    def verify(self, conversation_id: str) -> tuple[str, ...]:
        try:
            return self._read(lambda session: check(session, conversation_id), at_one_moment=True, texts="replace")
        except ports.StoreDamagedError:
            _log.exception("the conversation cannot be verified", extra={"conversation": conversation_id})
            return ("the database file is damaged: parts of the conversation cannot be read",)

    def _to_prune(
        self, conversation_id: str, before_revision: int, older_than: int | None
    ) -> tuple[rows.LogPosition, Sequence[rows.LogRow]]:
        """The position at which the event log begins, and the rows to prune in the next batch. Raises StoreError."""

        def body(session: Session) -> tuple[rows.LogPosition, Sequence[rows.LogRow]]:
            begins = rows.beginning(session, conversation_id)
            last = session.execute(_LAST_REVISION, id=conversation_id).fetchone()
            before = min(before_revision, last[0] if last else 0)
            log = session.execute(rows.LOGGED, id=conversation_id, after=begins.step, limit=removal.PRUNED_ROWS + 1)
            return begins, removal.prunable(begins, map(rows.LogRow._make, log), before, older_than)

        return self._read(body, at_one_moment=True)

    # --- commands and attachments -----------------------------------------------------------------------------

    def command(self, conversation_id: str, request_id: str) -> ports.CommandRecord | None:
        return self._one(rows.command_of, _COMMAND, id=conversation_id, request=request_id)

    def create_command(self, principal: str, request_id: str) -> ports.CommandRecord | None:
        return self._one(rows.command_of, _CREATE_COMMAND, id=principal, request=request_id)

    def attachment(self, conversation_id: str, attachment_id: str) -> ports.Attachment | None:
        return self._one(rows.attachment_of, _ATTACHMENT, id=conversation_id, attachment=attachment_id)

    def spendings(self, since: int) -> tuple[ports.Spending, ...]:
        return self._all(lambda row: ports.Spending(*row), _SPENDINGS, since=since)

    def unsettled(self) -> tuple[str, ...]:
        return self._column(_UNSETTLED)

    def stored_bytes(self, principal: str) -> int:
        if not principal:
            return self._database_bytes()
        return self._read(
            lambda session: sum(int(session.execute(each, principal=principal).fetchone()[0]) for each in _STORED_BYTES)
        )

    def audit(self, wanted: AuditFilter, *, after: AuditPlace | None = None, limit: int) -> tuple[AuditEntry, ...]:
        logged = listing.logged_query(wanted, after, limit)
        unlogged = listing.unlogged_query(wanted, after, limit)

        def body(session: Session) -> list[AuditEntry]:
            entries = [rows.logged_entry(*row) for row in session.execute(logged)] if logged else []
            return [*entries, *map(rows.entry_of, session.execute(unlogged))]

        return tuple(
            sorted(self._read(body, at_one_moment=True, texts="replace"), key=lambda entry: entry.place)[:limit]
        )

    def _load(self, session: Session, conversation_id: str) -> ports.ConversationRecord | None:
        row = session.execute(_LOAD, id=conversation_id).fetchone()
        return None if row is None else self._record(session, row)

    def _record(self, session: Session, row: rows.Row) -> ports.ConversationRecord:
        """Convert a row. An unreadable state is replaced by an Idle state rebuilt from messages and sub-agents."""
        record, intact = rows.record_of(row)
        if intact:
            return record
        _log.error("the conversation's state cannot be read; assuming it is idle", extra={"conversation": record.id})
        found = session.execute(_USAGES, id=record.id).fetchall()
        children = session.execute(_CHILDREN_WITH_DELETED, id=record.id)
        numbers = [int(digits.group()) for (child,) in children if (digits := re.search(r"\d+$", child))]
        last = found[-1][0] if found else 0
        state = rows.rebuilt_state(record.step, last, [usage for _, usage in found], max(numbers, default=0))
        return msgspec.structs.replace(record, state=state)
