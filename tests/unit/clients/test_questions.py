"""`ask`, and who answers questions: no loop hangs on one that is open."""

import asyncio
import copy
import json
import logging
import pickle
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import bedrock
import grpc
import pytest
from bedrock import Answer, Approval, AsyncClient, Client, Event, Question, Usage, errors, v1
from bedrock._shared.run_progress import RunProgress
from bedrock._sync.transport import Transport
from bedrock.events import Snapshot
from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from tests.support.fake_server import (
    NAME,
    FakeBedrock,
    Refusal,
    Step,
    asks_person,
    fails,
    says,
    state,
    stopped,
    stored,
    text,
    uses_tool,
)

RUN = f"{NAME}/requestCycles/1"
ASKS = uses_tool("rm x", "gone", "Done.", ask=True)


def decisions(events: list[Event]) -> list[str]:
    """What was asked and decided, in order."""
    return [event.decision or "asked" for event in events if event.kind == "approval_changed"]


def test_a_loop_that_answers_nothing_ends_by_itself_and_shows_why(
    client: Client, fake: FakeBedrock, caplog: pytest.LogCaptureFixture
) -> None:
    fake.answers.append(ASKS)
    with caplog.at_level(logging.WARNING, "bedrock"):
        events = list(client.conversation("c1").send("Remove x"))
    assert decisions(events) == ["asked", "deny"]
    assert "without answering" in next(event.note for event in events if event.decision)
    assert "on_approval=" in caplog.text
    assert events[-1].kind == "run_stopped"


