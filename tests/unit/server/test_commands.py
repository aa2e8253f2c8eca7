"""Commands: the request as the actor takes it, alone and in batches."""

import asyncio
import json
import math
from typing import Any

import pytest
from bedrock import v1
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.struct_pb2 import Struct, Value
from msgspec.structs import replace

from actors import messages
from actors.core import context
from actors.core.notifications import Fate, QueueChanged, StreamDiscarded
from actors.core.summary import StateSummary
from actors.ports import StoredEvent
from server.contract.errors import MalformedRequestError
from server.streams import base as batches
from server.streams.base import Outbox, commits, frame, start_of_last_commit
from server.wire import commands
from server.wire.conversation_messages import approval_rule
from server.wire.messages import timestamp
from tests.support.samples import FACTS, MESSAGE, QUEUED

# Requests reach the actors as they were meant, and two requests are the same only if they mean the same.


UUID = "123E4567-e89b-12d3-a456-426614174000"


def test_create_says_everything() -> None:
    wanted = v1.Conversation(
        working_directory="/work", model="models/a/b", slug="s", title="t", mode=v1.MODE_RESTRICTED,
        labels={"k": "v"}, approval_policy=v1.APPROVAL_POLICY_ASK_ALL,
        follow_up_policy=v1.FOLLOW_UP_POLICY_COMPLETED_ONLY, budget=v1.Budget(run_tokens=1, conversation_tokens=2),
    )  # fmt: skip
    made = commands.create_conversation(v1.CreateConversationRequest(conversation=wanted, request_id=UUID), "somebody")
    assert made == messages.CreateConversationCommand(
        principal="somebody", working_directory="/work", model="a/b", slug="s", title="t", mode=context.Mode.RESTRICTED,
        labels={"k": "v"}, approval_policy=context.ApprovalPolicy.ASK_ALL,
        follow_up_policy=context.FollowUpPolicy.COMPLETED_ONLY, budget=context.Budget(1, 2),
        request_id=UUID.lower(), body_hash=made.body_hash,
    )  # fmt: skip


GENERATION = v1.Generation(reasoning_effort=v1.REASONING_EFFORT_MAX, temperature=0.0, max_output_tokens=9)
MEANT = context.Generation(context.ReasoningEffort.MAX, 0.0, 9)


@pytest.mark.parametrize("wanted", [False, True])
def test_whether_it_continues_by_itself_is_chosen_at_creation(wanted: bool) -> None:
    chosen = v1.Conversation(working_directory="/work", auto_continue=wanted)
    made = commands.create_conversation(v1.CreateConversationRequest(conversation=chosen), "p")
    assert made.profile.auto_continue is wanted


def test_settings_of_generation_come_with_a_conversation_and_with_a_message() -> None:
    wanted = v1.Conversation(working_directory="/work", generation=GENERATION)
    assert (
        commands.create_conversation(v1.CreateConversationRequest(conversation=wanted), "p").profile.generation == MEANT
    )
    sent = commands.send_message(v1.SendMessageRequest(name="conversations/c", text="x", generation=GENERATION))
    assert sent.options.generation == MEANT
    assert commands.send_message(v1.SendMessageRequest(name="conversations/c", text="x")).options.generation is None


def test_a_schema_with_a_number_that_json_does_not_have_is_refused() -> None:
    tool = v1.ClientTool(name="a", input_schema=Struct(fields={"a": Value(number_value=math.inf)}))
    wanted = v1.Conversation(working_directory="/work", client_tools=[tool])
    with pytest.raises(MalformedRequestError, match=r"\[0\].input_schema: must contain only finite numbers"):
        commands.create_conversation(v1.CreateConversationRequest(conversation=wanted), "p")


