"""Runs that are to end with a value that fits a schema (C56, C57): every way that an answer can end one, or not."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from actors.core.content import Content, Delivery, SystemKind, Text, ToolError, ToolSuccess, ToolUse, Usage
from actors.core.effects import RequestContinuation, RequestLlm
from actors.core.errors import ErrorKind
from actors.core.events import LlmResponse, Restart, UserCancel, UserMessage
from actors.core.history import violations
from actors.core.notifications import RunStop, StopReason
from actors.core.states import AwaitingContinuation, ContextExhausted, Error, Idle, LlmRequesting
from actors.core.steps import texts
from tests.machine.talk import OPEN, Talk, bash, messages

SCHEMA = '{"type":"object"}'
VALUE = '{"a":1}'
FULL = Usage(input_tokens=OPEN.usable_window)
SUBMIT = ToolUse("o1", "submit_output", VALUE)


def asked(text: str = "go") -> Talk:
    talk = Talk(OPEN)
    talk.tell(UserMessage(talk.at(), text, text, output_schema=SCHEMA))
    return talk


def answer(talk: Talk, *content: Content, **judged: Any) -> None:
    """The model's answer, as the runner judges it."""
    state = talk.state
    assert isinstance(state, (LlmRequesting, AwaitingContinuation))
    used = judged.pop("usage", None)
    event = LlmResponse(talk.at(), state.request_id, state.attempt, content, judged.pop("end_turn", True), used)
    talk.tell(replace(event, **judged))
    assert violations(talk.messages) == ()


def stop(talk: Talk) -> RunStop:
    (found,) = talk.notes(RunStop)
    return found


def test_a_valid_value_ends_the_run_and_comes_with_its_end() -> None:
    talk = asked()
    answer(talk, Text(VALUE), output=VALUE)
    assert isinstance(talk.state, Idle)
    assert stop(talk) == RunStop("c:1", StopReason.COMPLETED, output=VALUE)


def test_a_valid_submission_is_answered_and_ends_the_run() -> None:
    talk = asked()
    answer(talk, SUBMIT, end_turn=False, output=VALUE)
    assert isinstance(talk.state, Idle)
    assert stop(talk).output == VALUE
    assert talk.messages[-1].content == (ToolSuccess("o1", texts.OUTPUT_ACCEPTED),)


def test_tools_run_before_the_value() -> None:
    talk = asked()
    answer(talk, bash("t1"), end_turn=False)
    talk.result(ToolSuccess("t1", "ok"))
    answer(talk, Text(VALUE), output=VALUE)
    assert stop(talk).output == VALUE


def test_two_reminders_say_what_does_not_fit_and_the_third_failure_ends_the_run() -> None:
    talk = asked()
    for _ in range(2):
        answer(talk, Text("Hello"), output_problem="it is not JSON")
        (nudge,) = [message for message in messages(talk.last) if message.kind is SystemKind.OUTPUT_NUDGE]
        assert "it is not JSON" in talk.said[-1][1]
        assert nudge.meta
        assert talk.acts(RequestLlm)
    answer(talk, Text("Hello"), output_problem="`a`: it is no number")
    assert isinstance(talk.state, Error)
    assert talk.state.error_kind is ErrorKind.OUTPUT_INVALID
    assert (stop(talk).reason, stop(talk).detail, stop(talk).output) == (StopReason.ERROR, "output_invalid", "")
    assert "`a`: it is no number" in stop(talk).message


def test_a_submission_that_does_not_fit_is_told_so_and_counts_as_a_reminder() -> None:
    talk = asked()
    for _ in range(2):
        answer(talk, replace(SUBMIT, id=f"o{talk.clock}"), end_turn=False, output_problem="`a` is missing")
        (result,) = talk.messages[-1].content
        assert isinstance(result, ToolError)
        assert "`a` is missing" in result.output
    answer(talk, Text("Well."), output_problem="it is not JSON")
    assert isinstance(talk.state, Error)


