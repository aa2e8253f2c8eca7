"""Converts what the store keeps to rows of the database, and back.

A row has the columns of its model, in order. Values without a column are encoded as JSON by msgspec.

The rows of the event log (one for each transition) form a hash chain: a row's hash is SHA-256 over the row's content
followed by the hash of the previous row. The caller's thread hashes the content in advance. Only the thread that writes
to the database knows the previous row, but it has only the 64 bytes of that row's hash left to add.

The tables `runs` (every run that has ended) and `fates` (every message to a busy agent that has left the queue) are
kept when the log is pruned. Together with the messages, they contain everything that clients need from a pruned log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from msgspec import DecodeError, Struct, convert, json
from msgspec.structs import asdict

from actors.adapters.store import models
from actors.adapters.store.models import Log, Prunings
from actors.adapters.store.query import Param, Session, Statement, of_conversation
from actors.core.content import LATEST_MS, Content, Message, MessageType, SystemKind, Usage
from actors.core.context import ApprovalRule, Budget, Profile
from actors.core.notifications import Durable, Fate, MessageAdded, QueueChanged, RunStop, StopReason
from actors.core.states import NAMES, STATE_VERSION, Idle, Ledger, QueuedInput, State
from actors.ports import (
    Attachment,
    CommandRecord,
    Commit,
    ConversationRecord,
    LogEntry,
    SettledInput,
    StoppedRun,
    StoredEvent,
    StoredTransition,
)
from actors.ports.records import AuditEntry, CommandOrigin, LogAudit, Outcome

RECORD, MESSAGE = models.columns(models.Records), models.columns(models.Messages)
# The columns that never change, and those that each commit writes in addition to `log_hash`.
FIXED, CHANGING = RECORD[: RECORD.index("state")], RECORD[RECORD.index("state") : RECORD.index("slug")]

_NUMBERS = ("created_at", "state_updated_at", "updated_at", "epoch", "step", "revision")

_ACTOR_KINDS = {MessageType.USER: "human", MessageType.AGENT: "llm_agent"}  # all other types are "system"
_TYPES = {kind.value: kind for kind in MessageType}

Row = tuple[Any, ...]

# The exceptions that the functions below raise for a damaged row. In SQLite, any column of such a row may have a value
# of any type.
UNREADABLE = (DecodeError, TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError)


class StoredState(Struct, frozen=True):
    """The content of the `state_data` column, as JSON."""

    version: int
    state: State


class Display(Struct, frozen=True, omit_defaults=True):
    """The content of the `display_data` column, as JSON: a message's run, and how clients display the message."""

    run: str = ""
    delivery: str = ""
    kind: SystemKind = SystemKind.NONE
    meta: bool = False
    error_kind: str = ""


_encode = json.Encoder().encode
_STATE = json.Decoder(StoredState)
# msgspec inspects a type on its first use. These decoders make it do so here, because the process would crash if two
# threads first used a type at the same time.
_INSPECTED = json.Decoder(Attachment), json.Decoder(ConversationRecord)
# The columns of a conversation that contain JSON, except for its state.
_JSON: dict[str, json.Decoder[Any]] = {
    "labels": json.Decoder(dict[str, str]),
    "approval_rules": json.Decoder(tuple[ApprovalRule, ...]),
    "budget": json.Decoder(Budget),
    "profile": json.Decoder(Profile),
}
_CONTENT = json.Decoder(tuple[Content, ...])
_DISPLAY = json.Decoder(Display)
_USAGE = json.Decoder(Usage)


def digest_of(values: Sequence[object]) -> str:
    """The digest of a row's other values, to detect changes: SHA-256 of a JSON array (bytes in base64, NULL as "")."""
    return hashlib.sha256(_encode(["" if value is None else value for value in values])).hexdigest()


def is_as_written(row: Row) -> bool:
    """Whether the last value of a row is the digest of its other values, as it was when the row was written."""
    digest: str = row[-1]
    return digest_of(row[:-1]) == digest


def refuse_non_numbers(*values: object) -> None:
    """Raise ValueError unless all are integers from 0 to LATEST_MS, because SQLite stores any type in any column."""
    for value in values:
        if type(value) is not int or not 0 <= value <= LATEST_MS:
            raise ValueError("a value must be a number")