def test_a_huge_schema_is_refused_before_it_is_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The conversion of 60,000 properties would hold up all other calls for a quarter of a second."""
    monkeypatch.delattr(commands, "plain")
    huge = Struct()
    huge.update({"properties": {f"p{number}": {} for number in range(60_000)}})
    with pytest.raises(MalformedRequestError, match="output_schema: must be at most 65536 bytes of JSON"):
        commands.send_message(v1.SendMessageRequest(text="x", output_schema=huge))
    wanted = v1.Conversation(client_tools=[v1.ClientTool(name="one", input_schema=huge)])
    text = r"conversation.client_tools\[0\].input_schema: must be at most 16384 bytes of JSON"
    with pytest.raises(MalformedRequestError, match=text):
        commands.create_conversation(v1.CreateConversationRequest(conversation=wanted), "somebody")
    mask = FieldMask(paths=["client_tools"])
    with pytest.raises(MalformedRequestError, match=text):
        commands.update_conversation(v1.UpdateConversationRequest(conversation=wanted, update_mask=mask))


def test_an_output_schema_becomes_json_text() -> None:
    request = v1.SendMessageRequest(name="conversations/c", text="x")
    assert commands.send_message(request).options.output_schema == ""
    request.output_schema.update({"type": "array", "minItems": 2})
    assert json.loads(commands.send_message(request).options.output_schema) == {"type": "array", "minItems": 2}
    request.output_schema.Clear()
    assert commands.send_message(request).options.output_schema == "{}"


def test_create_leaves_defaults_to_the_server() -> None:
    made = commands.create_conversation(
        v1.CreateConversationRequest(conversation=v1.Conversation(working_directory="/work")), "p"
    )
    assert (made.model, made.mode, made.slug) == ("", None, "")


def test_an_update_sets_only_what_is_in_the_mask() -> None:
    full = v1.Conversation(
        name="conversations/c", slug="s", title="t", model="models/m", labels={"k": "v"}, etag="e",
        approval_policy=v1.APPROVAL_POLICY_ASK_ALL,
        follow_up_policy=v1.FOLLOW_UP_POLICY_ALWAYS, budget=v1.Budget(run_tokens=3), generation=GENERATION,
        auto_continue=True,
    )  # fmt: skip
    title = commands.update_conversation(
        v1.UpdateConversationRequest(conversation=full, update_mask=FieldMask(paths=["title"]))
    )
    assert title == messages.UpdateConversationCommand(etag="e", title="t")
    paths = [
        "slug", "title", "model", "labels", "approval_policy", "follow_up_policy", "budget",
        "generation", "auto_continue",
    ]  # fmt: skip
    every = commands.update_conversation(
        v1.UpdateConversationRequest(conversation=full, update_mask=FieldMask(paths=paths))
    )
    assert every == messages.UpdateConversationCommand(
        etag="e", slug="s", title="t", model="m", labels={"k": "v"}, approval_policy=context.ApprovalPolicy.ASK_ALL,
        follow_up_policy=context.FollowUpPolicy.ALWAYS, budget=context.Budget(3),
        generation=MEANT, auto_continue=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("delivery", "meant"),
    [
        (v1.DELIVERY_UNSPECIFIED, "reject"),
        (v1.DELIVERY_DIRECT, "reject"),
        (v1.DELIVERY_STEER, "steer"),
        (v1.DELIVERY_FOLLOW_UP, "follow_up"),
    ],
)
def test_deliveries(delivery: v1.Delivery.ValueType, meant: str) -> None:
    request = v1.SendMessageRequest(name="conversations/c", text="x", delivery=delivery)
    assert commands.send_message(request).delivery == meant


def test_an_answer_of_a_client_s_tool_has_no_escapes() -> None:
    for text, shown in (("\x1b[31mred\x1b[m\r\n1%\r2%", "red\n2%"), ("crlf\r\n", "crlf\r\n")):
        for request in (v1.SubmitToolResultRequest(output=text), v1.SubmitToolResultRequest(error=text)):
            assert commands.submit_tool_result(request, "t", ()).result.output == shown


def test_a_run_is_named_by_its_id() -> None:
    name = "conversations/slug/requestCycles/c:4"
    assert commands.send_message(v1.SendMessageRequest(text="x", expected_run=name)).expected_run == "c:4"
    cancel = commands.cancel_conversation(
        v1.CancelConversationRequest(run=name, discard_queued=True, kill_jobs=True, reason="why")
    )
    assert (cancel.run_id, cancel.discard_queued, cancel.kill_jobs, cancel.reason) == ("c:4", True, True, "why")


@pytest.mark.parametrize(
    ("decision", "approve"), [(v1.APPROVAL_DECISION_APPROVE, True), (v1.APPROVAL_DECISION_DENY, False)]
)
def test_decisions(decision: v1.ApprovalDecision.ValueType, approve: bool) -> None:
    made = commands.resolve_approval(v1.ResolveApprovalRequest(decision=decision, note="n"), "call-1", "somebody")
    assert made == messages.ResolveApprovalCommand("call-1", approve, None, "n", "somebody")


def test_a_rule_comes_with_a_decision() -> None:
    request = v1.ResolveApprovalRequest(decision=v1.APPROVAL_DECISION_APPROVE, rule=v1.ApprovalRule(command="make"))
    assert commands.resolve_approval(request, "call-1", "p").rule == context.ApprovalRule(
        "", context.Action.ALLOW, command="make"
    )


@pytest.mark.parametrize(
    ("subject", "meant"),
    [
        ({"tool": "tools/bash"}, {"tool": "bash"}),
        ({"command": "git push"}, {"command": "git push"}),
        ({"command_prefix": "git push"}, {"command_prefix": "git push"}),
        ({"path": "/work"}, {"path": "/work"}),
        ({"mcp_server": "jira"}, {"mcp_server": "jira"}),
    ],
)
def test_rules_there_and_back(subject: dict[str, Any], meant: dict[str, Any]) -> None:
    wanted = v1.ApprovalRule(action=v1.ApprovalRule.ACTION_DENY, **subject)
    rule = commands.create_approval_rule(v1.CreateApprovalRuleRequest(approval_rule=wanted), "somebody").rule
    assert rule == context.ApprovalRule("", context.Action.DENY, **meant)
    shown = approval_rule("c", replace(rule, id="r3", creator="somebody", created_at=4_000))
    wanted.MergeFrom(
        v1.ApprovalRule(
            name="conversations/c/approvalRules/r3",
            creator="somebody",
            create_time=timestamp(4_000),
            origin=v1.ApprovalRule.ORIGIN_CONVERSATION,
        )
    )
    assert shown == wanted
    assert approval_rule("c", replace(rule, id="2", origin=context.Origin.OPERATOR)).name == "approvalRules/2"
    assert approval_rule("c", rule).name == ""


def test_the_same_body_under_another_id_or_name_is_the_same() -> None:
    first = commands.send_message(v1.SendMessageRequest(name="conversations/c", text="x", request_id=UUID))
    second = commands.send_message(v1.SendMessageRequest(name="conversations/slug", text="x"))
    assert first.body_hash == second.body_hash


@pytest.mark.parametrize(
    "other",
    [
        v1.SendMessageRequest(text="y"),
        v1.SendMessageRequest(text="x", delivery=v1.DELIVERY_STEER),
        v1.SendMessageRequest(text="x", expected_run="conversations/c/requestCycles/c:1"),
    ],
)
def test_another_body_is_another(other: v1.SendMessageRequest) -> None:
    assert commands.send_message(v1.SendMessageRequest(text="x")).body_hash != commands.send_message(other).body_hash


def update(*paths: str, **fields: Any) -> messages.UpdateConversationCommand:
    request = v1.UpdateConversationRequest(conversation=v1.Conversation(**fields), update_mask=FieldMask(paths=paths))
    return commands.update_conversation(request)


def test_an_update_without_a_mask_sets_what_is_set() -> None:
    assert update(title="t", mode=v1.MODE_RESTRICTED, revision=3) == messages.UpdateConversationCommand(title="t")
    assert update() == messages.UpdateConversationCommand()


def test_an_update_of_everything_clears_what_is_not_set() -> None:
    made = update("*", slug="s", model="models/m")
    assert (made.slug, made.title, made.model, made.labels, made.budget) == ("s", "", "m", {}, context.Budget())


def test_an_update_of_a_part_leaves_the_rest() -> None:
    made = update("labels.a.b", "labels.`c`", "budget.run_tokens", labels={"a.b": "1"}, budget=v1.Budget(run_tokens=7))
    assert made == messages.UpdateConversationCommand(
        some_labels={"a.b": "1", "c": None}, some_amounts={"run_tokens": 7}
    )
    paths = ("generation.temperature", "generation.reasoning_effort")
    part = update(*paths, generation=v1.Generation(temperature=0, max_output_tokens=9))
    assert part == messages.UpdateConversationCommand(some_generation={"temperature": 0.0, "reasoning_effort": None})
    assert update("generation", *paths).some_generation == {}, "the whole goes before its parts"


def test_labels_in_another_order_are_the_same_body() -> None:
    first = v1.CreateConversationRequest(conversation=v1.Conversation(labels={"a": "1", "b": "2"}))
    second = v1.CreateConversationRequest(conversation=v1.Conversation(labels={"b": "2", "a": "1"}))
    assert commands.body_hash(first) == commands.body_hash(second)


def test_a_stored_message_is_answered_with_its_place() -> None:
    answer = commands.send_message_response(
        FACTS, "c", messages.SendMessageResult("m-7", "direct", "c:3", 41, message=MESSAGE)
    )
    assert (answer.message.sequence, answer.disposition, answer.revision) == (7, v1.DISPOSITION_DIRECT, 41)
    assert answer.run == "conversations/c/requestCycles/c:3"


@pytest.mark.parametrize(
    ("disposition", "delivery", "run"), [("steer_queued", "STEER", "c:3"), ("follow_up_queued", "FOLLOW_UP", "")]
)
def test_a_waiting_message_is_answered_without_a_place(disposition: str, delivery: str, run: str) -> None:
    answer = commands.send_message_response(
        FACTS, "c", messages.SendMessageResult("m-11", disposition, run, 41, queued=QUEUED)
    )
    assert answer.message.sequence == 0
    assert v1.Delivery.Name(answer.message.delivery) == f"DELIVERY_{delivery}"
    assert v1.Disposition.Name(answer.disposition) == f"DISPOSITION_{disposition.upper()}"
    assert bool(answer.run) is bool(run)


def test_a_repeated_request_says_so_and_answers_as_the_first_time() -> None:
    answer = commands.send_message_response(
        FACTS, "c", messages.SendMessageResult("m-7", "direct", "c:3", 41, message=MESSAGE, duplicate=True)
    )
    assert (answer.disposition, answer.message.sequence) == (v1.DISPOSITION_DUPLICATE, 7)


def test_the_receipt_of_a_cancel_names_what_was_stopped() -> None:
    stopped = messages.CancelConversationResult(
        no_op=False, state=StateSummary("idle"), state_entered_at=8_000, run="c:3", revision=50, llm_request_id="c:r5",
        tool_use_ids=("call-1",), sub_agents=("agent-1",), settled_at=9_000,
        settled=(QueueChanged(QUEUED, "steer", Fate.RETURNED), QueueChanged(QUEUED, "follow_up", Fate.DISCARDED)),
        ended_jobs=("job-2",), surviving_jobs=("job-1",),
    )  # fmt: skip
    answer = commands.cancel_conversation_response(FACTS, "c", stopped)
    assert answer.state.enter_time.seconds == 8
    named = {field.name for field, _ in answer.ListFields()}
    assert named == {field.name for field in answer.DESCRIPTOR.fields} - {"no_op", "unrecorded"}
    (steer,), (follow_up,) = answer.returned_steers, answer.discarded_follow_ups
    assert (steer.message.delivery, steer.fate) == (v1.DELIVERY_STEER, v1.QueuedMessage.FATE_RETURNED)
    assert (follow_up.message.delivery, follow_up.fate) == (v1.DELIVERY_FOLLOW_UP, v1.QueuedMessage.FATE_DISCARDED)
    assert steer.settle_time.seconds == follow_up.settle_time.seconds == 9


def test_a_receipt_says_that_the_cancel_is_not_recorded() -> None:
    stopped = messages.CancelConversationResult(
        no_op=False, state=StateSummary("tool_executing"), state_entered_at=1, recorded=False, tool_use_ids=("call-1",)
    )
    answer = commands.cancel_conversation_response(FACTS, "c", stopped)
    assert (answer.unrecorded, list(answer.tool_use_ids)) == (True, ["call-1"])


def test_a_cancel_that_did_nothing_says_only_that() -> None:
    nothing = messages.CancelConversationResult(no_op=True, state=StateSummary("idle"), state_entered_at=1, revision=50)
    answer = commands.cancel_conversation_response(FACTS, "c", nothing)
    assert {field.name for field, _ in answer.ListFields()} == {"no_op", "state"}


# Sub-agents by hand: the request as the actor takes it, and its answer as clients see it.


Task = v1.SpawnSubAgentsRequest.Task


def test_tasks_say_everything() -> None:
    full = Task(
        task="Count.", model="models/a/b", max_turns=3, timeout=Duration(seconds=1, nanos=500_000_000),
        read_first=["a.txt"], working_directory="/work",
    )  # fmt: skip
    asked = commands.spawn_sub_agents(
        v1.SpawnSubAgentsRequest(name="conversations/c", tasks=[full, Task(task="Look.")], request_id=UUID)
    )
    tasks = (
        messages.SpawnSubAgentsTask("Count.", "a/b", 3, 1_500, ("a.txt",), "/work"),
        messages.SpawnSubAgentsTask("Look."),
    )
    assert asked == messages.SpawnSubAgentsCommand(tasks, UUID.lower(), asked.body_hash)


def test_two_requests_are_the_same_if_they_want_the_same() -> None:
    def body_hash(name: str, task: str, request_id: str) -> str:
        request = v1.SpawnSubAgentsRequest(name=name, tasks=[Task(task=task)], request_id=request_id)
        return commands.spawn_sub_agents(request).body_hash

    assert body_hash("conversations/c", "a", "1") == body_hash("conversations/slug", "a", "2")
    assert body_hash("conversations/c", "a", "1") != body_hash("conversations/c", "b", "1")


def test_the_answer_names_the_run_and_the_sub_agents() -> None:
    answer = commands.spawn_sub_agents_response(
        FACTS, "c", messages.SpawnSubAgentsResult(MESSAGE, "c:4", ("c-a1", "c-a2"), 17)
    )
    assert answer.message.name == f"conversations/c/messages/{MESSAGE.id}"
    assert answer.run == "conversations/c/requestCycles/c:4"
    assert list(answer.sub_agents) == ["conversations/c-a1", "conversations/c-a2"]
    assert answer.revision == 17


# What waits for a watcher goes into few responses, and a commit is not torn apart without need.


def stored(*times: int) -> list[StoredEvent]:
    return [StoredEvent(index + 1, at, StreamDiscarded("r", index)) for index, at in enumerate(times)]


@pytest.mark.parametrize(
    ("times", "sizes", "last"),
    [
        ((5, 5, 6, 7, 7, 7), [2, 1, 3], 3),
        ((5, 5, 4, 5), [2, 1, 1], 3),  # a clock that goes back mixes nothing up
        ((2, 2), [2], 0),
        ((), [], 0),
    ],
)
def test_events_of_one_time_are_one_group(times: tuple[int, ...], sizes: list[int], last: int) -> None:
    assert [len(group) for group in commits(stored(*times), [b"x"] * len(times))] == sizes
    assert start_of_last_commit(stored(*times)) == last


@pytest.mark.parametrize(
    ("added", "responses", "most"),
    [
        ([[b"a", b"b"], [b"c"]], [b"abc"], 9),
        ([[b"aaaa", b"bbbb"], [b"cc", b"dd"]], [b"aaaabbbb", b"ccdd"], 9),
        ([[b"a"], [b"b", b"c"]], [b"a", b"bc"], 2),
        ([[b"aaaa", b"bbbb", b"cccc", b"d" * 20, b"ee"]], [b"aaaabbbb", b"cccc", b"d" * 20, b"ee"], 9),
    ],
)
async def test_what_waits_is_one_response_or_several_with_whole_commits_unless_one_is_too_large(
    monkeypatch: pytest.MonkeyPatch, added: list[list[bytes]], responses: list[bytes], most: int
) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", 10)
    monkeypatch.setattr(batches, "BATCH_EVENTS", most)
    got: list[bytes] = []

    async def write(response: bytes) -> None:
        got.append(response)

    out = Outbox(write)
    for commit in added:
        await out.add(commit)
    await out.flush()
    await out.flush()
    assert got == responses


async def test_a_commit_moves_to_the_next_response_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_EVENTS", 4)
    got: list[bytes] = []

    async def write(response: bytes) -> None:
        got.append(response)

    out = Outbox(write)
    await out.add_events(stored(1, 1, 2, 2, 2, 3), [b"a", b"b", b"c", b"d", b"e", b"f"])
    await out.flush()
    assert got == [b"ab", b"cdef"]


async def test_it_is_known_since_when_a_reader_takes_nothing() -> None:
    took = asyncio.Event()

    async def slow(_: bytes) -> None:
        await took.wait()

    out = Outbox(slow)
    await out.add([b"a"])
    assert out.writing_since is None
    writing = asyncio.create_task(out.flush())
    await asyncio.sleep(0)
    assert out.writing_since is not None
    took.set()
    await writing
    assert out.writing_since is None
    assert out.sent_at > 0


@pytest.mark.parametrize("length", [0, 1, 100, 127, 128, 300, 16_383, 16_384, 3_000_000])
def test_joined_frames_are_a_response(length: int) -> None:
    first = v1.Event(revision=1, text_delta=v1.Event.TextDelta(text="x" * length))
    second = v1.Event(revision=2, caught_up=v1.Event.CaughtUp(head_revision=2))
    joined = frame(first) + frame(second)
    assert v1.SubscribeResponse.FromString(joined) == v1.SubscribeResponse(events=[first, second])
    assert joined == v1.SubscribeResponse(events=[first, second]).SerializeToString()
