"""States and conversations as clients see them, and the values of the contract."""

from dataclasses import replace
from enum import EnumMeta
from typing import Any, get_args

import msgspec
import pytest
from bedrock import v1

from actors.core import context
from actors.core.content import Delivery, MessageType, SystemKind, ToolOutcome
from actors.core.errors import ErrorKind
from actors.core.notifications import ApprovalDecision, Fate, StopReason
from actors.core.states import AwaitingToolApproval, Idle, LlmPhase, LlmRequesting, State, ToolExecuting
from actors.core.summary import ContextState
from actors.ports import ConversationRecord
from actors.ports.records import Outcome
from actors.ports.tools import McpServerStatus, McpState
from server.queries import audit
from server.wire import conversation_messages, messages
from server.wire.conversation_messages import (
    KEPT,
    KEPT_BYTES,
    EncodedConversations,
    chosen_mcp_servers,
    conversation,
    in_full,
    pending_approvals,
    pending_client_tool_calls,
    present,
    state_of,
    summary_of,
)
from server.wire.messages import ConversionContext, plain
from tests.support.samples import BASH, FACTS, STATES, record

# States and conversations as clients see them.


RUN = "conversations/c/requestCycles/c:3"


def shown(kind: str) -> v1.ConversationState:
    return state_of(FACTS, record(STATES[kind]))


@pytest.mark.parametrize("kind", STATES)
def test_every_state_has_its_kind_and_the_detail_that_belongs_to_it(kind: str) -> None:
    details = {
        "llm_requesting": "llm_requesting",
        "awaiting_continuation": "llm_requesting",
        "awaiting_tool_approval": "awaiting_approval",
        "tool_executing": "tool_executing",
        "awaiting_sub_agents": "awaiting_sub_agents",
        "error": "error",
        "completed": "completed",
        "failed": "failed",
    }
    answer = shown(kind)
    assert v1.StateKind.Name(answer.kind) == f"STATE_KIND_{kind.upper()}"
    assert answer.WhichOneof("detail") == details.get(kind)
    assert answer.busy is (kind not in {"idle", "error", "context_exhausted", "completed", "failed"})
    assert answer.run == (RUN if answer.busy else "")
    assert (answer.enter_time.seconds, answer.enter_time.nanos) == (1, 500_000_000)
    assert v1.ConversationState.FromString(answer.SerializeToString()) == answer


def test_a_request_shows_its_attempt_its_next_time_and_the_last_error() -> None:
    detail = shown("llm_requesting").llm_requesting
    assert (detail.llm_request_id, detail.attempt, detail.max_attempts) == ("c:r5", 2, 3)
    assert detail.phase == v1.ConversationState.LlmRequesting.PHASE_BACKOFF
    assert detail.retry_time.ToMilliseconds() == 5_500
    assert detail.last_error == v1.RunError(kind=v1.ERROR_KIND_NETWORK, message="no answer")


def test_a_first_attempt_has_no_error_and_no_next_time() -> None:
    state = LlmRequesting(STATES["llm_requesting"].ledger, "c:r5", 1, LlmPhase.CONNECTING, 4)
    detail = state_of(FACTS, record(state)).llm_requesting
    assert not detail.HasField("last_error")
    assert not detail.HasField("retry_time")


def test_open_questions_are_named_and_say_what_is_asked() -> None:
    tool, upgrade = shown("awaiting_tool_approval").awaiting_approval.pending
    assert tool.name == "conversations/c/approvals/call-1"
    assert tool.tool_call.tool == "bash"
    assert tool.tool_call.group == v1.TOOL_GROUP_BASH
    assert tool.create_time.ToMilliseconds() == 4_321
    assert upgrade.mode_upgrade == v1.PendingApproval.ModeUpgrade(
        tool_use_id="call-3", reason="to write", mode=v1.MODE_UNRESTRICTED
    )