def refuse_non_texts(*values: object) -> None:
    """Raise ValueError unless all are strings."""
    if not all(isinstance(value, str) for value in values):
        raise ValueError("a value must be a string")


def fixed_values(record: ConversationRecord) -> Row:
    return (
        record.id, record.cwd, record.parent_conversation_id, int(record.user_initiated), record.created_at,
        record.continued_from, record.workspace_label, record.principal,
    )  # fmt: skip


def changing_values(record: ConversationRecord) -> Row:
    values = (
        NAMES[type(record.state)], _encode(StoredState(STATE_VERSION, record.state)).decode(), record.state_updated_at,
        record.updated_at, int(record.archived_at is not None), record.archived_at, str(record.mode),
        record.model, record.title, _encode(record.labels).decode(), str(record.approval_policy),
        _encode(record.approval_rules).decode(), str(record.follow_up_policy), _encode(record.budget).decode(),
        record.continued_by, record.node, record.epoch, record.step, record.revision,
    )  # fmt: skip
    return (*values, digest_of((*fixed_values(record), *values, record.slug)))


def state_of(state_data: bytes | None) -> State | None:
    """Decode a conversation's stored state; return None if it is missing, damaged, or from another version."""
    try:
        stored = _STATE.decode(state_data or b"")
    except UNREADABLE:
        return None
    return stored.state if stored.version == STATE_VERSION else None


def record_of(row: Row) -> tuple[ConversationRecord, bool]:
    """Convert a row with the columns RECORD, prompt and profile; return the record and whether its state was readable.

    An unreadable state becomes Idle. Raises msgspec.DecodeError or ValueError if another column is damaged.
    """
    values: dict[str, Any] = dict(zip((*RECORD, "system_prompt", "profile"), row, strict=True))
    refuse_non_numbers(values["archived_at"] or 0, *(values[name] for name in _NUMBERS))
    state = state_of(values["state_data"])
    values |= {name: decoder.decode("{}" if values[name] is None else values[name]) for name, decoder in _JSON.items()}
    values |= {name: values[name] or "" for name in ("slug", "system_prompt")}
    values |= {"state": state or Idle(), "user_initiated": bool(values["user_initiated"])}
    return convert(values, ConversationRecord), state is not None


def rebuilt_state(step: int, last_sequence: int, usages: list[str | None], agents: int) -> Idle:
    """An Idle state for a conversation whose stored state cannot be read. Raises msgspec.DecodeError.

    Its counters must not be lower than numbers already used: each run begins with a message, and each step begins at
    most one request and one tool, so `last_sequence` and `step` are upper bounds. `agents` is the highest number that a
    sub-agent has.
    """
    total, used = Usage(), 0
    for encoded in usages:
        if encoded is not None:
            usage = _USAGE.decode(encoded)
            total, used = total + usage, usage.context_tokens
    return Idle(
        Ledger(
            run=last_sequence, req=step, xid=step, seq=last_sequence, agents=agents, used_tokens=used, total_usage=total
        )
    )


def prompt_values(conversation_id: str, text: str) -> Row:
    return conversation_id, text, digest_of((conversation_id, text))


def profile_values(conversation_id: str, profile: Profile) -> Row:
    values = (conversation_id, _encode(profile).decode())
    return (*values, digest_of(values))


def message_key(conversation_id: str, message_id: str) -> str:
    """The primary key of a message; other conversations may use the same message id."""
    return f"{conversation_id}/{message_id}"


def message_values(conversation_id: str, message: Message) -> Row:
    display = Display(message.run, message.delivery, message.kind, message.meta, message.error_kind)
    values = (
        message_key(conversation_id, message.id), conversation_id, message.sequence, str(message.type),
        _ACTOR_KINDS.get(message.type, "system"), _encode(message.content).decode(), _encode(display).decode(),
        None if message.usage is None else _encode(message.usage).decode(), message.created_at, message.request_id,
        message.attempt, message.through_sequence,
    )  # fmt: skip
    return (*values, digest_of(values))


