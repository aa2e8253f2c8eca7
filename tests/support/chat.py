"""A conversation whose model is the fake provider, through the Python client."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bedrock import Approval, Client, Conversation, ConversationState, Run, RunError, v1

from tests.support.fake_provider import Part
from tests.support.patience import within


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
    """The chain is valid: messages count from 1, and the results of calls, whose ids are new, follow them directly."""
    used: set[str] = set()
    waiting: list[str] = []
    for number, message in enumerate(messages, 1):
        calls = [block.tool_call.tool_use_id for block in message.content if block.HasField("tool_call")]
        results = [block.tool_result.tool_use_id for block in message.content if block.HasField("tool_result")]
        assert message.sequence == number
        assert message.role == v1.ROLE_AGENT or not calls, f"calls in {message}"
        assert message.role == v1.ROLE_TOOL or not (waiting or results), f"{message} before the results of {waiting}"
        assert results == waiting[: len(results)], f"results out of order: {message}"
        assert len(used) + len(calls) == len(used := used.union(calls)), f"an id of a call is used twice: {message}"
        waiting = [*waiting[len(results) :], *calls]
    assert not waiting, f"no result of {waiting}"
