"""Tools that clients run: who is asked, how a wait ends, and what a run offers (C52, C53, C54)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from actors.core.content import ToolError, ToolOutcome, ToolResult, ToolSuccess, ToolUse, is_tool_result
from actors.core.context import ApprovalPolicy, ConvContext, Mode, ToolGroup, ToolTraits
from actors.core.effects import AbortTool, AwaitToolResult, ExecuteTool, RequestLlm
from actors.core.events import (
    ApprovalResponse,
    Event,
    InternalFault,
    Restart,
    SetMode,
    SubmitToolResult,
    ToolAborted,
    ToolComplete,
    ToolDeadline,
    UserCancel,
)
from actors.core.notifications import ApprovalRequested, CallStatus, ClientToolCall, RunStop
from actors.core.states import AwaitingToolApproval, Error, Idle, LlmRequesting, ToolExecuting
from tests.machine.columns import SUB_AGENT, TOOLS
from tests.machine.talk import OPEN, Talk, bash, messages

FIND = ToolTraits("find_order", ToolGroup.READ, client=True, timeout_ms=60_000)
SHIP = ToolTraits("ship_order", ToolGroup.WRITE, writes=True, client=True, timeout_ms=5_000)
REFUND = ToolTraits("refund", ToolGroup.OTHER, writes=True, always_asks=True, client=True, timeout_ms=5_000)
CONTEXT = replace(OPEN, tools=(*TOOLS, FIND, SHIP, REFUND))


def find(call_id: str = "t1", bad_input: str = "") -> ToolUse:
    return ToolUse(call_id, "find_order", '{"id": 7}', bad_input)


def ship(call_id: str = "t1") -> ToolUse:
    return ToolUse(call_id, "ship_order", '{"id": 7}')


def asked(*calls: ToolUse, context: ConvContext = CONTEXT) -> Talk:
    """A conversation whose model has called these tools."""
    talk = Talk(context)
    talk.say("hello")
    talk.call(*calls)
    return talk


def submit(talk: Talk, call_id: str = "t1", result: ToolSuccess | ToolError | None = None) -> None:
    talk.tell(SubmitToolResult(talk.at(), call_id, result or ToolSuccess(call_id, "shipped")))


def results(talk: Talk) -> list[ToolResult]:
    """The results that the last event stored."""
    return [block for message in messages(talk.last) for block in message.content if is_tool_result(block)]


def statuses(talk: Talk) -> list[tuple[str, CallStatus]]:
    return [(told.call.id, told.status) for told in talk.every(ClientToolCall)]


def test_a_call_waits_for_a_client_and_nothing_of_ours_is_started() -> None:
    talk = asked(find())

    assert isinstance(talk.state, ToolExecuting)
    deadline = talk.clock + 60_000
    assert talk.state.deadline == deadline
    assert talk.acts(AwaitToolResult) == [AwaitToolResult("t1", 1, deadline)]
    assert talk.acts(ExecuteTool) == []
    assert talk.notes(ClientToolCall) == [ClientToolCall(find(), CallStatus.PENDING, deadline)]


@pytest.mark.parametrize("answer", [ToolSuccess("", "shipped"), ToolError("", "out of stock")], ids=["ok", "error"])
def test_an_answer_becomes_the_result_and_the_run_goes_on(answer: ToolSuccess | ToolError) -> None:
    talk = asked(find(), bash("t2"))
    submit(talk, "t1", answer)

    assert results(talk) == [replace(answer, tool_use_id="t1", duration_ms=10)]
    assert statuses(talk)[-1] == ("t1", CallStatus.ANSWERED)
    assert [effect.tool_use_id for effect in talk.acts(ExecuteTool)] == ["t2"]


def test_what_was_corrected_in_a_call_is_said_in_its_result() -> None:
    """Of tools of clients and of ours, whatever the outcome."""
    talk = asked(replace(find(), corrected="Note: a."), replace(bash("t2"), corrected="Note: b."))
    submit(talk)
    assert [result.output for result in results(talk)] == ["shipped\n\nNote: a."]
    talk.tell(ToolComplete(talk.at(), "t2", 2, ToolError("t2", "failed")))
    assert [result.output for result in results(talk)] == ["failed\n\nNote: b."]


def test_two_calls_of_clients_are_asked_for_one_after_the_other() -> None:
    talk = asked(find("t1"), ship("t2"))
    submit(talk, "t1")

    assert statuses(talk) == [("t1", CallStatus.PENDING), ("t1", CallStatus.ANSWERED), ("t2", CallStatus.PENDING)]
    assert talk.acts(AwaitToolResult) == [AwaitToolResult("t2", 2, talk.clock + 5_000)]
    submit(talk, "t2")
    assert talk.acts(RequestLlm)


def test_at_the_deadline_the_call_gets_an_error_result_and_the_run_goes_on() -> None:
    talk = asked(ship())
    talk.tell(ToolDeadline(talk.at(), "t1", 1))

    (result,) = results(talk)
    assert isinstance(result, ToolError)
    assert (result.outcome, result.duration_ms) == (ToolOutcome.TIMED_OUT, 5_000)
    assert "within 5 s" in result.output
    assert statuses(talk)[-1] == ("t1", CallStatus.TIMED_OUT)
    assert isinstance(talk.state, LlmRequesting)


@pytest.mark.parametrize(("call_id", "execution"), [("t1", 2), ("t2", 1)])
def test_the_deadline_of_another_execution_is_ignored(call_id: str, execution: int) -> None:
    talk = asked(ship())

    assert talk.tell(ToolDeadline(talk.at(), call_id, execution)) == ()


@pytest.mark.parametrize("event", [ToolComplete(1, "t1", 1, ToolSuccess("t1", "ours")), ToolAborted(1, "t1", 1)])
def test_an_outcome_of_ours_is_no_answer_of_a_client(event: Event) -> None:
    talk = asked(find())

    assert talk.tell(event) == ()


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (UserCancel(9_000), ToolOutcome.CANCELLED),
        (Restart(9_000), ToolOutcome.CANCELLED),
        (InternalFault(9_000, "see the log"), ToolOutcome.ERROR),
    ],
    ids=["cancel", "restart", "fault"],
)
def test_what_ends_the_run_withdraws_the_call_with_a_synthetic_result(event: Event, outcome: ToolOutcome) -> None:
    talk = asked(find(), ship("t2"))
    talk.tell(event)

    assert [result.tool_use_id for result in results(talk)] == ["t1", "t2"]
    assert results(talk)[0].outcome is outcome
    assert statuses(talk) == [("t1", CallStatus.PENDING), ("t1", CallStatus.WITHDRAWN)]
    assert talk.acts(AbortTool) == []
    assert len(talk.notes(RunStop)) == 1
    assert isinstance(talk.state, (Idle, Error))


def test_in_a_narrower_mode_the_calls_that_have_not_begun_get_an_error_result() -> None:
    talk = asked(ship("t1"), ship("t2"), find("t3"))
    talk.set_mode(Mode.RESTRICTED, "t1")

    assert [result.outcome for result in results(talk)] == [ToolOutcome.CANCELLED, ToolOutcome.SKIPPED]
    assert "restricted" in results(talk)[1].output
    assert statuses(talk)[-1] == ("t3", CallStatus.PENDING)


def test_restricted_mode_asks_no_client_to_change_anything() -> None:
    talk = asked(ship("t1"), find("t2"), context=replace(CONTEXT, mode=Mode.RESTRICTED))

    assert results(talk) == [ToolError("t1", results(talk)[0].output, ToolOutcome.SKIPPED)]
    assert statuses(talk) == [("t2", CallStatus.PENDING)]


def test_an_input_that_does_not_fit_gets_an_error_result_before_any_client_is_asked() -> None:
    talk = asked(
        find("t1", "`id` is missing"), find("t2"), context=replace(CONTEXT, approval_policy=ApprovalPolicy.ASK_ALL)
    )

    assert [told.call.id for told in talk.notes(ApprovalRequested)] == ["t2"]
    talk.tell(ApprovalResponse(talk.at(), "t2", approve=True))
    assert results(talk) == [ToolError("t1", "`id` is missing")]
    assert statuses(talk) == [("t2", CallStatus.PENDING)]


@pytest.mark.parametrize(
    ("policy", "questions"),
    [
        (ApprovalPolicy.AUTO, ["t3"]),
        (ApprovalPolicy.ASK_WRITES, ["t2", "t3"]),
        (ApprovalPolicy.ASK_ALL, ["t1", "t2", "t3"]),
    ],
)
def test_the_policy_asks_about_tools_of_clients_as_about_ours(policy: ApprovalPolicy, questions: list[str]) -> None:
    calls = find("t1"), ship("t2"), ToolUse("t3", "refund", "{}")
    talk = asked(*calls, context=replace(CONTEXT, approval_policy=policy))

    assert [told.call.id for told in talk.notes(ApprovalRequested)] == questions


def test_a_call_that_the_mode_forbids_is_asked_about_since_the_mode_may_change_until_it_runs() -> None:
    context = replace(CONTEXT, mode=Mode.RESTRICTED, approval_policy=ApprovalPolicy.ASK_WRITES)
    talk = asked(ship(), context=context)

    assert isinstance(talk.state, AwaitingToolApproval)
    talk.tell(SetMode(talk.at(), Mode.UNRESTRICTED))
    assert talk.acts(AwaitToolResult) == []
    talk.tell(ApprovalResponse(talk.at(), "t1", approve=True))
    assert statuses(talk) == [("t1", CallStatus.PENDING)]


def test_an_approved_upgrade_of_the_mode_holds_for_the_next_call_of_the_round() -> None:
    context = replace(CONTEXT, mode=Mode.RESTRICTED)
    talk = asked(ToolUse("t1", "request_mode_upgrade", "{}"), ship("t2"), context=context)
    talk.tell(ApprovalResponse(talk.at(), "t1", approve=True))
    talk.result(ToolSuccess("t1", "granted"))

    assert statuses(talk) == [("t2", CallStatus.PENDING)]


@pytest.mark.parametrize("mode", list(Mode))
def test_a_run_keeps_the_mode_in_which_it_began_as_that_of_what_it_offers(mode: Mode) -> None:
    talk = asked(bash("t1"), context=replace(CONTEXT, mode=mode))
    other = Mode.RESTRICTED if mode is Mode.UNRESTRICTED else Mode.UNRESTRICTED
    talk.set_mode(other)
    assert talk.state.ledger.run_mode is mode

    talk.result(ToolSuccess("t1", "done"))
    talk.text("that was it")
    talk.say("again")
    assert talk.state.ledger.run_mode is other


def test_without_tools_of_clients_the_ledger_says_nothing_of_modes() -> None:
    assert asked(bash("t1"), context=OPEN).state.ledger.run_mode is None


def test_in_a_sub_agent_there_are_no_tools_of_clients() -> None:
    talk = Talk(SUB_AGENT)
    talk.start()
    talk.call(find())

    assert [effect.tool_use_id for effect in talk.acts(AwaitToolResult)] == []
