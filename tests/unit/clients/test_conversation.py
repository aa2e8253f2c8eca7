"""The blocking client against a scripted server: what it sends, what it shows, and how it survives broken streams."""

import functools
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from bedrock import Client, ClientTool, Event, Generation, Instructions, SubAgentStatus, Task, v1
from bedrock.errors import NotForkable, RevisionTooOld, RunFailed, RunInterrupted, Unavailable
from google.protobuf import json_format
from google.protobuf.duration_pb2 import Duration

from tests.support.fake_server import (
    NAME,
    SLUG,
    FakeBedrock,
    FakeServer,
    Gate,
    Refusal,
    Step,
    delta,
    discarded,
    ends_with,
    fails,
    says,
    state,
    stopped,
    text,
    uses_tool,
)


def durable(events: list[Event]) -> list[int]:
    return [event.revision for event in events if event.revision]


def streamed(events: list[Event]) -> str:
    return "".join(event.text for event in events if event.kind == "text_delta")


def test_a_message_is_answered(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(says("Hello, world"))
    run = client.conversation(SLUG).send("Hi")
    events = list(run)
    assert streamed(events) == "Hello, world"
    assert events[-1].kind == "run_stopped"
    assert run.stop is not None
    assert run.stop.reason == "completed"
    assert durable(events) == list(range(1, fake.revision + 1))


def test_the_token_goes_with_every_call(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(says("x"))
    client.conversation(SLUG).send("Hi").wait()
    client.models()
    assert len(fake.metadata) == 4
    assert {metadata.get("authorization") for metadata in fake.metadata} == {"Bearer secret"}


def test_the_answer_of_a_run_is_what_the_agent_said_last(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("ls", "a.txt", "There is a.txt."))
    assert client.conversation("c1").send("Look").answer() == "There is a.txt."


def test_an_answer_in_pieces_is_put_together(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(
        lambda run: [*text("One, ", request="r1"), *text("two.", request="r2"), state("idle"), stopped(run)]
    )
    assert client.conversation("c1").send("Count").answer() == "One, two."


def test_a_failed_run_has_no_answer(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(fails("auth", "The key is wrong; set another one."))
    with pytest.raises(RunFailed, match="set another one") as caught:
        client.conversation("c1").send("Hi").answer()
    assert caught.value.reason == "AUTH"


def test_a_cancelled_run_has_no_answer(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("ls", "", "", ask=True))
    conversation = client.conversation("c1")
    run = conversation.send("Hi")
    for event in run:
        if event.approval:
            assert conversation.cancel().run == run.name
    with pytest.raises(RunInterrupted):
        run.answer()


def test_a_denial_carries_its_note(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("rm x", "gone", "Done.", ask=True))
    conversation = client.conversation("c1")
    run = conversation.send("Remove x")
    for event in run:
        if event.approval:
            conversation.deny(event.approval.tool_use_id, "too dangerous")
        if event.decision:
            assert (event.decision, event.note) == ("deny", "too dangerous")
    assert run.answer() == "Then not."
    (request,) = fake.asked(v1.ResolveApprovalRequest)
    assert request == v1.ResolveApprovalRequest(
        name="conversations/c1/approvals/t1", decision=v1.APPROVAL_DECISION_DENY, note="too dangerous"
    )


def test_a_question_that_another_answer_settled_is_not_asked_again(client: Client, fake: FakeBedrock) -> None:
    def asks_twice(run: str) -> list[Step]:
        first, second = (
            v1.PendingApproval(name=f"{NAME}/approvals/{call}", tool_call=v1.ToolCall(tool_use_id=call, tool="bash"))
            for call in ("t1", "t2")
        )
        waiting = state("awaiting_tool_approval", run)
        waiting.state_changed.state.awaiting_approval.pending.extend([first, second])
        asked = [v1.Event(approval_changed=v1.Event.ApprovalChanged(approval=each)) for each in (first, second)]
        gate = Gate(first, denied=[state("llm_requesting", run), *text("Then not."), state("idle"), stopped(run)])
        return [waiting, *asked, gate]

    fake.answers.append(asks_twice)
    conversation = client.conversation("c1")
    run = conversation.send("Do both")
    for event in run:
        if event.approval and event.approval.tool_use_id == "t1":
            conversation.deny(event.approval)
            fake.settle()
    assert run.answer() == "Then not."
    assert len(fake.asked(v1.ResolveApprovalRequest)) == 1


def test_a_follow_up_is_followed_through_the_run_before_it(client: Client, fake: FakeBedrock) -> None:
    fake.answers.extend([says("First."), says("Second.")])
    conversation = client.conversation("c1")
    first = conversation.send("One")
    second = conversation.send("Two", delivery="follow_up")
    assert (second.disposition, second.name) == ("follow_up_queued", "")
    stops = [event.run for event in second if event.kind == "run_stopped"]
    assert stops == [first.name, second.name]
    assert second.answer() == "Second."


def test_what_a_tool_asks_is_answered_or_declined(client: Client, fake: FakeBedrock) -> None:
    conversation = client.conversation("c1")
    assert conversation.answer_question("1", {"count": 3, "sure": True}).status == "answered"
    asked = conversation.answer_question("conversations/c1/questions/2", request_id="once")
    assert conversation.decline_question(asked).status == "declined"
    assert conversation.tool_question("1").message == "Sure?"
    first, second, third = fake.asked(v1.AnswerQuestionRequest)
    assert [request.name for request in (first, second, third)] == [
        f"conversations/c1/questions/{n}" for n in (1, 2, 2)
    ]
    assert (dict(first.content), first.decline) == ({"count": 3.0, "sure": True}, False)
    assert (second.HasField("content"), second.request_id) == (False, "once")
    assert (third.HasField("content"), third.decline, bool(third.request_id)) == (False, True, True)


def test_a_steer_ends_with_the_run_it_goes_into(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("ls", "", "Yes.", ask=True))
    conversation = client.conversation("c1")
    first = conversation.send("One")
    for event in first:
        if event.approval:
            break
    steer = conversation.send("By the way", delivery="steer")
    assert steer.name == first.name
    conversation.approve("t1")
    assert steer.wait() is not None


def test_a_message_is_stored_once_although_the_first_answer_was_lost(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(says("Hello"))
    fake.refuse("SendMessage", *[Refusal(grpc.StatusCode.UNAVAILABLE, "", "gone")] * 2)
    assert client.conversation("c1").send("Hi").answer() == "Hello"
    ids = {request.request_id for request in fake.asked(v1.SendMessageRequest)}
    assert len(fake.asked(v1.SendMessageRequest)) == 3
    assert len(ids) == 1


def test_a_repeated_request_id_shows_the_same_run(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(says("Hello"))
    conversation = client.conversation("c1")
    assert conversation.send("Hi", request_id="once").answer() == "Hello"
    again = conversation.send("Hi", request_id="once")
    assert again.disposition == "duplicate"
    assert again.answer() == "Hello"


def long_answer(run: str) -> list[Step]:
    return [
        state("llm_requesting", run),
        delta("Let me ", 0),
        delta("think.", 0, reasoning=True),
        discarded(),
        delta("Whät ", 0, attempt=2),
        delta("a 🌞 ", 5, attempt=2),
        delta("day", 9, attempt=2),
        *text("Whät a 🌞 day", attempt=2)[-1:],
        delta("Bye", 0, request="r2"),
        *text("Bye", request="r2")[-1:],
        state("idle"),
        stopped(run),
    ]


STEPS = len(long_answer("")) + 3  # with the user message, the snapshot and caught_up


@pytest.mark.parametrize("skip", [0, 1, 3, STEPS])
@pytest.mark.parametrize("cut", range(STEPS))
def test_a_stream_cut_anywhere_shows_everything_once(client: Client, fake: FakeBedrock, cut: int, skip: int) -> None:
    fake.answers.append(long_answer)
    fake.cuts.append(cut)
    fake.skips.append(skip)
    events = list(client.conversation("c1").send("Hi"))
    assert durable(events) == list(range(1, fake.revision + 1))
    assert_deltas_fit(events)
    if not skip:
        assert streamed(events) == "Let me Whät a 🌞 dayBye"


def assert_deltas_fit(events: list[Event]) -> None:
    """Every piece begins where the piece before it ended, and what was closed is not reopened."""
    shown: dict[tuple[str, int, bool], str] = {}
    closed = set()
    for event in events:
        if event.kind in ("text_delta", "reasoning_delta"):
            piece = event.proto.text_delta
            slot = (piece.llm_request_id, piece.attempt, piece.reasoning)
            assert slot not in closed
            assert piece.offset == len(shown.get(slot, ""))
            shown[slot] = shown.get(slot, "") + piece.text
        elif event.message is not None and event.kind == "message_added":
            message = event.message.proto
            slot = (message.llm_request_id, message.attempt, False)
            assert event.message.text.startswith(shown.get(slot, ""))
            closed.add(slot)


def test_a_stream_that_is_cut_again_and_again(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(long_answer)
    fake.cuts.extend([0, 4, 1, 3, 4, 2, 6])
    fake.skips.extend([0, 1, 0, 2])
    events = list(client.conversation("c1").send("Hi"))
    assert not fake.cuts
    assert durable(events) == list(range(1, fake.revision + 1))
    assert_deltas_fit(events)


def test_watching_shows_the_snapshot_once(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(says("Hello"))
    client.conversation("c1").send("Hi").wait()
    fake.cuts.extend([1, 1])
    events = list(client.conversation("c1").events(until_settled=True))
    assert [event.kind for event in events] == ["snapshot", "caught_up"]
    assert [message.text for message in events[0].messages] == ["Hi", "Hello"]
    first, *later = fake.asked(v1.SubscribeRequest)[-3:]
    assert first == v1.SubscribeRequest(name=NAME, until_settled=True)
    assert later == [v1.SubscribeRequest(name=NAME, until_settled=True, after_revision=fake.revision)] * 2


def test_text_that_is_being_written_is_shown_to_a_new_watcher(client: Client, fake: FakeBedrock) -> None:
    fake.happen(delta("Half of", 0), delta(" it", 7), *text("Half of it")[-1:])
    fake.move()
    events = list(client.conversation("c1").events(until_settled=True))
    assert [(event.kind, event.text) for event in events[2:]] == [
        ("text_delta", "Half of"),
        ("text_delta", " it"),
        ("message_added", "Half of it"),
    ]


def test_events_can_be_read_again_after_a_revision(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(says("Hello"))
    client.conversation("c1").send("Hi").wait()
    events = list(client.conversation("c1").events(2, until_settled=True))
    assert durable(events) == list(range(3, fake.revision + 1))
    assert "snapshot" not in [event.kind for event in events]


def test_a_revision_that_is_too_old_is_refused(client: Client, fake: FakeBedrock) -> None:
    fake.oldest_revision = 5
    with pytest.raises(RevisionTooOld):
        list(client.conversation("c1").events(2))


def test_a_gap_is_bridged_with_a_snapshot(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(says("Hello", chunks=1))
    fake.cuts.append(4)
    fake.skips.append(STEPS)
    conversation = client.conversation("c1")
    run = conversation.send("Hi")
    kinds = []
    for event in run:
        kinds.append(event.kind)
        fake.oldest_revision = 100
    assert kinds[-1] == "snapshot"
    assert run.stop is not None
    assert run.stop.reason == "completed"


def test_the_end_of_a_deleted_conversation_is_the_end_of_the_loop(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("ls", "", "", ask=True))
    conversation = client.conversation("c1")
    run = conversation.send("Hi")
    for event in run:
        if event.approval:
            conversation.delete(force=True)
    assert run.stop is not None
    assert run.stop.reason == "deleted"


def test_a_server_that_stays_unreachable_is_an_error(fake: FakeBedrock) -> None:
    server = FakeServer(fake)
    lost: list[float] = []
    fake.answers.append(uses_tool("ls", "", "", ask=True))
    with Client(server.address, reconnect_for=0.1, on_disconnect=lambda error, delay: lost.append(delay)) as client:
        run = client.conversation("c1").send("Hi")
        for event in run:
            if event.approval:
                break
        server.stop()
        with pytest.raises(Unavailable):
            run.wait()
    assert lost
    assert all(0 < delay <= 6 for delay in lost)


def test_a_restarted_server_is_found_again(fake: FakeBedrock) -> None:
    servers = [FakeServer(fake)]
    fake.answers.append(uses_tool("ls", "x", "Done.", ask=True))

    def restart(error: Exception, delay: float) -> None:
        if len(servers) == 1:
            servers.append(FakeServer(fake, servers[0].address))
            fake.resolve(f"{NAME}/approvals/t1", v1.APPROVAL_DECISION_APPROVE)

    with Client(servers[0].address, on_disconnect=restart) as client:
        events = []
        for event in client.conversation("c1").send("Hi"):
            events.append(event)
            if event.approval:
                servers[0].stop()
    for server in servers[1:]:
        server.stop()
    assert durable(events) == list(range(1, fake.revision + 1))
    assert events[-1].kind == "run_stopped"


def test_closing_the_client_ends_a_loop_in_another_thread(fake: FakeBedrock) -> None:
    server = FakeServer(fake)
    fake.answers.append(uses_tool("ls", "", "", ask=True))
    client = Client(server.address)
    waiting, raised = threading.Event(), []

    def watch() -> None:
        try:
            for event in client.conversation("c1").send("Hi", wait_for_others=True):
                if event.approval:
                    waiting.set()
        except Unavailable as error:
            raised.append(error)

    thread = threading.Thread(target=watch)
    thread.start()
    assert waiting.wait(60)
    client.close()
    thread.join(60)
    assert not thread.is_alive()
    assert "closed" in str(raised[0])
    server.stop()


def test_leaving_the_loop_closes_the_stream(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("ls", "", "", ask=True))
    with client.conversation("c1").send("Hi") as run:
        for event in run:
            if event.approval:
                break
    assert list(run) == []
    assert run.wait() is None


def test_pages_are_walked(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("ls", "a", "b"))
    conversation = client.conversation("c1")
    conversation.send("Look").wait()
    assert [message.role for message in conversation.messages()] == ["user", "agent", "tool", "agent"]
    assert [message.sequence for message in conversation.messages(newest_first=True)] == [4, 3, 2, 1]
    assert [message.sequence for message in conversation.messages(after_sequence=3)] == [4]


def test_creating_says_what_was_meant(client: Client, fake: FakeBedrock, tmp_path: Path) -> None:
    created = client.create(
        tmp_path,
        model="big",
        mode="unrestricted",
        approval_policy="ask_writes",
        labels={"a": "b"},
        instructions="Be brief.",
        tools=["bash", "tools/think"],
        generation=Generation("high", max_output_tokens=900),
    )
    assert created.name == NAME
    request = fake.asked(v1.CreateConversationRequest)[0]
    wanted = request.conversation
    assert wanted.working_directory == str(tmp_path)
    assert wanted.model == "models/big"
    assert wanted.mode == v1.MODE_UNRESTRICTED
    assert wanted.approval_policy == v1.APPROVAL_POLICY_ASK_WRITES
    assert wanted.labels == {"a": "b"}
    assert wanted.instructions == v1.Instructions(text="Be brief.")
    assert wanted.tools.tools == ["tools/bash", "tools/think"]
    assert wanted.generation == v1.Generation(reasoning_effort=v1.REASONING_EFFORT_HIGH, max_output_tokens=900)
    assert len(request.request_id) == 36


def test_what_is_not_chosen_is_not_sent(client: Client, fake: FakeBedrock, tmp_path: Path) -> None:
    client.create(tmp_path)
    client.create(tmp_path, instructions=Instructions("A poet.", replace=True), tools=[])
    plain, own = fake.created
    assert not plain.HasField("instructions")
    assert not plain.HasField("tools")
    assert not plain.HasField("generation")
    assert own.instructions == v1.Instructions(text="A poet.", replace=True)
    assert own.HasField("tools")
    assert own.tools.tools == []


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"instructions": 5}, "instructions: must be a str or bedrock.Instructions"),
        ({"tools": "bash"}, "tools: "),
        ({"generation": {}}, "generation: must be a bedrock.Generation"),
    ],
)
def test_choices_of_another_type_are_refused(client: Client, given: dict[str, Any], fault: str) -> None:
    with pytest.raises(TypeError, match=fault):
        client.create(**given)


def test_a_run_ends_with_a_value(client: Client, fake: FakeBedrock) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    fake.answers += [ends_with({"name": "Ada", "age": 36}), ends_with(None)]
    answer = client.conversation(NAME).ask("Who?", output_schema=schema)
    assert answer.output == {"name": "Ada", "age": 36}
    assert isinstance(answer.output["age"], int)
    sent = fake.asked(v1.SendMessageRequest)[0].output_schema
    assert json_format.MessageToDict(sent) == schema
    run = client.conversation(NAME).send("Who?", output_schema={})
    stop = run.wait()
    assert stop is not None
    assert stop.output is None
    assert fake.asked(v1.SendMessageRequest)[1].HasField("output_schema")


NESTED: dict[str, Any] = functools.reduce(lambda inner, _: {"not": inner}, range(5_000), {})


@pytest.mark.parametrize("schema", ["{}", {"enum": [object()]}, NESTED], ids=["text", "object", "nested"])
def test_an_output_schema_is_a_dict_of_json(client: Client, schema: Any) -> None:
    with pytest.raises(TypeError, match="output_schema: must"):
        client.conversation(NAME).send("Who?", output_schema=schema)


def test_json_that_no_message_can_hold_is_told_by_its_name(client: Client) -> None:
    nested: dict[str, Any] = {}
    for _ in range(60):  # each level is three of a message, which has a hundred
        nested = {"a": nested}
    for given, why in ((nested, "nested"), (0.5, "a dict"), ({"a": object()}, "only JSON")):
        with pytest.raises(TypeError, match=f"json: must .*{why}"):
            client.conversation(NAME).submit_tool_result("toolu_1", json=given)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=f"input_schema: must .*{why}"):
            ClientTool("find", input_schema=given)  # type: ignore[arg-type]


def test_settings_of_generation_go_with_a_message_and_with_an_update(client: Client, fake: FakeBedrock) -> None:
    conversation = client.conversation(NAME)
    fake.answers.append(says("Hello"))
    conversation.ask("Hi", generation=Generation(temperature=0))
    assert fake.asked(v1.SendMessageRequest)[0].generation == v1.Generation(temperature=0)
    conversation.update(generation=Generation())
    request = fake.asked(v1.UpdateConversationRequest)[0]
    assert list(request.update_mask.paths) == ["generation"]
    assert request.conversation.generation == v1.Generation()


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"reasoning_effort": "extreme"}, "reasoning_effort: 'extreme' is not a valid ReasoningEffort; choose one of"),
        ({"temperature": "hot"}, "temperature: must be a number"),
        ({"max_output_tokens": 2**31}, "max_output_tokens: must be between"),
    ],
)
def test_settings_of_generation_are_checked_when_they_are_made(wrong: dict[str, Any], fault: str) -> None:
    with pytest.raises((TypeError, ValueError), match=fault):
        Generation(**wrong)


def test_a_name_that_does_not_exist_is_refused_before_the_call(client: Client, fake: FakeBedrock) -> None:
    for word in ("later", "FOLLOW_UP", "unspecified", ""):
        with pytest.raises(ValueError, match="choose one of: direct, steer, follow_up"):
            client.conversation("c1").send("Hi", delivery=word)  # type: ignore[arg-type]
    assert not fake.requests


def test_updating_names_only_what_changes(client: Client, fake: FakeBedrock) -> None:
    updated = client.conversation("c1").update(title="New", labels={})
    assert updated.title == "New"
    request = fake.asked(v1.UpdateConversationRequest)[0]
    assert list(request.update_mask.paths) == ["title", "labels"]


def test_the_other_calls_reach_the_server(client: Client, fake: FakeBedrock) -> None:
    conversation = client.conversation("c1")
    assert conversation.get().slug == SLUG
    assert conversation.set_mode("unrestricted").conversation.mode == "unrestricted"
    conversation.archive()
    conversation.unarchive()
    assert conversation.cancel().no_op
    conversation.trigger_continuation()
    assert conversation.continue_().name == NAME
    assert conversation.fork().name == NAME
    assert list(conversation.queue()) == []
    assert conversation.withdraw(f"{NAME}/messages/9").message.name == f"{NAME}/messages/9"
    assert conversation.verify() == []
    assert list(conversation.export()) == ['{"kind": "conversation"}']
    assert [step.step for step in conversation.replay()] == [1]
    assert [step.step for step in conversation.transitions(newest_first=True)] == [2, 1]
    assert [step.event_type for step in conversation.transitions(after_step=1)] == ["user_message"]
    assert conversation.attachment(f"{NAME}/attachments/a") == b"\x89PNG"
    assert list(conversation.cycles(view="full")) == []
    assert conversation.message("m1").name == conversation.message(f"{NAME}/messages/m1").name == f"{NAME}/messages/m1"
    assert conversation.attachment_info(f"{NAME}/attachments/a").size_bytes == 4
    assert conversation.approval("t1").tool_use_id == "t1"
    assert list(conversation.approvals()) == list(client.approvals()) == []
    assert [each.parent for each in fake.asked(v1.ListApprovalsRequest)] == [NAME, "conversations/-"]
    assert list(conversation.tool_questions()) == list(client.tool_questions()) == []
    assert [each.parent for each in fake.asked(v1.ListQuestionsRequest)] == [NAME, "conversations/-"]
    assert conversation.cycle("c1:1").name == f"{NAME}/requestCycles/c1:1"
    assert conversation.wait_for_cycle("c1:1").stop_reason == "completed"
    assert conversation.delete() == []
    assert [found.slug for found in client.conversations()] == [SLUG]
    entries = client.watch_conversations()
    assert [entry.kind for entry in entries] == ["conversation_changed", "caught_up"]
    assert [model.name for model in client.models()] == ["models/demo", "models/big"]
    assert [tool.name for tool in client.tools()] == ["tools/bash"]
    assert (client.tool("bash").name, client.model("models/a/b").name) == ("tools/bash", "models/a/b")
    assert client.server_info().version == "0.1.0"
    listing = client.browse("/tmp")
    assert (listing.path, [entry.name for entry in listing.entries]) == ("/tmp", ["file", "file2"])


def test_waiting_for_a_cycle_goes_on_until_the_run_has_ended_or_the_time_is_up(
    client: Client, fake: FakeBedrock
) -> None:
    fake.waits = 2
    conversation = client.conversation("c1")
    cycle = conversation.wait_for_cycle(f"{NAME}/requestCycles/c1:9", view="rounds")
    assert (cycle.name, cycle.stop_reason) == ("conversations/c1/requestCycles/c1:9", "completed")
    assert cycle.end_time is not None
    whole = v1.WaitRequestCycleRequest(
        name=cycle.name, timeout=Duration(seconds=600), view=v1.ListRequestCyclesRequest.VIEW_ROUNDS
    )
    assert fake.asked(v1.WaitRequestCycleRequest) == [whole] * 3
    fake.waits = 1_000_000
    assert conversation.wait_for_cycle(cycle, timeout=0).end_time is None
    assert fake.asked(v1.WaitRequestCycleRequest)[3:] == [
        v1.WaitRequestCycleRequest(name=cycle.name, timeout=Duration(), view=v1.ListRequestCyclesRequest.VIEW_STEPS)
    ]


def test_sub_agents_are_a_run(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(says("All done."))
    limited = Task("b", model="big", max_turns=3, timeout=1.5, read_first=["a.txt"], working_directory="/work")
    run = client.conversation("c1").spawn(["a", limited])
    assert run.sub_agents == [f"{NAME}-a1", f"{NAME}-a2"]
    assert run.answer() == "All done."
    (request,) = fake.asked(v1.SpawnSubAgentsRequest)
    assert request.request_id
    plain, full = request.tasks
    assert (plain.task, plain.HasField("timeout")) == ("a", False)
    assert (full.model, full.max_turns, full.timeout.ToMilliseconds()) == ("models/big", 3, 1_500)
    assert (list(full.read_first), full.working_directory) == (["a.txt"], "/work")


def test_the_sub_agents_of_a_conversation_are_listed(client: Client, fake: FakeBedrock) -> None:
    list(client.conversation("c1").sub_agents())
    (request,) = fake.asked(v1.ListConversationsRequest)
    assert request.parent == NAME


def test_an_event_tells_who_says_what_was_added() -> None:
    said = v1.Message(role=v1.ROLE_AGENT, content=[v1.ContentBlock(text="Yes.")])
    assert Event.from_proto(v1.Event(message_added=said)).role == "agent"
    queued = v1.QueuedMessage(message=v1.Message(role=v1.ROLE_USER))
    assert Event.from_proto(v1.Event(queue_changed=queued)).role == ""


def test_events_tell_how_sub_agents_stand_in_the_order_of_their_tasks() -> None:
    pending = [v1.SubAgent(conversation="c-a2", task="two", task_index=1)]
    failed = v1.Event.SubAgentsChanged.Report(
        conversation="c-a3", task="three", task_index=2, state=v1.STATE_KIND_FAILED, partial_result="half",
        error=v1.RunError(kind=v1.ERROR_KIND_TIMED_OUT, message="the sub-agent ran out of time"),
    )  # fmt: skip
    done = v1.Event.SubAgentsChanged.Report(
        conversation="c-a1", task="one", task_index=0, state=v1.STATE_KIND_COMPLETED, result="42"
    )
    changed = v1.Event.SubAgentsChanged(pending=pending, reports=[failed, done])
    expected = (
        SubAgentStatus("c-a1", "one", 0, "completed", "42"),
        SubAgentStatus("c-a2", "two", 1),
        SubAgentStatus("c-a3", "three", 2, "failed", "half", "timed_out", "the sub-agent ran out of time"),
    )
    assert Event.from_proto(v1.Event(sub_agents_changed=changed)).sub_agents == expected
    assert Event.from_proto(v1.Event(snapshot=v1.Event.Snapshot(sub_agents=changed))).sub_agents == expected
    for completed, told in ((0, (expected[1],)), (2, ())):  # not again what the event before has told
        waiting = v1.ConversationState.AwaitingSubAgents(pending=pending, completed_count=completed)
        state = v1.ConversationState(awaiting_sub_agents=waiting)
        assert Event.from_proto(v1.Event(state_changed=v1.Event.StateChanged(state=state))).sub_agents == told
    assert Event.from_proto(v1.Event(caught_up=v1.Event.CaughtUp())).sub_agents == ()


def test_images_are_read_and_recognised(client: Client, fake: FakeBedrock, tmp_path: Path) -> None:
    fake.answers.append(says("A picture."))
    picture = tmp_path / "x"
    picture.write_bytes(b"\x89PNG....")
    client.conversation("c1").send("See", images=[picture, b"RIFF....WEBP"]).wait()
    request = fake.asked(v1.SendMessageRequest)[0]
    assert [image.media_type for image in request.images] == ["image/png", "image/webp"]
    with pytest.raises(ValueError, match="not a PNG"):
        client.conversation("c1").send("See", images=[b"BM"])


def test_one_image_needs_no_list(client: Client, fake: FakeBedrock, tmp_path: Path) -> None:
    fake.answers.extend([says("A."), says("B."), says("C.")])
    picture = tmp_path / "x"
    picture.write_bytes(b"\xff\xd8\xff....")
    for image in (str(picture), picture.read_bytes(), v1.Image(media_type="image/jpeg", data=b"j")):
        client.conversation("c1").send("See", images=image).wait()
    for request in fake.asked(v1.SendMessageRequest):
        assert [image.media_type for image in request.images] == ["image/jpeg"]


def test_a_stream_ends_where_its_block_does(client: Client, fake: FakeBedrock) -> None:
    with client.conversation("c1").events() as events:
        assert next(events).kind == "snapshot"
    assert list(events) == []
    with client.watch_conversations() as entries:
        assert next(entries).conversation_changed
    assert list(entries) == []


def test_a_fork_is_made_at_a_cycle_or_so_many_back(client: Client, fake: FakeBedrock) -> None:
    fake.cycles = [v1.RequestCycle(name=f"{NAME}/requestCycles/c1:{number}") for number in (1, 2, 3)]
    conversation = client.conversation(SLUG)
    newest = next(iter(conversation.cycles(newest_first=True)))
    conversation.fork(newest, slug="s", title="T")
    conversation.fork("c1:2", request_id="11111111-1111-4111-8111-111111111111")
    conversation.rewind()
    conversation.rewind(2, title="T")
    names = [request.request_cycle for request in fake.asked(v1.ForkConversationRequest)]
    assert names == [f"conversations/{SLUG}/requestCycles/c1:{number}" for number in (3, 2, 2, 1)]
    with pytest.raises(NotForkable, match="only 3 request cycles"):
        conversation.rewind(3)


def test_the_audit_trail_is_read_page_by_page(client: Client) -> None:
    since = datetime(2026, 11, 23, tzinfo=UTC)
    entries = list(client.audit(since=since, principal="bob", conversation="c1", outcome="refused"))
    assert [(each.time, each.principal, each.conversation, each.outcome) for each in entries] == [
        (since, "bob", "conversations/c1", "refused")
    ] * 2
    with pytest.raises(ValueError, match="time zone"):
        next(iter(client.audit(until=datetime(2026, 11, 23))))
