"""Events, messages and request cycles as clients see them."""

import json
from itertools import chain, repeat
from typing import Any, get_args

import msgspec
import pytest
from bedrock import v1
from google.protobuf import json_format

from actors.core import request_cycles as cycles
from actors.core import states
from actors.core.content import Message, MessageType, Reasoning, Text, ToolSuccess, ToolUse, Usage
from actors.core.context import Mode, ToolGroup
from actors.core.errors import ErrorKind
from actors.core.notifications import (
    ApprovalDecision,
    ApprovalRequested,
    ApprovalResolved,
    BackgroundJobChanged,
    CallStatus,
    ClientToolCall,
    ContextWarning,
    ConversationUpdated,
    Durable,
    Fate,
    MessageAdded,
    ModeChanged,
    QuestionChanged,
    QueueChanged,
    Retrying,
    RunStop,
    StateChanged,
    StopReason,
    StreamDiscarded,
    SubAgents,
    ToolTreeReaped,
    UsageChanged,
)
from actors.core.summary import HEADING_CHARS, AgentSummary, ContextState
from actors.ports import ConversationRecord, Store, StoredEvent
from actors.runtime.services import SystemClock
from server.contract.limits import REPORT_CHARS
from server.queries.request_cycles import CycleView, fit
from server.streams.base import EventEncoder
from server.wire.conversation_messages import EncodedConversations, conversation, state_of, summary_of
from server.wire.events import event, needs_record, output_delta, text_delta
from server.wire.messages import MAX_DEPTH, message, queued_message, struct, tool_call
from tests.support import samples
from tests.support.stores import StoreProxy, new_store

# Every notification of the core becomes the event that the contract has for it.


CYCLE = "conversations/c/requestCycles/c:3"

ASKED = states.Question(3, 1, "files", "Sure?", 1_000, 9_000, '{"type": "object"}')
JOB = states.BackgroundJob("b-1", samples.BASH.id, "make")
EVENTS: list[tuple[Durable, str]] = [
    (StateChanged(summary_of(samples.FACTS, "c", samples.STATES["error"]), (ContextState.FAILED,)), "state_changed"),
    (MessageAdded(samples.MESSAGE), "message_added"),
    (StreamDiscarded("c:r5", 2), "stream_discarded"),
    (Retrying(2, 3, 9_000, samples.TIMEOUT, request_id="c:r5"), "retrying"),
    (QueueChanged(samples.QUEUED, "steer", Fate.RETURNED), "queue_changed"),
    (ApprovalRequested(samples.BASH, states.ApprovalKind.TOOL, 5), "approval_changed"),
    (ApprovalResolved("call-1", ApprovalDecision.DENY, "no"), "approval_changed"),
    (ClientToolCall(samples.BASH, CallStatus.PENDING, 9_000), "client_tool_call_changed"),
    (QuestionChanged(samples.BASH, ASKED, states.QuestionStatus.PENDING), "question_changed"),
    (BackgroundJobChanged(JOB), "background_job_changed"),
    (UsageChanged(5, 10, Usage(1), warning=False), "conversation_updated"),
    (ModeChanged(Mode.RESTRICTED), "conversation_updated"),
    (ConversationUpdated(("title",)), "conversation_updated"),
    (ContextWarning(8, 10), "context_warning"),
    (SubAgents(samples.REPORTS, (AgentSummary("agent-4", 3, "look", 9_000),)), "sub_agents_changed"),
    (RunStop("c:3", StopReason.ERROR, "auth", "check the key"), "run_stopped"),
    (ToolTreeReaped("call-1", (7, 8), 1_250, leaked=True), "tool_tree_reaped"),
]


class OneRecord(StoreProxy):
    """A store in which there is always the same conversation."""

    def load(self, conversation_id: str) -> ConversationRecord | None:
        return samples.record()


def sent(store: Store, notification: Durable) -> v1.Event:
    """The event as it is sent."""
    (frame,) = EventEncoder(store, samples.FACTS, EncodedConversations(samples.FACTS), SystemClock()).stored(
        "c", [StoredEvent(12, 3_400, notification)]
    )
    (event,) = v1.SubscribeResponse.FromString(frame).events
    return event


def shown(notification: Durable) -> v1.Event:
    return sent(OneRecord(), notification)


