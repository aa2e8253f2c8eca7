"""A conversation in memory, and the only road into it: draft, commit, publish.

A draft collects what one message to the actor changes: a chain of transitions, or a changed setting, or both. It
becomes one commit. Only after the store has it are the events published and the effects handed out (C36):
a draft that fails to commit leaves no trace.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from actors.core.effects import ActEffect, Effect, NotifyClient, PersistMessage, PersistMode, PersistState
from actors.core.notifications import Durable, MessageAdded, TextDelta
from actors.core.transition import run_chain
from actors.ports import CommandRecord, Commit, ConversationRecord, FencedError, LogEntry, StoredEvent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.core.content import Message
    from actors.core.context import ConvContext
    from actors.core.events import Event
    from actors.core.states import State
    from actors.runtime.services import Services

log = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode
Found = TypeVar("Found", bound=Struct)


class Draft:
    """Changes to one conversation that have not happened yet."""

    def __init__(self, record: ConversationRecord, context: ConvContext, logged_context: ConvContext | None) -> None:
        self.before = record
        self.record = record
        self.context = context
        self.logged_context = logged_context
        """Of the last journal row that names one; None: not known."""
        self.entries: list[LogEntry] = []
        self.messages: list[Message] = []
        self.text_deltas: list[TextDelta] = []
        self.effects: list[ActEffect] = []

    @property
    def empty(self) -> bool:
        """Nothing to commit: the event was ignored, or brought ephemeral text only."""
        return not self.entries

    @property
    def notifications(self) -> tuple[Durable, ...]:
        return tuple(notification for entry in self.entries for notification in entry.notifications)

    def find(self, kind: type[Found]) -> tuple[Found, ...]:
        """The draft's notifications of one class, in order."""
        return tuple(n for n in self.notifications if isinstance(n, kind))

    def run(self, event: Event) -> None:
        """Apply an event and all that settles after it. Raises Rejected; then the draft is as it was."""
        for step in run_chain(self.record.state, self.context, event):
            self.context = step.context
            self._take(step.event, event.at, step.effects, step.new_state)

    def change(self, entry: Struct, at: int, notifications: tuple[Durable, ...], **fields: Any) -> None:
        """Change the record beside the machine. `entry` is what the journal says about it."""
        self.record = msgspec.structs.replace(self.record, **fields)
        self._log(_encode(entry), at, notifications)

    def recontext(self, context: ConvContext) -> None:
        """Later events of this draft see this context."""
        self.context = context

    def commit(self, command: CommandRecord | None = None) -> Commit:
        """The whole draft as one commit."""
        return Commit(
            record=self.record,
            expected_step=self.before.step,
            messages=tuple(self.messages),
            log=tuple(self.entries),
            command=command,
        )

    def _take(self, event: Event, at: int, effects: Iterable[Effect], new_state: State) -> None:
        durable: list[Durable] = []
        changed = False
        mode = self.record.mode
        for effect in effects:
            match effect:
                case PersistMessage(message=message):
                    self.messages.append(message)
                    durable.append(MessageAdded(message))
                    changed = True
                case PersistState():
                    changed = True
                case PersistMode(mode=mode):
                    changed = True
                case NotifyClient(data=data):
                    if isinstance(data, TextDelta):
                        self.text_deltas.append(data)
                    else:
                        durable.append(data)
                case _:
                    self.effects.append(effect)
        if not (changed or durable):
            return
        entered = at if type(new_state) is not type(self.record.state) else self.record.state_updated_at
        self.record = msgspec.structs.replace(self.record, state=new_state, state_updated_at=entered, mode=mode)
        self._log(_encode(event), at, tuple(durable))
        if mode != self.context.mode:
            self.context = msgspec.structs.replace(self.context, mode=mode)

    def _log(self, event: bytes, at: int, notifications: tuple[Durable, ...]) -> None:
        context = None if self.context == self.logged_context else _encode(self.context)
        self.logged_context = self.context
        step, first = self.record.step + 1, self.record.last_seq + 1
        self.entries.append(LogEntry(step, at, event, first, notifications, context))
        self.record = msgspec.structs.replace(
            self.record, step=step, last_seq=first - 1 + len(notifications), updated_at=at
        )

    def stored_events(self) -> tuple[StoredEvent, ...]:
        """The draft's events as watchers will read them."""
        return tuple(
            StoredEvent(entry.first_revision + offset, entry.at, notification)
            for entry in self.entries
            for offset, notification in enumerate(entry.notifications)
        )


class Machine:
    """A conversation's truth while its actor lives. Actor's thread only."""

    def __init__(self, runtime: Services, record: ConversationRecord) -> None:
        self._runtime = runtime
        self.record = record
        self.context = runtime.context_of(record)
        self._logged_context: ConvContext | None = None

    @property
    def state(self) -> State:
        return self.record.state

    def draft(self) -> Draft:
        """An empty draft over the present, with the model's window as it is known by now."""
        window = self._runtime.usable_window(self.record.model)
        if window != self.context.usable_window:
            self.context = msgspec.structs.replace(self.context, usable_window=window)
        return Draft(self.record, self.context, self._logged_context)

    def apply(
        self, draft: Draft, *others: Commit, command: CommandRecord | None = None, urgent: bool = False
    ) -> tuple[ActEffect, ...]:
        """Commit, together with `others`, then publish; returns the effects to act on.

        Raises StoreError, and then nothing has changed here. Once the store has the draft, so has this machine.
        """
        faults = self._runtime.faults
        if not draft.empty:
            faults.hit("commit.before")
            self._commit(draft, others, command, urgent=urgent)
            self._logged_context = draft.logged_context
        self.record, self.context = draft.record, draft.context
        if not draft.empty:
            faults.hit("commit.after")
        self._publish(draft)
        return tuple(draft.effects)

    def _commit(self, draft: Draft, others: tuple[Commit, ...], command: CommandRecord | None, *, urgent: bool) -> None:
        try:
            self._runtime.store.commit(draft.commit(command), *others, urgent=urgent)
        except FencedError:
            if not self._is_stored(draft):
                raise
            log.warning("conversation %s: the store had taken a commit that it reported as failed", self.record.id)

    def _is_stored(self, draft: Draft) -> bool:
        """Whether an earlier attempt to commit this very draft succeeded, though it looked like a failure."""
        rows = self._runtime.store.transitions(
            draft.record.id, after_step=draft.before.step, limit=len(draft.entries) + 1
        )
        stored = [(row.step, row.epoch, row.event) for row in rows]
        return stored == [(entry.step, draft.record.epoch, entry.event) for entry in draft.entries]

    def _publish(self, draft: Draft) -> None:
        events = draft.stored_events()
        if events:
            self._runtime.bus.publish(self.record.id, events, self.record)
            self._runtime.faults.hit("publish.after")
        for delta in draft.text_deltas:
            self._runtime.bus.text_delta(self.record.id, delta)


def taken_over(record: ConversationRecord, node: str) -> ConversationRecord:
    """A stored record as its next owner holds it: what the owner before writes from now on is fenced off."""
    return msgspec.structs.replace(record, epoch=record.epoch + 1, node=node)