def test_the_reminders_are_counted_from_zero_in_the_next_run() -> None:
    talk = asked()
    answer(talk, Text("Hello"), output_problem="no")
    answer(talk, Text(VALUE), output=VALUE)
    talk.tell(UserMessage(talk.at(), "again", "again", output_schema=SCHEMA))
    for _ in range(2):
        answer(talk, Text("Hello"), output_problem="no")
    assert isinstance(talk.state, LlmRequesting)


def test_a_submission_with_other_calls_runs_none() -> None:
    talk = asked()
    answer(talk, bash("t1"), SUBMIT, end_turn=False)
    refused = [
        block.output for message in messages(talk.last) for block in message.content if isinstance(block, ToolError)
    ]
    assert refused == [texts.BAD_OUTPUT] * 2
    assert talk.acts(RequestLlm)
    assert talk.state.ledger.nudges == 0


def test_a_steer_that_waits_is_delivered_and_the_later_value_counts() -> None:
    talk = asked()
    talk.say("left", Delivery.STEER)
    answer(talk, Text(VALUE), output=VALUE)
    assert not talk.notes(RunStop)
    assert isinstance(talk.state, LlmRequesting)
    answer(talk, Text('{"a":2}'), output='{"a":2}')
    assert stop(talk).output == '{"a":2}'


@pytest.mark.parametrize("content", [Text(VALUE), SUBMIT])
def test_a_value_in_the_answer_that_fills_the_context_comes_with_the_end_of_the_run(content: Content) -> None:
    talk = asked()
    answer(talk, content, output=VALUE, usage=FULL)
    assert [summary.rejected for summary in talk.acts(RequestContinuation)] == [()]
    answer(talk, Text("What was done."))
    assert isinstance(talk.state, ContextExhausted)
    assert stop(talk) == RunStop("c:1", StopReason.COMPLETED, "context_exhausted", output=VALUE)


def test_without_a_value_a_full_context_ends_the_run_as_without_a_schema() -> None:
    talk = asked()
    answer(talk, SUBMIT, end_turn=False, output_problem="no", usage=FULL)
    answer(talk, Text("What was done."))
    assert stop(talk) == RunStop("c:1", StopReason.INTERRUPTED, "context_exhausted")


def test_a_summary_that_is_cancelled_delivers_no_value() -> None:
    talk = asked()
    answer(talk, Text(VALUE), output=VALUE, usage=FULL)
    talk.tell(UserCancel(talk.at()))
    assert stop(talk) == RunStop("c:1", StopReason.INTERRUPTED)
    talk.say("next")
    assert talk.state.ledger.output == ""


def test_a_refusal_fails_the_run_at_once() -> None:
    talk = asked()
    answer(talk, Text("I will not."), refusal=True)
    assert isinstance(talk.state, Error)
    assert stop(talk).message == texts.OUTPUT_REFUSED


def test_an_answer_that_stays_cut_off_counts_as_one_without_a_value() -> None:
    talk = asked()
    for _ in range(4):
        answer(talk, Text("{"), end_turn=False, output_problem="it is not JSON")
    assert messages(talk.last)[-1].kind is SystemKind.OUTPUT_NUDGE


def test_a_follow_up_keeps_its_schema_until_its_run() -> None:
    talk = Talk(OPEN)
    talk.say("first")
    talk.tell(UserMessage(talk.at(), "then", "then", delivery=Delivery.FOLLOW_UP, output_schema=SCHEMA))
    talk.text("Done.")
    assert talk.state.ledger.output_schema == SCHEMA
    answer(talk, Text(VALUE), output=VALUE)
    assert stop(talk).output == VALUE


@pytest.mark.parametrize("end", [UserCancel, Restart])
def test_a_run_that_is_cut_off_has_no_output(end: Any) -> None:
    talk = asked()
    talk.tell(end(talk.at()))
    assert stop(talk).output == ""


def test_the_next_run_has_no_schema_of_its_own_accord() -> None:
    talk = asked()
    answer(talk, Text(VALUE), output=VALUE)
    talk.say("and now?")
    talk.text("Hello")
    assert stop(talk) == RunStop("c:2", StopReason.COMPLETED)
