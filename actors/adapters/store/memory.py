"""An in-memory store with the same guarantees as the database stores except durability, for tests."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec.structs import replace

from actors.adapters.store.audit import logged_entry
from actors.adapters.store.integrity import rows_of, violations
from actors.adapters.store.kept_conversation import KeptConversation, changed_by, created_by
from actors.adapters.store.kept_owners import KeptOwners, family_of, top_of
from actors.adapters.store.log_rows import (
    Bounds,
    check_shape,
    events_after,
    place_after,
    prunable,
    refuse_before,
    stored_transition,
)
from actors.core.profile import Profile
from actors.core.states import TERMINAL, Idle
from actors.ports import (
    Attachment,
    CommandExistsError,
    CommandRecord,
    Commit,
    ConversationRecord,
    FaultPoints,
    FencedError,
    NoFaultPoints,
    Owner,
    SettledInput,
    Snapshot,
    Spending,
    StoppedRun,
    StoredEvent,
    StoredTransition,
    StoreUnavailableError,
)
from actors.ports.store.conditions import Listed, place_of, selects

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from actors.core.content import Message
    from actors.ports.store.audit import AuditEntry, AuditFilter, AuditPlace
    from actors.ports.store.conditions import ListPosition, Selection


class StoredData:
    """The data of a MemoryStore; several MemoryStores share it if they act for several servers of a cluster."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # only one thread commits at a time, as in the database stores
        self.kept: dict[str, KeptConversation] = {}
        self.created: dict[tuple[str, str], CommandRecord] = {}
        self.spent: dict[tuple[str, int], Spending] = {}
        self.audit: tuple[AuditEntry, ...] = ()
        """The audit entries that are in no event log, oldest first."""
        self.owners = KeptOwners()


