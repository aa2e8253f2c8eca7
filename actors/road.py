"""The road that every change of a conversation takes: load, transition, commit, publish, act."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.conversation.pipeline import Draft, Machine, taken_over
from actors.core.events import Event, Restart, SetMode, UserCancel
from actors.core.states import QUIET, TERMINAL
from actors.messages.errors import UnknownConversationError

if TYPE_CHECKING:
    from actors.ports import CommandRecord, Commit, ConversationRecord
    from actors.runners.effect_executor import EffectExecutor
    from actors.runtime.services import Services


class Road:
    """One conversation's machine and the executor of its effects. Actor's thread, but for reading `machine`."""

    def __init__(self, runtime: Services, executor: EffectExecutor, conversation_id: str) -> None:
        self.runtime = runtime
        self.executor = executor
        self.conversation_id = conversation_id
        self.machine: Machine | None = None
        """What is in memory; None: nothing, the store knows."""

    @property
    def resting(self) -> bool:
        """Nothing is under way."""
        return self.machine is None or isinstance(self.machine.state, QUIET)

    def now(self) -> int:
        return self.runtime.clock.now_ms()

    def load(self) -> Machine:
        """The machine, restored from the store if need be (C35: what was under way is brought to rest).

        Raises UnknownConversationError or StoreError.
        """
        if self.machine is None:
            record = self.runtime.store.load(self.conversation_id)
            if record is None:
                raise UnknownConversationError("there is no such conversation")
            machine = Machine(self.runtime, taken_over(record, self.runtime.node))
            if needs_rest(record):
                draft = machine.draft()
                draft.run(Restart(self.now()))
                self.perform(machine, draft)
            self.machine = machine
            self.executor.rights.set(machine.context.mode)
        return self.machine

    def advance(self, event: Event) -> Draft:
        """Run an event, commit, publish, act; returns what changed.

        Raises Rejected or StoreError, and then nothing has changed.
        """
        machine = self.load()
        draft = machine.draft()
        draft.run(event)
        self.perform(machine, draft, urgent=isinstance(event, (UserCancel, SetMode)))
        return draft

    def perform(
        self,
        machine: Machine,
        draft: Draft,
        *others: Commit,
        command: CommandRecord | None = None,
        urgent: bool = False,
    ) -> None:
        """Commit a draft, together with `others`; publish and act. Raises StoreError, and then nothing has changed."""
        effects = machine.apply(draft, *others, command=command, urgent=urgent)
        self.executor.rights.set(machine.context.mode)
        for effect in effects:
            self.executor.perform(effect, machine.record, machine.context)

    def start_over(self, epoch: int) -> None:
        """Memory was not the truth: rest what the store has, unless it has another owner since this `epoch`.

        Raises StoreError.
        """
        self.executor.stop_everything()
        self.machine = None
        record = self.runtime.store.load(self.conversation_id)
        if record is not None and record.epoch <= epoch:
            self.load()


def needs_rest(record: ConversationRecord) -> bool:
    """Whether something was under way, and its owner is gone (C35)."""
    if not record.user_initiated:
        return not isinstance(record.state, TERMINAL)
    return not isinstance(record.state, QUIET) or record.state.ledger.live