def test_a_question_names_the_rule_that_asks() -> None:
    waiting = STATES["awaiting_tool_approval"]
    assert isinstance(waiting, AwaitingToolApproval)
    asking = context.ApprovalRule("r1", context.Action.ASK, command_prefix="git", words=("git",))
    about = (context.Suggested("call-1", (), asking), context.Suggested("call-3", (), workspace=True))
    summary = summary_of(FACTS, "c", msgspec.structs.replace(waiting, suggestions=about))
    tool, upgrade = pending_approvals(FACTS, "c", summary)
    assert (tool.rule.name, tool.rule.command_prefix) == ("conversations/c/approvalRules/r1", "git")
    assert not upgrade.HasField("rule")
    assert upgrade.mode_upgrade.workspace_available
    assert not shown("awaiting_tool_approval").awaiting_approval.pending[1].mode_upgrade.workspace_available


def test_running_tools_are_counted() -> None:
    detail = shown("tool_executing").tool_executing
    assert detail.current.tool_use_id == "call-1"
    assert (detail.attempt, detail.remaining_count, detail.completed_count) == (2, 1, 0)
    assert detail.retry_time.ToMilliseconds() == 6_000


def test_a_call_that_waits_for_a_client_says_until_when() -> None:
    waits = ToolExecuting(STATES["tool_executing"].ledger, "call-1", (), (), (BASH,), 7, deadline=9_000)
    summary = summary_of(FACTS, "c", waits)
    (pending,) = pending_client_tool_calls(FACTS, summary)

    assert state_of(FACTS, record(waits)).tool_executing.deadline.ToMilliseconds() == 9_000
    assert (pending.call.tool_use_id, pending.deadline.ToMilliseconds()) == ("call-1", 9_000)
    assert pending.status == v1.Event.ClientToolCallChanged.STATUS_PENDING


@pytest.mark.parametrize("kind", STATES)
def test_no_other_state_waits_for_a_client(kind: str) -> None:
    assert pending_client_tool_calls(FACTS, summary_of(FACTS, "c", STATES[kind])) == []
    assert not shown(kind).tool_executing.HasField("deadline")


def test_sub_agents_are_named() -> None:
    detail = shown("awaiting_sub_agents").awaiting_sub_agents
    (agent,) = detail.pending
    assert (agent.conversation, agent.task, agent.task_index) == ("conversations/agent-2", "look", 1)
    assert (agent.deadline.ToMilliseconds(), detail.completed_count) == (9_000, 1)


def test_ends_say_how() -> None:
    assert shown("error").error == v1.RunError(kind=v1.ERROR_KIND_NETWORK, message="try again")
    assert shown("completed").completed.result == "the result"
    failed = shown("failed").failed
    assert failed.error == v1.RunError(kind=v1.ERROR_KIND_TURN_LIMIT, message="no turns left")
    assert failed.partial_result == "so far"


def test_what_lists_show_has_no_instructions_and_tells_none_of_the_tools_from_all() -> None:
    told = conversation(FACTS, record(STATES["idle"], profile=context.Profile(instructions="Be brief.", tools=())))
    assert not told.HasField("instructions")
    assert told.HasField("tools")
    plain = in_full(FACTS, record(STATES["idle"]))
    assert not plain.HasField("instructions")
    assert not plain.HasField("tools")
    assert not plain.HasField("generation")


