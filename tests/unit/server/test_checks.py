"""What each request must be: a good one passes, and each way to be wrong names its field."""

import math
from typing import Any, cast

import pytest
from bedrock import v1
from bedrock.v1 import catalog_service_pb2, conversation_service_pb2
from google.protobuf import struct_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

from server.contract import limits
from server.contract.errors import MalformedRequestError
from server.contract.validation import UPDATABLE, check, rules_of

NAME = "conversations/calm-cove"
UUID = "123e4567-e89b-12d3-a456-426614174000"

GOOD: dict[type[Message], dict[str, Any]] = {
    v1.CreateConversationRequest: {"conversation.working_directory": "/work"},
    v1.GetConversationRequest: {"name": NAME},
    v1.ListConversationsRequest: {},
    v1.UpdateConversationRequest: {
        "conversation.name": NAME,
        "conversation.title": "New",
        "update_mask": FieldMask(paths=["title"]),
    },
    v1.ArchiveConversationRequest: {"name": NAME},
    v1.UnarchiveConversationRequest: {"name": NAME},
    v1.DeleteConversationRequest: {"name": NAME},
    v1.SendMessageRequest: {"name": NAME, "text": "Hello"},
    v1.CancelConversationRequest: {"name": NAME},
    v1.ResolveApprovalRequest: {"name": f"{NAME}/approvals/call-1", "decision": v1.APPROVAL_DECISION_APPROVE},
    v1.SubmitToolResultRequest: {"name": f"{NAME}/toolCalls/call-1"},
    v1.AnswerQuestionRequest: {"name": f"{NAME}/questions/1"},
    v1.CreateApprovalRuleRequest: {
        "parent": NAME,
        "approval_rule": v1.ApprovalRule(action=v1.ApprovalRule.ACTION_DENY, command_prefix="git push"),
    },
    v1.DeleteApprovalRuleRequest: {"name": f"{NAME}/approvalRules/r1"},
    v1.GetApprovalRuleRequest: {"name": f"{NAME}/approvalRules/r1"},
    v1.ListApprovalRulesRequest: {"parent": NAME},
    v1.SetModeRequest: {"name": NAME, "mode": v1.MODE_RESTRICTED},
    v1.TriggerContinuationRequest: {"name": NAME},
    v1.ContinueConversationRequest: {"name": NAME},
    v1.ForkConversationRequest: {"name": NAME},
    v1.SpawnSubAgentsRequest: {"name": NAME, "tasks": [v1.SpawnSubAgentsRequest.Task(task="Count the files.")]},
    v1.DownloadAttachmentRequest: {"name": f"{NAME}/attachments/sha256-1"},
    v1.ListMessagesRequest: {"parent": NAME},
    v1.ListRequestCyclesRequest: {"parent": NAME},
    v1.GetRequestCycleRequest: {"name": f"{NAME}/requestCycles/c:1"},
    v1.GetMessageRequest: {"name": f"{NAME}/messages/m1"},
    v1.ListApprovalsRequest: {"parent": "conversations/-"},
    v1.ListAuditEntriesRequest: {},
    v1.GetApprovalRequest: {"name": f"{NAME}/approvals/call-1"},
    v1.ListQuestionsRequest: {"parent": "conversations/-"},
    v1.GetQuestionRequest: {"name": f"{NAME}/questions/1"},
    v1.GetAttachmentRequest: {"name": f"{NAME}/attachments/sha256-1"},
    v1.WaitRequestCycleRequest: {"name": f"{NAME}/requestCycles/c:1", "timeout": Duration(seconds=600)},
    v1.ListQueueRequest: {"parent": NAME},
    v1.WithdrawMessageRequest: {"name": f"{NAME}/messages/m1"},
    v1.SubscribeRequest: {"name": NAME},
    v1.VerifyConversationRequest: {"name": NAME},
    v1.ReplayConversationRequest: {"name": NAME},
    v1.ListTransitionsRequest: {"parent": NAME, "after_step": 7},
    v1.ExportConversationRequest: {"name": NAME},
    v1.WatchConversationsRequest: {},
    v1.BrowseDirectoryRequest: {},
    v1.ListModelsRequest: {},
    v1.ListToolsRequest: {},
    v1.GetModelRequest: {"name": "models/a/b"},
    v1.GetToolRequest: {"name": "tools/bash"},
    v1.GetServerInfoRequest: {},
    v1.GetQuotasRequest: {},
    v1.ListNodesRequest: {},
}

