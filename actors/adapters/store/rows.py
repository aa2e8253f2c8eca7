"""Converts conversation records, messages, commands and attachments to rows of the database, and back.

A row has the columns of its model, in order. Values without a column of their own are encoded as JSON by msgspec.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from msgspec import DecodeError, Struct, json

from actors.adapters.store import models
from actors.core.content import LATEST_MS, Content, Message, MessageType, SystemKind, Usage
from actors.core.context import ApprovalPolicy, ApprovalRule, Budget, FollowUpPolicy, Mode, Profile
from actors.core.states import STATE_VERSION, Idle, Ledger, State, name_of
from actors.ports import Attachment, CommandRecord, ConversationRecord

RECORD, MESSAGE = models.columns(models.Records), models.columns(models.Messages)
FIXED, CHANGING = RECORD[:8], RECORD[8:-2]  # what never changes, and what each commit writes besides `log_hash`

# Columns that must be numbers, and those that are in a ConversationRecord as they are.
_NUMBERS = ("created_at", "state_updated_at", "updated_at", "epoch", "step", "last_seq")
_KEPT = (
    *_NUMBERS, "id", "cwd", "parent_conversation_id", "continued_from", "continued_by", "workspace_label", "principal",
    "archived_at", "model", "title", "node", "log_hash",
)  # fmt: skip

_ACTOR_KINDS = {
    MessageType.USER: "human",
    MessageType.AGENT: "llm_agent",
    MessageType.TOOL: "system",
    MessageType.SYSTEM: "system",
    MessageType.ERROR: "system",
}
_TYPES = {kind.value: kind for kind in MessageType}

Row = tuple[Any, ...]


class StoredState(Struct, frozen=True):
    """What the column `state_data` contains, as JSON."""

    version: int
    state: State


class Display(Struct, frozen=True, omit_defaults=True):
    """What the column `display_data` contains, as JSON: a message's run, and how clients display the message."""

    run: str = ""
    delivery: str = ""
    kind: SystemKind = SystemKind.NONE
    meta: bool = False
    error_kind: str = ""


_encode = json.Encoder().encode
_STATE = json.Decoder(StoredState)
_LABELS = json.Decoder(dict[str, str])
_RULES = json.Decoder(tuple[ApprovalRule, ...])
_BUDGET = json.Decoder(Budget)
_PROFILE = json.Decoder(Profile)
_CONTENT = json.Decoder(tuple[Content, ...])
_DISPLAY = json.Decoder(Display)
_USAGE = json.Decoder(Usage)


def digest_of(values: Sequence[object]) -> str:
    """Return the digest of a row, by which later changes of the row are detected.

    The digest is SHA-256 over the row's other values as a JSON array, with bytes in base64 and "" for NULL.
    """
    return hashlib.sha256(_encode(["" if value is None else value for value in values])).hexdigest()


def is_as_written(row: Row) -> bool:
    """Return whether the last value of a row is the digest of its other values, as it was when the row was written."""
    digest: str = row[-1]
    return digest_of(row[:-1]) == digest


def refuse_non_numbers(*values: object) -> None:
    """Raise ValueError unless all values are integers from 0 to LATEST_MS, as counts, revisions and times are.

    The check is needed because SQLite stores values of any type in any column.
    """
    for value in values:
        if type(value) is not int or not 0 <= value <= LATEST_MS:
            raise ValueError("a value that must be a number is not one")


def fixed_values(record: ConversationRecord) -> Row:
    """Return the values of the columns FIXED of a conversation."""
    return (
        record.id, record.cwd, record.parent_conversation_id, int(record.user_initiated), record.created_at,
        record.continued_from, record.workspace_label, record.principal,
    )  # fmt: skip


def changing_values(record: ConversationRecord) -> Row:
    """Return the values of the columns CHANGING for a conversation; the digest also covers FIXED and the slug."""
    values = (
        name_of(record.state), _encode(StoredState(STATE_VERSION, record.state)).decode(), record.state_updated_at,
        record.updated_at, int(record.archived_at is not None), record.archived_at, str(record.mode),
        record.model, record.title, _encode(record.labels).decode(), str(record.approval_policy),
        _encode(record.approval_rules).decode(), str(record.follow_up_policy), _encode(record.budget).decode(),
        record.continued_by, record.node, record.epoch, record.step, record.last_seq,
    )  # fmt: skip
    return (*values, digest_of((*fixed_values(record), *values, record.slug)))


def state_of(state_data: bytes | None) -> State | None:
    """Decode the stored state of a conversation; return None if it is missing, damaged, or of another version."""
    try:
        stored = _STATE.decode(state_data or b"")
    except (DecodeError, UnicodeDecodeError):
        return None
    return stored.state if stored.version == STATE_VERSION else None