def message_of(row: Row) -> Message:
    """Decode a row. Raises msgspec.DecodeError, ValueError or KeyError if it is damaged."""
    key, conversation_id, sequence, type_, _, content, display_data, usage_data, at, request_id, attempt, through, _ = (
        row
    )
    refuse_non_numbers(sequence, at, attempt, through)
    refuse_non_texts(key, request_id)
    display = _DISPLAY.decode(display_data or "{}")
    return Message(
        id=key[len(conversation_id) + 1 :],
        sequence=sequence,
        type=_TYPES[type_],
        content=_CONTENT.decode(content),
        created_at=at,
        request_id=request_id,
        attempt=attempt,
        through_sequence=through,
        usage=None if usage_data is None else _USAGE.decode(usage_data),
        **asdict(display),
    )


def command_values(conversation_id: str | None, principal: str | None, command: CommandRecord) -> Row:
    """The row for a command accepted for a conversation or, in the case of a create command, for a principal."""
    values = (
        conversation_id, principal, command.request_id, command.body_hash, command.answer.decode(), command.at,
    )  # fmt: skip
    return (*values, digest_of(values))


def command_of(row: Row) -> CommandRecord:
    request_id, body_hash, answer, at = row
    return CommandRecord(request_id, body_hash, answer.encode(), at)


def attachment_of(row: Row) -> Attachment:
    return convert(dict(zip(Attachment.__struct_fields__, row, strict=True)), Attachment)


def attachment_values(conversation_id: str, attachment: Attachment, at: int) -> Row:
    """The row for an attachment that is stored at the time `at` (milliseconds)."""
    values = (
        conversation_id, attachment.id, attachment.media_type, attachment.data, attachment.width, attachment.height, at,
    )  # fmt: skip
    return (*values, digest_of(values))


# --- the event log


_NOTIFICATIONS = json.Decoder(tuple[Durable, ...])
_INPUT = json.Decoder(QueuedInput)


class LogRow(NamedTuple):
    conversation_id: str
    step: int
    epoch: int
    at: int
    first_revision: int
    event_count: int
    prev_hash: str
    hash: str
    notifications: str
    event: str
    context: str | None
    audit: str | None = None


class Sealed(NamedTuple):
    """An encoded event log row with the digest of its content, but without its own hash and the previous row's hash."""

    # The first six columns of the table, from `conversation_id` to `count`.
    numbers: tuple[str, int, int, int, int, int]
    texts: tuple[str | None, ...]  # the columns from `notifications` on, and the command's sender ("" for none)
    digest: hashlib._Hash

    def after(self, prev_hash: str) -> tuple[str, tuple[str | int | None, ...]]:
        """This row's hash and the complete row, for an event log whose last row has the hash `prev_hash`."""
        link = _link(self.digest, prev_hash)
        return link, (*self.numbers, prev_hash, link, *self.texts)


def seal(conversation_id: str, epoch: int, entry: LogEntry) -> Sealed:
    """Encode and digest an entry before its commit is queued, so that the writing thread need not do so."""
    numbers = (conversation_id, entry.step, epoch, entry.at, entry.first_revision, len(entry.notifications))
    notifications = _encode(entry.notifications)
    context = entry.context or b""
    audit = b"" if entry.audit is None else _encode(entry.audit)
    origin = entry.audit.origin if entry.audit else None
    texts = (
        notifications.decode(), entry.event.decode(), context.decode() or None, audit.decode() or None,
        origin.principal if origin else "",
    )  # fmt: skip
    return Sealed(numbers, texts, _digest(numbers, notifications, entry.event, context, audit))


def _digest(
    numbers: tuple[str, int, int, int, int, int], notifications: bytes, event: bytes, context: bytes, audit: bytes
) -> hashlib._Hash:
    """Digest all columns except the hashes, one per line (JSON contains no line breaks); old rows have no `audit`."""
    head = "%s\n%d\n%d\n%d\n%d\n%d" % numbers  # noqa: UP031 -- the operator takes the tuple whole
    lines = (head.encode(), notifications, event, context)
    return hashlib.sha256(b"\n".join((*lines, audit) if audit else lines))