TOO_MANY = {f"k{n}": "" for n in range(65)}
BAD_NAMES = (
    "",
    "calm-cove",
    "conversations/",
    "conversations/a/b",
    "conversations/a b",
    "conversations/a\0",
    "c" * 600,
)
BAD_FILTERS = ("x" * 8_193, "é" * 8_192, 'title = "a\0"')
BAD_ORDERS = ("state", "title down", "title desc desc", "title,create_time", "desc", "\ttitle", "title\n", "t" * 99)
BAD_CYCLES = ("", NAME, f"{NAME}/requestCycles/", f"{NAME}/messages/m")
BAD_RULES = (
    v1.ApprovalRule(action=v1.ApprovalRule.ACTION_ALLOW),
    v1.ApprovalRule(action=9, command="make"),  # type: ignore[arg-type]
    v1.ApprovalRule(action=v1.ApprovalRule.ACTION_ALLOW, command=" "),
    v1.ApprovalRule(action=v1.ApprovalRule.ACTION_ALLOW, command="a\0"),
    v1.ApprovalRule(action=v1.ApprovalRule.ACTION_ALLOW, command_prefix="x" * 4_097),
    v1.ApprovalRule(action=v1.ApprovalRule.ACTION_ALLOW, path="src"),
    v1.ApprovalRule(action=v1.ApprovalRule.ACTION_ALLOW, tool="bash"),
    v1.ApprovalRule(action=v1.ApprovalRule.ACTION_ALLOW, mcp_server="Jira"),
)
BAD_TOKENS = ("x" * 2_049,)

BAD_GENERATIONS = (
    v1.Generation(reasoning_effort=cast("v1.ReasoningEffort.ValueType", 99)),
    v1.Generation(temperature=-0.1),
    v1.Generation(temperature=2.1),
    v1.Generation(temperature=math.nan),
    v1.Generation(max_output_tokens=0),
)