def record_of(row: Row) -> tuple[ConversationRecord, bool]:
    """Convert a row with the columns RECORD, system prompt and profile to a record.

    Also returns whether the state was readable; an unreadable state becomes Idle, with empty counters and queues.
    Raises msgspec.DecodeError or ValueError if another column is damaged.
    """
    values = dict(zip((*RECORD, "system_prompt", "profile"), row, strict=True))
    refuse_non_numbers(values["archived_at"] or 0, *(values[name] for name in _NUMBERS))
    state = state_of(values["state_data"])
    record = ConversationRecord(
        **{name: values[name] for name in _KEPT},
        slug=values["slug"] or "",
        state=state or Idle(),
        mode=Mode(values["mode"]),
        user_initiated=bool(values["user_initiated"]),
        labels=_LABELS.decode(values["labels"]),
        system_prompt=values["system_prompt"] or "",
        profile=_PROFILE.decode(values["profile"] or "{}"),
        approval_policy=ApprovalPolicy(values["approval_policy"]),
        approval_rules=_RULES.decode(values["approval_rules"]),
        follow_up_policy=FollowUpPolicy(values["follow_up_policy"]),
        budget=_BUDGET.decode(values["budget"]),
    )
    return record, state is not None


def rebuilt_state(step: int, last_sequence: int, usages: list[str | None], agents: int) -> Idle:
    """Return an Idle state for a conversation whose stored state cannot be read.

    Its counters must not be lower than the numbers of runs, requests and tools that were already used; higher ones do
    no harm. Each run begins with a message, and each step begins at most one request and one tool, so `last_sequence`
    and `step` are upper bounds. `usages` are the encoded usages of the messages in order, `agents` is the highest
    number of a sub-agent. Raises msgspec.DecodeError if a usage is damaged.
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
    """Return the row of a system prompt."""
    return conversation_id, text, digest_of((conversation_id, text))


def profile_values(conversation_id: str, profile: Profile) -> Row:
    """Return the row of a profile."""
    values = (conversation_id, _encode(profile).decode())
    return (*values, digest_of(values))


def message_key(conversation_id: str, message_id: str) -> str:
    """Return the primary key of a message, which contains the conversation's id.

    Message ids alone are not unique, because other conversations use the same ids.
    """
    return f"{conversation_id}/{message_id}"


def message_values(conversation_id: str, message: Message) -> Row:
    """Return the row of a message."""
    display = Display(message.run, message.delivery, message.kind, message.meta, message.error_kind)
    values = (
        message_key(conversation_id, message.id), conversation_id, message.sequence, str(message.type),
        _ACTOR_KINDS[message.type], _encode(message.content).decode(), _encode(display).decode(),
        None if message.usage is None else _encode(message.usage).decode(), message.created_at, message.request_id,
        message.attempt, message.through_sequence,
    )  # fmt: skip
    return (*values, digest_of(values))


def message_of(row: Row) -> Message:
    """Convert the row of a message.

    Raises msgspec.DecodeError, ValueError or KeyError if the row is damaged.
    """
    key, conversation_id, sequence, type_, _, content, display_data, usage_data, at, request_id, attempt, through, _ = (
        row
    )
    refuse_non_numbers(sequence, at, attempt, through)
    display = _DISPLAY.decode(display_data or "{}")
    return Message(
        id=key[len(conversation_id) + 1 :],
        sequence=sequence,
        type=_TYPES[type_],
        content=_CONTENT.decode(content),
        created_at=at,
        run=display.run,
        delivery=display.delivery,
        request_id=request_id,
        attempt=attempt,
        through_sequence=through,
        usage=None if usage_data is None else _USAGE.decode(usage_data),
        kind=display.kind,
        meta=display.meta,
        error_kind=display.error_kind,
    )


def command_values(conversation_id: str | None, principal: str | None, command: CommandRecord) -> Row:
    """Return the row of an accepted command: of a conversation or, for a create command, of a principal."""
    values = (
        conversation_id, principal, command.request_id, command.body_hash, command.answer.decode(), command.at,
    )  # fmt: skip
    return (*values, digest_of(values))


def attachment_values(conversation_id: str, attachment: Attachment, at: int) -> Row:
    """Return the row of an attachment that is stored at the time `at` (milliseconds)."""
    values = (
        conversation_id, attachment.id, attachment.media_type, attachment.data, attachment.width, attachment.height, at,
    )  # fmt: skip
    return (*values, digest_of(values))
