"""Verifies a stored conversation: rows by the store's checks, events by invariants, and the log by replaying it.

The store is only read; nothing is repaired. Other threads may write to the store during the check: events are read only
up to the revision that the conversation had at the beginning, and are read again if the oldest of them were pruned
during the check.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from actors import ports
from actors.core.content import Message
from actors.core.context import ConvContext, Rules
from actors.core.effects import NotifyClient, PersistMessage, PersistState, TransitionResult
from actors.core.errors import InvalidTransition
from actors.core.events import Event
from actors.core.invariants import InvariantChecker
from actors.core.notifications import ConversationUpdated, Durable, MessageAdded, TextDelta, ToolTreeReaped
from actors.core.states import Idle, Ledger, State
from actors.core.transition import context_after, settle_event, transition
from actors.messages import ApprovalRulesChanged, Created, Entry, Forked, SettingsChanged, TreeReaped

PAGE = 200  # events or messages that are read at a time
MAX_FINDINGS = 100  # the maximum number of findings that are reported
TRIES = 3  # attempts to check the events; an attempt fails if the oldest events are pruned meanwhile


def findings(store: ports.StoreReader, record: ports.ConversationRecord) -> tuple[str, ...]:
    """The defects of a stored conversation, as text. Raises StoreUnavailableError.

    The events are not checked if the log is pruned during each of TRIES attempts.
    """
    found = dict.fromkeys(store.verify(record.id))
    for _ in range(TRIES):
        try:
            found.update(dict.fromkeys(islice(_violations(store, record), MAX_FINDINGS)))
            break
        except ports.RevisionTooOldError:
            continue
        except ports.StoreDamagedError:
            found["the event log is damaged and cannot be read completely"] = None
            break
    return tuple(found)[:MAX_FINDINGS]


def _violations(store: ports.StoreReader, record: ports.ConversationRecord) -> Iterator[str]:
    """Yield a description of each broken invariant, and of each mismatch with `record`.

    Raises RevisionTooOldError or StoreDamagedError.
    """
    checker, oldest_missing = InvariantChecker(record.id), _beginning(store, record)
    if oldest_missing:
        checker.begin_mid_log()
    complete = oldest_missing == 0
    for event in _events(store, record, oldest_missing):
        if isinstance(event.notification, MessageAdded) and not complete:
            complete = True
            for message in _messages(store, record, event.notification.message.sequence):
                yield from checker.preload(message)
        yield from checker.check(event.notification)
    if not complete:
        for message in _messages(store, record, record.state.ledger.seq + 1):
            yield from checker.preload(message)
    yield from checker.check_end(record.state, record.mode)


def _beginning(store: ports.StoreReader, record: ports.ConversationRecord) -> int:
    """The lowest revision after which all events are still stored; 0 if no event is missing."""
    try:
        store.events(record.id, after=0, limit=1)
    except ports.RevisionTooOldError as error:
        return error.oldest
    return 0


def _events(store: ports.StoreReader, record: ports.ConversationRecord, after: int) -> Iterator[ports.StoredEvent]:
    while after < record.revision:
        page = store.events(record.id, after=after, limit=min(PAGE, record.revision - after))
        if not page:
            return
        yield from page
        after = page[-1].revision


def _messages(store: ports.StoreReader, record: ports.ConversationRecord, before: int) -> Iterator[Message]:
    after = 0
    while page := store.messages(record.id, after=after, before=before, limit=PAGE):
        yield from page
        after = page[-1].sequence


MAX_VALUE_CHARS = 300  # maximum length of a value in the description of a difference

_INPUT: msgspec.json.Decoder[Event | Entry] = msgspec.json.Decoder(Event | Entry)


class _LoggedContext(ConvContext, frozen=True):
    rules: Rules = Rules.FIRST


_CONTEXT = msgspec.json.Decoder(_LoggedContext)
_encode = msgspec.json.Encoder().encode


class ReplayedStep(Struct, frozen=True):
    """The result of replaying one log row."""

    step: int
    revision: int
    event: bytes
    """The row's input (a state machine event or another log entry) as JSON."""
    state: bytes
    """The new state as JSON; empty if unknown."""
    effects: bytes
    """The transition's effects as a JSON array, without PersistState; empty if there was no transition."""
    difference: str
    """How the result of the replay differs from the log row, as text; "" if they are equal."""


