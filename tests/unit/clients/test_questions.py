"""No question hangs a loop: what is open when the next event is asked for is answered, denied, or left on purpose."""

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import grpc
import pytest
from bedrock import Approval, AsyncClient, Client, Event, Question, v1
from bedrock._shared.run_progress import RunProgress
from bedrock.errors import DeadlineExceeded, InvalidArgument, NotFound, RunFailed, Unauthenticated, Unavailable
from bedrock.events import Snapshot
from google.protobuf.timestamp_pb2 import Timestamp

from tests.support.fake_server import NAME, FakeBedrock, Refusal, asks_person, fails, says, uses_tool

RUN = f"{NAME}/requestCycles/1"
ASKS = uses_tool("rm x", "gone", "Done.", ask=True)


def aio(address: str, story: Callable[[AsyncClient], Awaitable[None]]) -> None:
    async def play() -> None:
        async with AsyncClient(address, token="secret") as client, asyncio.timeout(30):
            await story(client)

    asyncio.run(play())


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
    assert "without an answer" in next(event.note for event in events if event.decision)
    assert "on_approval=" in caplog.text
    assert events[-1].kind == "run_stopped"


def test_so_it_is_with_asyncio(address: str, fake: FakeBedrock) -> None:
    fake.answers.append(ASKS)
    events: list[Event] = []

    async def story(client: AsyncClient) -> None:
        events.extend([event async for event in client.conversation("c1").send("Remove x")])

    aio(address, story)
    assert decisions(events) == ["asked", "deny"]


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
    with pytest.raises(DeadlineExceeded, match=r"has not ended within 0\.2 s"):
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
    with pytest.raises(DeadlineExceeded):
        conversation.run(name, wait_for_others=True, timeout=0.2)
    assert conversation.run(name) == "Then not."
    conversation.send("And?").wait()
    with pytest.raises(RunFailed):
        conversation.run("2")


def test_a_run_that_does_not_exist_is_not_found(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(says("Hello."))
    conversation = client.conversation("c1")
    conversation.send("Hi").wait()
    with pytest.raises(NotFound, match="has no run"):
        conversation.run("7")


def test_a_run_of_another_conversation_is_refused_as_such(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(says("Hello."))
    client.conversation("c1").send("Hi").wait()
    for conversation in (client.conversation("c1"), client.conversation("brave-otter")):
        with pytest.raises(NotFound, match="belongs to another conversation, conversations/x, not to"):
            conversation.run("conversations/x/requestCycles/1")


def test_so_it_is_when_asyncio_waits_for_one(address: str, fake: FakeBedrock) -> None:
    fake.answers.append(ASKS)

    async def story(client: AsyncClient) -> None:
        conversation = client.conversation("c1")
        await conversation.send("Remove x")
        assert await conversation.run(RUN, on_approval="approve", timeout=60) == "Done."
        with pytest.raises(NotFound):
            await conversation.run("7")
        with pytest.raises(NotFound, match="belongs to another conversation"):
            await conversation.run("conversations/x/requestCycles/1")

    aio(address, story)


def test_events_of_a_conversation_that_does_not_exist_are_an_error_at_once(client: Client) -> None:
    with pytest.raises(NotFound):
        client.conversation("nowhere").events()


def test_so_it_is_when_asyncio_enters_them(address: str) -> None:
    async def story(client: AsyncClient) -> None:
        with pytest.raises(NotFound):
            await client.conversation("nowhere").events().__aenter__()

    aio(address, story)


def test_a_call_that_takes_too_long_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with (
            Client(address, token="secret") as client,
            pytest.raises(DeadlineExceeded, match=f"no answer from {address} in time"),
        ):
            client.conversation("c1").get(timeout=0.2)


@pytest.mark.parametrize(
    ("token", "told"), [("wrong", "does not know the token from token="), ("", "wants a token, and none was sent")]
)
def test_a_token_that_is_not_known_is_reported_with_its_source(
    address: str, fake: FakeBedrock, token: str, told: str
) -> None:
    fake.refuse("GetConversation", *[Refusal(grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED", "no")] * 2)
    with Client(address, token=token) as client, pytest.raises(Unauthenticated, match=told):
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
    with pytest.raises(Unavailable, match="this client is closed"):
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


def test_so_it_does_with_asyncio_where_it_may_be_asynchronous(address: str, fake: FakeBedrock) -> None:
    fake.answers.append(asks_person())

    async def fill_in(question: Question) -> dict[str, str]:
        await asyncio.sleep(0)
        return {"branch": "main"}

    async def story(client: AsyncClient) -> None:
        assert await client.conversation("c1").ask("Use it", on_question=fill_in) == "Done."

    aio(address, story)
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
    with pytest.raises(InvalidArgument, match="branch is no text"):
        run.wait()
    assert run.answer() == "Then not."
    assert [declined for declined, _ in replies(fake)] == [False, True]


@pytest.mark.parametrize("wrong", [True, "main"])
def test_what_is_no_content_is_no_answer_to_a_tool(client: Client, fake: FakeBedrock, wrong: object) -> None:
    fake.answers.append(asks_person())
    with pytest.raises(TypeError, match="neither a mapping nor None"):
        client.ask("Use it", on_question=lambda _: wrong)  # type: ignore[arg-type,return-value]
    assert not replies(fake)


def test_on_question_is_a_function(client: Client, fake: FakeBedrock) -> None:
    with pytest.raises(TypeError, match="on_question='decline' answers nothing"):
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
    with pytest.raises(DeadlineExceeded):
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
    with pytest.raises(DeadlineExceeded):
        later.wait(timeout=0.2)
    assert not replies(fake)
