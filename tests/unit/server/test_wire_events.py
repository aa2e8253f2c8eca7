"""Every notification of the core becomes the event that the contract has for it."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import pytest
from bedrock import v1
from google.protobuf import json_format

from actors.core.content import Usage
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
from actors.core.states import (
    AgentReport,
    AgentSucceeded,
    ApprovalKind,
    BackgroundJob,
    JobStatus,
    Question,
    QuestionStatus,
)
from actors.core.summary import HEADING_CHARS, AgentSummary, ContextState
from actors.ports import ConversationRecord, Store, StoredEvent
from actors.runtime.services import SystemClock
from server.contract.limits import REPORT_CHARS
from server.streams.encoding import EventEncoder
from server.wire.conversation_messages import EncodedConversations, conversation, state_of, summary_of
from server.wire.events import event, needs_record, output_delta, text_delta
from tests.support.samples import BASH, FACTS, MESSAGE, QUEUED, REPORTS, STATES, TIMEOUT, UPGRADE, record
from tests.support.stores import StoreProxy, new_store

CYCLE = "conversations/c/requestCycles/c:3"

ASKED = Question(3, 1, "files", "Sure?", 1_000, 9_000, '{"type": "object"}')
JOB = BackgroundJob("b-1", BASH.id, "make")
EVENTS: list[tuple[Durable, str]] = [
    (
        StateChanged(summary_of(FACTS, "c", STATES["error"]), (ContextState.FAILED,)),
        "state_changed",
    ),
    (MessageAdded(MESSAGE), "message_added"),
    (StreamDiscarded("c:r5", 2), "stream_discarded"),
    (Retrying(2, 3, 9_000, TIMEOUT, request_id="c:r5"), "retrying"),
    (QueueChanged(QUEUED, "steer", Fate.RETURNED), "queue_changed"),
    (ApprovalRequested(BASH, ApprovalKind.TOOL, 5), "approval_changed"),
    (ApprovalResolved("call-1", ApprovalDecision.DENY, "no"), "approval_changed"),
    (ClientToolCall(BASH, CallStatus.PENDING, 9_000), "client_tool_call_changed"),
    (QuestionChanged(BASH, ASKED, QuestionStatus.PENDING), "question_changed"),
    (BackgroundJobChanged(JOB), "background_job_changed"),
    (UsageChanged(5, 10, Usage(1), warning=False), "conversation_updated"),
    (ModeChanged(Mode.RESTRICTED), "conversation_updated"),
    (ConversationUpdated(("title",)), "conversation_updated"),
    (ContextWarning(8, 10), "context_warning"),
    (SubAgents(REPORTS, (AgentSummary("agent-4", 3, "look", 9_000),)), "sub_agents_changed"),
    (RunStop("c:3", StopReason.ERROR, "auth", "check the key"), "run_stopped"),
    (ToolTreeReaped("call-1", (7, 8), 1_250, leaked=True), "tool_tree_reaped"),
]


class OneRecord(StoreProxy):
    """A store in which there is always the same conversation."""

    def load(self, conversation_id: str) -> ConversationRecord | None:
        return record()


def sent(store: Store, notification: Durable) -> v1.Event:
    """The event as it is sent."""
    (frame,) = EventEncoder(store, FACTS, EncodedConversations(FACTS), SystemClock()).stored(
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


@pytest.mark.parametrize("kind", STATES)
def test_a_changed_state_shows_what_the_conversation_shows(kind: str) -> None:
    changed = StateChanged(summary_of(FACTS, "c", STATES[kind]), ())
    told = event(FACTS, "c", StoredEvent(1, 1_500, changed)).state_changed.state
    assert told == state_of(FACTS, record(STATES[kind]))


def test_the_walk_is_reported_in_order() -> None:
    walk = (ContextState.IDLE, ContextState.PROCESSING_USER_MESSAGE)
    answer = shown(StateChanged(summary_of(FACTS, "c", STATES["idle"]), walk))
    assert list(answer.state_changed.fsm_path) == [v1.CONTEXT_STATE_IDLE, v1.CONTEXT_STATE_PROCESSING_USER_MESSAGE]


def test_retries_of_tools_and_of_requests_are_distinguished() -> None:
    request = shown(Retrying(2, 3, 9_000, TIMEOUT, request_id="c:r5")).retrying
    tool = shown(Retrying(2, 3, 9_000, TIMEOUT, tool_use_id="call-1")).retrying
    assert (request.WhichOneof("subject"), request.llm_request_id) == ("llm_request_id", "c:r5")
    assert (tool.WhichOneof("subject"), tool.tool_use_id) == ("tool_use_id", "call-1")
    assert request.retry_time.ToMilliseconds() == 9_000
    assert request.error.kind == v1.ERROR_KIND_NETWORK


def test_a_question_is_reported_when_asked_and_when_decided() -> None:
    asked = shown(ApprovalRequested(UPGRADE, ApprovalKind.MODE_UPGRADE, 5, workspace=True)).approval_changed
    decided = shown(ApprovalResolved("call-3", ApprovalDecision.WITHDRAWN)).approval_changed
    assert asked.approval.mode_upgrade.reason == "to write"
    assert asked.approval.mode_upgrade.workspace_available
    assert asked.decision == v1.APPROVAL_DECISION_UNSPECIFIED
    assert decided.approval.name == asked.approval.name
    assert decided.decision == v1.APPROVAL_DECISION_WITHDRAWN


@pytest.mark.parametrize("status", list(CallStatus))
def test_a_call_of_a_client_says_where_it_is_and_until_when_it_waits(status: CallStatus) -> None:
    told = shown(ClientToolCall(msgspec.structs.replace(BASH, group=ToolGroup.READ), status, 9_000))
    answer = told.client_tool_call_changed

    assert v1.Event.ClientToolCallChanged.Status.Name(answer.status) == f"STATUS_{status.name}"
    assert answer.deadline.ToMilliseconds() == 9_000
    assert (answer.call.tool_use_id, answer.call.group) == (BASH.id, v1.TOOL_GROUP_READ)


@pytest.mark.parametrize("status", list(QuestionStatus))
def test_a_question_of_a_tool_says_what_is_asked_and_where_it_is(status: QuestionStatus) -> None:
    answer = shown(QuestionChanged(BASH, ASKED, status)).question_changed.question

    assert v1.Question.Status.Name(answer.status) == f"STATUS_{status.name}"
    assert (answer.name, answer.tool_use_id, answer.tool) == ("conversations/c/questions/3", BASH.id, "tools/bash")
    assert (answer.mcp_server, answer.message, answer.WhichOneof("request")) == ("files", "Sure?", "requested_schema")
    assert dict(answer.requested_schema) == {"type": "object"}
    visit = shown(QuestionChanged(BASH, msgspec.structs.replace(ASKED, schema="", url="https://x/"), status))
    assert visit.question_changed.question.url == "https://x/"


@pytest.mark.parametrize("status", list(JobStatus))
def test_a_background_job_is_named_with_its_call_its_command_and_how_it_ended(status: JobStatus) -> None:
    answer = shown(BackgroundJobChanged(msgspec.structs.replace(JOB, status=status))).background_job_changed
    assert v1.Event.BackgroundJobChanged.Status.Name(answer.status) == f"STATUS_{status.name}"
    assert (answer.handle, answer.tool_use_id, answer.command) == ("b-1", BASH.id, "make")
    assert not answer.HasField("exit_code")
    exited = shown(BackgroundJobChanged(msgspec.structs.replace(JOB, status=JobStatus.EXITED, exit_code=0)))
    assert exited.background_job_changed.HasField("exit_code")


def test_a_message_that_waited_tells_its_fate() -> None:
    answer = shown(QueueChanged(QUEUED, "follow_up", Fate.DISCARDED)).queue_changed
    assert (answer.fate, answer.message.delivery) == (v1.QueuedMessage.FATE_DISCARDED, v1.DELIVERY_FOLLOW_UP)


def test_sub_agents_tell_what_became_of_them() -> None:
    answer = shown(SubAgents(REPORTS, (AgentSummary("agent-4", 3, "look", 9_000),))).sub_agents_changed
    (working,) = answer.pending
    assert (working.conversation, working.task, working.task_index) == ("conversations/agent-4", "look", 3)
    assert working.deadline.ToMilliseconds() == 9_000
    done, silent, late = answer.reports
    assert (done.conversation, done.state, done.result) == ("conversations/agent-1", v1.STATE_KIND_COMPLETED, "done")
    assert (silent.conversation, silent.error.kind, silent.partial_result) == ("", v1.ERROR_KIND_NO_RESULT, "half")
    assert (late.task_index, late.error.kind, late.partial_result) == (2, v1.ERROR_KIND_TIMED_OUT, "most")


def test_what_sub_agents_write_is_cut_to_what_an_event_can_hold() -> None:
    long = AgentReport("agent-1", 0, "x" * 1_000 + "\nmore", AgentSucceeded("y" * 100_000))
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
    assert shown(ModeChanged(Mode.RESTRICTED)).conversation_updated == conversation(FACTS, record())


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
