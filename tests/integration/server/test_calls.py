"""Calls over a real channel: who may call, what is refused and how, what reaches the actors and what comes back."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from bedrock import v1
from bedrock.testing.waiting import eventually
from bedrock.v1 import catalog_service_pb2, conversation_service_pb2
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from actors import messages as requests
from actors.adapters.store import listing as sqlite_listing
from actors.adapters.store.sqlite.store import open_store
from actors.core.content import MessageType, Text, ToolUse
from actors.core.context import Action, ApprovalRule, Mode, Profile
from actors.core.errors import Reason, Rejected
from actors.core.notifications import Fate, QuestionChanged, QueueChanged, RunStop, StopReason
from actors.core.states import Question, QuestionStatus, QueuedInput
from actors.core.summary import StateSummary
from actors.messages import TaskRefusedError, UnknownConversationError
from actors.ports import StoreDamagedError, StoreUnavailableError
from server.contract import limits
from server.queries import listings
from tests.integration.server.grpc_harness import AUTHORIZED, GrpcHarness, refused
from tests.integration.server.watch_harness import Author
from tests.support.stores import StoreProxy
from tests.unit.server.test_checks import GOOD

NAME = "conversations/c1"
COMMANDS: dict[str, tuple[Message, type]] = {
    "UpdateConversation": (
        v1.UpdateConversationRequest(
            conversation=v1.Conversation(name=NAME, title="T"), update_mask=FieldMask(paths=["title"])
        ),
        requests.UpdateConversationCommand,
    ),
    "ArchiveConversation": (v1.ArchiveConversationRequest(name=NAME), requests.ArchiveConversationCommand),
    "UnarchiveConversation": (v1.UnarchiveConversationRequest(name=NAME), requests.ArchiveConversationCommand),
    "DeleteConversation": (v1.DeleteConversationRequest(name=NAME), requests.DeleteConversationCommand),
    "SendMessage": (v1.SendMessageRequest(name=NAME, text="x"), requests.SendMessageCommand),
    "CancelConversation": (v1.CancelConversationRequest(name=NAME), requests.CancelConversationCommand),
    "ResolveApproval": (
        v1.ResolveApprovalRequest(name=f"{NAME}/approvals/call-1", decision=v1.APPROVAL_DECISION_DENY),
        requests.ResolveApprovalCommand,
    ),
    "SubmitToolResult": (
        v1.SubmitToolResultRequest(name=f"{NAME}/toolCalls/call-1", output="x"),
        requests.SubmitToolResultCommand,
    ),
    "AnswerQuestion": (
        v1.AnswerQuestionRequest(name=f"{NAME}/questions/1", decline=True),
        requests.AnswerQuestionCommand,
    ),
    "CreateApprovalRule": (
        v1.CreateApprovalRuleRequest(
            parent=NAME, approval_rule=v1.ApprovalRule(action=v1.ApprovalRule.ACTION_ASK, tool="tools/patch")
        ),
        requests.CreateApprovalRuleCommand,
    ),
    "DeleteApprovalRule": (
        v1.DeleteApprovalRuleRequest(name=f"{NAME}/approvalRules/r1"),
        requests.DeleteApprovalRuleCommand,
    ),
    "SetMode": (v1.SetModeRequest(name=NAME, mode=v1.MODE_RESTRICTED), requests.SetModeCommand),
    "TriggerContinuation": (v1.TriggerContinuationRequest(name=NAME), requests.TriggerContinuationCommand),
    "ContinueConversation": (v1.ContinueConversationRequest(name=NAME), requests.ContinueConversationCommand),
    "SpawnSubAgents": (
        v1.SpawnSubAgentsRequest(name=NAME, tasks=[v1.SpawnSubAgentsRequest.Task(task="Look.")]),
        requests.SpawnSubAgentsCommand,
    ),
    "WithdrawMessage": (v1.WithdrawMessageRequest(name=f"{NAME}/messages/m1"), requests.WithdrawMessageCommand),
}
READS: dict[str, Message] = {
    "GetConversation": v1.GetConversationRequest(name=NAME),
    "ListMessages": v1.ListMessagesRequest(parent=NAME),
    "ListRequestCycles": v1.ListRequestCyclesRequest(parent=NAME),
    "ListQueue": v1.ListQueueRequest(parent=NAME),
    "ListApprovals": v1.ListApprovalsRequest(parent=NAME),
    "GetMessage": v1.GetMessageRequest(name=f"{NAME}/messages/m1"),
    "GetApproval": v1.GetApprovalRequest(name=f"{NAME}/approvals/t1"),
    "ListQuestions": v1.ListQuestionsRequest(parent=NAME),
    "GetQuestion": v1.GetQuestionRequest(name=f"{NAME}/questions/1"),
    "GetAttachment": v1.GetAttachmentRequest(name=f"{NAME}/attachments/a1"),
    "GetRequestCycle": v1.GetRequestCycleRequest(name=f"{NAME}/requestCycles/c1:1"),
    "WaitRequestCycle": v1.WaitRequestCycleRequest(name=f"{NAME}/requestCycles/c1:1"),
    "ListConversations": v1.ListConversationsRequest(parent=NAME),
    "Subscribe": v1.SubscribeRequest(name=NAME),
    "VerifyConversation": v1.VerifyConversationRequest(name=NAME),
    "ReplayConversation": v1.ReplayConversationRequest(name=NAME),
    "ListTransitions": v1.ListTransitionsRequest(parent=NAME),
    "ExportConversation": v1.ExportConversationRequest(name=NAME),
}
CALLS = READS | {method: request for method, (request, _) in COMMANDS.items()}
METHODS = [
    (service, method.name, method.input_type.name)
    for service, file in (("ConversationService", conversation_service_pb2), ("CatalogService", catalog_service_pb2))
    for method in file.DESCRIPTOR.services_by_name[service].methods
]


@pytest.fixture
def author(harness: GrpcHarness) -> Author:
    return Author(harness.services.store, harness.hub, "c1", slug="calm-cove")


def ask(harness: GrpcHarness, name: str, request: Message, **options: Any) -> Any:
    return getattr(harness.stub, name)(request, **{"metadata": AUTHORIZED, "timeout": 10, **options})


# --- who may call -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer wrong"),)], ids=["none", "wrong"])
def test_no_call_works_without_the_token(harness: GrpcHarness, metadata: tuple[tuple[str, str], ...]) -> None:
    for service, method, request_name in METHODS:
        stub = harness.stub if service == "ConversationService" else harness.catalog
        refusal = refused(partial(getattr(stub, method), getattr(v1, request_name)(), metadata=metadata, timeout=60))
        assert (method, refusal.code, refusal.reason) == (method, "UNAUTHENTICATED", "UNAUTHENTICATED")
    assert harness.conversations.asked == []


def test_health_needs_no_token(harness: GrpcHarness) -> None:
    stub: Any = health_pb2_grpc.HealthStub(harness.channel)
    for service in ("", "bedrock.v1.ConversationService", "bedrock.v1.CatalogService"):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=60)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_needs_the_token(harness: GrpcHarness) -> None:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(harness.channel)
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    refusal = refused(lambda: stub.ServerReflectionInfo(iter([asked]), timeout=60))
    assert refusal.code == "UNAUTHENTICATED"
    (answer,) = stub.ServerReflectionInfo(iter([asked]), metadata=AUTHORIZED, timeout=60)
    assert "bedrock.v1.ConversationService" in {each.name for each in answer.list_services_response.service}


# --- what is refused --------------------------------------------------------------------------------------------------


def test_bytes_that_are_no_message_are_refused(harness: GrpcHarness) -> None:
    for service, method, _ in METHODS:
        call: Any = harness.channel.unary_stream(f"/bedrock.v1.{service}/{method}")
        refusal = refused(partial(call, b"\xff\xff\xff\xff", metadata=AUTHORIZED, timeout=60))
        assert (method, refusal.code, refusal.reason) == (method, "INVALID_ARGUMENT", "INVALID_ARGUMENT")


def test_an_empty_request_is_answered_or_refused_in_plain_words(harness: GrpcHarness) -> None:
    for service, method, request_name in METHODS:
        stub = harness.stub if service == "ConversationService" else harness.catalog
        kind = getattr(v1, request_name)
        call = partial(getattr(stub, method), kind(), metadata=AUTHORIZED, timeout=60)
        if not GOOD[kind]:
            call()
            continue
        refusal = refused(call)
        assert (method, refusal.code) == (method, "INVALID_ARGUMENT")
        assert refusal.fields, method


@pytest.mark.parametrize("principal", ["nobody", "somebody else"])
def test_what_is_not_yours_does_not_exist(harness: GrpcHarness, principal: str) -> None:
    if principal != "nobody":
        Author(harness.services.store, harness.hub, "c1", principal=principal)
    for method, request in CALLS.items():
        refusal = refused(partial(ask, harness, method, request))
        assert (method, refusal.code, refusal.reason) == (method, "NOT_FOUND", "NOT_FOUND")
    assert harness.conversations.asked == []


@pytest.mark.parametrize("reason", [Reason.AGENT_BUSY, Reason.UNKNOWN_OR_DECIDED, Reason.SHUTTING_DOWN])
def test_a_refusal_of_the_actor_reaches_the_client(harness: GrpcHarness, author: Author, reason: Reason) -> None:
    for method, (request, _) in COMMANDS.items():
        harness.conversations.will(Rejected(reason))
        refusal = refused(partial(ask, harness, method, request))
        assert (method, refusal.reason, refusal.text) == (method, reason.value, str(Rejected(reason)))


def test_a_fault_of_the_actor_shows_nothing_from_inside(harness: GrpcHarness, author: Author) -> None:
    for method, (request, _) in COMMANDS.items():
        harness.conversations.will(KeyError("/srv/secret"))
        refusal = refused(partial(ask, harness, method, request))
        assert (method, refusal.code) == (method, "INTERNAL")
        assert "secret" not in refusal.text


def test_what_is_wrong_inside_a_conversation_is_named_by_its_path(harness: GrpcHarness, author: Author) -> None:
    harness.conversations.will(Rejected(Reason.MODEL_UNAVAILABLE))
    refusal = refused(lambda: ask(harness, "UpdateConversation", COMMANDS["UpdateConversation"][0]))
    assert (refusal.reason, refusal.fields) == ("MODEL_UNAVAILABLE", ["conversation.model"])


def test_what_is_wrong_inside_a_new_conversation_is_named_by_its_path(harness: GrpcHarness) -> None:
    harness.conversations.will(Rejected(Reason.WORKING_DIRECTORY_INVALID))
    request = v1.CreateConversationRequest(conversation=v1.Conversation(working_directory="/nowhere"))
    refusal = refused(lambda: ask(harness, "CreateConversation", request))
    assert (refusal.reason, refusal.fields) == ("WORKING_DIRECTORY_INVALID", ["conversation.working_directory"])


def test_a_conversation_deleted_meanwhile_does_not_exist(harness: GrpcHarness, author: Author) -> None:
    harness.conversations.will(UnknownConversationError("gone"))
    assert refused(lambda: ask(harness, "SendMessage", COMMANDS["SendMessage"][0])).code == "NOT_FOUND"


class Broken(StoreProxy):
    def load(self, conversation_id: str) -> Any:
        raise StoreUnavailableError("disk /dev/sda1")

    owner = load


def test_a_store_that_fails_is_unavailable(open_harness: Callable[..., GrpcHarness]) -> None:
    harness = open_harness(store=Broken())
    for method, request in CALLS.items():
        refusal = refused(partial(ask, harness, method, request))
        assert (method, refusal.code, refusal.reason) == (method, "UNAVAILABLE", "STORE_UNAVAILABLE")
        assert "sda1" not in refusal.text


class Ruined(StoreProxy):
    def load(self, conversation_id: str) -> Any:
        raise StoreDamagedError("page 7 of /srv/x")


READ_NOTHING_OF_THE_ROW = {"VerifyConversation", "ListConversations"}


def test_a_damaged_conversation_is_data_loss_and_named_in_the_log(
    open_harness: Callable[..., GrpcHarness], caplog: pytest.LogCaptureFixture
) -> None:
    harness = open_harness(store=Ruined())
    for method in sorted(CALLS.keys() - READ_NOTHING_OF_THE_ROW):
        caplog.clear()
        refusal = refused(partial(ask, harness, method, CALLS[method]))
        assert (method, refusal.code, refusal.reason) == (method, "DATA_LOSS", "DATA_LOSS")
        assert "srv" not in refusal.text
        assert f"stored data is damaged: {NAME}" in caplog.text


def test_a_slug_in_the_form_of_an_id_is_never_taken_for_one(harness: GrpcHarness) -> None:
    """One that was stored before such slugs were refused."""
    gone = "abcdefghijkm2345"
    Author(harness.services.store, harness.hub, "c1", slug=gone)
    reading = v1.GetConversationRequest(name=f"conversations/{gone}")
    assert refused(lambda: ask(harness, "GetConversation", reading)).code == "NOT_FOUND"


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", COMMANDS)
@pytest.mark.parametrize("name", ["conversations/c1", "conversations/calm-cove"])
def test_a_command_reaches_its_conversation_by_id_and_by_slug(
    harness: GrpcHarness, author: Author, method: str, name: str
) -> None:
    request, kind = COMMANDS[method]
    sent = requests.SendMessageResult("m1", "direct", "c1:1", 3)
    answers: dict[str, Any] = {
        "DeleteConversation": ("left over",),
        "SendMessage": sent,
        "CancelConversation": requests.CancelConversationResult(True, StateSummary("idle"), 1),
        "SetMode": requests.SetModeResult(author.record, ("b-1",)),
        "SubmitToolResult": requests.SubmitToolResultResult(author.says("Found.").message),
        "AnswerQuestion": QuestionChanged(
            ToolUse("t1", "mcp__files__move", "{}"),
            Question(1, 1, "files", "Sure?", 7, 9, "{}"),
            QuestionStatus.DECLINED,
        ),
        "SpawnSubAgents": requests.SpawnSubAgentsResult(author.says("Look.").message, "c1:1", ("c1-a1",), 0),
        "CreateApprovalRule": ApprovalRule("r1", Action.ASK, tool="patch"),
        "WithdrawMessage": requests.WithdrawMessageResult(
            QueueChanged(QueuedInput("m1", "no", (), 1), "steer", Fate.WITHDRAWN), 7
        ),
    }
    harness.conversations.will(answers.get(method, author.record))
    renamed = type(request)()
    renamed.CopyFrom(request)
    if method == "UpdateConversation":
        renamed.conversation.name = name  # type: ignore[attr-defined]
    elif method == "CreateApprovalRule":
        renamed.parent = name  # type: ignore[attr-defined]
    else:
        renamed.name = request.name.replace(NAME, name)  # type: ignore[attr-defined]
    answer = ask(harness, method, renamed)
    ((conversation_id, asked, deadline),) = harness.conversations.asked
    assert conversation_id == "c1"
    assert isinstance(asked, kind)
    assert (deadline is None) is (method == "CancelConversation")
    if hasattr(answer, "conversation"):
        assert answer.conversation.name == "conversations/c1"


def test_a_mode_has_to_be_named_and_the_answer_names_what_goes_on_and_what_was_ended(
    harness: GrpcHarness, author: Author
) -> None:
    refusal = refused(lambda: ask(harness, "SetMode", v1.SetModeRequest(name=NAME)))
    assert (refusal.code, refusal.fields) == ("INVALID_ARGUMENT", ["mode"])
    left = requests.SetModeResult(author.record, ("b-1", "b-3"), ("t1",), surviving_mcp_servers=("files",))
    stopped = requests.SetModeResult(author.record, (), (), ("b-1",), ("t1",), stopped_mcp_servers=("files",))
    harness.conversations.will(left, stopped)
    answer = ask(harness, "SetMode", v1.SetModeRequest(name=NAME, mode=v1.MODE_RESTRICTED))
    assert (list(answer.surviving_jobs), list(answer.surviving_tool_use_ids)) == (["b-1", "b-3"], ["t1"])
    assert (list(answer.surviving_mcp_servers), list(answer.stopped_mcp_servers)) == (["files"], [])
    answer = ask(harness, "SetMode", v1.SetModeRequest(name=NAME, mode=v1.MODE_RESTRICTED, stop_running=True))
    assert (list(answer.ended_jobs), list(answer.stopped_tool_use_ids)) == (["b-1"], ["t1"])
    assert (list(answer.surviving_mcp_servers), list(answer.stopped_mcp_servers)) == ([], ["files"])
    asked = [request for _, request, _ in harness.conversations.asked]
    assert asked == [
        requests.SetModeCommand(Mode.RESTRICTED),
        requests.SetModeCommand(Mode.RESTRICTED, stop_running=True),
    ]


def test_archiving_and_unarchiving_are_not_the_same(harness: GrpcHarness, author: Author) -> None:
    harness.conversations.will(author.record, author.record)
    ask(harness, "ArchiveConversation", v1.ArchiveConversationRequest(name=NAME))
    ask(harness, "UnarchiveConversation", v1.UnarchiveConversationRequest(name=NAME))
    assert [request.archived for _, request, _ in harness.conversations.asked] == [True, False]


def test_create_is_asked_for_with_its_owner(harness: GrpcHarness, author: Author, tmp_path: Path) -> None:
    harness.conversations.will(author.record)
    wanted = v1.Conversation(
        working_directory=str(tmp_path),
        instructions=v1.Instructions(text="Be brief.", replace=True),
        tools=v1.ToolSelection(tools=["tools/bash"]),
    )
    request = v1.CreateConversationRequest(conversation=wanted, request_id=str(uuid.uuid4()))
    answer = ask(harness, "CreateConversation", request)
    ((_, asked, deadline),) = harness.conversations.asked
    assert asked.profile == Profile(instructions="Be brief.", replaces_prompt=True, tools=("bash",))
    assert (asked.principal, asked.working_directory) == ("local", str(tmp_path))
    assert deadline is not None
    assert answer.conversation.slug == "calm-cove"


def test_a_fork_is_asked_for_with_its_owner_and_the_id_of_its_origin(harness: GrpcHarness, author: Author) -> None:
    cycle, request_id = f"conversations/{author.record.slug}/requestCycles/c1:2", str(uuid.uuid4())
    for name in (NAME, f"conversations/{author.record.slug}"):
        harness.conversations.will(author.record)
        request = v1.ForkConversationRequest(name=name, request_cycle=cycle, title="T", slug="s", request_id=request_id)
        assert ask(harness, "ForkConversation", request).conversation.slug == "calm-cove"
    (_, asked, deadline), (_, by_slug, _) = harness.conversations.asked
    assert (asked.principal, asked.origin, asked.run, asked.title, asked.slug) == ("local", "c1", "c1:2", "T", "s")
    assert asked == by_slug, "the same call, whichever name it uses"
    assert deadline is not None


def test_the_clients_deadline_is_the_actors(harness: GrpcHarness, author: Author) -> None:
    harness.conversations.will(author.record)
    now = harness.services.clock.monotonic()
    ask(harness, "TriggerContinuation", v1.TriggerContinuationRequest(name=NAME), timeout=1_000)
    ((_, _, deadline),) = harness.conversations.asked
    assert deadline is not None
    assert 900 < deadline - now < 1_100  # the wire rounds long times up


def test_an_answer_that_does_not_come_in_time_is_said_to_be_unknown(harness: GrpcHarness, author: Author) -> None:
    harness.conversations.will(None)
    with pytest.raises(grpc.RpcError) as failure:
        ask(harness, "TriggerContinuation", v1.TriggerContinuationRequest(name=NAME), timeout=0.3)
    assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize(
    ("reason", "field"),
    [(Reason.MODEL_UNAVAILABLE, "tasks[2].model"), (Reason.WORKING_DIRECTORY_INVALID, "tasks[2].working_directory")],
)
def test_a_task_that_is_refused_is_named_by_its_position(
    harness: GrpcHarness, author: Author, reason: Reason, field: str
) -> None:
    harness.conversations.will(TaskRefusedError(2, reason, f"{field}: no"))
    request = v1.SpawnSubAgentsRequest(name=NAME, tasks=[v1.SpawnSubAgentsRequest.Task(task="x")] * 3)
    refusal = refused(lambda: ask(harness, "SpawnSubAgents", request))
    assert (refusal.code, refusal.reason, refusal.fields) == ("INVALID_ARGUMENT", reason.value, [field])


def test_deleting_what_does_not_exist_can_be_all_right(harness: GrpcHarness) -> None:
    request = v1.DeleteConversationRequest(name="conversations/none", allow_missing=True)
    assert ask(harness, "DeleteConversation", request) == v1.DeleteConversationResponse()


def test_calls_are_answered_while_others_wait(harness: GrpcHarness, author: Author) -> None:
    """Nothing blocks the loop: a call that waits for its actor holds up none of a hundred others."""
    harness.conversations.will(*[None] * 50)
    waiting = [
        harness.stub.TriggerContinuation.future(
            v1.TriggerContinuationRequest(name=NAME), metadata=AUTHORIZED, timeout=30
        )
        for _ in range(50)
    ]
    for _ in range(50):
        ask(harness, "GetConversation", v1.GetConversationRequest(name=NAME))
    for held in harness.conversations.held:
        held.set_result(author.record)
    assert all(call.result(60).conversation.name == NAME for call in waiting)


def test_a_burst_of_calls_is_answered_whole(harness: GrpcHarness, author: Author) -> None:
    calls = [
        harness.stub.GetConversation.future(v1.GetConversationRequest(name=NAME), metadata=AUTHORIZED, timeout=60)
        for _ in range(3_000)
    ]
    assert all(call.result(60).conversation.name == NAME for call in calls)


# --- reads ------------------------------------------------------------------------------------------------------------


def test_a_conversation_is_read_by_id_and_by_slug(harness: GrpcHarness, author: Author) -> None:
    by_id = ask(harness, "GetConversation", v1.GetConversationRequest(name=NAME))
    by_slug = ask(harness, "GetConversation", v1.GetConversationRequest(name="conversations/calm-cove"))
    assert by_id == by_slug
    assert (
        by_id.conversation.context_usage.usable_window_tokens
        == harness.catalog.ListModels(v1.ListModelsRequest(), metadata=AUTHORIZED, timeout=60)
        .models[0]
        .usable_window_tokens
    )
    assert by_id.conversation.context_usage.fixed_tokens > 0, "of its tools"


def pages(harness: GrpcHarness, method: str, request: Message, field: str) -> list[list[Any]]:
    """All pages of a listing."""
    found = []
    while True:
        answer = ask(harness, method, request)
        assert answer.ByteSize() < limits.MAX_RESPONSE_BYTES
        found.append(list(getattr(answer, field)))
        if not answer.next_page_token:
            return found
        request.page_token = answer.next_page_token  # type: ignore[attr-defined]


def test_conversations_are_listed_in_pages_latest_first(harness: GrpcHarness) -> None:
    store, hub = harness.services.store, harness.hub
    for number in range(7):
        Author(store, hub, f"n{number}", updated_at=100 - number)
    Author(store, hub, "old", archived_at=5)
    Author(store, hub, "theirs", principal="somebody")
    Author(store, hub, "child", parent_conversation_id="n0", user_initiated=False)
    active = v1.ListConversationsRequest(page_size=3, filter="archived = false")
    got = pages(harness, "ListConversations", active, "conversations")
    assert [len(page) for page in got] == [3, 3, 1]
    assert [each.name for page in got for each in page] == [f"conversations/n{number}" for number in range(7)]
    assert len(ask(harness, "ListConversations", v1.ListConversationsRequest()).conversations) == 8
    archived = ask(harness, "ListConversations", v1.ListConversationsRequest(filter="archived = true")).conversations
    assert [each.name for each in archived] == ["conversations/old"]
    children = ask(
        harness, "ListConversations", v1.ListConversationsRequest(parent="conversations/slug-n0")
    ).conversations
    assert [(each.name, each.parent) for each in children] == [("conversations/child", "conversations/n0")]


def test_conversations_of_one_directory_are_listed_in_pages_of_their_own(harness: GrpcHarness, tmp_path: Path) -> None:
    here, link = tmp_path.resolve() / "here", tmp_path / "link"
    here.mkdir()
    link.symlink_to(here)
    for number in range(7):
        within = here if number % 2 else here / "within"
        Author(harness.services.store, harness.hub, f"n{number}", updated_at=100 - number, cwd=str(within))
    for directory in (here, link, f"{here}/../here/"):
        request = v1.ListConversationsRequest(page_size=2, filter=f'working_directory = "{directory}"')
        got = pages(harness, "ListConversations", request, "conversations")
        assert [[each.name for each in page] for page in got] == [
            ["conversations/n1", "conversations/n3"],
            ["conversations/n5"],
        ]
    beneath = v1.ListConversationsRequest(filter=f"working_directory:{link}")
    assert len(ask(harness, "ListConversations", beneath).conversations) == 7
    none = v1.ListConversationsRequest(filter="working_directory = /none")
    assert not ask(harness, "ListConversations", none).conversations
    relative = v1.ListConversationsRequest(filter="working_directory = here")
    assert refused(lambda: ask(harness, "ListConversations", relative)).fields == ["filter"]
    token = ask(harness, "ListConversations", v1.ListConversationsRequest(page_size=2)).next_page_token
    other = v1.ListConversationsRequest(page_size=2, page_token=token, filter="archived = false")
    assert refused(lambda: ask(harness, "ListConversations", other)).fields == ["page_token"]


def test_conversations_are_listed_in_other_orders_and_by_what_they_are(harness: GrpcHarness) -> None:
    store, hub = harness.services.store, harness.hub
    for number, title in enumerate(("c", "A", "b")):
        times = {"created_at": 10 + number, "updated_at": 90 - number}
        Author(store, hub, f"n{number}", title=title, labels={"n": title}, **times)
    Author(store, hub, "n0-a1", parent_conversation_id="n0", user_initiated=False)

    def listed(**request: Any) -> list[str]:
        found = pages(
            harness, "ListConversations", v1.ListConversationsRequest(page_size=2, **request), "conversations"
        )
        return [each.name.removeprefix("conversations/") for page in found for each in page]

    assert listed(order_by="create_time") == ["n0", "n1", "n2"]
    assert listed(order_by="create_time desc") == ["n2", "n1", "n0"]
    assert listed(order_by="title") == ["n1", "n2", "n0"]
    assert listed(filter="labels.n = b OR title:a", order_by="title desc") == ["n2", "n1"]
    assert listed(filter="parent = conversations/slug-n0") == listed(filter="parent:*") == ["n0-a1"]
    Author(store, hub, "f1", profile=Profile(forked_from="n0"))
    assert listed(filter="forked_from = conversations/slug-n0") == listed(filter="forked_from:*") == ["f1"]
    assert sorted(listed(filter="parent:* OR title = c")) == ["n0", "n0-a1"]
    assert listed(filter="title:*", parent="conversations/n0") == []
    wrong = v1.ListConversationsRequest(filter="title = ", order_by="size")
    assert refused(lambda: ask(harness, "ListConversations", wrong)).fields == ["filter", "order_by"]
    token = ask(harness, "ListConversations", v1.ListConversationsRequest(page_size=1)).next_page_token
    other = v1.ListConversationsRequest(page_size=1, page_token=token, order_by="title")
    assert refused(lambda: ask(harness, "ListConversations", other)).fields == ["page_token"]


def test_a_search_for_what_is_rare_ends_and_can_be_continued(
    open_harness: Callable[..., GrpcHarness], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_listing, "WINDOW", 2)
    monkeypatch.setattr(listings, "READS", 3)
    with closing(open_store(tmp_path / "data")) as store:
        harness = open_harness(store=store)
        for number in range(15):
            Author(store, harness.hub, f"n{number}", updated_at=100 - number, title="x" * (number == 13))
        rare = v1.ListConversationsRequest(filter="title:*")
        got = pages(harness, "ListConversations", rare, "conversations")
        assert [[each.name for each in page] for page in got] == [[], [], ["conversations/n13"]]
        harness.stop()


def test_pages_of_more_than_one_chunk(harness: GrpcHarness) -> None:
    for number in range(230):
        Author(harness.services.store, harness.hub, f"n{number}", updated_at=number + 1)
    got = pages(harness, "ListConversations", v1.ListConversationsRequest(page_size=150), "conversations")
    assert [len(page) for page in got] == [150, 80]
    assert len({each.name for page in got for each in page}) == 230


def test_messages_are_listed_in_pages_both_ways(harness: GrpcHarness, author: Author) -> None:
    for _ in range(250):
        author.commit(author.says())
    for descending in (False, True):
        request = v1.ListMessagesRequest(parent=NAME, page_size=120, descending=descending)
        got = pages(harness, "ListMessages", request, "messages")
        assert [len(page) for page in got] == [120, 120, 10]
        sequences = [message.sequence for page in got for message in page]
        assert sequences == sorted(range(1, 251), reverse=descending)
    later = ask(harness, "ListMessages", v1.ListMessagesRequest(parent=NAME, after_sequence=248))
    assert [message.sequence for message in later.messages] == [249, 250]
    assert later.revision == author.head


def test_pages_are_bounded_in_bytes(harness: GrpcHarness, author: Author) -> None:
    for _ in range(20):
        author.commit(author.says("x" * limits.MAX_TEXT_BYTES))
    got = pages(harness, "ListMessages", v1.ListMessagesRequest(parent=NAME), "messages")
    assert [message.sequence for page in got for message in page] == list(range(1, 21))
    assert len(got) == 2


def test_request_cycles_are_listed_in_pages_both_ways(harness: GrpcHarness, author: Author) -> None:
    for number in range(1, 6):
        author.commit(author.says(run=f"c1:{number}", delivery="direct"))
        answer = author.says("a", type=MessageType.AGENT, content=(Text("yes"),), run=f"c1:{number}", request_id="r")
        author.commit(answer, RunStop(f"c1:{number}", StopReason.COMPLETED))
    names = [f"{NAME}/requestCycles/c1:{number}" for number in range(1, 6)]
    for descending in (False, True):
        request = v1.ListRequestCyclesRequest(parent=NAME, page_size=2, descending=descending)
        got = pages(harness, "ListRequestCycles", request, "request_cycles")
        assert [len(page) for page in got] == [2, 2, 1]
        assert [each.name for page in got for each in page] == (names[::-1] if descending else names)


def test_a_page_token_that_the_server_did_not_make_is_refused(harness: GrpcHarness, author: Author) -> None:
    for request in (
        v1.ListConversationsRequest(page_token="x"),
        v1.ListMessagesRequest(parent=NAME, page_token="x"),
        v1.ListRequestCyclesRequest(parent=NAME, page_token="x"),
        v1.ListQueueRequest(parent=NAME, page_token="x"),
    ):
        method = request.DESCRIPTOR.name.removesuffix("Request")
        refusal = refused(partial(ask, harness, method, request))
        assert (method, refusal.code, refusal.fields) == (method, "INVALID_ARGUMENT", ["page_token"])


def test_a_page_token_belongs_to_its_listing(harness: GrpcHarness, author: Author) -> None:
    for _ in range(3):
        author.commit(author.says())
    token = ask(harness, "ListMessages", v1.ListMessagesRequest(parent=NAME, page_size=1)).next_page_token
    other = v1.ListMessagesRequest(parent=NAME, page_size=1, page_token=token, descending=True)
    assert refused(lambda: ask(harness, "ListMessages", other)).fields == ["page_token"]


# --- the catalogue ----------------------------------------------------------------------------------------------------


def test_models_are_listed_with_the_default(harness: GrpcHarness) -> None:
    models = harness.catalog.ListModels(v1.ListModelsRequest(), metadata=AUTHORIZED, timeout=60).models
    assert [(model.name, model.protocol, model.default) for model in models] == [
        ("models/demo", v1.Model.PROTOCOL_DEMO, True)
    ]
    assert models[0].usable_window_tokens > 0


def test_a_model_and_a_tool_are_read_by_their_names(harness: GrpcHarness) -> None:
    call: Any = {"metadata": AUTHORIZED, "timeout": 10}
    model = harness.catalog.GetModel(v1.GetModelRequest(name="models/demo"), **call).model
    assert [model] == list(harness.catalog.ListModels(v1.ListModelsRequest(), **call).models)
    tool = harness.catalog.GetTool(v1.GetToolRequest(name="tools/patch"), **call).tool
    assert tool in harness.catalog.ListTools(v1.ListToolsRequest(), **call).tools
    for read in (
        lambda: harness.catalog.GetModel(v1.GetModelRequest(name="models/none"), **call),
        lambda: harness.catalog.GetTool(v1.GetToolRequest(name="tools/none"), **call),
    ):
        assert refused(read).code == "NOT_FOUND"


def test_models_and_tools_are_listed_in_pages(harness: GrpcHarness) -> None:
    call: Any = {"metadata": AUTHORIZED, "timeout": 10}
    request, found = v1.ListToolsRequest(page_size=2), list[list[str]]()
    while not found or request.page_token:
        answer = harness.catalog.ListTools(request, **call)
        found.append([tool.name.removeprefix("tools/") for tool in answer.tools])
        request.page_token = answer.next_page_token
    assert found == [["patch", "request_mode_upgrade"], ["submit_result"]]
    token = harness.catalog.ListTools(v1.ListToolsRequest(page_size=1), **call).next_page_token
    other = v1.ListModelsRequest(page_token=token)
    assert refused(lambda: harness.catalog.ListModels(other, **call)).fields == ["page_token"]


def test_tools_are_listed_with_whom_they_are_for_and_where_they_work(harness: GrpcHarness) -> None:
    tools = harness.catalog.ListTools(v1.ListToolsRequest(), metadata=AUTHORIZED, timeout=60).tools
    shown = {tool.name: tool for tool in tools}
    assert list(shown) == ["tools/patch", "tools/request_mode_upgrade", "tools/submit_result"]
    audiences = [tool.audience for tool in shown.values()]
    assert audiences == [v1.Tool.AUDIENCE_ALL, v1.Tool.AUDIENCE_TOP_LEVEL, v1.Tool.AUDIENCE_SUB_AGENT]
    patch = shown["tools/patch"]
    assert (list(patch.modes), patch.writes, patch.group) == (
        [v1.MODE_WORKSPACE, v1.MODE_UNRESTRICTED],
        True,
        v1.TOOL_GROUP_WRITE,
    )
    assert patch.input_schema["type"] == "object"
    assert shown["tools/request_mode_upgrade"].requires_approval


@pytest.mark.parametrize(
    ("tier", "shown", "mode"),
    [
        ("A", v1.GetServerInfoResponse.Sandbox.TIER_A, v1.MODE_RESTRICTED),
        ("B", v1.GetServerInfoResponse.Sandbox.TIER_B, v1.MODE_RESTRICTED),
        ("none", v1.GetServerInfoResponse.Sandbox.TIER_NONE, v1.MODE_UNRESTRICTED),
    ],
)
def test_the_server_says_what_it_can_keep(
    open_harness: Callable[..., GrpcHarness],
    tier: str,
    shown: v1.GetServerInfoResponse.Sandbox.Tier.ValueType,
    mode: v1.Mode.ValueType,
) -> None:
    harness = open_harness(tier=tier)
    info = harness.catalog.GetServerInfo(v1.GetServerInfoRequest(), metadata=AUTHORIZED, timeout=60)
    assert (info.sandbox.tier, info.default_mode) == (shown, mode)
    assert info.sandbox.restricted_available is (tier != "none")
    assert info.sandbox.hides_server_files is (tier == "A")
    assert info.sandbox.by_setting is (tier == "B")
    unset = {f.name for f in info.limits.DESCRIPTOR.fields} - {f.name for f, _ in info.limits.ListFields()}
    assert not unset
    assert (info.default_model, info.sqlite_version) == ("models/demo", "3")
    assert info.version


# --- streams over the network -----------------------------------------------------------------------------------------


def test_a_stream_that_the_client_closes_is_removed_from_the_hub(harness: GrpcHarness, author: Author) -> None:
    stream = harness.watch()
    next(stream)
    assert harness.hub.watchers() == 1
    left = threading.Event()
    stream.add_callback(left.set)
    stream.cancel()
    assert left.wait(60)
    for _ in range(1_000):
        if not harness.hub.watchers():
            break
        author.commit(author.says())
        ask(harness, "GetConversation", v1.GetConversationRequest(name=NAME))
    assert harness.hub.watchers() == 0


def test_pruned_events_are_out_of_range(harness: GrpcHarness, author: Author) -> None:
    for _ in range(10):
        author.commit(author.says())
    harness.services.store.prune_log("c1", 6)
    refusal = refused(lambda: harness.watch(after_revision=1))
    assert (refusal.code, refusal.reason) == ("OUT_OF_RANGE", "REVISION_TOO_OLD")
    assert int(refusal.info.metadata["oldest_revision"]) > 1


def test_too_many_streams_leave_calls_alone(open_harness: Callable[..., GrpcHarness]) -> None:
    harness = open_harness(max_streams=1)
    Author(harness.services.store, harness.hub, "c1")
    first = harness.watch()
    next(first)
    refusal = refused(harness.watch)
    assert (refusal.code, refusal.reason) == ("RESOURCE_EXHAUSTED", "TOO_MANY_STREAMS")
    ask(harness, "GetConversation", v1.GetConversationRequest(name=NAME))
    first.cancel()


def test_a_watcher_who_reads_nothing_is_ended_with_aborted(open_harness: Callable[..., GrpcHarness]) -> None:
    harness = open_harness(stall_seconds=3)
    author = Author(harness.services.store, harness.hub, "c1")
    stuck, other = harness.watch(timeout=60), harness.watch(timeout=60)
    next(stuck)
    with ThreadPoolExecutor(1) as reading:  # all the time: what is committed meanwhile may take longer than a stall
        read = reading.submit(next, (event for response in other for event in response.events if event.revision == 60))
        for _ in range(60):
            author.commit(author.says("x" * limits.MAX_TEXT_BYTES))
        assert read.result(60).revision == 60
    get = v1.GetConversationRequest(name=NAME)
    eventually(lambda: ask(harness, "GetConversation", get) and harness.hub.watchers() == 1, "one of them is ended")
    refusal = refused(lambda: stuck)
    assert (refusal.code, refusal.reason) == ("ABORTED", "ABORTED")
    other.cancel()


def test_a_server_that_stops_ends_its_streams_with_unavailable(harness: GrpcHarness, author: Author) -> None:
    stream = harness.watch()
    next(stream)
    author.commit(author.says())
    harness.stop()
    assert next(stream).events[0].revision == 1
    refusal = refused(lambda: stream)
    assert (refusal.code, refusal.reason) == ("UNAVAILABLE", "SHUTTING_DOWN")


def test_a_server_that_shares_nothing_lists_itself_without_an_address(harness: GrpcHarness) -> None:
    (node,) = harness.catalog.ListNodes(v1.ListNodesRequest(), metadata=AUTHORIZED, timeout=60).nodes
    info = harness.catalog.GetServerInfo(v1.GetServerInfoRequest(), metadata=AUTHORIZED, timeout=60)
    assert node == v1.Node(version=info.version, answering=True)