def hash_of(row: LogRow) -> str:
    """A row's hash, computed from its content and `prev_hash`. Raises TypeError if a numeric column has no number."""
    texts = (row.notifications, row.event, row.context or "", row.audit or "")
    digest = _digest(row[:6], *(text.encode() for text in texts))
    return _link(digest, row.prev_hash)


def _link(digest: hashlib._Hash, prev_hash: str) -> str:
    link = digest.copy()
    link.update(prev_hash.encode())
    return link.hexdigest()


def check_shape(part: Commit) -> None:
    """Raise ValueError unless the commit is consistent in itself.

    Steps and revisions must have no gaps and must end with the step and revision of the record. A commit that creates a
    conversation must begin with step 1; only such a commit can be a fork.
    """
    step, revision = part.expected_step, next_revision(part)
    for entry in part.log:
        step += 1
        if entry.step != step or entry.first_revision != revision:
            raise ValueError(f"step {entry.step} of {part.record.id} does not follow the previous step")
        revision += len(entry.notifications)
    if part.record.step != step or part.record.revision != revision - 1:
        raise ValueError(f"the record and the log of {part.record.id} end at different steps")
    first = part.fork.revision + 1 if part.fork else 1
    if part.create and (part.expected_step or (part.log and part.log[0].first_revision != first)):
        raise ValueError(f"the log of {part.record.id} does not begin at its first step")
    if part.fork is not None and not part.create:
        raise ValueError(f"{part.record.id} already exists: only a new conversation can be a fork")


def next_revision(part: Commit) -> int:
    """The revision of the commit's first event, which must follow the stored revision."""
    return part.log[0].first_revision if part.log else part.record.revision + 1


def notifications_of(row: LogRow) -> tuple[Durable, ...]:
    return _NOTIFICATIONS.decode(row.notifications)


def events_of(rows: Iterable[tuple[int, int, str]], after: int) -> Iterator[StoredEvent]:
    """Yield the events after the revision `after` from rows of (first revision, time, notifications).

    Raises msgspec.DecodeError or ValueError if a row cannot be read.
    """
    for first, at, encoded in rows:
        refuse_non_numbers(first, at)
        for revision, notification in enumerate(_NOTIFICATIONS.decode(encoded), first):
            if revision > after:
                yield StoredEvent(revision, at, notification)


def stored_transition(values: Row) -> StoredTransition:
    row = LogRow(*values)
    refuse_non_numbers(row.step, row.epoch, row.at, row.first_revision)
    refuse_non_texts(row.prev_hash, row.hash)
    context = None if row.context is None else row.context.encode()
    return StoredTransition(
        row.step, row.epoch, row.at, row.event.encode(), context, row.first_revision, notifications_of(row),
        row.prev_hash, row.hash,
    )  # fmt: skip


# --- the ends of runs and waits ---------------------------------------------------------------------------------


def stopped_runs(part: Commit) -> Iterator[StoppedRun]:
    """Yield, in order, the runs that stopped in the commit `part`."""
    sequence = part.messages[0].sequence - 1 if part.messages else part.record.state.ledger.seq
    for entry in part.log:
        for revision, event in enumerate(entry.notifications, entry.first_revision):
            if isinstance(event, MessageAdded):
                sequence = event.message.sequence
            elif isinstance(event, RunStop):
                yield StoppedRun(revision, entry.at, event, sequence)


def settled_inputs(part: Commit) -> Iterator[SettledInput]:
    """Yield, in order, the outcomes (such as "delivered") that the commit `part` contains for queued messages."""
    runs = {message.id: message.run for message in part.messages}
    for entry in part.log:
        for revision, event in enumerate(entry.notifications, entry.first_revision):
            if isinstance(event, QueueChanged) and event.fate is not Fate.QUEUED:
                yield SettledInput(revision, entry.at, event, runs.get(event.input.message_id, ""))


def run_values(conversation_id: str, ended: StoppedRun) -> tuple[str | int, ...]:
    """The row for a run that ended; its `message` is the error of a failed run, or the output of any other run."""
    stop = ended.stop
    values = (
        conversation_id, ended.revision, stop.run, stop.reason.value, stop.detail, stop.message or stop.output,
        ended.last_sequence, ended.at,
    )  # fmt: skip
    return (*values, digest_of(values))