def test_a_conversation_shows_every_field_of_its_row() -> None:
    answer = in_full(
        FACTS,
        record(
            STATES["tool_executing"],
            parent_conversation_id="p",
            continued_from="before",
            continued_by="after",
            archived_at=3_000,
            profile=context.Profile(
                instructions="Be brief.",
                replaces_prompt=True,
                tools=("bash",),
                generation=context.Generation(context.ReasoningEffort.LOW, temperature=0.0),
                forked_from="trunk",
                forked_at="trunk:3",
                auto_continue=True,
            ),
        ),
    )
    unset = {field.name for field in answer.DESCRIPTOR.fields} - {field.name for field, _ in answer.ListFields()}
    assert unset == {"continuation_summary", "background_jobs", "client_tools", "mcp_servers", "unoffered_tools"}
    assert answer.instructions == v1.Instructions(text="Be brief.", replace=True)
    assert answer.tools.tools == ["tools/bash"]
    assert answer.generation == v1.Generation(reasoning_effort=v1.REASONING_EFFORT_LOW, temperature=0.0)
    assert answer.name == "conversations/c"
    assert answer.model == "models/demo"
    assert answer.context_usage == v1.ContextUsage(used_tokens=800, usable_window_tokens=1_000, warning=True)
    assert answer.total_usage == v1.Usage(
        input_tokens=1, output_tokens=2, cache_read_tokens=3, cache_write_tokens=4, cost_micros=5
    )
    assert answer.aside_usage == v1.Usage(input_tokens=9)
    assert (answer.parent, answer.continued_from) == ("conversations/p", "conversations/before")
    assert answer.forked_from == "conversations/trunk"
    assert answer.forked_at == "conversations/trunk/requestCycles/trunk:3"
    assert [rule.tool for rule in answer.approval_rules] == ["tools/bash"]
    assert answer.revision == 42
    assert answer.labels == {"team": "a"}


def test_the_tools_of_clients_are_shown_where_the_whole_conversation_is() -> None:
    schema = '{"type":"object","properties":{"id":{"type":"integer"}}}'
    tool = context.ClientTool("find_order", "Finds it.", schema, context.ToolGroup.READ, 90_000, read_only=True)
    (shown_tool,) = present(FACTS, record(profile=context.Profile(client_tools=(tool,)))).client_tools

    assert (shown_tool.name, shown_tool.description) == ("find_order", "Finds it.")
    assert shown_tool.group == v1.TOOL_GROUP_READ
    assert (shown_tool.timeout.ToMilliseconds(), shown_tool.read_only) == (90_000, True)
    assert plain(shown_tool.input_schema) == {"type": "object", "properties": {"id": {"type": "integer"}}}


def test_the_tools_that_the_mode_does_not_offer_are_named_with_the_reason() -> None:
    profile = context.Profile(client_tools=(context.ClientTool("find", read_only=True), context.ClientTool("ship")))
    for mode, names in (
        (context.Mode.RESTRICTED, ["ship"]),
        (context.Mode.WORKSPACE, []),
        (context.Mode.UNRESTRICTED, []),
    ):
        left_out = conversation(FACTS, record(profile=profile, mode=mode)).unoffered_tools
        assert [tool.name for tool in left_out] == names
        assert all(tool.reason == v1.UnofferedTool.REASON_MODE and "read-only" in tool.text for tool in left_out)


def test_mcp_servers_are_shown_as_they_were_named_with_what_is_known_of_them() -> None:
    files = context.ChosenMcpServer("files", command=("files", "."), environment={"LANG": "C"}, read_only=("read",))
    web = context.ChosenMcpServer("web", url="https://mcp.example.com/", headers={"Authorization": "secret:web"})
    failed = McpServerStatus("web", McpState.FAILED, url=web.url, error="HTTP 503")
    facts = replace(FACTS, mcp_servers=lambda of: (failed,) if of.id == "c" else ())
    first, second = present(facts, record(profile=context.Profile(mcp_servers=(files, web)))).mcp_servers

    assert (list(first.stdio.command), dict(first.stdio.environment), first.state) == (
        ["files", "."],
        {"LANG": "C"},
        v1.McpServer.STATE_STOPPED,
    )
    assert list(first.read_only_tools) == ["read"]
    assert (second.http.url, dict(second.http.headers), second.state, second.error) == (
        web.url,
        {"Authorization": "secret:web"},
        v1.McpServer.STATE_FAILED,
        "HTTP 503",
    )
    assert chosen_mcp_servers((first, second)) == (files, web)


def test_a_plain_conversation_leaves_out_what_it_does_not_have() -> None:
    answer = conversation(FACTS, record(Idle()))
    for field in ("archive_time",):
        assert not answer.HasField(field)
    assert (answer.parent, answer.continued_from, answer.continued_by) == ("", "", "")