class MemoryStore:
    """Implements ports.Store in dictionaries under a lock. Safe to call from any thread.

    A new MemoryStore acts for the only server of its data; `node` returns one that acts for one of several servers.
    """

    def __init__(self, faults: FaultPoints | None = None) -> None:
        self._faults = faults or NoFaultPoints()
        self._data = StoredData()
        self._me: Owner | None = None
        self._closed = False

    def node(self, owner: Owner, faults: FaultPoints | None = None) -> MemoryStore:
        """Return a store with the same data that acts for the server `owner`.

        The caller closes that store separately.
        """
        view = MemoryStore(faults)
        view._data, view._me = self._data, owner
        return view

    def kill(self, incarnation: int) -> None:
        """Declare a server dead by its number: it can no longer write, and others can take over its conversations."""
        with self._data.lock:
            self._data.owners.kill(incarnation)

    def release(self, incarnation: int) -> None:
        """Remove a server as the owner of all its conversations, as a server does before it leaves the cluster."""
        with self._data.lock:
            self._data.owners.release(incarnation)

    # --- writing ----------------------------------------------------------------------------------------------

    def commit(self, *parts: Commit, urgent: bool = False) -> None:
        """Write the commits atomically; see ports.Store."""
        for part in parts:
            check_shape(part)
        with self._writing() as data:
            kept, created, spent = dict(data.kept), dict(data.created), dict(data.spent)
            owners = data.owners.copy()
            for part in parts:
                family = family_of(kept, part)
                if family in kept and not (part.create and family == part.record.id):
                    owners.check(self._me, family)
                before = created_by(kept, part) if part.create else changed_by(kept, part)
                kept[part.record.id] = before.after(part)
                owners.take(self._me, family)
                if part.command is not None and part.create_command:
                    key = (part.record.principal, part.command.request_id)
                    if key in created:
                        raise CommandExistsError(f"{key[1]} of {key[0]} is there already")
                    created[key] = part.command
                if part.spending is not None:
                    _add(spent, part.spending)
            self._hit("store.before_commit")
            data.kept, data.created, data.spent, data.owners = kept, created, spent, owners

    def put_spending(self, spending: Spending) -> None:
        """Add tokens and costs to what a principal spent on a day; see ports.Store."""
        with self._writing() as data:
            self._hit("store.before_commit")
            _add(data.spent, spending)

    def delete(self, conversation_id: str, audit: AuditEntry | None = None) -> None:
        """Delete the conversation and its sub-agents; see ports.Store."""
        with self._writing() as data:
            self._check_owned(conversation_id)
            deleted = {conversation_id}
            while (
                found := {id_ for id_, kept in data.kept.items() if kept.record.parent_conversation_id in deleted}
                - deleted
            ):
                deleted |= found
            self._hit("store.before_commit")
            if audit is not None and conversation_id in data.kept:
                _add_audit(data, (audit,))
            data.kept = {id_: kept for id_, kept in data.kept.items() if id_ not in deleted}
            data.owners.forget(conversation_id)

    def prune_log(self, conversation_id: str, before_revision: int, *, older_than: int | None = None) -> int:
        """Delete one batch of old rows of an event log and return their number; see ports.Store."""
        with self._writing() as data:
            self._check_owned(conversation_id, or_nobody=True)
            kept = data.kept.get(conversation_id)
            self._hit("store.before_commit")
            if kept is None:
                return 0
            bounds = Bounds(min(before_revision, kept.record.last_seq), older_than)
            going = prunable(kept.begins, kept.log, bounds)
            if going:
                rest = kept.log[len(going) :]
                data.kept[conversation_id] = kept._replace(log=rest, begins=place_after(going[-1]))
            return len(going)

    def compact(self, max_bytes: int, *, spare_bytes: int) -> bool:
        """Do nothing and return False, because no file occupies disk space; see ports.Store."""
        return False

    def put_attachment(self, conversation_id: str, attachment: Attachment) -> None:
        """Store an attachment, unless one with the same id exists; see ports.Store."""
        with self._writing() as data:
            kept = data.kept.get(conversation_id)
            if kept is None:
                raise FencedError(f"{conversation_id} does not exist")
            self._check_owned(conversation_id)
            self._hit("store.before_commit")
            attachments = {attachment.id: attachment, **kept.attachments}
            data.kept[conversation_id] = kept._replace(attachments=attachments)

    def put_audit(self, entries: Sequence[AuditEntry]) -> None:
        """Store audit entries that are in no event log; see ports.Store."""
        with self._writing() as data:
            self._hit("store.before_commit")
            _add_audit(data, entries)

    def prune_audit(self, *, before: int, keep: int) -> int:
        """Delete the oldest audit entries that are in no event log; return how many; see ports.Store."""
        with self._writing() as data:
            self._hit("store.before_commit")
            oldest = data.audit[-1].number - keep if data.audit else 0
            kept = tuple(entry for entry in data.audit if entry.at >= before and entry.number > oldest)
            pruned, data.audit = len(data.audit) - len(kept), kept
            return pruned

    def audit(self, wanted: AuditFilter, *, after: AuditPlace | None = None, limit: int) -> tuple[AuditEntry, ...]:
        """Return at most `limit` matching entries of the audit trail after the position `after`; see ports.Store."""
        with self._data.lock:
            self._check_open()
            conversations, unlogged = self._data.kept.values(), self._data.audit
        logged = (
            logged_entry(row.at, row.conversation_id, row.step, row.audit)
            for kept in conversations
            for row in kept.log
            if row.audit
        )
        found = [
            entry for entry in (*logged, *unlogged) if wanted.admits(entry) and (after is None or entry.place > after)
        ]
        return tuple(sorted(found, key=lambda entry: entry.place)[:limit])

    @property
    def engine_version(self) -> str:
        """Always "", because there is no database engine; see ports.Store."""
        return ""

    # --- conversations ----------------------------------------------------------------------------------------

    def load(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation; None if there is no such conversation; see ports.Store."""
        kept = self._read().get(conversation_id)
        return None if kept is None else kept.record

    def owner(self, conversation_id: str) -> str | None:
        """Return the principal that a conversation belongs to; None if the conversation is unknown; see ports.Store."""
        kept = self._read().get(conversation_id)
        return None if kept is None else kept.record.principal

    def find_slug(self, principal: str, slug: str) -> str | None:
        """Return the id of the principal's conversation with this slug; None if there is none; see ports.Store."""
        records = (kept.record for kept in self._read().values())
        return next((each.id for each in records if slug and (each.principal, each.slug) == (principal, slug)), None)

    def list(
        self,
        selection: Selection,
        *,
        after: ListPosition | None = None,
        limit: int,
        skipped: Callable[[str], object] = lambda _conversation_id: None,
    ) -> Listed:
        """Return at most `limit` selected conversations after the position `after`; see ports.Store."""
        order = selection.order

        def key(record: ConversationRecord) -> tuple[int | str, str]:
            place = place_of(record, order)
            return place.key, place.id

        records = sorted(
            (kept.record for kept in self._read().values() if selects(selection, kept.record)),
            key=key,
            reverse=order.descending,
        )
        if after is not None:
            start = (after.key, after.id)
            records = [each for each in records if (key(each) < start if order.descending else key(each) > start)]
        page = tuple(records[:limit])
        return Listed(page, place_of(page[-1], order) if len(records) > limit else None)

    def children(self, conversation_id: str) -> tuple[str, ...]:
        """Return the ids of a conversation's sub-agents; see ports.Store."""
        kept = self._read()
        return tuple(id_ for id_ in kept if kept[id_].record.parent_conversation_id == conversation_id)

    def claim(
        self, conversation_id: str, taken: Callable[[tuple[str, ...]], object] = lambda _: None
    ) -> ConversationRecord | None:
        """Make this server the owner of a conversation and its sub-agents, and return its record; see ports.Store."""
        if self._me is None:
            return self.load(conversation_id)
        with self._data.lock:
            self._check_open()
            kept, owners = self._data.kept, self._data.owners
            if conversation_id not in kept:
                return None
            family = top_of(kept, conversation_id)
            changed = not owners.owns(self._me, family)
            owners.take(self._me, family)
            record = kept[conversation_id].record
            members = tuple(each.record for id_, each in kept.items() if changed and top_of(kept, id_) == family)
        if left := _unsettled(members):
            taken(left)
        return record

    def unsettled(self) -> tuple[str, ...]:
        """Return the ids of this server's conversations that must be recovered on start; see ports.Store."""
        with self._data.lock:
            self._check_open()
            kept, owners = self._data.kept, self._data.owners
            mine = [each.record for id_, each in kept.items() if owners.owns(self._me, top_of(kept, id_))]
        return _unsettled(mine)

    def prunable(self, *, before: int, keep: int, after: str = "", limit: int) -> tuple[str, ...]:
        """Return the ids of at most `limit` conversations whose event log has rows to prune; see ports.Store."""
        found = (id_ for id_, kept in sorted(self._read().items()) if id_ > after and kept.aged(before, keep))
        return tuple(islice(found, limit))

    def archived(self, *, before: int, after: str = "", limit: int) -> tuple[str, ...]:
        """Return the ids of at most `limit` conversations archived before the time `before`; see ports.Store."""
        found = (id_ for id_, kept in sorted(self._read().items()) if id_ > after and kept.archived(before))
        return tuple(islice(found, limit))

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
        kept = self._read().get(conversation_id)
        found = [
            message
            for message in (kept.messages if kept else ())
            if message.sequence > after and (before is None or message.sequence < before)
        ]
        return tuple(found[::-1][:limit] if descending else found[:limit])

    def message(self, conversation_id: str, message_id: str) -> Message | None:
        """Return the message with this id; None if the conversation has none; see ports.Store."""
        kept = self._read().get(conversation_id)
        return next((message for message in (kept.messages if kept else ()) if message.id == message_id), None)

    def history(self, conversation_id: str, through: int) -> tuple[Message, ...]:
        """Return all messages up to the sequence number `through`, inclusive; see ports.Store."""
        return self.messages(conversation_id, before=through + 1, limit=through)

    def events(self, conversation_id: str, *, after: int, limit: int) -> tuple[StoredEvent, ...]:
        """Return at most `limit` events after the revision `after`; see ports.Store."""
        kept = self._read().get(conversation_id)
        rows = ((row.first_revision, row.at, row.notifications) for row in (kept.log if kept else ()))
        found = events_after(rows, conversation_id, after, limit)
        if kept is not None and not found:
            refuse_before(kept.begins.revision, conversation_id, after)
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
        """Return at most `limit` records of how runs ended; see ports.Store.

        Their revisions are between `after` and `before`, exclusive.
        """
        kept = self._read().get(conversation_id)
        return _page(kept.runs if kept else (), after, before, limit, descending=descending)

    def stopped_run(self, conversation_id: str, run: str) -> StoppedRun | None:
        """Return how a run ended; None if it has not ended; see ports.Store."""
        kept = self._read().get(conversation_id)
        return next((ended for ended in reversed(kept.runs if kept else ()) if ended.stop.run == run), None)

    def settled_inputs(
        self,
        conversation_id: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int,
        descending: bool = False,
    ) -> tuple[SettledInput, ...]:
        """Return at most `limit` records of what became of queued messages, such as delivered; see ports.Store.

        Their revisions are between `after` and `before`, exclusive.
        """
        kept = self._read().get(conversation_id)
        return _page(kept.fates if kept else (), after, before, limit, descending=descending)

    def snapshot(self, conversation_id: str, recent_messages: int) -> Snapshot | None:
        """Return a conversation's record and latest messages at one moment; None if it is unknown; see ports.Store."""
        kept = self._read().get(conversation_id)
        if kept is None:
            return None
        return Snapshot(kept.record, kept.messages[max(0, len(kept.messages) - recent_messages) :])

    def transitions(self, conversation_id: str, *, after_step: int, limit: int) -> tuple[StoredTransition, ...]:
        """Return at most `limit` rows of the event log after the step `after_step`; see ports.Store."""
        kept = self._read().get(conversation_id)
        found = [row for row in (kept.log if kept else ()) if row.step > after_step]
        return tuple(stored_transition(row) for row in found[:limit])

    def verify(self, conversation_id: str) -> tuple[str, ...]:
        """Verify a conversation as if a database had stored it; return a sentence per violation; see ports.Store."""
        kept = self._read().get(conversation_id)
        if kept is None:
            return ()
        stored = rows_of(kept.record, kept.messages, begins=kept.begins, log=kept.log, runs=kept.runs, fates=kept.fates)
        return tuple(violations(stored))

    # --- commands and attachments -----------------------------------------------------------------------------

    def command(self, conversation_id: str, request_id: str) -> CommandRecord | None:
        """Return an accepted command of a conversation; None if it has no command `request_id`; see ports.Store."""
        kept = self._read().get(conversation_id)
        return None if kept is None else kept.commands.get(request_id)

    def create_command(self, principal: str, request_id: str) -> CommandRecord | None:
        """Return an accepted create command of a principal; None if it has no command `request_id`; see ports.Store."""
        with self._data.lock:
            self._check_open()
            return self._data.created.get((principal, request_id))

    def attachment(self, conversation_id: str, attachment_id: str) -> Attachment | None:
        """Return an attachment; None if there is none; see ports.Store."""
        kept = self._read().get(conversation_id)
        return None if kept is None else kept.attachments.get(attachment_id)

    def spendings(self, since: int) -> tuple[Spending, ...]:
        """Return what each principal spent on each day, from the day `since` (days since 1970) on; see ports.Store."""
        with self._data.lock:
            self._check_open()
            return tuple(each for each in self._data.spent.values() if each.day >= since)

    def stored_bytes(self, principal: str) -> int:
        """Return the bytes that a principal has stored; for "", those of all principals; see ports.Store."""
        return sum(
            sum(len(msgspec.json.encode(message.content)) for message in kept.messages)
            + sum(len(attachment.data) for attachment in kept.attachments.values())
            + (0 if kept.record.profile == Profile() else len(msgspec.json.encode(kept.record.profile)))
            for kept in self._read().values()
            if principal in ("", kept.record.principal)
        )

    # --- lifetime ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Refuse all further calls with StoreUnavailableError; idempotent; see ports.Store."""
        with self._data.lock:
            self._closed = True

    @contextmanager
    def _writing(self) -> Generator[StoredData]:
        """Hold the lock during a change. Tests can inject errors here, at the same points as in the SQLite store."""
        with self._data.lock:
            self._check_open()
            self._hit("store.before_begin")
            self._hit("store.before_savepoint")
            yield self._data
            self._hit("store.after_commit")

    def _check_owned(self, conversation_id: str, *, or_nobody: bool = False) -> None:
        """Raise NotOwnerError unless this server owns the conversation; do nothing if there is no such conversation."""
        if conversation_id in self._data.kept:
            self._data.owners.check(self._me, top_of(self._data.kept, conversation_id), or_nobody=or_nobody)

    def _hit(self, point: str) -> None:
        try:
            self._faults.hit(point)
        except Exception as error:
            raise StoreUnavailableError(f"nothing was written: {error}") from error

    def _read(self) -> dict[str, KeptConversation]:
        """Return a copy of the dictionary of all conversations, which later commits do not change."""
        with self._data.lock:
            self._check_open()
            return self._data.kept.copy()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailableError("the store is closed")


Ended = TypeVar("Ended", StoppedRun, SettledInput)


def _unsettled(records: Iterable[ConversationRecord]) -> tuple[str, ...]:
    """Return the ids of the conversations that a restarted server must recover."""
    return tuple(
        record.id
        for record in records
        if not isinstance(record.state, TERMINAL) and not (isinstance(record.state, Idle) and record.user_initiated)
    )


def _add_audit(data: StoredData, entries: Sequence[AuditEntry]) -> None:
    first = data.audit[-1].number + 1 if data.audit else 1
    data.audit += tuple(replace(entry, number=number) for number, entry in enumerate(entries, first))


def _add(spent: dict[tuple[str, int], Spending], more: Spending) -> None:
    key = more.principal, more.day
    before = spent.get(key, Spending(*key, 0, 0))
    spent[key] = Spending(*key, before.tokens + more.tokens, before.cost_micros + more.cost_micros)


def _page(
    ended: tuple[Ended, ...], after: int, before: int | None, limit: int, *, descending: bool
) -> tuple[Ended, ...]:
    found = [each for each in ended if each.revision > after and (before is None or each.revision < before)]
    return tuple(found[::-1][:limit] if descending else found[:limit])
