"""A run ends when its calls fail in the same way three times in a row."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.core.content import Delivery, ToolError, ToolOutcome, ToolSuccess, ToolUse
from actors.core.context import Action, ApprovalPolicy, ApprovalRule, Rules
from actors.core.effects import RequestLlm
from actors.core.errors import ErrorKind
from actors.core.events import ApprovalResponse
from actors.core.history import violations
from actors.core.notifications import RunStop, StopReason
from actors.core.states import AwaitingToolApproval, Error, Failed, LlmRequesting, ToolExecuting
from actors.core.steps import texts
from tests.machine.columns import SUB_AGENT
from tests.machine.talk import OPEN, Talk, bash

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors.core.content import ToolResult
    from actors.core.context import ConvContext

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
    assert isinstance(talk.state, AwaitingToolApproval)
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
    assert isinstance(talk.state, LlmRequesting)
    fail(talk)

    assert isinstance(talk.state, Error)
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
    assert isinstance(talk.state, Failed)
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
    assert isinstance(talk.state, LlmRequesting)
    assert not [stop for stop in talk.every(RunStop) if stop.reason is StopReason.ERROR]


def test_a_steer_that_waits_when_the_third_fails_is_delivered() -> None:
    talk = begun()
    same_call(talk)
    same_call(talk)
    talk.say("stop that", Delivery.STEER)
    same_call(talk)
    assert isinstance(talk.state, LlmRequesting)
    assert ("user", "stop that") in talk.said


def test_one_response_counts_once_however_many_of_its_calls_fail() -> None:
    talk = begun()
    talk.answer(*map(bash, "abcd"), end_turn=False, truncated=True)
    assert isinstance(talk.state, LlmRequesting)
    assert last_result(talk).output == texts.CUT_OFF


def test_a_response_in_which_a_call_succeeds_is_no_failure() -> None:
    talk = begun()
    for number in range(5):
        talk.call(replace(bash(f"t{number}"), bad_input=UNKNOWN), bash(f"u{number}"))
        talk.result(ToolSuccess("", "ok"))
    assert isinstance(talk.state, LlmRequesting)


@pytest.mark.parametrize("edition", [each for each in Rules if each < Rules.NOTHING_LOST])
def test_earlier_editions_repeat_until_the_round_limit(edition: Rules) -> None:
    talk = begun(replace(OPEN, rules=edition))
    for _ in range(5):
        cut_off(talk)
    assert isinstance(talk.state, LlmRequesting)
    assert (talk.state.ledger.failure, talk.state.ledger.repeats) == ("", 0)


CALL = st.tuples(st.sampled_from(["one", "two"]), st.sampled_from(["ok", "bad", "worse", "refused"]))


@given(st.lists(st.one_of(st.just(()), st.lists(CALL, min_size=1, max_size=3).map(tuple)), max_size=12))
def test_a_run_never_has_more_than_three_equal_failures_in_a_row(rounds: list[Sequence[tuple[str, str]]]) -> None:
    """A round of () is an answer that was cut off; another has calls, each with its input and how it ends."""
    talk, seen = begun(), list[object]()
    for number, calls in enumerate(rounds):
        if not isinstance(talk.state, LlmRequesting):
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
        while isinstance(talk.state, ToolExecuting):
            _, end = calls[int(talk.state.current_tool_id[-1])]
            talk.result(ToolSuccess("", "ok") if end == "ok" else ToolError("", end, ToolOutcome.ERROR))
        succeeded = any(end == "ok" for _, end in calls)
        seen.append(number if succeeded else frozenset((end != "refused" and each, end) for each, end in calls))
    longest = max((len(list(same)) for _, same in groupby(seen)), default=0)
    assert longest <= 3
    assert isinstance(talk.state, Error) == (longest == 3)