def run_of(row: tuple[Any, ...]) -> StoppedRun:
    _, revision, run, reason, detail, message, last_sequence, at, _ = row
    refuse_non_numbers(revision, last_sequence, at)
    refuse_non_texts(run, detail, message)
    failed = StopReason(reason) is StopReason.ERROR
    stop = RunStop(run, StopReason(reason), detail, message if failed else "", "" if failed else message)
    return StoppedRun(revision, at, stop, last_sequence)


def fate_values(conversation_id: str, settled: SettledInput) -> tuple[str | int, ...]:
    outcome = settled.outcome
    waited = _encode(outcome.input).decode()
    values = (
        conversation_id, settled.revision, outcome.input.message_id, outcome.delivery, outcome.fate.value, waited,
        settled.run, settled.at,
    )  # fmt: skip
    return (*values, digest_of(values))


def fate_of(row: tuple[Any, ...]) -> SettledInput:
    """Decode a row. Raises msgspec.DecodeError or ValueError if it is damaged."""
    _, revision, _, delivery, fate, waited, run, at, _ = row
    refuse_non_numbers(revision, at)
    refuse_non_texts(delivery, run)
    return SettledInput(revision, at, QueueChanged(_INPUT.decode(waited), delivery, Fate(fate)), run)


# --- the beginning of a log -------------------------------------------------------------------------------------


class LogPosition(NamedTuple):
    """A position in a log: the step, last revision and hash of the preceding row; 0 and "" at the very beginning."""

    step: int = 0
    revision: int = 0
    hash: str = ""


# Selects up to `limit` rows of a conversation's event log after the step `after`.
LOGGED = Statement(
    of_conversation(Log).where(Log.step > Param("after")).order_by(Log.first_revision, Log.step).limit(Param("limit"))
)
_PRUNED = Statement(of_conversation(Prunings))


def beginning(session: Session, conversation_id: str) -> LogPosition:
    """The recorded position at which a stored event log begins; it shows that earlier rows were pruned, not lost."""
    row = session.execute(_PRUNED, id=conversation_id).fetchone()
    return LogPosition(*row[1:]) if row else LogPosition()


def place_after(row: LogRow) -> LogPosition:
    return LogPosition(row.step, row.first_revision + row.event_count - 1, row.hash)


# --- the audit trail

# Entries about accepted commands are in rows of the event log, all other entries in rows of the `audit` table.


_LOG_AUDIT = json.Decoder(LogAudit)
_ORIGIN = json.Decoder(CommandOrigin)
NOBODY = CommandOrigin("")


def audit_values(entry: AuditEntry) -> Row:
    origin = _encode(entry.origin).decode()
    return (
        entry.at, entry.outcome.value, entry.reason, entry.origin.principal, entry.conversation, entry.count, origin,
    )  # fmt: skip


def entry_of(row: Row) -> AuditEntry:
    """Decode a row. Raises msgspec.DecodeError or ValueError if it cannot be decoded."""
    number, at, outcome, reason, _, conversation, count, origin = row
    refuse_non_numbers(number, at, count)
    refuse_non_texts(reason, conversation)
    return AuditEntry(at, Outcome(outcome), _ORIGIN.decode(origin), reason, conversation, count, number=number)


def logged_entry(at: int, conversation_id: str, step: int, audit: str) -> AuditEntry:
    """The audit entry in a log row. An entry that cannot be decoded gets no origin and the reason "UNREADABLE".

    Raises ValueError if the row does not belong in the audit trail.
    """
    refuse_non_numbers(at, step)
    try:
        found = _LOG_AUDIT.decode(audit)
    except UNREADABLE:
        return AuditEntry(at, Outcome.ACCEPTED, NOBODY, "UNREADABLE", conversation_id, step=step)
    origin = found.origin or NOBODY
    return AuditEntry(at, Outcome.ACCEPTED, origin, "", conversation_id, decisions=found.decisions, step=step)