def test_the_list_has_every_notification() -> None:
    assert {type(notification) for notification, _ in EVENTS} == set(get_args(Durable))


@pytest.mark.parametrize(("notification", "kind"), EVENTS, ids=lambda value: type(value).__name__)
def test_it_becomes_its_event_with_revision_and_time(notification: Durable, kind: str) -> None:
    answer = shown(notification)
    assert answer.WhichOneof("event") == kind
    assert (answer.revision, answer.time.ToMilliseconds()) == (12, 3_400)
    assert v1.Event.FromString(answer.SerializeToString()) == answer
    assert needs_record(notification) is (kind == "conversation_updated")


@pytest.mark.parametrize("kind", samples.STATES)
def test_a_changed_state_shows_what_the_conversation_shows(kind: str) -> None:
    changed = StateChanged(summary_of(samples.FACTS, "c", samples.STATES[kind]), ())
    told = event(samples.FACTS, "c", StoredEvent(1, 1_500, changed)).state_changed.state
    assert told == state_of(samples.FACTS, samples.record(samples.STATES[kind]))


def test_the_walk_is_reported_in_order() -> None:
    walk = (ContextState.IDLE, ContextState.PROCESSING_USER_MESSAGE)
    answer = shown(StateChanged(summary_of(samples.FACTS, "c", samples.STATES["idle"]), walk))
    assert list(answer.state_changed.fsm_path) == [v1.CONTEXT_STATE_IDLE, v1.CONTEXT_STATE_PROCESSING_USER_MESSAGE]


def test_retries_of_tools_and_of_requests_are_distinguished() -> None:
    request = shown(Retrying(2, 3, 9_000, samples.TIMEOUT, request_id="c:r5")).retrying
    tool = shown(Retrying(2, 3, 9_000, samples.TIMEOUT, tool_use_id="call-1")).retrying
    assert (request.WhichOneof("subject"), request.llm_request_id) == ("llm_request_id", "c:r5")
    assert (tool.WhichOneof("subject"), tool.tool_use_id) == ("tool_use_id", "call-1")
    assert request.retry_time.ToMilliseconds() == 9_000
    assert request.error.kind == v1.ERROR_KIND_NETWORK


def test_a_question_is_reported_when_asked_and_when_decided() -> None:
    asked = shown(
        ApprovalRequested(samples.UPGRADE, states.ApprovalKind.MODE_UPGRADE, 5, workspace=True)
    ).approval_changed
    decided = shown(ApprovalResolved("call-3", ApprovalDecision.WITHDRAWN)).approval_changed
    assert asked.approval.mode_upgrade.reason == "to write"
    assert asked.approval.mode_upgrade.workspace_available
    assert asked.decision == v1.APPROVAL_DECISION_UNSPECIFIED
    assert decided.approval.name == asked.approval.name
    assert decided.decision == v1.APPROVAL_DECISION_WITHDRAWN


@pytest.mark.parametrize("status", list(CallStatus))
def test_a_call_of_a_client_says_where_it_is_and_until_when_it_waits(status: CallStatus) -> None:
    told = shown(ClientToolCall(msgspec.structs.replace(samples.BASH, group=ToolGroup.READ), status, 9_000))
    answer = told.client_tool_call_changed

    assert v1.Event.ClientToolCallChanged.Status.Name(answer.status) == f"STATUS_{status.name}"
    assert answer.deadline.ToMilliseconds() == 9_000
    assert (answer.call.tool_use_id, answer.call.group) == (samples.BASH.id, v1.TOOL_GROUP_READ)


@pytest.mark.parametrize("status", list(states.QuestionStatus))
def test_a_question_of_a_tool_says_what_is_asked_and_where_it_is(status: states.QuestionStatus) -> None:
    answer = shown(QuestionChanged(samples.BASH, ASKED, status)).question_changed.question

    assert v1.Question.Status.Name(answer.status) == f"STATUS_{status.name}"
    assert (answer.name, answer.tool_use_id, answer.tool) == (
        "conversations/c/questions/3",
        samples.BASH.id,
        "tools/bash",
    )
    assert (answer.mcp_server, answer.message, answer.WhichOneof("request")) == ("files", "Sure?", "requested_schema")
    assert dict(answer.requested_schema) == {"type": "object"}
    visit = shown(QuestionChanged(samples.BASH, msgspec.structs.replace(ASKED, schema="", url="https://x/"), status))
    assert visit.question_changed.question.url == "https://x/"


