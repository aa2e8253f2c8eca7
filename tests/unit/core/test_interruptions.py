"""The agent is told of a run that was cut off, and at which step (REQ-BED-005; C48)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from actors.core.content import Delivery, MessageType, SystemKind, Text, ToolSuccess
from actors.core.context import ApprovalPolicy, Rules
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.events import (
    AgentsSpawned,
    LlmError,
    LlmStreamChunk,
    Restart,
    SpawnSubAgents,
    SubAgentResult,
    TriggerContinuation,
    UserCancel,
)
from actors.core.history import provider_view
from actors.core.states import AgentSucceeded, Idle, LlmRequesting
from tests.machine.columns import SUB_AGENT
from tests.machine.rows import TASKS
from tests.machine.talk import OPEN, Talk, bash, messages, words

if TYPE_CHECKING:
    from collections.abc import Callable


def asked() -> Talk:
    talk = Talk()
    talk.say("first")
    return talk


def streaming() -> Talk:
    talk = asked()
    talk.tell(LlmStreamChunk(talk.at(), "c:r1", 1, Text("half a")))
    return talk


def backing_off() -> Talk:
    talk = asked()
    talk.tell(LlmError(talk.at(), "c:r1", 1, LlmFailure(ErrorKind.NETWORK, "down")))
    return talk


def running() -> Talk:
    talk = asked()
    talk.call(bash("t1"), bash("t2"))
    return talk


def after_tools() -> Talk:
    talk = running()
    talk.result(ToolSuccess("t1", "one"))
    talk.result(ToolSuccess("t2", "two"))
    return talk


def asking() -> Talk:
    talk = Talk(replace(OPEN, approval_policy=ApprovalPolicy.ASK_ALL))
    talk.say("first")
    talk.call(bash("t1"))
    return talk


def with_sub_agents() -> Talk:
    talk = running()
    talk.tell(AgentsSpawned(talk.at(), "t1", 1, TASKS))
    return talk


def summing_up() -> Talk:
    talk = asked()
    talk.call(bash("t1"), used=OPEN.usable_window)
    return talk


STEPS: list[tuple[Callable[[], Talk], str]] = [
    (asked, "before you answered"),
    (streaming, "while you were answering"),
    (backing_off, "before you answered"),
    (running, "while bash was running"),
    (after_tools, "after your answer 1 of it"),
    (asking, "while it waited for approval of bash"),
    (with_sub_agents, "while sub-agents were at work"),
    (summing_up, "while you were writing the summary"),
]


def settle(talk: Talk) -> None:
    """The sub-agents' last words."""
    for agent in getattr(talk.state, "pending_agents", ()):
        talk.tell(SubAgentResult(talk.at(), agent.agent_id, AgentSucceeded("late")))


def seen(talk: Talk) -> list[str]:
    """What the request in flight contains of the user's turns, block by block."""
    assert isinstance(talk.state, LlmRequesting)
    turns = provider_view(talk.messages, talk.state.through_sequence)
    return [block.text for turn in turns for block in turn.content if isinstance(block, Text) and turn.role == "user"]


@pytest.mark.parametrize(("busy", "step"), STEPS, ids=[busy.__name__ for busy, _ in STEPS])
def test_the_next_request_says_between_the_two_questions_that_the_user_interrupted_and_where(
    busy: Callable[[], Talk], step: str
) -> None:
    talk = busy()
    talk.tell(UserCancel(talk.at()))
    assert all(kind == "tool" for kind, _ in talk.said), "a cancel persists nothing but synthetic results"
    settle(talk)
    assert isinstance(talk.state, Idle)

    talk.say("second")

    first, notice, second = seen(talk)
    assert (first, second) == ("first", "second")
    assert notice.startswith(f"<system-notice>\nThe user interrupted the run {step}")
    (message, _) = messages(talk.last)
    assert (message.type, message.kind, message.run, message.meta) == (
        MessageType.SYSTEM,
        SystemKind.INTERRUPTED,
        "",
        True,
    )
    assert talk.state.ledger.pending_notices == ()


def test_a_restart_is_reported_as_such() -> None:
    talk = running()
    talk.tell(Restart(talk.at()))

    talk.say("second")

    assert "The server was stopped and the run was cut off while bash was running" in seen(talk)[1]


def test_a_restart_during_a_cancel_leaves_the_notice_of_the_cancel() -> None:
    talk = with_sub_agents()
    talk.tell(UserCancel(talk.at()))
    talk.tell(Restart(talk.at()))

    talk.say("second")

    assert "The user interrupted the run while sub-agents were at work" in seen(talk)[1]


def test_a_newer_cancel_replaces_the_notice_that_waits() -> None:
    """The follow-up's run is cut off before its request was built from the notice: none is said twice."""
    talk = streaming()
    talk.say("queued", Delivery.FOLLOW_UP)
    talk.tell(UserCancel(talk.at()))
    assert [kind for kind, _ in talk.said] == ["system", "user"], "the follow-up's run has begun"

    talk.tell(UserCancel(talk.at()))
    talk.say("third")

    notices = [text for text in seen(talk) if "interrupted" in text]
    assert len(notices) == 2
    assert "while you were answering" in notices[0]
    assert "before you answered" in notices[1]


def test_of_two_cancels_without_a_run_that_was_built_between_them_the_last_is_said() -> None:
    talk = asked()
    talk.tell(UserCancel(talk.at()))
    cancelled_once = talk.state.ledger.pending_notices
    talk.tell(TriggerContinuation(talk.at()))
    assert [kind for kind, _ in talk.said] == ["system"], "a summary is a request too"
    talk.tell(UserCancel(talk.at()))

    assert len(cancelled_once) == 1
    assert talk.state.ledger.pending_notices == (), "no run was cut off this time"


def test_discarded_follow_ups_stand_before_the_notice() -> None:
    talk = streaming()
    talk.say("dropped", Delivery.FOLLOW_UP)
    talk.tell(UserCancel(talk.at(), discard_queued=True))

    talk.say("second")

    first, dropped, notice, second = seen(talk)
    assert (first, dropped, second) == ("first", "dropped", "second")
    assert "Do not take up again what was asked before this notice" in notice


def test_a_notice_is_also_given_for_sub_agents_started_by_a_user() -> None:
    talk = asked()
    talk.tell(UserCancel(talk.at()))

    talk.tell(SpawnSubAgents(talk.at(), "root", TASKS))

    assert [message.kind for message in messages(talk.last)] == [SystemKind.INTERRUPTED, SystemKind.NONE]


def test_a_cancel_of_nothing_and_one_of_a_sub_agent_leave_no_notice() -> None:
    idle = Talk()
    idle.tell(UserCancel(idle.at()))
    idle.say("first")
    assert [kind for kind, _ in idle.said] == ["user"]

    child = Talk(SUB_AGENT)
    child.start()
    child.tell(UserCancel(child.at()))
    assert child.state.ledger.pending_notices == ()


def test_a_log_of_the_first_edition_is_replayed_as_it_was_written() -> None:
    talk = Talk(replace(OPEN, rules=Rules.FIRST))
    talk.say("first")
    talk.tell(UserCancel(talk.at()))
    talk.say("second")

    assert [words(message) for message in talk.messages] == ["first", "second"]
