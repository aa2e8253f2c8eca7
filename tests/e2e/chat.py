"""A conversation whose model is the fake provider, through the Python client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bedrock import Approval, Client, Conversation, ConversationState, Run, RunError, v1

from actors.core import history
from actors.core.content import (
    Content,
    Message,
    MessageType,
    Text,
    ToolCancelled,
    ToolError,
    ToolOutcome,
    ToolSuccess,
    ToolUse,
)
from tests.e2e.patience import within

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.e2e.fake_provider import Part


def question(run: Run) -> Approval:
    """The question of a run, which stays open until it is answered or the next event is read."""
    return within(lambda: next(event.approval for event in run if event.approval))


class Chat:
    """A conversation and the provider's part in it."""

    def __init__(self, client: Client, part: Part, folder: Path, **settings: Any) -> None:
        self.client = client
        self.part = part
        self.conversation: Conversation = client.create(folder, **settings)

    @property
    def name(self) -> str:
        return self.conversation.name

    @property
    def state(self) -> ConversationState:
        return self.conversation.get().state

    @property
    def error(self) -> RunError:
        """Why the last run failed."""
        error = self.state.error
        assert error
        return error

    def send(self, text: str, **options: Any) -> Run:
        """Say something; the message names the part, so that the provider knows which conversation asks."""
        return self.conversation.send(f"{text} {self.part.key}", **options)

    def ask(self, text: str) -> str:
        """Say something and wait for the answer."""
        return within(self.send(text).answer)

    def settle(self) -> None:
        """Wait until nothing happens by itself any more."""

        def read_to_the_end() -> None:
            for _ in self.conversation.events(until_settled=True):
                pass

        within(read_to_the_end)

    def messages(self) -> list[v1.Message]:
        return [message.proto for message in self.conversation.messages()]

    def said(self) -> list[tuple[str, str]]:
        """Role and text of every message; of tool results their output."""
        return [
            (message.role, message.text or "".join(result.output for result in message.tool_results))
            for message in self.conversation.messages()
        ]

    def assert_valid(self) -> None:
        """The chain is valid, no call waits for its result, and verify and replay find nothing."""
        assert_valid(self.messages())
        assert self.conversation.verify() == []
        assert [step.difference for step in self.conversation.replay() if step.difference] == []


def assert_valid(messages: Iterable[v1.Message]) -> None:
    """The chain is valid and no call waits for its result."""
    stored = [core_message(message) for message in messages]
    assert history.violations(stored) == ()
    assert history.open_calls(stored) == ()


_TYPES = {
    v1.ROLE_USER: MessageType.USER,
    v1.ROLE_AGENT: MessageType.AGENT,
    v1.ROLE_TOOL: MessageType.TOOL,
    v1.ROLE_SYSTEM: MessageType.SYSTEM,
    v1.ROLE_ERROR: MessageType.ERROR,
}
_OUTCOMES = {
    v1.TOOL_OUTCOME_ERROR: ToolOutcome.ERROR,
    v1.TOOL_OUTCOME_SKIPPED: ToolOutcome.SKIPPED,
    v1.TOOL_OUTCOME_DENIED: ToolOutcome.DENIED,
}


def core_message(message: v1.Message) -> Message:
    """A message of the contract as the rule about valid chains takes it."""
    return Message(
        id=message.name,
        sequence=message.sequence,
        type=_TYPES[message.role],
        content=tuple(_block(block) for block in message.content),
        created_at=message.create_time.ToMilliseconds(),
        request_id=message.llm_request_id,
        attempt=message.attempt,
    )


def _block(block: v1.ContentBlock) -> Content:
    match block.WhichOneof("block"):
        case "tool_call":
            return ToolUse(block.tool_call.tool_use_id, block.tool_call.tool, "{}")
        case "tool_result":
            return _result(block.tool_result)
        case _:
            return Text(block.text or block.reasoning)


def _result(result: v1.ToolResult) -> Content:
    if result.outcome == v1.TOOL_OUTCOME_OK:
        return ToolSuccess(result.tool_use_id, result.output)
    if result.outcome == v1.TOOL_OUTCOME_CANCELLED:
        return ToolCancelled(result.tool_use_id, result.output)
    return ToolError(result.tool_use_id, result.output, _OUTCOMES[result.outcome])