@pytest.mark.parametrize("status", list(states.JobStatus))
def test_a_background_job_is_named_with_its_call_its_command_and_how_it_ended(status: states.JobStatus) -> None:
    answer = shown(BackgroundJobChanged(msgspec.structs.replace(JOB, status=status))).background_job_changed
    assert v1.Event.BackgroundJobChanged.Status.Name(answer.status) == f"STATUS_{status.name}"
    assert (answer.handle, answer.tool_use_id, answer.command) == ("b-1", samples.BASH.id, "make")
    assert not answer.HasField("exit_code")
    exited = shown(BackgroundJobChanged(msgspec.structs.replace(JOB, status=states.JobStatus.EXITED, exit_code=0)))
    assert exited.background_job_changed.HasField("exit_code")


def test_a_message_that_waited_tells_its_fate() -> None:
    answer = shown(QueueChanged(samples.QUEUED, "follow_up", Fate.DISCARDED)).queue_changed
    assert (answer.fate, answer.message.delivery) == (v1.QueuedMessage.FATE_DISCARDED, v1.DELIVERY_FOLLOW_UP)


def test_sub_agents_tell_what_became_of_them() -> None:
    answer = shown(SubAgents(samples.REPORTS, (AgentSummary("agent-4", 3, "look", 9_000),))).sub_agents_changed
    (working,) = answer.pending
    assert (working.conversation, working.task, working.task_index) == ("conversations/agent-4", "look", 3)
    assert working.deadline.ToMilliseconds() == 9_000
    done, silent, late = answer.reports
    assert (done.conversation, done.state, done.result) == ("conversations/agent-1", v1.STATE_KIND_COMPLETED, "done")
    assert (silent.conversation, silent.error.kind, silent.partial_result) == ("", v1.ERROR_KIND_NO_RESULT, "half")
    assert (late.task_index, late.error.kind, late.partial_result) == (2, v1.ERROR_KIND_TIMED_OUT, "most")


def test_what_sub_agents_write_is_cut_to_what_an_event_can_hold() -> None:
    long = states.AgentReport("agent-1", 0, "x" * 1_000 + "\nmore", states.AgentSucceeded("y" * 100_000))
    (report,) = shown(SubAgents((long,), ())).sub_agents_changed.reports
    assert report.task == "x" * (HEADING_CHARS - 1) + "…"
    assert report.result == "y" * REPORT_CHARS


@pytest.mark.parametrize("kind", ErrorKind)
def test_a_failed_run_names_the_kind_and_what_to_do(kind: ErrorKind) -> None:
    stop = shown(RunStop("c:3", StopReason.ERROR, kind.value, "do this")).run_stopped
    assert v1.ErrorKind.Name(stop.error.kind) == f"ERROR_KIND_{kind.name}"
    assert (stop.request_cycle, stop.detail, stop.error.message) == (CYCLE, kind.value, "do this")


def test_a_run_that_did_not_fail_has_no_error_and_an_unknown_detail_is_kept() -> None:
    assert not shown(RunStop("c:3", StopReason.INTERRUPTED, "restart")).run_stopped.HasField("error")
    odd = shown(RunStop("c:3", StopReason.ERROR, "something_new", "?")).run_stopped
    assert (odd.detail, odd.error.kind) == ("something_new", v1.ERROR_KIND_UNKNOWN)


def test_the_receipt_of_a_cancel() -> None:
    answer = shown(ToolTreeReaped("call-1", (7, 8), 1_250, leaked=True)).tool_tree_reaped
    assert (list(answer.pids), answer.duration.ToMilliseconds(), answer.leaked) == ([7, 8], 1_250, True)


def test_an_update_shows_the_conversation_as_it_is_now() -> None:
    assert shown(ModeChanged(Mode.RESTRICTED)).conversation_updated == conversation(samples.FACTS, samples.record())


def test_an_update_of_a_deleted_conversation_keeps_its_revision() -> None:
    answer = sent(new_store(), ModeChanged(Mode.RESTRICTED))
    assert (answer.revision, answer.WhichOneof("event")) == (12, None)


def test_passing_text_cut_inside_a_character_does_not_break_the_stream() -> None:
    delta = text_delta("c:r5", 1, 4, "a\ud83d", reasoning=False)
    assert delta.text == "a?"
    assert output_delta("call-1", 2, 0, "x").attempt == 2


