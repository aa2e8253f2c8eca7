"""Questions to people (REQ-BED-015; C15, C16): who is asked, and that every question ends once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from actors.core.content import ToolError, ToolOutcome, ToolSuccess, ToolUse
from actors.core.context import ApprovalPolicy, ConvContext, Mode, Rules, ToolGroup, ToolTraits
from actors.core.effects import ExecuteTool, PersistMode
from actors.core.errors import Reason, Rejected
from actors.core.events import ApprovalResponse, Restart, UserCancel
from actors.core.notifications import ApprovalDecision, ApprovalRequested, ApprovalResolved, ModeChanged
from actors.core.states import ApprovalKind, AwaitingToolApproval, Idle, LlmRequesting, ToolExecuting
from actors.core.steps import texts
from tests.machine.columns import PARENT, SUB_AGENT
from tests.machine.talk import Talk, bash, messages

TOOLS = (
    ToolTraits("read_file", ToolGroup.READ, retry_safe=True),
    ToolTraits("bash", ToolGroup.BASH, writes=True),
    ToolTraits("request_mode_upgrade", ToolGroup.OTHER, always_asks=True),
)
BASE = replace(PARENT, tools=TOOLS)
READ, BASH, UNKNOWN, UPGRADE = (
    ToolUse(f"t-{name}", name, "{}") for name in ("read_file", "bash", "no_such_tool", "request_mode_upgrade")
)


def policy(name: ApprovalPolicy, *always: str) -> ConvContext:
    return replace(BASE, approval_policy=name, always_approved=always)


@pytest.mark.parametrize(
    ("context", "asked"),
    [
        (policy(ApprovalPolicy.AUTO), [UPGRADE.id]),
        (policy(ApprovalPolicy.ASK_WRITES), [BASH.id, UNKNOWN.id, UPGRADE.id]),
        (policy(ApprovalPolicy.ASK_WRITES, "bash"), [UNKNOWN.id, UPGRADE.id]),
        (policy(ApprovalPolicy.ASK_WRITES, "bash", "request_mode_upgrade"), [UNKNOWN.id, UPGRADE.id]),
        (policy(ApprovalPolicy.ASK_ALL), [READ.id, BASH.id, UNKNOWN.id, UPGRADE.id]),
        (policy(ApprovalPolicy.ASK_ALL, "read_file"), [BASH.id, UNKNOWN.id, UPGRADE.id]),
    ],
)
def test_the_policy_decides_who_is_asked_and_a_mode_upgrade_always_asks(context: ConvContext, asked: list[str]) -> None:
    talk = Talk(context)
    talk.say("go")

    talk.call(READ, BASH, UNKNOWN, UPGRADE)

    assert [note.call.id for note in talk.notes(ApprovalRequested)] == asked
    assert isinstance(talk.state, AwaitingToolApproval)
    assert talk.state.undecided == tuple(asked)
    assert talk.state.calls == (READ, BASH, UNKNOWN, UPGRADE)
    assert talk.acts(ExecuteTool) == []


def test_the_notice_of_restricted_mode_names_what_is_offered() -> None:
    for tools, text in ((TOOLS, texts.MODES[Mode.RESTRICTED]), (TOOLS[:1], texts.RESTRICTED_FOR_GOOD)):
        talk = Talk(replace(BASE, tools=tools, mode=Mode.UNRESTRICTED))
        talk.set_mode(Mode.RESTRICTED)
        assert talk.said == [("system", text)]


@pytest.mark.parametrize("policy_name", ApprovalPolicy)
def test_a_mode_upgrade_that_is_not_offered_neither_asks_nor_runs(policy_name: ApprovalPolicy) -> None:
    talk = Talk(replace(BASE, tools=TOOLS[:1], approval_policy=policy_name))
    talk.say("go")

    talk.call(UPGRADE)

    assert talk.notes(ApprovalRequested) == []
    assert talk.acts(ExecuteTool) == []
    (result,) = (block for message in messages(talk.last) for block in message.content if isinstance(block, ToolError))
    assert result.output == texts.NOT_OFFERED


def test_a_log_of_earlier_rules_is_replayed_with_a_question_about_every_mode_upgrade() -> None:
    talk = Talk(replace(BASE, tools=(), rules=Rules.INTERRUPTIONS))
    talk.say("go")

    talk.call(UPGRADE)

    (request,) = talk.notes(ApprovalRequested)
    assert request.kind is ApprovalKind.MODE_UPGRADE


def asking(*calls: ToolUse) -> Talk:
    talk = Talk(policy(ApprovalPolicy.ASK_ALL))
    talk.say("go")
    talk.call(*calls)
    return talk


def test_nothing_runs_before_the_last_approval_then_all_run_in_request_order() -> None:
    talk = asking(READ, BASH)

    talk.tell(ApprovalResponse(talk.at(), BASH.id, True))
    assert talk.acts(ExecuteTool) == []
    talk.tell(ApprovalResponse(talk.at(), READ.id, True))
    assert [one.tool_use_id for one in talk.acts(ExecuteTool)] == [READ.id]
    talk.result(ToolSuccess(READ.id, "ok"))

    assert [one.tool_use_id for one in talk.acts(ExecuteTool)] == [BASH.id]
    assert [(note.tool_use_id, note.decision) for note in talk.every(ApprovalResolved)] == [
        (BASH.id, ApprovalDecision.APPROVE),
        (READ.id, ApprovalDecision.APPROVE),
    ]


def test_the_first_denial_decides_for_the_whole_response_and_the_run_goes_on() -> None:
    talk = asking(READ, BASH, UNKNOWN)
    talk.tell(ApprovalResponse(talk.at(), READ.id, True))

    talk.tell(ApprovalResponse(talk.at(), BASH.id, False, "too risky"))

    other = "Not executed: another tool call in the same response was denied"
    results = [message.content[0] for message in messages(talk.last)]
    assert results == [
        ToolError(READ.id, other, ToolOutcome.SKIPPED),
        ToolError(BASH.id, "Denied by user: too risky", ToolOutcome.DENIED),
        ToolError(UNKNOWN.id, other, ToolOutcome.SKIPPED),
    ]
    assert [(note.tool_use_id, note.decision) for note in talk.notes(ApprovalResolved)] == [
        (BASH.id, ApprovalDecision.DENY),
        (UNKNOWN.id, ApprovalDecision.WITHDRAWN),
    ]
    assert isinstance(talk.state, LlmRequesting)
    assert talk.walk == ["GeneratingResponse", "AwaitingLLMResponse"]


@pytest.mark.parametrize("answered", [BASH.id, "t-never-asked"])
def test_a_question_is_answered_once(answered: str) -> None:
    talk = asking(READ, BASH)
    talk.tell(ApprovalResponse(talk.at(), BASH.id, True))
    before = talk.state

    with pytest.raises(Rejected) as refused:
        talk.tell(ApprovalResponse(talk.at(), answered, False))

    assert refused.value.reason is Reason.UNKNOWN_OR_DECIDED
    assert talk.state is before


@pytest.mark.parametrize("event", [UserCancel(9_000), Restart(9_000)], ids=["cancel", "restart"])
def test_open_questions_are_withdrawn_and_answered_ones_are_not_resolved_again(event: UserCancel | Restart) -> None:
    talk = asking(READ, BASH)
    talk.tell(ApprovalResponse(talk.at(), READ.id, True))

    talk.tell(event)

    assert [(note.tool_use_id, note.decision) for note in talk.notes(ApprovalResolved)] == [
        (BASH.id, ApprovalDecision.WITHDRAWN)
    ]
    assert isinstance(talk.state, Idle)
    assert [message.content[0].tool_use_id for message in messages(talk.last)] == [READ.id, BASH.id]  # type: ignore[union-attr]


def upgrading() -> Talk:
    talk = Talk(BASE)
    talk.say("go")
    talk.call(UPGRADE, READ)
    assert isinstance(talk.state, AwaitingToolApproval)
    assert talk.state.kind is ApprovalKind.MODE_UPGRADE
    talk.tell(ApprovalResponse(talk.at(), UPGRADE.id, True))
    return talk


def test_the_result_of_an_approved_upgrade_changes_the_mode_and_the_agent_hears_of_it_after_the_round() -> None:
    talk = upgrading()
    assert talk.acts(PersistMode) == []

    talk.result(ToolSuccess(UPGRADE.id, "granted"))
    assert talk.acts(PersistMode) == [PersistMode(Mode.UNRESTRICTED)]
    assert talk.notes(ModeChanged) == [ModeChanged(Mode.UNRESTRICTED)]
    assert [kind for kind, _ in talk.said] == ["tool"]
    talk.result(ToolSuccess(READ.id, "contents"))

    assert [kind for kind, _ in talk.said] == ["tool", "system"]
    assert "unrestricted" in talk.said[1][1]
    assert talk.context.mode is Mode.UNRESTRICTED


@pytest.mark.parametrize(
    ("mode", "given", "granted"),
    [
        (Mode.RESTRICTED, '{"mode": "workspace"}', Mode.WORKSPACE),
        (Mode.RESTRICTED, '{"mode": "unrestricted"}', Mode.UNRESTRICTED),
        (Mode.WORKSPACE, '{"mode": "unrestricted"}', Mode.UNRESTRICTED),
        (Mode.WORKSPACE, "{}", Mode.UNRESTRICTED),
        (Mode.WORKSPACE, '{"mode": "workspace"}', None),
        (Mode.UNRESTRICTED, '{"mode": "workspace"}', None),
        (Mode.WORKSPACE, '{"mode": "restricted"}', None),
    ],
)
def test_an_approved_upgrade_grants_the_mode_that_was_asked_for_and_takes_none_away(
    mode: Mode, given: str, granted: Mode | None
) -> None:
    talk = Talk(replace(BASE, mode=mode))
    talk.say("go")
    talk.call(replace(UPGRADE, input=given))
    talk.tell(ApprovalResponse(talk.at(), UPGRADE.id, True))

    talk.result(ToolSuccess(UPGRADE.id, "granted"))

    assert [effect.mode for effect in talk.acts(PersistMode)] == ([granted] if granted else [])
    assert talk.context.mode is (granted or mode)


def test_a_workspace_that_this_server_cannot_keep_is_not_granted() -> None:
    talk = Talk(replace(BASE, workspace_available=False))
    talk.say("go")
    talk.call(replace(UPGRADE, input='{"mode": "workspace"}'))
    talk.tell(ApprovalResponse(talk.at(), UPGRADE.id, True))

    talk.result(ToolSuccess(UPGRADE.id, "granted"))

    assert talk.acts(PersistMode) == []


def test_an_upgrade_that_failed_changes_nothing() -> None:
    talk = upgrading()

    talk.result(ToolError(UPGRADE.id, "no"))

    assert talk.acts(PersistMode) == []
    assert talk.context.mode is Mode.RESTRICTED


def test_another_tools_success_changes_no_mode() -> None:
    talk = Talk(BASE)
    talk.say("go")
    talk.call(READ)

    talk.result(ToolSuccess(READ.id, "contents"))

    assert talk.acts(PersistMode) == []


def test_sub_agents_never_ask_what_would_ask_is_refused_in_passing() -> None:
    talk = Talk(replace(SUB_AGENT, tools=TOOLS, approval_policy=ApprovalPolicy.ASK_WRITES))
    talk.start()

    talk.call(BASH, READ, UNKNOWN)
    assert isinstance(talk.state, ToolExecuting)
    assert talk.state.current_tool_id == READ.id
    talk.result(ToolSuccess(READ.id, "contents"))

    refusal = "Not executed: it needs approval, and sub-agents cannot ask"
    results = [message.content[0] for message in talk.messages if message.type == "tool"]
    assert [(one.tool_use_id, one.output) for one in results] == [  # type: ignore[union-attr]
        (BASH.id, refusal),
        (READ.id, "contents"),
        (UNKNOWN.id, refusal),
    ]
    assert isinstance(talk.state, LlmRequesting)


def test_a_sub_agent_whose_calls_would_all_need_approval_is_informed_and_continues() -> None:
    talk = Talk(replace(SUB_AGENT, approval_policy=ApprovalPolicy.ASK_ALL))
    talk.start()

    talk.call(bash("t1"), bash("t2"))

    assert isinstance(talk.state, LlmRequesting)
    assert talk.walk == [
        "ProcessingLLMResponse",
        "ExecutingTools",
        "ProcessingToolResults",
        "GeneratingResponse",
        "AwaitingLLMResponse",
    ]
