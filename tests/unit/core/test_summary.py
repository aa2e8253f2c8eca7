"""What people see of each state, with every number of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from actors.core.content import Text, ToolSuccess, ToolUse
from actors.core.context import ApprovalPolicy
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.events import ApprovalResponse, LlmError, ToolTransient, TriggerContinuation, UserCancel
from actors.core.notifications import ApprovalRequested, Retrying
from actors.core.states import AwaitingContinuation, Idle, LlmRequesting, ToolExecuting
from actors.core.summary import StateSummary, summarize
from tests.machine.talk import OPEN, Talk, bash

READ, ASK = ToolUse("t2", "read_file", "{}"), ToolUse("t3", "request_mode_upgrade", "{}")


def told(talk: Talk, kind: type) -> list[object]:
    found = [getattr(effect, "data", None) for step in talk.steps for effect in step.effects]
    return [one for one in found if isinstance(one, kind)]


def test_a_wait_for_another_attempt_of_a_request() -> None:
    talk = Talk()
    talk.say("go")
    failure = LlmFailure(ErrorKind.NETWORK, "the cause")
    talk.tell(LlmError(5_000, "c:r1", 1, failure, 2_500))
    assert summarize(talk.state, talk.context) == StateSummary(
        "llm_requesting", "c:1", True, "c:r1", 2, 3, "backoff", 7_500, failure
    )
    assert told(talk, Retrying) == [Retrying(2, 3, 7_500, failure, request_id="c:r1")]


def test_a_wait_for_another_attempt_of_a_tool_and_how_many_are_done_and_left() -> None:
    talk = Talk()
    talk.say("go")
    calls = (bash("t1"), READ, bash("t4"), bash("t5"))
    talk.answer(*calls, end_turn=False)
    talk.result(ToolSuccess("t1", "done"))
    assert isinstance(talk.state, ToolExecuting)
    talk.tell(ToolTransient(5_000, "t2", talk.state.execution_id, "no process", begun=False))
    assert summarize(talk.state, talk.context) == StateSummary(
        "tool_executing", "c:1", True, attempt=2, max_attempts=3, phase="backoff", retry_at=6_000,
        current_call=READ, remaining_count=2, completed_count=1,
    )  # fmt: skip
    (retrying,) = told(talk, Retrying)
    assert isinstance(retrying, Retrying)
    assert (retrying.attempt, retrying.retry_at, retrying.request_id, retrying.tool_use_id) == (2, 6_000, "", "t2")


@pytest.mark.parametrize(("call", "kind"), [(bash("t1"), "tool"), (ASK, "mode_upgrade")])
def test_a_question_says_what_is_asked_and_since_when(call: ToolUse, kind: str) -> None:
    talk = Talk(replace(OPEN, approval_policy=ApprovalPolicy.ASK_ALL))
    talk.say("go")
    talk.answer(Text("May I?"), call, end_turn=False)
    assert summarize(talk.state, talk.context) == StateSummary(
        "awaiting_tool_approval", "c:1", True, undecided=(call,), approval_kind=kind, since=talk.clock
    )
    (asked,) = told(talk, ApprovalRequested)
    assert isinstance(asked, ApprovalRequested)
    assert (asked.call, asked.kind.value, asked.since) == (call, kind, talk.clock)


def test_what_is_decided_already_is_no_question_any_more() -> None:
    talk = Talk(replace(OPEN, approval_policy=ApprovalPolicy.ASK_ALL))
    talk.say("go")
    talk.answer(bash("t1"), READ, end_turn=False)
    asked = talk.clock
    talk.tell(ApprovalResponse(talk.at(), "t1", approve=True))
    seen = summarize(talk.state, talk.context)
    assert (seen.undecided, seen.since) == ((READ,), asked)


def test_a_late_cancel_of_the_last_run_leaves_a_summary_alone_that_was_asked_for() -> None:
    """The summary is no run: a cancel that names none stops it, one that names a run which is over does not."""
    talk = Talk()
    talk.say("go")
    talk.text("done")
    talk.tell(TriggerContinuation(talk.at()))
    assert isinstance(talk.state, AwaitingContinuation)
    assert summarize(talk.state, talk.context).run == ""
    for run in ("c:1", "c:2", "c:0"):
        assert talk.tell(UserCancel(talk.at(), run)) == ()
    assert isinstance(talk.state, AwaitingContinuation)
    assert talk.tell(UserCancel(talk.at(), ""))
    assert isinstance(talk.state, Idle)


def test_a_cancel_that_names_the_run_before_leaves_this_one_alone() -> None:
    talk = Talk()
    talk.say("go")
    talk.text("done")
    talk.say("again")
    assert talk.tell(UserCancel(talk.at(), "c:1")) == ()
    assert isinstance(talk.state, LlmRequesting)
    assert talk.tell(UserCancel(talk.at(), "c:2"))