@pytest.mark.parametrize("value", [{"a": [1, "x", None, True, {"b": 0.5}]}, [], "text", 7, False, None])
def test_the_output_of_a_run_is_a_json_value(value: Any) -> None:
    stop = shown(RunStop("c:3", StopReason.COMPLETED, output=json.dumps(value))).run_stopped
    assert stop.HasField("output")
    assert json_format.MessageToDict(stop.output) == value
    assert not shown(RunStop("c:3", StopReason.COMPLETED)).run_stopped.HasField("output")


def test_an_output_as_deep_as_one_can_be_passes_through_the_wire() -> None:
    deep = shown(RunStop("c:3", StopReason.COMPLETED, output='{"a":' * 24 + "1" + "}" * 24))
    sent = v1.SubscribeResponse(events=[deep]).SerializeToString()
    assert v1.SubscribeResponse.FromString(sent).events[0] == deep


# Messages as clients see them.


def test_an_agent_message_names_its_request_its_cycle_and_what_it_used() -> None:
    shown = message(samples.FACTS, "c", samples.MESSAGE)
    assert shown.name == "conversations/c/messages/m-7"
    assert (shown.sequence, shown.role, shown.llm_request_id, shown.attempt) == (7, v1.ROLE_AGENT, "c:r5", 1)
    assert shown.request_cycle == "conversations/c/requestCycles/c:3"
    assert shown.usage.cost_micros == 50
    assert shown.create_time.ToMilliseconds() == 1_234
    assert v1.Message.FromString(shown.SerializeToString()) == shown


def test_blocks_come_in_order_without_hidden_reasoning() -> None:
    kinds = [block.WhichOneof("block") for block in message(samples.FACTS, "c", samples.MESSAGE).content]
    assert kinds == ["reasoning", "text", "tool_call", "tool_call"]


def test_input_that_is_no_object_is_shown_as_it_was_written() -> None:
    whole, broken = [
        each.tool_call for each in message(samples.FACTS, "c", samples.MESSAGE).content if each.HasField("tool_call")
    ]
    assert whole.input["command"] == "ls"
    assert whole.raw_input == ""
    assert not broken.HasField("input")
    assert broken.raw_input == "{broken"


@pytest.mark.parametrize("text", ["", "[]", "1", '{"a": NaN}', "{" * 50, '{"a":1e999}'])
def test_what_is_no_json_object_has_no_struct(text: str) -> None:
    assert struct(text) is None


def test_an_object_too_deep_for_readers_is_shown_as_text_and_survives_the_wire() -> None:
    deep = '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1)
    shown = tool_call(samples.FACTS, ToolUse("x", "bash", deep))
    assert shown.raw_input == deep
    fitting = '{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH
    shown = tool_call(samples.FACTS, ToolUse("x", "bash", fitting))
    event = v1.SubscribeResponse(
        events=[v1.Event(message_added=v1.Message(content=[v1.ContentBlock(tool_call=shown)]))]
    )
    assert v1.SubscribeResponse.FromString(event.SerializeToString()) == event
    assert shown.HasField("input")


def test_an_object_that_takes_many_times_its_text_is_shown_as_text() -> None:
    numbers = '{"a":[' + ",".join(["1"] * 5000) + "]}"
    shown = tool_call(samples.FACTS, ToolUse("x", "bash", numbers))
    assert (shown.HasField("input"), shown.raw_input) == (False, numbers)
    assert tool_call(samples.FACTS, ToolUse("x", "bash", '{"a":[1,1,1]}')).HasField("input")
    words = '{"cmd":"' + "x" * 100_000 + '"}'
    assert tool_call(samples.FACTS, ToolUse("x", "bash", words)).HasField("input")


def test_results_say_how_each_call_ended() -> None:
    results = [block.tool_result for block in message(samples.FACTS, "c", samples.RESULTS).content]
    assert [result.outcome for result in results] == [
        v1.TOOL_OUTCOME_OK, v1.TOOL_OUTCOME_DENIED, v1.TOOL_OUTCOME_SKIPPED, v1.TOOL_OUTCOME_OK,
    ]  # fmt: skip
    first, second = results[:2]
    assert first.output == "a\nb"
    assert first.images[0].attachment == "conversations/c/attachments/hash"
    assert first.display["diff"] == "+a"
    assert first.duration.ToMilliseconds() == 1_500
    assert not second.HasField("display")
    assert not second.HasField("duration")


