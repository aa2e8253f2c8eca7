"""One transition in the making: the effects in order, and the ledger as it will be.

A builder lives inside one call of `transition` and is the only mutable thing there; what leaves it is frozen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core.content import Content, Image, Message, MessageType, SystemKind, Text, Usage
from actors.core.effects import ActEffect, Effect, NotifyClient, PersistMessage, PersistMode, PersistState
from actors.core.fsm import ContextState, project
from actors.core.notifications import Durable, StateChanged, TextDelta
from actors.core.result import TransitionResult
from actors.core.summary import run_id, summarize

if TYPE_CHECKING:
    from actors.core.context import ConvContext
    from actors.core.states import Ledger, State


class TransitionBuilder:
    """Collects what a transition decides; `finish` makes the verdict of it."""

    __slots__ = ("_mark", "at", "before", "context", "effects", "ledger")

    def __init__(self, state: State, context: ConvContext, at: int) -> None:
        self.before = state
        self.ledger: Ledger = state.ledger
        self.context = context
        self.at = at
        self.effects: list[Effect] = []
        self._mark: int | None = None

    @property
    def run(self) -> str:
        """Id of the live run, or ""."""
        return run_id(self.context.conversation_id, self.ledger.run) if self.ledger.live else ""

    def add_message(
        self,
        kind: MessageType,
        *content: Content,
        message_id: str = "",
        delivery: str = "",
        request: tuple[str, int] = ("", 0),
        through_sequence: int = 0,
        usage: Usage | None = None,
        system_kind: SystemKind = SystemKind.NONE,
        meta: bool = False,
        error_kind: str = "",
    ) -> None:
        """Persist a message under the next sequence; its id is its sequence's unless it brings one."""
        ledger = self.ledger = replace(self.ledger, seq=self.ledger.seq + 1)
        self.effects.append(
            PersistMessage(
                Message(
                    message_id or f"{self.context.conversation_id}:{ledger.run}:{ledger.seq}",
                    ledger.seq,
                    kind,
                    content,
                    self.at,
                    self.run,
                    delivery,
                    request[0],
                    request[1],
                    through_sequence,
                    usage,
                    system_kind,
                    meta,
                    error_kind,
                )
            )
        )

    def add_user_message(self, message_id: str, text: str, images: tuple[Image, ...], delivery: str) -> None:
        """Persist what a person or the parent said."""
        words: tuple[Content, ...] = (Text(text),) if text or not images else ()
        self.add_message(MessageType.USER, *images, *words, message_id=message_id, delivery=delivery)

    def add_system_message(self, kind: SystemKind, text: str, *, meta: bool = False) -> None:
        """Persist what Bedrock tells the agent."""
        self.add_message(MessageType.SYSTEM, Text(text), system_kind=kind, meta=meta)

    def notify(self, data: Durable | TextDelta) -> None:
        """Tell clients."""
        self.effects.append(NotifyClient(data))

    def add_effect(self, effect: ActEffect | PersistMode) -> None:
        """Have something done."""
        self.effects.append(effect)

    def place_state(self) -> None:
        """The new state is persisted here in the list; what follows belongs to the same transition."""
        self._mark = len(self.effects)

    def finish(self, state: State, *through: ContextState) -> TransitionResult:
        """Move: the walk passes `through` the momentary states and ends in the state's own."""
        return self._result(state, (*through, project(state)))

    def stay(self, state: State) -> TransitionResult:
        """The same state in the seed's terms, though it shows something else."""
        return self._result(state, ())

    def stay_silently(self, state: State) -> TransitionResult:
        """The same state, and nothing about it that clients could see has changed."""
        return self._result(state, None)

    def _result(self, state: State, path: tuple[ContextState, ...] | None) -> TransitionResult:
        mark = len(self.effects) if self._mark is None else self._mark
        self.effects.insert(mark, PersistState(state))
        if path is not None:
            self.effects.append(NotifyClient(StateChanged(summarize(state, self.context), path)))
        return TransitionResult(state, tuple(self.effects))