class Replay:
    def __init__(self) -> None:
        self._state: State | None = None
        self._context: ConvContext | None = None
        self._at = 0
        self._effects = b""

    def step(self, row: ports.StoredTransition) -> ReplayedStep:
        """Replay the next row. The first row must be the creation of the conversation."""
        self._effects = b""
        differences = "; ".join(self._differences(row))
        state = b"" if self._state is None else _encode(self._state)
        revision = row.first_revision + len(row.notifications) - 1
        return ReplayedStep(row.step, revision, row.event, state, self._effects, differences)

    def end(self, record: ports.ConversationRecord) -> str:
        """How `record` differs from the state and mode that the replay has reached; "" if they are equal."""
        found: list[str] = []
        if self._state != record.state:
            found.append(f"the stored state differs: {_difference(self._state, record.state)}")
        if self._context is not None and self._context.mode is not record.mode:
            found.append(f"the stored mode is {record.mode.value} instead of {self._context.mode.value}")
        if self._settle_due() is not None:
            found.append("the log ends before an event that was due")
        return "; ".join(found)

    def _differences(self, row: ports.StoredTransition) -> Iterator[str]:
        try:
            entry = _INPUT.decode(row.event)
            yield from self._change_context(row)
        except msgspec.DecodeError:
            yield "its input or context cannot be read"
            return
        due, self._at = self._settle_due(), row.at
        if due is not None and entry != due:
            yield f"expected {_name(due)}, not {_name(entry)}"
        if entry.at != row.at:
            yield "its time differs from its input's"
        match entry:
            case Created():
                yield from self._create(row, Ledger(seq=len(row.notifications)))
            case Forked(ledger=ledger):
                yield from self._create(row, ledger)
            case SettingsChanged(fields=fields):
                yield from _first_difference((ConversationUpdated(fields),), row.notifications)
            case ApprovalRulesChanged():
                yield from _first_difference((ConversationUpdated(("approval_rules",)),), row.notifications)
            case TreeReaped(tool_use_id=tool_use_id):
                yield from _first_difference(_receipts(tool_use_id, row.notifications), row.notifications)
            case _:
                yield from self._replay_transition(entry, row)

    def _change_context(self, row: ports.StoredTransition) -> Iterator[str]:
        if row.context is None:
            return
        context = _CONTEXT.decode(row.context)
        if self._context is not None and context.mode is not self._context.mode:
            yield f"its context has the mode {context.mode.value} instead of {self._context.mode.value}"
        self._context = context

    def _settle_due(self) -> Event | None:
        if self._state is None or self._context is None:
            return None
        return settle_event(self._state, self._at)

    def _create(self, row: ports.StoredTransition, ledger: Ledger) -> Iterator[str]:
        if row.step != 1:
            yield "a conversation can be created only once"
        self._state = Idle(ledger)
        if not all(isinstance(each, MessageAdded) for each in row.notifications):
            yield "its events are not all messages, as they must be for a creation"

    def _replay_transition(self, event: Event, row: ports.StoredTransition) -> Iterator[str]:
        if self._state is None or self._context is None:
            yield "the state or the context before it is unknown"
            return
        try:
            result = transition(self._state, self._context, event)
        except InvalidTransition as refusal:
            yield f"{_name(event)} is refused: {refusal}"
            return
        except Exception as error:  # noqa: BLE001 -- a damaged input may raise anything
            yield f"{_name(event)} fails in the state machine with {type(error).__name__}"
            return
        if result.new_state is self._state and not result.effects:
            yield f"{_name(event)} changes nothing"
        self._effects = _encode([each for each in result.effects if not isinstance(each, PersistState)])
        self._state, self._context = result.new_state, context_after(self._context, result.effects)
        yield from _first_difference(_notifications(result), row.notifications)


def _notifications(result: TransitionResult) -> tuple[Durable, ...]:
    """The notifications that a log row for this transition must contain: all but streamed text."""
    found: list[Durable] = []
    for effect in result.effects:
        match effect:
            case PersistMessage(message=message):
                found.append(MessageAdded(message))
            case NotifyClient(data=data) if not isinstance(data, TextDelta):
                found.append(data)
            case _:
                pass
    return tuple(found)


def _receipts(tool_use_id: str, stored: Sequence[Durable]) -> tuple[Durable, ...]:
    """The notifications of a TreeReaped row, with the stored process ids and duration: a replay cannot know them."""
    if len(stored) == 1 and isinstance(stored[0], ToolTreeReaped) and stored[0].tool_use_id == tool_use_id:
        return (stored[0],)
    return (ToolTreeReaped(tool_use_id, (), 0),)


def _first_difference(replayed: Sequence[Durable], stored: Sequence[Durable]) -> Iterator[str]:
    """Yield a description of only the first difference, because later ones follow from it; nothing if there is none."""
    for number, (now, then) in enumerate(zip(replayed, stored, strict=False), 1):
        if now != then:
            yield f"its event {number} differs: {_difference(now, then)}"
            return
    if len(replayed) != len(stored):
        yield f"it has {len(stored)} events instead of {len(replayed)}"


def _difference(now: Struct | None, then: Struct) -> str:
    replayed, stored = msgspec.to_builtins(now), msgspec.to_builtins(then)
    while isinstance(replayed, dict) and isinstance(stored, dict):
        keys = [key for key in {**replayed, **stored} if replayed.get(key) != stored.get(key)]
        if len(keys) != 1:
            replayed, stored = ({key: side.get(key) for key in keys} for side in (replayed, stored))
            break
        replayed, stored = replayed.get(keys[0]), stored.get(keys[0])
    return f"replayed {_cut(replayed)}, stored {_cut(stored)}"


def _cut(value: Any) -> str:
    text = _encode(value).decode()
    return text if len(text) <= MAX_VALUE_CHARS else text[:MAX_VALUE_CHARS] + "…"


def _name(entry: Event | Entry) -> str:
    return type(entry).__name__