WRONG: dict[type[Message], dict[str, tuple[Any, ...]]] = {
    v1.CreateConversationRequest: {
        "conversation.working_directory": ("", "/a\0b", "/" + "x" * 4_096),
        "conversation.model": ("demo", "models/", "models/a b"),
        "conversation.slug": ("Upper", "a_b", "-a", "a-", "x" * 64, "ä", "b" * 16, "b" * 16 + "-a1"),
        "conversation.title": ("x" * 257, "two\nlines", "a\0"),
        "conversation.mode": (99,),
        "conversation.labels": (TOO_MANY, {"k" * 64: ""}, {"": "x"}, {"k": "v" * 257}, {"k": "a\0"}, {"a\n": "x"}),
        "request_id": ("1", "not-a-uuid", UUID.replace("-", "")),
        "conversation.approval_policy": (99,),
        "conversation.follow_up_policy": (-1,),
        "conversation.instructions": (
            v1.Instructions(text="é" * 32_769),
            v1.Instructions(text="a\0"),
            v1.Instructions(replace=True),
        ),
        "conversation.generation": BAD_GENERATIONS,
        "conversation.tools": (v1.ToolSelection(tools=["bash"]), v1.ToolSelection(tools=["tools/a"] * 257)),
        "conversation.budget": (v1.Budget(run_tokens=-1), v1.Budget(conversation_cost_micros=-1)),
        "conversation.client_tools": ([v1.ClientTool(name=f"tool-{number}") for number in range(65)],),
        "conversation.mcp_servers": ([v1.McpServer(name=f"server-{number}") for number in range(9)],),
    },
    v1.GetConversationRequest: {"name": BAD_NAMES},
    v1.ListConversationsRequest: {
        "page_size": (-1,),
        "page_token": BAD_TOKENS,
        "parent": BAD_NAMES[1:],
        "filter": BAD_FILTERS,
        "order_by": BAD_ORDERS,
    },
    v1.UpdateConversationRequest: {},
    v1.ArchiveConversationRequest: {"name": BAD_NAMES},
    v1.UnarchiveConversationRequest: {"name": BAD_NAMES},
    v1.DeleteConversationRequest: {"name": BAD_NAMES, "etag": ("x" * 65, "a\0")},
    v1.SendMessageRequest: {
        "name": BAD_NAMES,
        "text": ("", " \n", "x" * (limits.MAX_TEXT_BYTES + 1), "é" * (limits.MAX_TEXT_BYTES // 2 + 1)),
        "generation": BAD_GENERATIONS,
        "images": ([v1.Image(media_type="image/png", data=b"x")] * (limits.MAX_IMAGES_PER_MESSAGE + 1),),
        "delivery": (99,),
        "request_id": ("x",),
        "expected_run": ("c:1", NAME, f"{NAME}/requestCycles/"),
    },
    v1.CancelConversationRequest: {
        "name": BAD_NAMES,
        "run": ("c:1", f"{NAME}/messages/c:1"),
        "reason": ("x" * 257, "a\0"),
    },
    v1.ResolveApprovalRequest: {
        "name": ("", NAME, f"{NAME}/approvals/", f"{NAME}/messages/x"),
        "decision": (v1.APPROVAL_DECISION_UNSPECIFIED, v1.APPROVAL_DECISION_WITHDRAWN, 99),
        "note": ("x" * 1_025, "a\0"),
        "rule": (*BAD_RULES, v1.ApprovalRule()),
    },
    v1.SubmitToolResultRequest: {
        "name": ("", NAME, f"{NAME}/toolCalls/", f"{NAME}/messages/x"),
        "output": ("x" * 262_145, "\u00e9" * 131_073),
        "error": ("x" * 262_145,),
        "images": ([v1.Image()] * 21,),
        "request_id": ("x",),
    },
    v1.AnswerQuestionRequest: {"name": ("", NAME, f"{NAME}/questions/", f"{NAME}/approvals/x"), "request_id": ("x",)},
    v1.CreateApprovalRuleRequest: {
        "parent": BAD_NAMES,
        "approval_rule": (*BAD_RULES, v1.ApprovalRule(command="make")),
        "request_id": ("x",),
    },
    v1.DeleteApprovalRuleRequest: {"name": ("", NAME, f"{NAME}/approvalRules/", "approvalRules/1")},
    v1.GetApprovalRuleRequest: {"name": ("", NAME, f"{NAME}/approvalRules/", "approvalRules/")},
    v1.ListApprovalRulesRequest: {"parent": BAD_NAMES, "page_size": (-1,), "page_token": BAD_TOKENS},
    v1.SetModeRequest: {"name": BAD_NAMES, "mode": (v1.MODE_UNSPECIFIED, 9)},
    v1.TriggerContinuationRequest: {"name": BAD_NAMES},
    v1.ContinueConversationRequest: {"name": BAD_NAMES, "request_id": ("x",)},
    v1.ForkConversationRequest: {
        "name": BAD_NAMES,
        "request_cycle": ("c:1", NAME, f"{NAME}/requestCycles/"),
        "slug": ("Upper", "b" * 16),
        "title": ("two\nlines",),
        "request_id": ("x",),
    },
    v1.SpawnSubAgentsRequest: {
        "name": BAD_NAMES,
        "tasks": ((), [v1.SpawnSubAgentsRequest.Task(task="x")] * (limits.SUB_AGENTS.per_call + 1)),
        "request_id": ("x",),
    },
    v1.VerifyConversationRequest: {"name": BAD_NAMES},
    v1.ReplayConversationRequest: {"name": BAD_NAMES, "until_revision": (-1,)},
    v1.ListTransitionsRequest: {"parent": BAD_NAMES, "page_size": (-1,), "page_token": BAD_TOKENS, "after_step": (-1,)},
    v1.ExportConversationRequest: {"name": BAD_NAMES},
    v1.BrowseDirectoryRequest: {"path": ("/x\0y", "/" + "x" * 4_096), "page_size": (-1,), "page_token": BAD_TOKENS},
    v1.DownloadAttachmentRequest: {"name": ("", NAME, f"{NAME}/attachments/", f"{NAME}/messages/x")},
    v1.ListMessagesRequest: {
        "parent": BAD_NAMES,
        "page_size": (-1,),
        "page_token": BAD_TOKENS,
        "after_sequence": (-1,),
    },
    v1.ListRequestCyclesRequest: {"parent": BAD_NAMES, "page_size": (-5,), "page_token": BAD_TOKENS, "view": (9,)},
    v1.GetRequestCycleRequest: {"name": BAD_CYCLES, "view": (9,)},
    v1.GetMessageRequest: {"name": ("", NAME, f"{NAME}/messages/", f"{NAME}/attachments/x")},
    v1.ListApprovalsRequest: {"parent": BAD_NAMES, "page_size": (-1,), "page_token": BAD_TOKENS},
    v1.ListAuditEntriesRequest: {
        "page_size": (-1,),
        "page_token": BAD_TOKENS,
        "start_time": (Timestamp(seconds=-1), Timestamp(seconds=1 << 62), Timestamp(seconds=253_402_300_800)),
        "end_time": (Timestamp(seconds=-1),),
        "principal": ("x" * 257, "a\0"),
        "conversation": tuple(name for name in BAD_NAMES if name),
        "outcome": (9,),
    },
    v1.GetApprovalRequest: {"name": ("", NAME, f"{NAME}/approvals/", f"{NAME}/messages/m")},
    v1.ListQuestionsRequest: {"parent": BAD_NAMES, "page_size": (-1,), "page_token": BAD_TOKENS},
    v1.GetQuestionRequest: {"name": ("", NAME, f"{NAME}/questions/", f"{NAME}/messages/m")},
    v1.GetAttachmentRequest: {"name": ("", NAME, f"{NAME}/attachments/", f"{NAME}/messages/m")},
    v1.WaitRequestCycleRequest: {
        "name": BAD_CYCLES,
        "view": (9,),
        "timeout": (Duration(seconds=-1), Duration(seconds=600, nanos=1)),
    },
    v1.ListQueueRequest: {"parent": BAD_NAMES, "page_size": (-1,), "page_token": BAD_TOKENS},
    v1.WithdrawMessageRequest: {"name": ("", NAME, f"{NAME}/messages/", f"{NAME}/attachments/x")},
    v1.SubscribeRequest: {"name": BAD_NAMES, "after_revision": (-1,), "recent_messages": (-1,)},
    v1.WatchConversationsRequest: {"filter": BAD_FILTERS, "order_by": BAD_ORDERS},
    v1.ListModelsRequest: {"page_size": (-1,), "page_token": BAD_TOKENS},
    v1.ListToolsRequest: {"page_size": (-1,), "page_token": BAD_TOKENS},
    v1.GetModelRequest: {"name": ("", "demo", "models/", "models/a b")},
    v1.GetToolRequest: {"name": ("", "bash", "tools/", "tools/a\n")},
    v1.ListNodesRequest: {"page_size": (-1,), "page_token": BAD_TOKENS},
    v1.GetQuotasRequest: {},
    v1.GetServerInfoRequest: {},
}

CASES = [
    (kind, field, value) for kind, by_field in WRONG.items() for field, values in by_field.items() for value in values
]


def made(kind: type[Message], fields: dict[str, Any]) -> Message:
    """A request with these values, by the paths of their fields."""
    nested: dict[str, dict[str, Any]] = {}
    for path, value in fields.items():
        outer, _, inner = path.rpartition(".")
        nested.setdefault(outer, {})[inner] = value
    return kind(**nested.pop("", {}), **nested)


def violated(request: Message) -> list[str]:
    with pytest.raises(MalformedRequestError) as refusal:
        check(request)
    assert all(text for _, text in refusal.value.violations)
    return [field for field, _ in refusal.value.violations]


@pytest.mark.parametrize("kind", GOOD, ids=lambda kind: kind.__name__)
def test_a_plain_request_passes(kind: type[Message]) -> None:
    check(made(kind, GOOD[kind]))


@pytest.mark.parametrize(
    ("kind", "field", "value"), CASES, ids=[f"{kind.__name__}-{field}-{n}" for n, (kind, field, _) in enumerate(CASES)]
)
def test_a_wrong_field_is_named_and_nothing_else(kind: type[Message], field: str, value: Any) -> None:
    assert violated(made(kind, {**GOOD[kind], field: value})) == [field]


def test_a_message_may_be_an_image_alone() -> None:
    check(v1.SendMessageRequest(name=NAME, images=[v1.Image(media_type="image/png", data=b"x")]))


def test_all_wrong_fields_are_named_at_once() -> None:
    wanted = v1.Conversation(slug="A", title="x" * 999, mode=7)  # type: ignore[arg-type]
    fields = ["working_directory", "slug", "title", "mode"]
    assert violated(v1.CreateConversationRequest(conversation=wanted)) == [f"conversation.{each}" for each in fields]


def test_what_the_server_sets_is_ignored_when_a_conversation_is_created() -> None:
    copied = v1.Conversation(name="anything", parent="-", etag="x", revision=-1, working_directory="/work")
    check(v1.CreateConversationRequest(conversation=copied))


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_every_rule_has_a_wrong_value(kind: type[Message]) -> None:
    rules = rules_of(kind.DESCRIPTOR).fields
    settings = rules_of(v1.Conversation.DESCRIPTOR).fields if kind is v1.CreateConversationRequest else {}
    ruled = {*rules, *(f"conversation.{field}" for field in settings)}
    assert ruled - set(WRONG[kind]) <= {"conversation"}


@pytest.mark.parametrize("kind", GOOD, ids=lambda kind: kind.__name__)
def test_every_text_enum_and_number_of_a_request_has_a_rule(kind: type[Message]) -> None:
    judged = {
        FieldDescriptor.TYPE_STRING,
        FieldDescriptor.TYPE_ENUM,
        FieldDescriptor.TYPE_INT32,
        FieldDescriptor.TYPE_INT64,
        FieldDescriptor.TYPE_MESSAGE,
        FieldDescriptor.TYPE_BYTES,
    }
    ruled = rules_of(kind.DESCRIPTOR).fields.keys() | {"update_mask", "json", "output_schema", "content"}
    assert {field.name for field in kind.DESCRIPTOR.fields if field.type in judged} <= ruled


def test_every_call_is_checked() -> None:
    checked = {kind.__name__.removesuffix("Request") for kind in GOOD.keys() & WRONG.keys()}
    services = ("ConversationService", conversation_service_pb2), ("CatalogService", catalog_service_pb2)
    methods = {method.name for name, file in services for method in file.DESCRIPTOR.services_by_name[name].methods}
    assert checked == methods


# --- tools of clients ----------------------------------------------------------------------------------------------

BAD_TOOLS = [
    ("name", v1.ClientTool()),
    ("name", v1.ClientTool(name="find order")),
    ("name", v1.ClientTool(name="x" * 65)),
    ("description", v1.ClientTool(name="a", description="x" * 4_097)),
    ("description", v1.ClientTool(name="a", description="a\0")),
    ("group", v1.ClientTool(name="a", group=99)),  # type: ignore[arg-type]
    ("timeout", v1.ClientTool(name="a", timeout=Duration(nanos=999_999_999))),
    ("timeout", v1.ClientTool(name="a", timeout=Duration(seconds=86_400, nanos=1))),
]


@pytest.mark.parametrize(("field", "tool"), BAD_TOOLS)
def test_a_wrong_tool_of_clients_is_named_by_its_position(field: str, tool: v1.ClientTool) -> None:
    conversation = v1.Conversation(name=NAME, working_directory="/", client_tools=[v1.ClientTool(name="ok"), tool])
    mask = FieldMask(paths=["client_tools"])
    for request in (
        v1.CreateConversationRequest(conversation=conversation),
        v1.UpdateConversationRequest(conversation=conversation, update_mask=mask),
    ):
        assert violated(request) == [f"conversation.client_tools[1].{field}"]


@pytest.mark.parametrize("name", ["", "Files", "-files", "f" * 33, "my_files"])
def test_a_wrong_mcp_server_is_named_by_its_position(name: str) -> None:
    servers = [v1.McpServer(name="files"), v1.McpServer(name=name)]
    created = v1.Conversation(working_directory="/", mcp_servers=servers)
    assert violated(v1.CreateConversationRequest(conversation=created)) == ["conversation.mcp_servers[1].name"]
    assert violated(update("mcp_servers", mcp_servers=servers)) == ["conversation.mcp_servers[1].name"]


@pytest.mark.parametrize(
    "answer",
    [
        v1.SubmitToolResultRequest(output="x", error="y"),
        v1.SubmitToolResultRequest(output="x", json=struct_pb2.Struct()),
        v1.SubmitToolResultRequest(error="x", json=struct_pb2.Struct()),
        v1.SubmitToolResultRequest(error="x", images=[v1.Image()]),
    ],
)
def test_an_answer_of_a_client_says_one_thing(answer: v1.SubmitToolResultRequest) -> None:
    answer.name = f"{NAME}/toolCalls/call-1"
    assert violated(answer) == ["output"]


def test_a_question_that_is_declined_gets_no_content() -> None:
    request = v1.AnswerQuestionRequest(name=f"{NAME}/questions/1", decline=True, content=struct_pb2.Struct())
    assert violated(request) == ["content"]


# --- tasks of sub-agents -------------------------------------------------------------------------------------------


LONGEST_SECONDS = limits.SUB_AGENTS.max_timeout_ms // 1000


def spawn(**fields: Any) -> v1.SpawnSubAgentsRequest:
    """One good task, and one with these fields."""
    second: dict[str, Any] = {"task": "b", **fields}
    tasks = [v1.SpawnSubAgentsRequest.Task(task="a"), v1.SpawnSubAgentsRequest.Task(**second)]
    return v1.SpawnSubAgentsRequest(name=NAME, tasks=tasks)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("task", ""),
        ("task", " \n"),
        ("task", "a\0b"),
        ("task", "é" * (limits.SUB_AGENTS.task_bytes // 2 + 1)),
        ("model", "demo"),
        ("max_turns", -1),
        ("max_turns", limits.SUB_AGENTS.max_turns + 1),
        ("timeout", Duration(seconds=-1)),
        ("timeout", Duration(nanos=999_999_999)),
        ("timeout", Duration(seconds=LONGEST_SECONDS, nanos=1)),
        ("timeout", Duration(seconds=2**62)),
        ("read_first", ["a"] * (limits.SUB_AGENTS.files + 1)),
        ("read_first", ["a", ""]),
        ("read_first", ["a\0"]),
        ("read_first", ["x" * 4_097]),
        ("working_directory", "/a\0b"),
    ],
)
def test_a_wrong_task_is_named_by_its_position(field: str, value: Any) -> None:
    assert violated(spawn(**{field: value})) == [f"tasks[1].{field}"]


def test_tasks_may_go_to_the_bounds() -> None:
    check(
        spawn(
            task="x" * limits.SUB_AGENTS.task_bytes,
            model="models/a/b",
            max_turns=limits.SUB_AGENTS.max_turns,
            timeout=Duration(seconds=LONGEST_SECONDS),
            read_first=["a.txt"] * limits.SUB_AGENTS.files,
            working_directory="/work",
        )
    )
    check(spawn(timeout=Duration(seconds=1)))


def test_every_field_of_a_task_has_a_rule() -> None:
    task = v1.SpawnSubAgentsRequest.Task.DESCRIPTOR
    assert set(rules_of(task).fields) == set(task.fields_by_name)


# --- updates --------------------------------------------------------------------------------------------------------


def update(*paths: str, **fields: Any) -> v1.UpdateConversationRequest:
    wanted: dict[str, Any] = {"name": NAME, **fields}
    return v1.UpdateConversationRequest(conversation=v1.Conversation(**wanted), update_mask=FieldMask(paths=paths))


def test_an_update_needs_a_name_and_no_mask() -> None:
    assert violated(v1.UpdateConversationRequest()) == ["conversation.name"]
    check(update())


def test_without_a_mask_what_is_set_is_judged_and_with_a_star_everything() -> None:
    assert violated(update(title="a\0", slug="A")) == ["conversation.slug", "conversation.title"]
    assert violated(update("*", title="T")) == ["conversation.slug", "conversation.model"]
    assert violated(update("*", "title", title="T")) == ["update_mask"]


def test_single_labels_and_amounts_are_judged() -> None:
    check(update("labels.team", "labels.`a.b`", "budget.run_tokens", labels={"team": "x"}))
    assert violated(update("labels.team", labels={"team": "x" * 257})) == ["conversation.labels.team"]
    assert violated(update("budget.run_tokens", budget=v1.Budget(run_tokens=-1))) == ["conversation.budget.run_tokens"]
    assert violated(update("budget.nothing")) == ["update_mask"]
    wrong = v1.Generation(temperature=3, max_output_tokens=9)
    check(update("generation.max_output_tokens", "generation.reasoning_effort", generation=wrong))
    assert violated(update("generation.temperature", generation=wrong)) == ["conversation.generation.temperature"]
    assert violated(update("generation.heat")) == ["update_mask"]


@pytest.mark.parametrize("path", ["name", "mode", "working_directory", "state", "nothing", ""])
def test_other_fields_cannot_be_updated(path: str) -> None:
    assert violated(update(path)) == ["update_mask"]


@pytest.mark.parametrize("field", UPDATABLE)
def test_a_wrong_new_value_is_named(field: str) -> None:
    for value in WRONG[v1.CreateConversationRequest].get(f"conversation.{field}", ()):
        assert violated(update(field, **{field: value})) == [f"conversation.{field}"]


def test_fields_outside_of_the_mask_do_not_matter() -> None:
    check(update("title", title="New", slug="WRONG", mode=99))


def test_every_field_that_can_be_updated_passes_with_a_good_value() -> None:
    good: dict[str, Any] = {"slug": "a-b", "title": "T", "model": "models/a/b", "labels": {"k": "v"}}
    good |= {"approval_policy": v1.APPROVAL_POLICY_AUTO, "follow_up_policy": v1.FOLLOW_UP_POLICY_ALWAYS}
    check(update(*good, "budget", **good))


def test_a_steer_brings_no_settings() -> None:
    fields: dict[str, Any] = {"name": NAME, "text": "left", "generation": v1.Generation(temperature=1)}
    assert violated(v1.SendMessageRequest(**fields, delivery=v1.DELIVERY_STEER)) == ["generation"]
    check(v1.SendMessageRequest(**fields, delivery=v1.DELIVERY_FOLLOW_UP))


def test_a_steer_brings_no_output_schema() -> None:
    steer = v1.SendMessageRequest(name=NAME, text="left", delivery=v1.DELIVERY_STEER, output_schema=Struct())
    assert violated(steer) == ["output_schema"]