def test_the_loop_may_answer_itself_and_nothing_else_is_asked_for(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(ASKS)
    conversation = client.conversation("c1")
    events = []
    for event in conversation.send("Remove x"):
        events.append(event)
        if event.approval:
            conversation.approve(event.approval)
    assert decisions(events) == ["asked", "approve"]
    assert len(fake.asked(v1.ResolveApprovalRequest)) == 1


def test_a_function_is_asked_after_the_loop_has_seen_the_question(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(ASKS)
    order: list[str] = []

    def decide(approval: Approval) -> bool:
        order.append("decided")
        return True

    events = client.conversation("c1").send("Remove x", on_approval=decide)
    order.extend("shown" for event in events if event.approval)
    assert order == ["shown", "decided"]
    assert fake.asked(v1.ResolveApprovalRequest) == [
        v1.ResolveApprovalRequest(name=f"{NAME}/approvals/t1", decision=v1.APPROVAL_DECISION_APPROVE)
    ]


def test_others_are_waited_for_if_asked_to(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(ASKS)
    run = client.conversation("c1").send("Remove x", wait_for_others=True)
    with pytest.raises(errors.DeadlineExceeded, match=r"did not end within 0\.2 s"):
        run.wait(timeout=0.2)
    assert not fake.asked(v1.ResolveApprovalRequest)
    fake.resolve(f"{NAME}/approvals/t1", v1.APPROVAL_DECISION_APPROVE)
    assert run.answer(timeout=60) == "Done."


def test_a_denial_finds_a_server_that_is_away_for_a_moment(client: Client, fake: FakeBedrock) -> None:
    gone = Refusal(grpc.StatusCode.UNAVAILABLE, "", "gone for a moment")
    fake.answers.append(ASKS)
    fake.refuse("ResolveApproval", gone, gone)
    assert client.ask("Remove x") == "Then not."
    assert len(fake.asked(v1.ResolveApprovalRequest)) == 3


def test_a_question_that_only_a_snapshot_shows_is_shown_as_one(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(ASKS)
    fake.cuts.append(4)
    fake.skips.append(20)
    events = []
    for event in client.conversation("c1").send("Remove x"):
        events.append(event)
        fake.oldest_revision = 100
    assert [event.kind for event in events].count("snapshot") == 1
    assert decisions(events) == ["asked", "deny"]


def test_a_question_that_a_snapshot_shows_has_the_time_at_which_it_was_asked() -> None:
    asked = v1.PendingApproval(name=f"{NAME}/approvals/a", create_time=Timestamp(seconds=5))
    snapshot = Snapshot.from_proto(
        v1.Event.Snapshot(conversation=v1.Conversation(name=NAME), pending_approvals=[asked])
    )
    progress = RunProgress("", RUN)
    progress.observe_gap(snapshot)
    (event,) = progress.unasked(snapshot)
    assert event.approval is not None
    assert event.time == event.approval.create_time == datetime.fromtimestamp(5, UTC)


@pytest.mark.parametrize("name", ["1", f"{NAME}/requestCycles/1", "conversations/brave-otter/requestCycles/1"])
def test_one_run_is_waited_for(client: Client, fake: FakeBedrock, name: str) -> None:
    fake.answers.extend([ASKS, fails("auth", "The key is wrong.")])
    conversation = client.conversation("brave-otter")
    conversation.send("Remove x")
    with pytest.raises(errors.DeadlineExceeded):
        conversation.run(name, wait_for_others=True, timeout=0.2)
    assert conversation.run(name) == "Then not."
    conversation.send("And?").wait()
    with pytest.raises(errors.RunFailed):
        conversation.run("2")


def test_a_run_that_does_not_exist_is_not_found(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(says("Hello."))
    conversation = client.conversation("c1")
    conversation.send("Hi").wait()
    with pytest.raises(errors.NotFound, match="has no run"):
        conversation.run("7")


def test_a_run_of_another_conversation_is_refused_as_such(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(says("Hello."))
    client.conversation("c1").send("Hi").wait()
    for conversation in (client.conversation("c1"), client.conversation("brave-otter")):
        with pytest.raises(errors.NotFound, match="belongs to conversations/x, not to"):
            conversation.run("conversations/x/requestCycles/1")


def test_events_of_a_conversation_that_does_not_exist_are_an_error_at_once(client: Client) -> None:
    with pytest.raises(errors.NotFound):
        client.conversation("nowhere").events()


def test_a_call_that_takes_too_long_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with (
            Client(address, token="secret") as client,
            pytest.raises(errors.DeadlineExceeded, match=f"{address} did not respond in time"),
        ):
            client.conversation("c1").get(timeout=0.2)


@pytest.mark.parametrize(
    ("token", "told"), [("wrong", "rejects the token from token="), ("", "requires a token, but none was sent")]
)
def test_a_token_that_is_not_known_is_reported_with_its_source(
    address: str, fake: FakeBedrock, token: str, told: str
) -> None:
    fake.refuse("GetConversation", *[Refusal(grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED", "no")] * 2)
    with Client(address, token=token) as client, pytest.raises(errors.Unauthenticated, match=told):
        client.conversation("c1").get()


def test_an_event_as_plain_values_is_what_the_terminal_prints(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(says("Hello.", chunks=1))
    told = [event.to_dict() for event in client.conversation("c1").send("Hi")]
    delta = next(each for each in told if each["kind"] == "text_delta")
    assert delta["text_delta"]["text"] == "Hello."
    assert json.loads(json.dumps(told)) == told
    assert told[-1]["run_stopped"]["reason"] == "STOP_REASON_COMPLETED"


def test_closing_the_client_while_it_denies_is_said(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(ASKS)
    run = client.conversation("c1").send("Remove x")
    while not next(run).approval:
        pass
    client.close()
    with pytest.raises(errors.Unavailable, match="this client is closed"):
        next(run)


def statuses(events: list[Event]) -> list[str]:
    """What a tool asked and how that ended, in order."""
    return [event.question_changed.question.status for event in events if event.question_changed]


def replies(fake: FakeBedrock) -> list[tuple[bool, dict[str, object] | None]]:
    """What was answered to tools: whether declined, and the content."""
    asked = fake.asked(v1.AnswerQuestionRequest)
    return [(each.decline, dict(each.content) if each.HasField("content") else None) for each in asked]


def test_what_a_tool_asks_is_declined_at_once_where_nobody_answers(
    client: Client, fake: FakeBedrock, caplog: pytest.LogCaptureFixture
) -> None:
    fake.answers.append(asks_person())
    with caplog.at_level(logging.WARNING, "bedrock"):
        events = list(client.conversation("c1").send("Use it"))
    assert statuses(events) == ["pending", "declined"]
    assert "on_question=" in caplog.text
    fake.over.clear()
    fake.answers.append(asks_person())
    assert client.ask("Use it") == "Then not."


def test_a_function_fills_in_what_a_tool_asks(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(asks_person())
    asked: list[Question] = []

    def fill_in(question: Question) -> dict[str, str]:
        asked.append(question)
        return {"branch": "main"}

    assert client.ask("Use it", on_question=fill_in) == "Done."
    assert [question.message for question in asked] == ["Which branch?"]
    assert replies(fake) == [(False, {"branch": "main"})]


async def test_so_it_does_with_asyncio_where_it_may_be_asynchronous(address: str, fake: FakeBedrock) -> None:
    fake.answers.append(asks_person())

    async def fill_in(question: Question) -> dict[str, str]:
        await asyncio.sleep(0)
        return {"branch": "main"}

    async with AsyncClient(address) as client:
        assert await client.conversation("c1").ask("Use it", on_question=fill_in) == "Done."
    assert replies(fake) == [(False, {"branch": "main"})]


def test_an_address_that_was_visited_is_answered_without_a_form(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(asks_person(url="https://t.test/login"))
    assert client.ask("Use it", on_question=lambda _: {}) == "Done."
    assert replies(fake) == [(False, None)]


def test_a_function_may_decline_what_a_tool_asks(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(asks_person())
    assert client.ask("Use it", on_question=lambda _: None) == "Then not."
    assert replies(fake) == [(True, None)]


def test_what_does_not_fit_the_form_is_declined_and_told(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(asks_person())
    fake.refuse("AnswerQuestion", Refusal(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT", "branch is no text"))
    run = client.conversation("c1").send("Use it", on_question=lambda _: {"branch": 7})
    with pytest.raises(errors.InvalidArgument, match="branch is no text"):
        run.wait()
    assert run.answer() == "Then not."
    assert [declined for declined, _ in replies(fake)] == [False, True]


@pytest.mark.parametrize("wrong", [True, "main"])
def test_what_is_no_content_is_no_answer_to_a_tool(client: Client, fake: FakeBedrock, wrong: object) -> None:
    fake.answers.append(asks_person())
    with pytest.raises(TypeError, match="must return a mapping or None"):
        client.ask("Use it", on_question=lambda _: wrong)  # type: ignore[arg-type,return-value]
    assert not replies(fake)


def test_on_question_is_a_function(client: Client, fake: FakeBedrock) -> None:
    with pytest.raises(TypeError, match="on_question must be a function or None, not 'decline'"):
        client.ask("Use it", on_question="decline")  # type: ignore[arg-type]
    assert not fake.asked(v1.CreateConversationRequest)


def test_the_loop_may_answer_a_tool_itself_and_others_may_where_they_are_waited_for(
    client: Client, fake: FakeBedrock
) -> None:
    fake.answers.append(asks_person())
    conversation = client.conversation("c1")
    events = []
    for event in conversation.send("Use it"):
        events.append(event)
        if event.question:
            conversation.answer_question(event.question, {"branch": "main"})
    assert (statuses(events), len(replies(fake))) == (["pending", "answered"], 1)
    fake.over.clear()
    fake.answers.append(asks_person())
    run = conversation.send("Use it", wait_for_others=True)
    with pytest.raises(errors.DeadlineExceeded):
        run.wait(timeout=0.2)
    assert len(replies(fake)) == 1
    conversation.answer_question("1", {"branch": "main"})
    assert run.answer(timeout=60) == "Done."


def test_what_a_tool_asks_is_seen_in_a_snapshot_by_who_waits_for_the_run(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(asks_person())
    conversation = client.conversation("c1")
    conversation.send("Use it")
    fake.settle()
    assert conversation.run("1", on_question=lambda _: {"branch": "main"}) == "Done."
    assert replies(fake) == [(False, {"branch": "main"})]


def test_a_message_that_waits_in_the_queue_leaves_what_tools_ask_to_the_run_before_it() -> None:
    progress = RunProgress(f"{NAME}/messages/9", run="")
    asked = v1.Question(name=f"{NAME}/questions/1", status=v1.Question.STATUS_PENDING)
    progress.observe(Event.from_proto(v1.Event(question_changed=v1.Event.QuestionChanged(question=asked))))
    assert progress.tool_questions() == []
    begins = v1.Message(name=progress.message, request_cycle=f"{NAME}/requestCycles/2", role=v1.ROLE_USER)
    progress.observe(Event.from_proto(v1.Event(message_added=begins)))
    assert [each.name for each in progress.tool_questions()] == [asked.name], "what waits now is its own"


def test_what_a_tool_of_an_earlier_run_asks_is_left_to_others(client: Client, fake: FakeBedrock) -> None:
    fake.answers.extend([asks_person(), says("Later.")])
    conversation = client.conversation("c1")
    conversation.send("Use it")
    fake.settle()
    later = conversation.send("And then", delivery="follow_up")
    with pytest.raises(errors.DeadlineExceeded):
        later.wait(timeout=0.2)
    assert not replies(fake)


# --- `ask`: a question and its answer in one call, and who decides about approvals meanwhile ---


def dear(run: str) -> list[Step]:
    """A run of two requests, each with its price."""
    first = stored("agent", v1.ContentBlock(text="Let me think."), v1.ContentBlock(tool_call=v1.ToolCall(tool="think")))
    last = stored("agent", v1.ContentBlock(text="42."))
    first.message_added.usage.MergeFrom(v1.Usage(input_tokens=10, output_tokens=3, cost_micros=7))
    last.message_added.usage.MergeFrom(v1.Usage(output_tokens=4, cache_read_tokens=10))
    result = stored("tool", v1.ContentBlock(tool_result=v1.ToolResult()))
    return [state("llm_requesting", run), first, result, last, state("idle"), stopped(run)]


@pytest.mark.parametrize("detail", ["max_tokens", "refusal", "empty", ""])
def test_an_answer_says_why_it_is_not_whole(address: str, client: Client, fake: FakeBedrock, detail: str) -> None:
    async def ask() -> Answer:
        async with AsyncClient(address, token="secret") as other:
            return await other.conversation("c1").ask("Count")

    fake.answers.extend([says("One, two,", detail=detail)] * 2)
    for answer in (client.conversation("c1").ask("Count"), asyncio.run(ask())):
        assert (answer, answer.stop_detail, answer.truncated) == ("One, two,", detail, detail == "max_tokens")


def test_an_answer_is_text_that_knows_where_it_came_from(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(dear)
    answer = client.conversation("c1").ask("What is it?")
    assert answer == "42."
    assert isinstance(answer, str)
    assert (f"{answer}", answer.removesuffix(".")) == ("42.", "42")
    assert (answer.run, answer.conversation) == (RUN, NAME)
    assert answer.usage == Usage(input_tokens=10, output_tokens=7, cache_read_tokens=10, cost_micros=7)
    for same in (copy.copy(answer), pickle.loads(pickle.dumps(answer))):
        assert isinstance(same, Answer)
        assert (same, same.run, same.usage) == (answer, answer.run, answer.usage)


def test_a_client_asks_in_a_new_conversation(client: Client, fake: FakeBedrock, tmp_path: Path) -> None:
    fake.answers.append(says("A picture."))
    answer = client.ask(
        "What is this?",
        working_directory=tmp_path,
        model="big",
        mode="restricted",
        approval_policy="ask_all",
        instructions="Be brief.",
        tools=["read_image"],
        images=b"GIF89a",
        generation=bedrock.Generation("low"),
        output_schema={"type": "object"},
    )
    assert answer == "A picture."
    (created,) = fake.asked(v1.CreateConversationRequest)
    wanted = created.conversation
    assert (wanted.working_directory, wanted.model) == (str(tmp_path), "models/big")
    assert (wanted.mode, wanted.approval_policy) == (v1.MODE_RESTRICTED, v1.APPROVAL_POLICY_ASK_ALL)
    assert (wanted.instructions.text, list(wanted.tools.tools)) == ("Be brief.", ["tools/read_image"])
    (sent,) = fake.asked(v1.SendMessageRequest)
    assert (sent.name, sent.text) == (NAME, "What is this?")
    assert [image.media_type for image in sent.images] == ["image/gif"]
    assert sent.generation == v1.Generation(reasoning_effort=v1.REASONING_EFFORT_LOW)
    assert json_format.MessageToDict(sent.output_schema) == {"type": "object"}


def test_the_package_itself_asks_the_server_of_the_environment(
    address: str, fake: FakeBedrock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEDROCK_ADDRESS", address)
    fake.answers.append(says("Fine."))
    assert bedrock.ask("How are you?", model="big") == "Fine."


@pytest.mark.parametrize(
    "wrong", [{"images": b"BM"}, {"images": "nowhere.png"}, {"on_approval": "some"}, {"output_schema": "{}"}]
)
def test_invalid_arguments_are_reported_before_anything_is_done(
    client: Client, fake: FakeBedrock, wrong: dict[str, bytes]
) -> None:
    with pytest.raises((ValueError, TypeError, FileNotFoundError)):
        client.ask("Hi", **wrong)  # type: ignore[arg-type]
    assert not fake.requests


def test_asking_again_with_the_same_id_waits_for_the_same_run(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("ls", "", "Done.", ask=True))
    conversation = client.conversation("c1")
    with pytest.raises(errors.DeadlineExceeded):
        conversation.send("Look", request_id="one", wait_for_others=True).wait(timeout=0.2)
    assert conversation.ask("Look", request_id="one", on_approval="approve") == "Done."
    assert len([event for event in fake.durable if event.message_added.role == v1.ROLE_USER]) == 1


def test_a_conversation_whose_first_message_is_invalid_is_not_left_behind(client: Client, fake: FakeBedrock) -> None:
    loops = Refusal(grpc.StatusCode.INVALID_ARGUMENT, "", "output_schema: it loops")
    fake.refuse("SendMessage", loops, loops)
    with pytest.raises(errors.InvalidArgument, match="it loops"):
        client.conversation("c1").ask("Hi", output_schema={"$ref": "#"})
    assert not fake.deleted
    with pytest.raises(errors.InvalidArgument, match="it loops"):
        client.ask("Hi", output_schema={"$ref": "#"})
    assert fake.deleted


def test_a_run_says_where_it_is_and_how_it_ended(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(says("Hello."))
    run = client.conversation("c1").send("Hi")
    assert repr(run) == f"<Run {RUN}>"
    run.wait()
    assert repr(run) == f"<Run {RUN} completed>"


def test_a_question_may_be_left_to_others(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("rm x", "gone", "Done.", ask=True))
    with pytest.raises(errors.DeadlineExceeded, match="did not answer within 4 s and was cancelled"):
        client.ask("Remove x", wait_for_others=True, timeout=4)
    assert not fake.asked(v1.ResolveApprovalRequest)
    (cancel,) = fake.asked(v1.CancelConversationRequest)
    assert (cancel.name, cancel.run) == (NAME, RUN)


@pytest.mark.parametrize("answer", ["no", 1, None])
def test_a_function_that_returns_no_decision_allows_nothing(client: Client, fake: FakeBedrock, answer: object) -> None:
    fake.answers.append(uses_tool("rm x", "gone", "Done.", ask=True))
    with pytest.raises(TypeError, match="must return True or False"):
        client.ask("Remove x", on_approval=lambda approval: answer)  # type: ignore[arg-type]
    assert not fake.asked(v1.ResolveApprovalRequest)
    assert fake.asked(v1.CancelConversationRequest)


@pytest.mark.parametrize(("allowed", "said"), [(True, "Done."), (False, "Then not.")])
def test_a_function_decides(client: Client, fake: FakeBedrock, allowed: bool, said: str) -> None:
    fake.answers.append(uses_tool("rm x", "gone", "Done.", ask=True))
    asked: list[Approval] = []

    def decide(approval: Approval) -> bool:
        asked.append(approval)
        return allowed

    assert client.ask("Remove x", on_approval=decide) == said
    assert [approval.input for approval in asked] == [{"command": "rm x"}]


def test_another_client_may_decide_first(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("rm x", "gone", "Done.", ask=True))

    def too_slow(approval: Approval) -> bool:
        return fake.resolve(approval.name, v1.APPROVAL_DECISION_DENY)

    assert client.ask("Remove x", on_approval=too_slow) == "Then not."


def test_a_question_that_was_asked_before_is_not_waited_for_in_vain(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("rm x", "gone", "Done.", ask=True))
    run = client.conversation("c1").send("Remove x")
    for event in run:
        if event.approval:
            break
    assert run.answer() == "Then not."


def test_what_the_run_before_asks_is_not_this_runs_to_answer(client: Client, fake: FakeBedrock) -> None:
    fake.answers.extend([uses_tool("rm x", "", "", ask=True), says("Two.")])
    conversation = client.conversation("c1")
    conversation.send("One")
    waiting = conversation.send("Two", delivery="follow_up", on_approval="approve")
    for _ in range(2):
        with pytest.raises(errors.ApprovalNeeded, match="the previous run is asking") as caught:
            waiting.answer()
    assert not fake.asked(v1.ResolveApprovalRequest)
    conversation.deny(caught.value.approval)
    assert waiting.answer() == "Two."


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interrupted_question_is_cancelled(client: Client, fake: FakeBedrock, error: type[BaseException]) -> None:
    fake.answers.append(uses_tool("rm x", "gone", "Done.", ask=True))

    def broken(approval: Approval) -> bool:
        raise error

    with pytest.raises(error):
        client.ask("Remove x", on_approval=broken)
    (cancel,) = fake.asked(v1.CancelConversationRequest)
    assert (cancel.name, cancel.run) == (NAME, RUN)


@pytest.mark.usefixtures("ctrl_c_at_sending")
def test_a_question_that_is_interrupted_while_it_is_sent_is_cancelled(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("rm x", "gone", "Done.", ask=True))
    with pytest.raises(KeyboardInterrupt):
        client.ask("Remove x")
    (cancel,) = fake.asked(v1.CancelConversationRequest)
    assert (cancel.name, cancel.run) == (NAME, RUN)
    assert fake.conversation.state.kind == v1.STATE_KIND_IDLE


def test_the_run_of_another_client_survives_an_interrupted_question(
    client: Client, fake: FakeBedrock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.answers.append(uses_tool("rm x", "gone", "Done.", ask=True))
    conversation = client.conversation("c1")
    conversation.send("Theirs")
    call = Transport.call
    pressed = iter([KeyboardInterrupt])

    def interrupted(
        transport: Transport, method: Callable[..., Message], request: Message, timeout: float | None = None
    ) -> Message:
        for error in pressed:
            raise error
        return call(transport, method, request, timeout)

    monkeypatch.setattr(Transport, "call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        conversation.ask("Ours")
    assert not fake.asked(v1.CancelConversationRequest)
    assert fake.conversation.state.run == RUN


def test_an_answer_is_found_behind_a_gap(client: Client, fake: FakeBedrock) -> None:
    """The events that told it are gone: what the server says of the run must do."""

    def block(said: str, message: str, *, calls: bool = False) -> v1.ResolutionStep:
        groups = [v1.ToolCallGroup()] if calls else []
        return v1.ResolutionStep(ai_block=v1.AiBlock(assistant=said, message=message, tool_call_groups=groups))

    fake.answers.append(lambda run: [state("llm_requesting", run), *text("Lost"), state("idle"), stopped(run)])
    steps = [block("Let me look.", "m2", calls=True), block("One, ", "m4"), block("two.", "m5"), block("Three.", "m5")]
    rounds = [v1.InferenceRound(output=name, usage=v1.Usage(output_tokens=5)) for name in ("m2", "m4", "m5")]
    fake.cycles = [v1.RequestCycle(name=RUN, stop_reason=v1.STOP_REASON_COMPLETED, steps=steps, rounds=rounds)]
    fake.cuts.append(2)
    fake.skips.append(9)
    run = client.conversation("c1").send("Hi")
    next(run)
    fake.oldest_revision = 100
    answer = run.answer()
    assert (answer, answer.run) == ("One, two.\n\nThree.", RUN)
    assert answer.usage == Usage(output_tokens=15)
