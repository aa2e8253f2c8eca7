"""A conversation in a test: tell it things, look at what came of it."""

from typing import TypeVar

from msgspec.structs import replace

from actors.core.content import Content, Delivery, Message, Text, ToolResult, ToolUse, Usage, text_of
from actors.core.context import ConvContext, Mode
from actors.core.effects import Effect, NotifyClient, PersistMessage
from actors.core.events import Event, LlmResponse, SetMode, StartSubAgent, ToolComplete, UserMessage
from actors.core.notifications import Notification, StateChanged
from actors.core.states import AwaitingContinuation, Idle, LlmRequesting, State, ToolExecuting
from actors.core.transition import Step, context_after, run_chain
from tests.machine.columns import PARENT

Some = TypeVar("Some")

OPEN = replace(PARENT, mode=Mode.UNRESTRICTED)


class Talk:
    """The state, and everything that was ever decided. Every chain ends at rest, as in the actor."""

    def __init__(self, context: ConvContext = OPEN, state: State | None = None) -> None:
        self.context = context
        self.state: State = state or Idle()
        self.steps: tuple[Step, ...] = ()
        """Of the last event."""
        self.effects: list[Effect] = []
        self.clock = 1_000

    def tell(self, event: Event) -> tuple[Step, ...]:
        """One event and what settles it; () if it was ignored."""
        self.steps = run_chain(self.state, self.context, event)
        for step in self.steps:
            self.state = step.new_state
            self.context = context_after(step.context, step.effects)
            self.effects.extend(step.effects)
        return self.steps

    def at(self) -> int:
        """The next moment."""
        self.clock += 10
        return self.clock

    # --- what people and runners say ---

    def say(self, text: str, delivery: Delivery = Delivery.REJECT, expected_run: str = "") -> tuple[Step, ...]:
        """A message whose id is its text."""
        return self.tell(UserMessage(self.at(), text, text, delivery=delivery, expected_run=expected_run))

    def start(self, task: str = "the task") -> tuple[Step, ...]:
        """A sub-agent's task."""
        return self.tell(StartSubAgent(self.at(), "task", task))

    def set_mode(self, mode: Mode, *stop: str) -> tuple[Step, ...]:
        return self.tell(SetMode(self.at(), mode, stop))

    def answer(
        self,
        *content: Content,
        end_turn: bool = True,
        used: int | None = None,
        truncated: bool = False,
        refusal: bool = False,
        usage: Usage | None = None,
    ) -> tuple[Step, ...]:
        """The model's whole answer to the request in flight."""
        state = self.state
        assert isinstance(state, (LlmRequesting, AwaitingContinuation)), state
        spent = usage if used is None else Usage(input_tokens=used)
        return self.tell(
            LlmResponse(self.at(), state.request_id, state.attempt, content, end_turn, spent, truncated, refusal)
        )

    def text(self, text: str) -> tuple[Step, ...]:
        """The model ends its turn with a text."""
        return self.answer(Text(text))

    def call(self, *calls: ToolUse, used: int | None = None) -> tuple[Step, ...]:
        """The model calls tools."""
        return self.answer(*calls, end_turn=False, used=used)

    def result(self, result: ToolResult) -> tuple[Step, ...]:
        """The tool under way answers."""
        state = self.state
        assert isinstance(state, ToolExecuting), state
        return self.tell(ToolComplete(self.at(), state.current_tool_id, state.execution_id, result))

    # --- what came of it ---

    @property
    def last(self) -> list[Effect]:
        """Effects of the last event, all steps."""
        return [effect for step in self.steps for effect in step.effects]

    def acts(self, kind: type[Some]) -> list[Some]:
        """Effects of one kind that the last event led to."""
        return [effect for effect in self.last if isinstance(effect, kind)]

    def notes(self, kind: type[Some]) -> list[Some]:
        """Notifications of one kind that the last event led to."""
        return notes(self.last, kind)

    def every(self, kind: type[Some]) -> list[Some]:
        """Notifications of one kind since the beginning."""
        return notes(self.effects, kind)

    @property
    def messages(self) -> list[Message]:
        """The history."""
        return [effect.message for effect in self.effects if isinstance(effect, PersistMessage)]

    @property
    def said(self) -> list[tuple[str, str]]:
        """The last event's messages, as (type, text)."""
        return [(message.type.value, words(message)) for message in messages(self.last)]

    @property
    def walk(self) -> list[str]:
        """The last event's walk through seed 3's diagram."""
        return [str(state) for change in self.notes(StateChanged) for state in change.fsm_path]


def messages(effects: list[Effect]) -> list[Message]:
    """What these effects persist."""
    return [effect.message for effect in effects if isinstance(effect, PersistMessage)]


def notes(effects: list[Effect], kind: type[Some]) -> list[Some]:
    """The notifications of one kind among these effects."""
    told: list[Notification] = [effect.data for effect in effects if isinstance(effect, NotifyClient)]
    return [data for data in told if isinstance(data, kind)]


def words(message: Message) -> str:
    """What a message says: its text, or its tool result's output."""
    (first, *_) = message.content or (Text(""),)
    return text_of(message.content) or getattr(first, "output", "")


def bash(call_id: str) -> ToolUse:
    """A call of bash."""
    return ToolUse(call_id, "bash", "{}")