def test_the_summary_of_an_exhausted_conversation_is_shown() -> None:
    assert conversation(FACTS, record(STATES["context_exhausted"])).continuation_summary == "what happened so far"


def test_a_change_of_settings_changes_the_etag() -> None:
    assert conversation(FACTS, record()).etag != conversation(FACTS, record(title="Another")).etag


def test_an_upgrade_without_a_readable_reason_is_still_a_question() -> None:
    waiting = STATES["awaiting_tool_approval"]
    summary = summary_of(FACTS, "c", waiting)
    (broken,) = [call for call in summary.undecided if call.id == "call-3"]
    odd = type(summary)(kind=summary.kind, undecided=(type(broken)("call-3", broken.name, "[]"),))
    (question,) = pending_approvals(FACTS, "c", odd)
    assert question.mode_upgrade.reason == ""


def test_background_jobs_are_shown_only_for_the_present_state_of_a_conversation() -> None:
    conversion = replace(FACTS, background_jobs={"c": ("b-1", "b-3")}.__getitem__)
    row = record(Idle())
    assert list(present(conversion, row).background_jobs) == ["b-1", "b-3"]
    assert list(conversation(conversion, row).background_jobs) == []


# Every value of the core has one in the contract, and every value that may be sent is reached.


TABLES: list[tuple[Any, Any, EnumMeta, set[str]]] = [
    (messages.CONTEXT_STATE, v1.ContextState, ContextState, {"CONTEXT_STATE_UNSPECIFIED"}),
    (messages.PHASE, v1.ConversationState.LlmRequesting.Phase, LlmPhase, {"PHASE_UNSPECIFIED"}),
    (messages.ERROR_KIND, v1.ErrorKind, ErrorKind, {"ERROR_KIND_UNSPECIFIED"}),
    (messages.STOP_REASON, v1.StopReason, StopReason, {"STOP_REASON_UNSPECIFIED"}),
    (messages.MODE, v1.Mode, context.Mode, {"MODE_UNSPECIFIED"}),
    (messages.APPROVAL_POLICY, v1.ApprovalPolicy, context.ApprovalPolicy, {"APPROVAL_POLICY_UNSPECIFIED"}),
    (messages.FOLLOW_UP_POLICY, v1.FollowUpPolicy, context.FollowUpPolicy, {"FOLLOW_UP_POLICY_UNSPECIFIED"}),
    (messages.ROLE, v1.Role, MessageType, {"ROLE_UNSPECIFIED"}),
    (messages.SYSTEM_KIND, v1.SystemMessageKind, SystemKind, set()),
    (messages.TOOL_OUTCOME, v1.ToolOutcome, ToolOutcome, {"TOOL_OUTCOME_UNSPECIFIED"}),
    (messages.TOOL_GROUP, v1.ToolGroup, context.ToolGroup, {"TOOL_GROUP_UNSPECIFIED"}),
    (messages.FATE, v1.QueuedMessage.Fate, Fate, {"FATE_UNSPECIFIED"}),
    (messages.DECISION, v1.ApprovalDecision, ApprovalDecision, {"APPROVAL_DECISION_UNSPECIFIED"}),
    (messages.ACTION, v1.ApprovalRule.Action, context.Action, {"ACTION_UNSPECIFIED"}),
    (audit.OUTCOME, v1.AuditEntry.Outcome, Outcome, {"OUTCOME_UNSPECIFIED"}),
    (messages.ORIGIN, v1.ApprovalRule.Origin, context.Origin, {"ORIGIN_UNSPECIFIED"}),
]


