"""What passes between sub-agents and their parents: in order, whatever fails, and to nobody that is not there."""

from concurrent.futures import Future
from typing import Any

import pytest
from pykka._envelope import Envelope

from actors import messages
from actors.conversation import creation
from actors.core.content import Usage
from actors.core.errors import ErrorKind, Reason, Rejected
from actors.core.events import SubAgentResult, UsageReported
from actors.core.states import AgentFailed, AgentSucceeded, AgentTask, Completed, Failed, Idle, Ledger
from actors.runners.sub_agents import SubAgentRunner, outcome_of
from actors.runtime.actor import Mailbox
from actors.runtime.services import Services

TASK = AgentTask("c1-a1", "look", "/tmp", "known", 20, 60_000)


class Conversation:
    """A live conversation that only has a mailbox."""

    conversation_id = ""

    def __init__(self, inbox: Any) -> None:
        self.inbox = inbox
        self.ledger = Ledger(last_text="half of it")
        self.pulled: list[str] = []

    def deliver(self, message: object) -> bool:
        self.inbox.tell(message)
        return True

    def cancel_run_now(self, run: str) -> None:
        self.pulled.append(run)


class Directory:
    """A directory that keeps what is delivered."""

    def __init__(self, services: Services, inbox: Any, limit: int = 10) -> None:
        self.parent, _ = creation.new_conversation(services, "c1", messages.CreateConversationCommand("p", "/tmp"), 1)
        self.delivered: list[tuple[str, Any]] = []
        self.answers: list[Future[Any]] = []
        self.open: bool | Exception = True
        self.actors: dict[str, Any] = {"c1": Conversation(inbox)}
        self.sub_agents = SubAgentRunner(services.clock, limit, self)

    def deliver(self, conversation_id: str, message: object) -> Future[Any] | None:
        if isinstance(self.open, Exception) and isinstance(
            getattr(message, "command", None), messages.CreateSubAgent | messages.CancelConversationCommand
        ):
            raise self.open
        self.delivered.append((conversation_id, message))
        self.answers.append(Future())
        return self.answers[-1] if self.open is True else None

    def live(self, conversation_id: str) -> Any:
        return self.actors.get(conversation_id)

    def on_idle(self) -> None: ...

    def on_started(self, conversation: object) -> None: ...

    def on_stopped(self, conversation: object) -> None: ...

    def told(self) -> list[Any]:
        """The events that the parent was told."""
        return [
            message.event
            for key, message in self.delivered
            if key == "c1" and isinstance(message, messages.EffectOutcome)
        ]


@pytest.fixture
def directory(services: Services, inbox: Any) -> Directory:
    return Directory(services, inbox)


def test_a_cancel_does_not_overtake_the_creation(directory: Directory) -> None:
    directory.sub_agents.start(directory.parent, TASK)
    directory.sub_agents.cancel(["c1-a1"], "why not")
    mailbox = Mailbox()
    for key, message in directory.delivered:
        assert key == "c1-a1"
        mailbox.put(Envelope(message))
    taken = [mailbox.get().message.command for _ in directory.delivered]
    assert taken == [
        messages.CreateSubAgent(directory.parent, TASK),
        messages.CancelConversationCommand(reason="why not"),
    ]


def test_a_run_is_pulled_once_its_cancel_is_there(directory: Directory, inbox: Any) -> None:
    child = directory.actors["c1-a1"] = Conversation(inbox)
    directory.sub_agents.cancel(["c1-a1"], "why not")
    assert child.pulled == ["c1-a1:1"]
    assert len(directory.delivered) == 1


def test_those_that_have_ended_are_not_woken_to_be_abandoned(directory: Directory, inbox: Any) -> None:
    child = directory.actors["c1-a1"] = Conversation(inbox)
    directory.sub_agents.abandon(["c1-a1", "c1-a2"])
    assert directory.delivered == []
    assert [asked.command for asked in inbox.messages] == [
        messages.CancelConversationCommand(reason="its parent is no longer waiting for it")
    ]
    assert child.pulled == ["c1-a1:1"]


@pytest.mark.parametrize(
    ("hindrance", "text"),
    [
        (False, "the server is shutting down"),
        (RuntimeError("can't start new thread"), "internal error; see the server log"),
    ],
)
def test_a_start_that_fails_is_the_end_of_that_sub_agent(
    directory: Directory, inbox: Any, hindrance: Any, text: str
) -> None:
    directory.open = hindrance
    directory.sub_agents.start(directory.parent, TASK)
    (ended,) = directory.told()
    assert isinstance(ended, SubAgentResult)
    assert ended.result == AgentFailed(ErrorKind.SUB_AGENT_ERROR, f"it could not be started: {text}")
    assert inbox.messages == [messages.SubAgentStopped("c1-a1")]


def test_a_refused_creation_is_reported_with_its_reason(directory: Directory) -> None:
    directory.sub_agents.start(directory.parent, TASK)
    directory.answers[0].set_exception(Rejected(Reason.BUDGET_REACHED, "the budget of 10 tokens is spent"))
    (ended,) = directory.told()
    text = "it could not be started: the budget of 10 tokens is spent"
    assert ended.result == AgentFailed(ErrorKind.BUDGET, text)


def test_its_usage_is_reported_first_for_the_run_that_started_it(directory: Directory) -> None:
    directory.sub_agents.start(directory.parent, TASK)
    directory.sub_agents.report_end("c1", "c1-a1", AgentSucceeded("42"), Usage(input_tokens=7))
    assert directory.told() == [
        UsageReported(1_000, Usage(input_tokens=7), aside=False, run="c1:0"),
        SubAgentResult(1_000, "c1-a1", AgentSucceeded("42")),
    ]


def test_the_last_text_is_that_of_an_actor_if_there_is_one(directory: Directory, inbox: Any) -> None:
    assert directory.sub_agents.last_text("c1-a1") == ""
    directory.actors["c1-a1"] = Conversation(inbox)
    assert directory.sub_agents.last_text("c1-a1") == "half of it"


def test_the_last_word_is_what_the_state_says() -> None:
    assert outcome_of(Completed(Ledger(), "42")) == AgentSucceeded("42")
    failed = Failed(Ledger(), ErrorKind.TURN_LIMIT, "too many", "some")
    assert outcome_of(failed) == AgentFailed(ErrorKind.TURN_LIMIT, "too many", "some")
    assert outcome_of(Idle()) == AgentFailed(ErrorKind.UNKNOWN, "internal error; see the server log")
