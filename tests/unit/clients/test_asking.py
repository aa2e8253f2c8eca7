"""`ask`: a question and its answer in one call, and who decides about approvals meanwhile."""

import asyncio
import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import bedrock
import grpc
import pytest
from bedrock import Answer, Approval, AsyncClient, Client, Usage, v1
from bedrock._sync.transport import Transport
from bedrock.errors import AgentBusy, ApprovalNeeded, DeadlineExceeded, InvalidArgument, RunFailed
from google.protobuf import json_format
from google.protobuf.message import Message

from tests.support.fake_server import (
    NAME,
    FakeBedrock,
    Refusal,
    Step,
    fails,
    says,
    state,
    stopped,
    stored,
    text,
    uses_tool,
)

RUN = f"{NAME}/requestCycles/1"


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
    assert isinstance(created, v1.CreateConversationRequest)
    wanted = created.conversation
    assert (wanted.working_directory, wanted.model) == (str(tmp_path), "models/big")
    assert (wanted.mode, wanted.approval_policy) == (v1.MODE_RESTRICTED, v1.APPROVAL_POLICY_ASK_ALL)
    assert (wanted.instructions.text, list(wanted.tools.tools)) == ("Be brief.", ["tools/read_image"])
    (sent,) = fake.asked(v1.SendMessageRequest)
    assert isinstance(sent, v1.SendMessageRequest)
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
    with pytest.raises(DeadlineExceeded):
        conversation.send("Look", request_id="one", wait_for_others=True).wait(timeout=0.2)
    assert conversation.ask("Look", request_id="one", on_approval="approve") == "Done."
    assert len([event for event in fake.durable if event.message_added.role == v1.ROLE_USER]) == 1


def test_a_conversation_whose_first_message_is_invalid_is_not_left_behind(client: Client, fake: FakeBedrock) -> None:
    loops = Refusal(grpc.StatusCode.INVALID_ARGUMENT, "", "output_schema: it loops")
    fake.refuse("SendMessage", loops, loops)
    with pytest.raises(InvalidArgument, match="it loops"):
        client.conversation("c1").ask("Hi", output_schema={"$ref": "#"})
    assert not fake.deleted
    with pytest.raises(InvalidArgument, match="it loops"):
        client.ask("Hi", output_schema={"$ref": "#"})
    assert fake.deleted


def test_a_run_says_where_it_is_and_how_it_ended(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(says("Hello."))
    run = client.conversation("c1").send("Hi")
    assert repr(run) == f"<Run {RUN}>"
    run.wait()
    assert repr(run) == f"<Run {RUN} completed>"


def test_refusals_and_failures_are_those_of_any_run(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(fails("auth", "The key is wrong."))
    fake.refuse("SendMessage", Refusal(grpc.StatusCode.FAILED_PRECONDITION, "AGENT_BUSY", "agent is busy"))
    with pytest.raises(AgentBusy):
        client.ask("Hi")
    with pytest.raises(RunFailed, match="key is wrong"):
        client.ask("Hi")
    assert not fake.asked(v1.CancelConversationRequest)


def test_without_a_decider_it_is_denied_at_once(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("rm x", "gone", "Done.", ask=True))
    assert client.ask("Remove x") == "Then not."
    (denied,) = fake.asked(v1.ResolveApprovalRequest)
    assert isinstance(denied, v1.ResolveApprovalRequest)
    assert denied.decision == v1.APPROVAL_DECISION_DENY
    assert "without an answer" in denied.note


def test_a_question_may_be_left_to_others(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("rm x", "gone", "Done.", ask=True))
    with pytest.raises(DeadlineExceeded, match="no answer within 1 s; the run was cancelled"):
        client.ask("Remove x", wait_for_others=True, timeout=1)
    assert not fake.asked(v1.ResolveApprovalRequest)
    (cancel,) = fake.asked(v1.CancelConversationRequest)
    assert isinstance(cancel, v1.CancelConversationRequest)
    assert (cancel.name, cancel.run) == (NAME, RUN)


@pytest.mark.parametrize("answer", ["no", 1, None])
def test_a_function_that_returns_no_decision_allows_nothing(client: Client, fake: FakeBedrock, answer: object) -> None:
    fake.answers.append(uses_tool("rm x", "gone", "Done.", ask=True))
    with pytest.raises(TypeError, match="neither True nor False"):
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
        with pytest.raises(ApprovalNeeded, match="the run before this one asks") as caught:
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
    assert isinstance(cancel, v1.CancelConversationRequest)
    assert (cancel.name, cancel.run) == (NAME, RUN)


@pytest.mark.usefixtures("ctrl_c_at_sending")
def test_a_question_that_is_interrupted_while_it_is_sent_is_cancelled(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("rm x", "gone", "Done.", ask=True))
    with pytest.raises(KeyboardInterrupt):
        client.ask("Remove x")
    (cancel,) = fake.asked(v1.CancelConversationRequest)
    assert isinstance(cancel, v1.CancelConversationRequest)
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