@pytest.mark.parametrize(
    ("table", "wire", "core", "never_sent"), TABLES, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_table_covers_both_sides_and_maps_one_to_one(
    table: dict[Any, int], wire: Any, core: Any, never_sent: set[str]
) -> None:
    assert set(table) == set(core)
    assert {wire.Name(number) for number in table.values()} == set(wire.keys()) - never_sent
    assert len(set(table.values())) == len(table)


@pytest.mark.parametrize(
    ("table", "wire"), [(messages.MODE, v1.Mode), (messages.ROLE, v1.Role), (messages.FATE, v1.QueuedMessage.Fate)]
)
def test_values_are_called_the_same(table: dict[Any, int], wire: Any) -> None:
    assert all(wire.Name(number).endswith(value.name) for value, number in table.items())


def test_every_state_has_its_kind() -> None:
    tags = {kind.__struct_config__.tag for kind in get_args(State)}
    assert set(messages.STATE_KIND) == tags
    assert {
        v1.StateKind.Name(kind).removeprefix("STATE_KIND_").lower() for kind in messages.STATE_KIND.values()
    } == tags


def test_deliveries_of_requests_and_of_messages_are_covered() -> None:
    from server.wire.commands import _DELIVERY

    assert set(_DELIVERY) == set(v1.Delivery.values())
    assert set(_DELIVERY.values()) == set(Delivery)
    assert set(messages.DELIVERY.values()) == set(v1.Delivery.values())


# A conversation is made once for each commit, whoever shows it.


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the conversations that were made, in order."""
    ids: list[str] = []

    def counted(conversion: ConversionContext, row: ConversationRecord, *known: Any) -> v1.Conversation:
        ids.append(row.id)
        return conversation(conversion, row, *known)

    monkeypatch.setattr(conversation_messages, "conversation", counted)
    return ids


def test_one_version_is_made_once(made: list[str]) -> None:
    encoded, row = EncodedConversations(FACTS), record(Idle())
    assert encoded.message(row) is encoded.message(row)
    assert encoded.wire(row) is encoded.wire(row)
    assert encoded.wire(row) == conversation(FACTS, row).SerializeToString()
    assert made == [row.id]


def test_every_commit_is_a_version_of_its_own(made: list[str]) -> None:
    encoded, row = EncodedConversations(FACTS), record(Idle())
    changed = msgspec.structs.replace(row, title="another")
    assert encoded.message(row).title != encoded.message(changed).title == "another"
    assert len(made) == 2


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_a_state_that_a_commit_leaves_as_it_is_is_not_made_again(state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded, row = EncodedConversations(FACTS), record(state)
    encoded.message(row)
    changed = msgspec.structs.replace(row, title="another")
    expected = conversation(FACTS, changed)
    monkeypatch.setattr("server.wire.conversation_messages.state_of", lambda *_: pytest.fail("it was made again"))
    assert encoded.message(changed) == expected


def test_a_state_that_was_entered_again_is_made_again() -> None:
    encoded, row = EncodedConversations(FACTS), record(Idle())
    encoded.message(row)
    entered = msgspec.structs.replace(row, state_updated_at=row.state_updated_at + 1)
    assert encoded.message(entered).state == state_of(FACTS, entered)


def test_a_window_that_has_become_known_is_shown() -> None:
    windows = [1_000]
    encoded = EncodedConversations(ConversionContext({}, lambda model: windows[0], context.Limits()))
    row = record(Idle())
    assert encoded.message(row).context_usage.usable_window_tokens == 1_000
    windows[0] = 2_000
    assert encoded.message(row).context_usage.usable_window_tokens == 2_000


def test_only_so_many_are_kept(made: list[str]) -> None:
    encoded, rows = (
        EncodedConversations(FACTS),
        [msgspec.structs.replace(record(Idle()), id=f"c{n}") for n in range(KEPT + 1)],
    )
    for row in rows:
        encoded.message(row)
    encoded.message(rows[-1])
    assert len(made) == KEPT + 1
    encoded.message(rows[0])
    assert len(made) == KEPT + 2


def test_a_large_one_is_not_kept(made: list[str]) -> None:
    encoded, row = EncodedConversations(FACTS), record(Idle(), labels={"a": "x" * KEPT_BYTES})
    encoded.message(row)
    encoded.message(row)
    assert len(made) == 2
