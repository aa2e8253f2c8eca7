"""How runs end: with a value that fits a schema (C56, C57), and when their calls fail in the same way again."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.core import states
from actors.core.content import (
    Content,
    Delivery,
    SystemKind,
    Text,
    ToolError,
    ToolOutcome,
    ToolResult,
    ToolSuccess,
    ToolUse,
    Usage,
)
from actors.core.context import Action, ApprovalPolicy, ApprovalRule, ConvContext, Rules
from actors.core.effects import RequestContinuation, RequestLlm
from actors.core.errors import ErrorKind
from actors.core.events import ApprovalResponse, LlmResponse, Restart, UserCancel, UserMessage
from actors.core.history import violations
from actors.core.notifications import RunStop, StopReason
from actors.core.steps import texts
from tests.machine.columns import SUB_AGENT
from tests.machine.talk import OPEN, Talk, bash, messages

# Runs that are to end with a value that fits a schema (C56, C57): every way that an answer can end one, or not.


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
    assert isinstance(state, (states.LlmRequesting, states.AwaitingContinuation))
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
    assert isinstance(talk.state, states.Idle)
    assert stop(talk) == RunStop("c:1", StopReason.COMPLETED, output=VALUE)


def test_a_valid_submission_is_answered_and_ends_the_run() -> None:
    talk = asked()
    answer(talk, SUBMIT, end_turn=False, output=VALUE)
    assert isinstance(talk.state, states.Idle)
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
    assert isinstance(talk.state, states.Error)
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
    assert isinstance(talk.state, states.Error)


def test_the_reminders_are_counted_from_zero_in_the_next_run() -> None:
    talk = asked()
    answer(talk, Text("Hello"), output_problem="no")
    answer(talk, Text(VALUE), output=VALUE)
    talk.tell(UserMessage(talk.at(), "again", "again", output_schema=SCHEMA))
    for _ in range(2):
        answer(talk, Text("Hello"), output_problem="no")
    assert isinstance(talk.state, states.LlmRequesting)


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
    assert isinstance(talk.state, states.LlmRequesting)
    answer(talk, Text('{"a":2}'), output='{"a":2}')
    assert stop(talk).output == '{"a":2}'


@pytest.mark.parametrize("content", [Text(VALUE), SUBMIT])
def test_a_value_in_the_answer_that_fills_the_context_comes_with_the_end_of_the_run(content: Content) -> None:
    talk = asked()
    answer(talk, content, output=VALUE, usage=FULL)
    assert [summary.rejected for summary in talk.acts(RequestContinuation)] == [()]
    answer(talk, Text("What was done."))
    assert isinstance(talk.state, states.ContextExhausted)
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
    assert isinstance(talk.state, states.Error)
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


# A run ends when its calls fail in the same way three times in a row.


UNKNOWN = "There is no tool 'fly' in this conversation. The tools are: bash."
ONE = ToolUse("", "bash", '{"cmd": "one"}')


def begun(context: ConvContext = OPEN) -> Talk:
    talk = Talk(context)
    talk.start() if context.is_sub_agent else talk.say("go")
    return talk


def cut_off(talk: Talk) -> None:
    talk.answer(ToolUse(f"t{talk.clock}", "bash", f'{{"cmd": "echo {talk.clock}'), end_turn=False, truncated=True)


def unknown_tool(talk: Talk) -> None:
    talk.call(ToolUse(f"t{talk.clock}", "fly", f'{{"to": {talk.clock}}}', bad_input=UNKNOWN))


def same_call(talk: Talk) -> None:
    talk.call(replace(ONE, id=f"t{talk.clock}"))
    talk.result(ToolError("", "no such file\nand more"))


def denied_by_rule(talk: Talk) -> None:
    rule = ApprovalRule("no", Action.DENY, "bash")
    talk.context = replace(talk.context, approval_rules=(rule,))
    talk.call(bash(f"t{talk.clock}"))


def denied_by_a_person(talk: Talk) -> None:
    talk.context = replace(talk.context, approval_policy=ApprovalPolicy.ASK_ALL)
    call = bash(f"t{talk.clock}")
    talk.call(call)
    assert isinstance(talk.state, states.AwaitingToolApproval)
    talk.tell(ApprovalResponse(talk.at(), call.id, False))


def together(talk: Talk) -> None:
    """Two calls, of which one is refused and one fails, now in this order, now in that."""
    calls = [ToolUse(f"t{talk.clock}", "fly", "{}", bad_input=UNKNOWN), bash(f"u{talk.clock}")]
    talk.call(*(calls if len(talk.messages) % 2 else calls[::-1]))
    talk.result(ToolError("", "no"))


WAYS = (cut_off, unknown_tool, same_call, denied_by_rule, denied_by_a_person, together)
SAYS: dict[Callable[[Talk], None], str] = {cut_off: texts.CUT_OFF, unknown_tool: "fly", same_call: "bash: no such file"}


def last_result(talk: Talk) -> ToolResult:
    (result,) = [message.content[0] for message in talk.messages if message.type.value == "tool"][-1:]
    assert isinstance(result, (ToolError, ToolSuccess))
    return result


@pytest.mark.parametrize("fail", WAYS)
def test_the_third_failure_of_a_kind_in_a_row_ends_the_run_and_the_second_says_so(fail: Callable[[Talk], None]) -> None:
    talk = begun()

    fail(talk)
    assert texts.REPEATED not in last_result(talk).output
    fail(talk)
    assert last_result(talk).output.endswith(texts.REPEATED)
    assert isinstance(talk.state, states.LlmRequesting)
    fail(talk)

    assert isinstance(talk.state, states.Error)
    assert talk.state.error_kind is ErrorKind.REPEATED_FAILURE
    (stop,) = talk.notes(RunStop)
    assert (stop.reason, stop.detail, stop.message) == (StopReason.ERROR, "repeated_failure", talk.state.message)
    assert SAYS.get(fail, "3 times in a row") in stop.message
    assert "and more" not in stop.message
    assert texts.REPEATED not in last_result(talk).output
    assert not talk.acts(RequestLlm)
    assert not list(violations(talk.messages))


def test_a_sub_agent_fails_and_its_parent_reads_what_repeated() -> None:
    talk = begun(SUB_AGENT)
    for _ in range(3):
        cut_off(talk)
    assert isinstance(talk.state, states.Failed)
    assert talk.state.kind is ErrorKind.REPEATED_FAILURE
    assert texts.CUT_OFF in talk.state.error


@pytest.mark.parametrize(
    "between",
    [
        unknown_tool,
        lambda talk: (talk.call(bash(f"t{talk.clock}")), talk.result(ToolSuccess("", "ok"))),
        lambda talk: (talk.call(replace(ONE, id=f"t{talk.clock}")), talk.result(ToolError("", "other"))),
        lambda talk: (
            talk.call(replace(bash("x"), input='{"cmd": "two"}')),
            talk.result(ToolError("", "no such file")),
        ),
        lambda talk: talk.say(f"steer {talk.clock}", Delivery.STEER),
        lambda talk: (talk.text("done"), talk.say(f"go {talk.clock}")),
    ],
    ids=["another failure", "a success", "another result", "another input", "a steer", "another run"],
)
def test_what_comes_between_ends_the_row(between: Callable[[Talk], object]) -> None:
    talk = begun()
    for _ in range(4):
        same_call(talk)
        same_call(talk)
        between(talk)
    assert isinstance(talk.state, states.LlmRequesting)
    assert not [stop for stop in talk.every(RunStop) if stop.reason is StopReason.ERROR]


def test_a_steer_that_waits_when_the_third_fails_is_delivered() -> None:
    talk = begun()
    same_call(talk)
    same_call(talk)
    talk.say("stop that", Delivery.STEER)
    same_call(talk)
    assert isinstance(talk.state, states.LlmRequesting)
    assert ("user", "stop that") in talk.said


def test_one_response_counts_once_however_many_of_its_calls_fail() -> None:
    talk = begun()
    talk.answer(*map(bash, "abcd"), end_turn=False, truncated=True)
    assert isinstance(talk.state, states.LlmRequesting)
    assert last_result(talk).output == texts.CUT_OFF


def test_a_response_in_which_a_call_succeeds_is_no_failure() -> None:
    talk = begun()
    for number in range(5):
        talk.call(replace(bash(f"t{number}"), bad_input=UNKNOWN), bash(f"u{number}"))
        talk.result(ToolSuccess("", "ok"))
    assert isinstance(talk.state, states.LlmRequesting)


@pytest.mark.parametrize("edition", [each for each in Rules if each < Rules.NOTHING_LOST])
def test_earlier_editions_repeat_until_the_round_limit(edition: Rules) -> None:
    talk = begun(replace(OPEN, rules=edition))
    for _ in range(5):
        cut_off(talk)
    assert isinstance(talk.state, states.LlmRequesting)
    assert (talk.state.ledger.failure, talk.state.ledger.repeats) == ("", 0)


CALL = st.tuples(st.sampled_from(["one", "two"]), st.sampled_from(["ok", "bad", "worse", "refused"]))


@given(st.lists(st.one_of(st.just(()), st.lists(CALL, min_size=1, max_size=3).map(tuple)), max_size=12))
def test_a_run_never_has_more_than_three_equal_failures_in_a_row(rounds: list[Sequence[tuple[str, str]]]) -> None:
    """A round of () is an answer that was cut off; another has calls, each with its input and how it ends."""
    talk, seen = begun(), list[object]()
    for number, calls in enumerate(rounds):
        if not isinstance(talk.state, states.LlmRequesting):
            break
        if not calls:
            cut_off(talk)
            seen.append("cut off")
            continue
        talk.call(
            *(
                ToolUse(f"{number}-{place}", "bash", each, bad_input="no" if end == "refused" else "")
                for place, (each, end) in enumerate(calls)
            )
        )
        while isinstance(talk.state, states.ToolExecuting):
            _, end = calls[int(talk.state.current_tool_id[-1])]
            talk.result(ToolSuccess("", "ok") if end == "ok" else ToolError("", end, ToolOutcome.ERROR))
        succeeded = any(end == "ok" for _, end in calls)
        seen.append(number if succeeded else frozenset((end != "refused" and each, end) for each, end in calls))
    longest = max((len(list(same)) for _, same in groupby(seen)), default=0)
    assert longest <= 3
    assert isinstance(talk.state, states.Error) == (longest == 3)