def test_messages_of_the_server_say_why() -> None:
    notice, failure = message(samples.FACTS, "c", samples.NOTICE), message(samples.FACTS, "c", samples.FAILURE)
    assert (notice.system_kind, notice.meta) == (v1.SYSTEM_MESSAGE_KIND_MODE_RESTRICTED, True)
    assert (failure.role, failure.error_kind) == (v1.ROLE_ERROR, v1.ERROR_KIND_RATE_LIMIT)


def test_a_waiting_message_has_its_name_but_no_place() -> None:
    shown = queued_message("c", samples.QUEUED, "follow_up")
    assert shown.name == "conversations/c/messages/m-11"
    assert (shown.sequence, shown.delivery, shown.role) == (0, v1.DELIVERY_FOLLOW_UP, v1.ROLE_USER)
    assert [block.WhichOneof("block") for block in shown.content] == ["image", "text"]
    assert shown.request_cycle == ""


# Request cycles in their two views, folded from stored events.


FULL = v1.ListRequestCyclesRequest.VIEW_FULL


def user(number: int, text: str, delivery: str = "direct", run: str = "c:1") -> MessageAdded:
    return MessageAdded(Message(f"u{number}", number, MessageType.USER, (Text(text),), number * 1_000, run, delivery))


def agent(number: int, request: str, *content: Text | Reasoning | ToolUse) -> MessageAdded:
    said = Message(
        f"a{number}", number, MessageType.AGENT, content, number * 1_000, "c:1", request_id=request, usage=Usage(number)
    )
    return MessageAdded(said)


def result(number: int, call: str, output: str = "ok") -> MessageAdded:
    return MessageAdded(Message(f"t{number}", number, MessageType.TOOL, (ToolSuccess(call, output),), number * 1_000))


def one(*notifications: Durable, view: v1.ListRequestCyclesRequest.View.ValueType = FULL) -> v1.RequestCycle:
    """The cycle of a run that consists of these messages and, it may be, its end."""
    messages = [each.message for each in notifications if isinstance(each, MessageAdded)]
    times = chain(repeat(0, len(messages)), (600,))
    cycle = cycles.cycle_of(cycles.events_of(notifications, samples.FACTS.groups, times))
    assert cycle is not None
    return CycleView(samples.FACTS, "c", cycle, messages).show(view)


RUN = (
    user(1, "look"),
    agent(2, "r1", Reasoning("plan"), Text("looking"), ToolUse("x", "bash", '{"command": "ls"}')),
    result(3, "x"),
    user(4, "also there", "steer"),
    agent(5, "r2", Text("done")),
    RunStop("c:1", StopReason.COMPLETED),
)


def test_a_cycle_has_its_name_its_times_and_its_end() -> None:
    cycle = one(*RUN)
    assert cycle.name == "conversations/c/requestCycles/c:1"
    assert (cycle.root_delivery, cycle.stop_reason) == (v1.DELIVERY_DIRECT, v1.STOP_REASON_COMPLETED)
    assert (cycle.start_time.ToMilliseconds(), cycle.end_time.ToMilliseconds()) == (1_000, 600)


def test_steps_show_texts_calls_results_and_steers() -> None:
    root, plan, looking, steer, done = one(*RUN).steps
    assert root.root.content[0].text == "look"
    assert plan.ai_block.reasoning == "plan"
    (group,) = looking.ai_block.tool_call_groups
    assert (looking.ai_block.assistant, group.group, group.calls[0].tool_use_id) == ("looking", v1.TOOL_GROUP_BASH, "x")
    assert group.results["x"].output == "ok"
    assert steer.steer.name == "conversations/c/messages/u4"
    assert done.ai_block.assistant == "done"
    assert [each.ai_block.message[-2:] for each in (plan, looking, done)] == ["a2", "a2", "a5"]


def test_rounds_show_what_went_in_and_what_came_out() -> None:
    first, second = one(*RUN).rounds
    assert (first.llm_request_id, list(first.inputs)) == ("r1", ["conversations/c/messages/u1"])
    assert list(second.inputs) == ["conversations/c/messages/t3", "conversations/c/messages/u4"]
    assert (second.output, second.usage.input_tokens) == ("conversations/c/messages/a5", 5)
    assert second.output_time.ToMilliseconds() == 5_000
    assert [list(each.tool_use_ids) for each in (first, second)] == [["x"], []]


