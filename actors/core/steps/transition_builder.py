"""The builder of one transition, which collects its effects in order and the counters of the new state (the ledger).

A builder is used inside one call of `transition` and is the only mutable object there; the result is immutable.
"""

from __future__ import annotations

from msgspec.structs import replace

from actors.core import effects
from actors.core.content import Content, Image, Message, MessageType, SystemKind, Text, ToolResult, Usage, has_image
from actors.core.context import ConvContext, Rules
from actors.core.notifications import Durable, StateChanged, TextDelta
from actors.core.states import Ledger, State
from actors.core.summary import ContextState, live_run_id, project, summarize


class TransitionBuilder:
    """Collects effects and changes to the ledger; `finish`, `stay` or `stay_silently` returns the result."""

    __slots__ = ("_mark", "at", "before", "context", "effects", "ledger")

    def __init__(self, state: State, context: ConvContext, at: int) -> None:
        self.before = state
        self.ledger: Ledger = state.ledger
        self.context = context
        self.at = at
        self.effects: list[effects.Effect] = []
        self._mark: int | None = None

    @property
    def run(self) -> str:
        return live_run_id(self.context.conversation_id, self.ledger)

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
        """Persist a message with the next sequence number. Without `message_id`, the id is made from that number."""
        ledger = self.ledger = replace(self.ledger, seq=self.ledger.seq + 1)
        self.effects.append(
            effects.PersistMessage(
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
        if self.context.rules >= Rules.NOTHING_LOST and has_image(content):
            self.ledger = replace(ledger, hidden_from="")

    def add_to_last_result(self, text: str) -> None:
        """Append a paragraph to the tool result that was persisted last, which must belong to this transition."""
        for index, effect in reversed(list(enumerate(self.effects))):
            if isinstance(effect, effects.PersistMessage) and isinstance(
                result := effect.message.content[-1], ToolResult
            ):
                longer = replace(result, output=f"{result.output}\n\n{text}")
                self.effects[index] = effects.PersistMessage(replace(effect.message, content=(longer,)))
                return

    def add_user_message(self, message_id: str, text: str, images: tuple[Image, ...], delivery: str) -> None:
        """Persist a user message: from a person, or a sub-agent's task from its parent conversation."""
        words: tuple[Content, ...] = (Text(text),) if text or not images else ()
        self.add_message(MessageType.USER, *images, *words, message_id=message_id, delivery=delivery)

    def add_system_message(self, kind: SystemKind, text: str, *, meta: bool = False) -> None:
        self.add_message(MessageType.SYSTEM, Text(text), system_kind=kind, meta=meta)

    def notify(self, data: Durable | TextDelta) -> None:
        self.effects.append(effects.NotifyClient(data))

    def add_effect(self, effect: effects.ActEffect | effects.PersistMode) -> None:
        """Add an effect that is carried out after the commit, or a change to the mode."""
        self.effects.append(effect)

    def place_state(self) -> None:
        """Persist the new state at this place among the effects; without this call the state is persisted last."""
        self._mark = len(self.effects)

    def finish(self, state: State, *through: ContextState) -> effects.TransitionResult:
        """The result of the transition, which passes `through` these states of the Context Manager diagram."""
        return self._result(state, through, moves=True)

    def stay(self, state: State) -> effects.TransitionResult:
        """The result of a transition that stays in the same state and changes details that clients see."""
        return self._result(state, ())

    def stay_silently(self, state: State) -> effects.TransitionResult:
        """The result of a transition that stays in the same state and changes only what clients do not see."""
        return self._result(state, None)

    def _result(
        self, state: State, through: tuple[ContextState, ...] | None, *, moves: bool = False
    ) -> effects.TransitionResult:
        mark = len(self.effects) if self._mark is None else self._mark
        self.effects.insert(mark, effects.PersistState(state))
        if through is not None:
            path = (*through, project(state)) if moves else through
            self.effects.append(effects.NotifyClient(StateChanged(summarize(state, self.context), path)))
        return effects.TransitionResult(state, tuple(self.effects))


def ignored(state: State) -> effects.TransitionResult:
    """The result for an event that no longer applies: the same state object, no effects."""
    return effects.TransitionResult(state, ())