def test_only_the_view_that_is_asked_for_is_filled() -> None:
    steps = one(*RUN, view=v1.ListRequestCyclesRequest.VIEW_UNSPECIFIED)
    rounds = one(*RUN, view=v1.ListRequestCyclesRequest.VIEW_ROUNDS)
    assert (len(steps.steps), len(steps.rounds)) == (5, 0)
    assert (len(rounds.steps), len(rounds.rounds)) == (0, 2)


def test_a_cycle_in_progress_has_no_end() -> None:
    cycle = one(user(1, "look"))
    assert (cycle.stop_reason, cycle.HasField("end_time")) == (v1.STOP_REASON_UNSPECIFIED, False)
    assert cycle.name == "conversations/c/requestCycles/c:1"


def test_a_follow_up_that_was_discarded_is_a_cycle_of_its_own() -> None:
    dropped = one(user(9, "then this", "follow_up", "c:2"), RunStop("c:2", StopReason.INTERRUPTED, "not_run"))
    assert (dropped.root_delivery, dropped.stop_detail) == (v1.DELIVERY_FOLLOW_UP, "not_run")
    assert dropped.steps[0].root.content[0].text == "then this"
    assert not dropped.rounds


def test_the_events_of_a_cycle_make_the_same_cycle_elsewhere() -> None:
    for root in (RUN[0], user(1, "look", "follow_up")):
        shown = one(root, *RUN[1:], view=v1.ListRequestCyclesRequest.VIEW_EVENTS)
        assert (len(shown.steps), len(shown.rounds)) == (0, 0)
        tags = [json.loads(line)["type"] for line in shown.events]
        assert tags == [
            "user-message",
            *["agent-output"] * 3,
            "tool-result",
            "user-message",
            "agent-output",
            "run-stop",
        ]
        again = cycles.cycle_of(cycles.decode_lines(shown.events))
        assert again is not None
        assert again.stop == cycles.CycleRunStop(StopReason.COMPLETED, "", "c:1", 600)
        assert [step.kind for step in cycles.steps(again)] == [
            "non-steer",
            "reasoning",
            "assistant",
            "steer",
            "assistant",
        ]
        assert [len(each.outputs) for each in cycles.rounds(again)] == [3, 1]


def test_a_cycle_too_long_for_an_answer_loses_text_but_no_step() -> None:
    calls = [ToolUse(f"x{n}", "bash", '{"command": "%s"}' % ("y" * 2_000)) for n in range(50)]
    cycle = one(
        user(1, "go"),
        agent(2, "r1", Text("z" * 90_000), *calls),
        *(result(n + 3, f"x{n}", "o" * 50_000) for n in range(50)),
    )
    whole = cycle.ByteSize()
    short = fit(cycle, 100_000)
    assert whole > 2_000_000
    assert short.ByteSize() <= 100_000
    group = short.steps[1].ai_block.tool_call_groups[0]
    assert (len(group.calls), len(group.results)) == (50, 50)
    assert "more characters" in group.results["x0"].output


def test_events_too_long_for_an_answer_lose_text_but_no_event() -> None:
    calls = [ToolUse(f"x{n}", "bash", '{"command": "%s"}' % ("y" * 20_000)) for n in range(50)]
    said = agent(2, "r1", Text("z" * 90_000), *calls)
    shown = one(user(1, "go" * 50_000), said, view=v1.ListRequestCyclesRequest.VIEW_EVENTS)
    whole = list(cycles.decode_lines(shown.events))
    short = fit(shown, 100_000)
    assert short.ByteSize() <= 100_000
    cut = list(cycles.decode_lines(short.events))
    assert [type(each) for each in cut] == [type(each) for each in whole]
    assert isinstance(cut[0], cycles.CycleUserMessage)
    assert cut[0].text.endswith("more characters]")


def test_a_cycle_that_fits_is_left_alone() -> None:
    cycle = one(*RUN)
    before = cycle.SerializeToString(deterministic=True)
    assert fit(cycle, 1_000_000).SerializeToString(deterministic=True) == before
