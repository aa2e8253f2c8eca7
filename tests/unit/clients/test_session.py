"""A chat without its looks: what is typed, what it does, what is shown."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import grpc
import pytest
from bedrock import AsyncClient, Event, v1
from bedrock.cli.chat.session import ChatSession
from bedrock.cli.chat.slash_commands import run_command
from bedrock.cli.display.follower import ConversationView
from bedrock.cli.display.questions import WORKSPACE_INSTEAD, QuestionForm
from bedrock.cli.text.style import Paint
from bedrock.errors import ServerNotRunning, Unavailable
from google.rpc.error_details_pb2 import ErrorInfo

from tests.support.fake_server import (
    NAME,
    FakeBedrock,
    Gate,
    Refusal,
    Step,
    call,
    delta,
    discarded,
    says,
    state,
    stopped,
    stored,
    text,
    uses_tool,
)
from tests.unit.clients.test_question_form import asked, asks, form

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Chat:
    """A session that is followed, and what it has printed."""

    def __init__(self, client: AsyncClient) -> None:
        self.lines: list[str] = []
        self._changed = asyncio.Event()
        self.session = ChatSession(client, "c1", Paint(False), self._write, run_command, refresh=self._changed.set)
        client.on_disconnect = self.session.disconnected

    def _write(self, line: str) -> None:
        self.lines.append(line)
        self._changed.set()

    @property
    def screen(self) -> str:
        return "\n".join(self.lines)

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until something holds."""
        while not holds():
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), 10)

    async def shows(self, words: str) -> None:
        await self.until(lambda: words in self.screen)

    async def enters(self, line: str, words: str) -> None:
        """Enter a line, and wait until some words are shown."""
        self.session.enter(line)
        await self.shows(words)

    async def asks(self, line: str) -> None:
        """Enter a line that leads to a question."""
        self.session.enter(line)
        await self.until(lambda: self.session.question)


@pytest.fixture
@asynccontextmanager
async def chat(address: str) -> AsyncIterator[Chat]:
    async with AsyncClient(address) as client:
        chat = Chat(client)
        tasks = [asyncio.create_task(chat.session.follow()), asyncio.create_task(chat.session.work())]
        yield chat
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def sent(fake: FakeBedrock) -> list[tuple[str, v1.Delivery.ValueType]]:
    return [(request.text, request.delivery) for request in fake.asked(v1.SendMessageRequest)]


async def test_what_is_entered_is_sent_and_answered(chat: Chat, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("ls", "a.txt\nb.txt", "Two files."))
    chat.session.enter("What is here?")
    await chat.until(lambda: "Two files." in chat.screen and not chat.session.view.busy)
    shown = [line for line in chat.lines if line]
    assert shown[:3] == ["> What is here?", "Let me look.", "● bash ls"]
    assert shown[3:5] == ["  │ a.txt", "  │ b.txt"]
    assert shown[-1] == "Two files."
    assert sent(fake) == [("What is here?", v1.DELIVERY_STEER)]


async def test_while_the_agent_works_enter_steers_and_tab_queues(chat: Chat, fake: FakeBedrock) -> None:
    fake.answers.extend([uses_tool("ls", "", "Yes.", ask=True), says("Next.")])
    await chat.asks("Look")
    chat.session.enter("and hurry")
    await chat.enters("/queue then this", "“then this” waits (follow-up)")
    assert "“and hurry” waits (steer)" in chat.screen
    assert "2 waiting" in chat.session.status()
    assert sent(fake)[1:] == [("and hurry", v1.DELIVERY_STEER), ("then this", v1.DELIVERY_FOLLOW_UP)]


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("y", {"decision": v1.APPROVAL_DECISION_APPROVE}),
        ("YES", {"decision": v1.APPROVAL_DECISION_APPROVE}),
        ("e", {"decision": v1.APPROVAL_DECISION_APPROVE, "rule": v1.ApprovalRule(command="rm x")}),
        ("B", {"decision": v1.APPROVAL_DECISION_APPROVE, "rule": v1.ApprovalRule(command_prefix="rm")}),
        ("n", {"decision": v1.APPROVAL_DECISION_DENY}),
        ("no, use git rm", {"decision": v1.APPROVAL_DECISION_DENY, "note": "use git rm"}),
        ("never", {"decision": v1.APPROVAL_DECISION_DENY, "rule": v1.ApprovalRule(command="rm x")}),
        ("never b", {"decision": v1.APPROVAL_DECISION_DENY, "rule": v1.ApprovalRule(command_prefix="rm")}),
    ],
)
async def test_a_question_is_answered(chat: Chat, fake: FakeBedrock, reply: str, answer: dict[str, Any]) -> None:
    fake.answers.append(uses_tool("rm x", "", "Done.", ask=True))
    await chat.asks("Remove x")
    assert "? Run bash in /tmp?\n    rm x" in chat.screen
    chat.session.enter(reply, chat.session.question)
    await chat.until(lambda: not chat.session.question and not chat.session.view.busy)
    if "rule" in answer:
        action = "allow" if answer["decision"] == v1.APPROVAL_DECISION_APPROVE else "deny"
        await chat.until(lambda: f"· rule r1: {action} " in chat.screen)
        assert "(/approvals r1 revokes it)" in chat.screen
    expected = v1.ResolveApprovalRequest(name=f"{NAME}/approvals/t1", **answer)
    assert fake.asked(v1.ResolveApprovalRequest) == [expected]
    assert len(sent(fake)) == 1


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (v1.MODE_WORKSPACE, "workspace mode? Tools can then change files in /tmp"),
        (v1.MODE_UNRESTRICTED, "unrestricted mode? Tools can then change any file and use the network"),
    ],
)
async def test_a_request_for_a_mode_says_which(
    chat: Chat, fake: FakeBedrock, mode: v1.Mode.ValueType, words: str
) -> None:
    fake.answers.append(uses_tool("rm x", "", "Done.", ask=True, mode=mode))
    await chat.asks("Remove x")
    assert f"? Switch to {words}, until you switch back (/mode).\n    to write" in chat.screen
    chat.session.enter("y", chat.session.question)
    await chat.until(lambda: not chat.session.question and not chat.session.view.busy)


async def test_a_request_for_the_unrestricted_mode_can_be_answered_with_the_workspace_mode(
    chat: Chat, fake: FakeBedrock
) -> None:
    fake.answers.append(uses_tool("rm x", "", "Done.", ask=True, mode=v1.MODE_UNRESTRICTED))
    await chat.asks("Remove x")
    chat.session.enter("w", chat.session.question)
    await chat.until(lambda: not chat.session.question and not chat.session.view.busy)
    (change,) = fake.asked(v1.SetModeRequest)
    assert change.mode == v1.MODE_WORKSPACE
    (answer,) = fake.asked(v1.ResolveApprovalRequest)
    assert (answer.decision, answer.note) == (v1.APPROVAL_DECISION_DENY, WORKSPACE_INSTEAD)


async def test_a_question_stays_open_where_the_workspace_mode_is_refused(chat: Chat, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("rm x", "", "Done.", ask=True, mode=v1.MODE_UNRESTRICTED))
    cause = ErrorInfo(reason="MODE_UNAVAILABLE", domain="bedrock.dev", metadata={"cause": "directory"})
    fake.refuse("SetMode", Refusal(grpc.StatusCode.FAILED_PRECONDITION, "", "not in this directory", [cause]))
    await chat.asks("Remove x")
    chat.session.enter("w", chat.session.question)
    await chat.shows("not in this directory")
    await chat.shows("in another directory")
    assert "another mode" not in chat.screen
    assert chat.session.question
    assert not fake.asked(v1.ResolveApprovalRequest)


@pytest.mark.parametrize("words", ["w", "yess", "yesterday", "nothing like that", "all of them"])
async def test_what_is_no_reply_is_asked_again_and_not_sent(chat: Chat, fake: FakeBedrock, words: str) -> None:
    fake.answers.append(uses_tool("rm x", "", "Done.", ask=True))
    await chat.asks("Remove x")
    chat.session.enter(words, chat.session.question)
    await chat.shows("· answer y, n, e or b; Esc or Ctrl-C cancels, ↑ and Tab queue it as a message")
    assert chat.session.question
    assert not fake.asked(v1.ResolveApprovalRequest)
    assert sent(fake) == [("Remove x", v1.DELIVERY_STEER)]


async def test_typing_on_after_ctrl_c_stays(chat: Chat, fake: FakeBedrock) -> None:
    fake.answers.append(says("Hello."))
    assert not chat.session.interrupt()
    assert "Ctrl-C again to exit" in chat.screen
    await chat.enters("Hi", "Hello.")
    assert not chat.session.interrupt()


async def test_a_message_that_cannot_be_sent_is_not_lost_silently(chat: Chat, fake: FakeBedrock) -> None:
    fake.refuse("SendMessage", Refusal(grpc.StatusCode.FAILED_PRECONDITION, "TERMINAL", "read-only"))
    await chat.enters("One more thing", "read-only")
    assert "not sent: “One more thing”" in chat.screen


# --- a context that is used up ---


async def test_a_chat_that_is_to_go_on_does_so_by_itself(chat: Chat, fake: FakeBedrock) -> None:
    fake.conversation.auto_continue = True
    before = chat.session.view
    await chat.until(lambda: before.info.slug)
    fake.happen(state("awaiting_continuation"), state("context_exhausted"))
    await chat.shows("· this chat continues in brave-otter")
    assert "bedrock continue" not in chat.screen
    assert len(fake.asked(v1.ContinueConversationRequest)) == 1


async def test_a_message_to_a_full_conversation_is_not_sent_and_it_is_said_how_to_go_on(
    chat: Chat, fake: FakeBedrock
) -> None:
    await chat.until(lambda: chat.session.view.info.slug)
    fake.refuse("SendMessage", Refusal(grpc.StatusCode.FAILED_PRECONDITION, "CONTEXT_EXHAUSTED", "read-only"))
    await chat.enters("One more thing", "✗ not sent: “One more thing” (↑ brings it back)")
    await chat.shows("/continue does that")
    assert not fake.asked(v1.ContinueConversationRequest)


async def test_text_that_is_void_is_said_to_be_void(chat: Chat, fake: FakeBedrock) -> None:
    def stumble(run: str) -> list[Step]:
        return [
            state("llm_requesting", run),
            delta("Half", 0),
            discarded(),
            *text("Whole", attempt=2),
            state("idle"),
            stopped(run),
        ]

    fake.answers.append(stumble)
    await chat.enters("Hi", "Whole")
    assert chat.lines.index("Half") < chat.lines.index("· the unfinished text above was discarded")


async def test_the_queue_is_shown(chat: Chat, fake: FakeBedrock) -> None:
    await chat.enters("/queue", "the queue is empty")
    message = v1.Message(name=f"{NAME}/messages/q1", delivery=v1.DELIVERY_FOLLOW_UP)
    message.content.add(text="then this")
    message.create_time.GetCurrentTime()
    queued = v1.QueuedMessage(message=message, fate=v1.QueuedMessage.FATE_QUEUED)
    fake.happen(v1.Event(queue_changed=queued))
    await chat.until(lambda: chat.session.view.queue)
    await chat.enters("/queue", "· follow-up: “then this”")


async def test_commands_reach_the_conversation(chat: Chat, fake: FakeBedrock) -> None:
    await chat.enters("/help", "complete a command or a path")
    for line in ("/mode unrestricted", "/model big", "/cancel", "/continue", "/withdraw", "/nonsense"):
        chat.session.enter(line)
    await chat.shows("unknown command: /nonsense. /help lists")
    assert "the queue is empty" in chat.screen
    assert "this chat continues in brave-otter" in chat.screen
    chat.session.enter("/quit")
    await asyncio.wait_for(chat.session.over.wait(), 10)
    assert fake.conversation.mode == v1.MODE_UNRESTRICTED
    assert fake.conversation.model == "models/big"


async def test_a_chat_goes_on_in_the_successor(chat: Chat, fake: FakeBedrock) -> None:
    fake.answers.append(says("Hello again."))
    before = chat.session.view
    await chat.until(lambda: before.info.slug)
    await chat.enters("/continue", "· this chat continues in brave-otter")
    await chat.until(lambda: chat.session.view is not before and chat.session.view.info.slug)
    await chat.enters("Hi", "Hello again.")
    assert not chat.session.over.is_set()
    assert len(fake.asked(v1.ContinueConversationRequest)) == 1
    assert len(fake.asked(v1.SubscribeRequest)) == 2


async def test_a_chat_goes_on_in_a_fork(chat: Chat, fake: FakeBedrock) -> None:
    fake.cycles = [v1.RequestCycle(name=f"{NAME}/requestCycles/c1:{number}") for number in (1, 2, 3)]

    def moved(chat: Chat, before: object) -> bool:
        return chat.session.view is not before

    for line in ("/rewind x", "/rewind 0", "/rewind 7"):
        chat.session.enter(line)
    await chat.shows("usage: /rewind, or /rewind 2")
    await chat.shows("nothing would be left")
    for number, line in enumerate(("/fork", "/rewind", "/rewind 2"), 1):
        before = chat.session.view
        await chat.until(partial(attrgetter("info.slug"), before))
        chat.session.enter(line)
        await chat.until(partial(moved, chat, before))
        assert chat.screen.count("· forked to brave-otter; files stay as they are") == number
    asked = fake.asked(v1.ForkConversationRequest)
    assert [each.request_cycle.rpartition("/")[2] for each in asked] == ["", "c1:2", "c1:1"]


async def test_one_of_several_messages_that_wait_is_taken_back(chat: Chat, fake: FakeBedrock) -> None:
    chat.session.enter("/withdraw q7")
    await chat.enters(
        "/image", "usage: /image PATH"
    )  # commands are done one after the other, and the first prints nothing
    assert fake.asked(v1.WithdrawMessageRequest) == [v1.WithdrawMessageRequest(name=f"{NAME}/messages/q7")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/mode", "the mode is restricted; choose restricted, workspace or unrestricted"),
        ("/mode restricted", "the mode is already restricted"),
        ("/mode wild", "the mode is restricted; choose restricted, workspace or unrestricted"),
        ("/effort", "the effort is left to the model; choose low, high or max"),
        ("/image", "usage: /image PATH"),
        ("/model", "● demo (demo)"),
        ("/model big", "the model is big"),
        ("/approvals", "the policy is ask_writes; choose auto, ask_writes or ask_all; no rules yet"),
        ("/approvals ask_all", "the policy is ask_all"),
        ("/effort huge", "the effort must be one of none, low, medium, high, max"),
        ("/effort high", "the effort is high"),
    ],
)
async def test_a_command_shows_what_can_be_chosen_and_what_is(
    chat: Chat, fake: FakeBedrock, line: str, words: str
) -> None:
    fake.conversation.approval_policy = v1.APPROVAL_POLICY_ASK_WRITES
    efforts = (v1.REASONING_EFFORT_LOW, v1.REASONING_EFFORT_HIGH, v1.REASONING_EFFORT_MAX)
    (demo,) = (model for model in fake.models if model.name == fake.conversation.model)
    demo.reasoning_efforts.extend(efforts)
    await chat.until(lambda: chat.session.view.info.mode)
    await chat.enters(line, words)


async def test_background_jobs_are_reported_and_ended_on_request(chat: Chat, fake: FakeBedrock) -> None:
    fake.jobs = ["b-1", "b-3"]
    await chat.enters("/cancel", "still running in the background: b-1, b-3 (`/kill` ends them)")
    await chat.enters("/kill", "background jobs ended: b-1, b-3")
    assert chat.screen.count("there is nothing to cancel") == 1


async def test_what_runs_with_wider_rights_than_the_new_mode_is_named_and_stopped_on_request(
    chat: Chat, fake: FakeBedrock
) -> None:
    fake.jobs = ["b-1"]
    fake.conversation.background_jobs.append("b-1")
    fake.answers.append(
        lambda run: [stored("agent", call("bash", {"command": "sleep 99"})), state("tool_executing", run), Gate()]
    )
    await chat.until(lambda: "1 background job" in chat.session.status())
    await chat.enters("Go", "● bash sleep 99")
    chat.session.enter("/mode restricted")
    what = "bash sleep 99, background job b-1, MCP server files"
    await chat.shows(f"· still running with more rights: {what} (`/mode restricted stop` stops them)")
    await chat.enters("/mode restricted stop", f"· stopped: {what}")
    await chat.until(lambda: "background job" not in chat.session.status())
    assert [request.stop_running for request in fake.asked(v1.SetModeRequest)] == [False, True]


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("/etc/hosts says what?", "/etc/hosts says what?"),
        ("/usr/bin\nis full", "/usr/bin\nis full"),
        ("//mode is no command here", "/mode is no command here"),
        ("  //mode is none either", "/mode is none either"),
        ("  /etc/hosts", "  /etc/hosts"),
        ("  // indented\n  code", "  // indented\n  code"),
    ],
)
async def test_a_message_may_begin_with_a_slash(chat: Chat, fake: FakeBedrock, typed: str, text: str) -> None:
    fake.answers.append(says("I see."))
    await chat.enters(typed, "I see.")
    assert sent(fake) == [(text, v1.DELIVERY_STEER)]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("/moed restricted", "/mode"), ("/quit now/then", "/quit"), ("/hlep", "/help"), ("  /hlep", "/help")],
)
async def test_a_misspelled_command_is_guessed_and_not_sent(
    chat: Chat, fake: FakeBedrock, typed: str, meant: str
) -> None:
    await chat.enters(typed, meant)
    assert sent(fake) == []


async def test_compact_goes_on_in_the_successor_once_the_summary_is_written(chat: Chat, fake: FakeBedrock) -> None:
    before = chat.session.view
    await chat.until(lambda: before.info.slug)
    await chat.enters("/compact", "· this chat continues in brave-otter")
    await chat.until(lambda: chat.session.view is not before)
    assert len(fake.asked(v1.TriggerContinuationRequest)) == len(fake.asked(v1.ContinueConversationRequest)) == 1


async def test_compact_does_not_advise_what_it_does_itself(chat: Chat, fake: FakeBedrock) -> None:
    summary = stored("system", v1.ContentBlock(text="Summed up."))
    summary.message_added.system_kind = v1.SYSTEM_MESSAGE_KIND_SUMMARY
    await chat.until(lambda: chat.session.view.info.slug)
    transcript = chat.session.transcript
    await chat.session.compact()
    transcript.show(Event.from_proto(summary))
    await chat.shows("Summed up.")
    assert "bedrock continue" not in chat.screen


async def test_compact_without_a_summary_stays_and_says_why(chat: Chat, fake: FakeBedrock) -> None:
    fake.summary = [stored("error", v1.ContentBlock(text="No summary was written: no route")), state("idle")]
    await chat.until(lambda: chat.session.view.info.slug)
    await chat.enters("/compact", "✗ No summary was written: no route")
    await chat.until(lambda: chat.session.view.state.kind == "idle")
    assert not fake.asked(v1.ContinueConversationRequest)


async def test_a_chat_whose_server_has_ended_says_once_how_to_go_on(chat: Chat) -> None:
    await chat.until(lambda: chat.session.view.info.slug)
    chat.session.disconnected(Unavailable("the stream ended"), 1)
    assert "has ended" not in chat.screen
    for _ in range(2):
        chat.session.disconnected(ServerNotRunning("nobody listens"), 1)
    assert chat.screen.count("bedrock chat -r brave-otter") == 1


async def test_compact_that_is_refused_stays(chat: Chat, fake: FakeBedrock) -> None:
    fake.refuse("TriggerContinuation", Refusal(grpc.StatusCode.FAILED_PRECONDITION, "AGENT_BUSY", "agent is busy"))
    await chat.until(lambda: chat.session.view.info.slug)
    await chat.enters("/compact", "agent is busy")
    fake.happen(state("awaiting_continuation"), state("context_exhausted"))
    await chat.until(lambda: chat.session.view.state.kind == "context_exhausted")
    assert not fake.asked(v1.ContinueConversationRequest)


@pytest.mark.parametrize("command", ["/new", "/clear"])
async def test_a_new_conversation_in_the_same_chat_has_the_same_settings(
    chat: Chat, fake: FakeBedrock, command: str
) -> None:
    fake.conversation.approval_policy = v1.APPROVAL_POLICY_ASK_WRITES
    fake.conversation.mode = v1.MODE_UNRESTRICTED
    cleared: list[str] = []
    chat.session.clear_screen = lambda: cleared.append("screen")
    before = chat.session.view
    await chat.until(lambda: before.info.slug)
    await chat.enters(command, "· started a new conversation: brave-otter")
    await chat.until(lambda: chat.session.view is not before and chat.session.view.info.slug)
    (made,) = fake.asked(v1.CreateConversationRequest)
    wanted = made.conversation
    assert (wanted.working_directory, wanted.mode) == ("/tmp", v1.MODE_UNRESTRICTED)
    assert (wanted.approval_policy, wanted.model.removeprefix("models/")) == (v1.APPROVAL_POLICY_ASK_WRITES, "demo")
    assert cleared == ["screen"]


def job(handle: str, status: str, code: int | None = None) -> v1.Event:
    named = v1.Event.BackgroundJobChanged.Status.Value(f"STATUS_{status.upper()}")
    changed = v1.Event.BackgroundJobChanged(handle=handle, command="make all", status=named, exit_code=code)
    return v1.Event(background_job_changed=changed)


async def test_the_status_line_counts_background_jobs_and_each_end_is_a_line(chat: Chat, fake: FakeBedrock) -> None:
    await chat.until(lambda: chat.session.view.info.slug)
    assert "background" not in chat.session.status()
    fake.happen(job("b-1", "running"), job("b-2", "running"), job("b-3", "running"))
    await chat.until(lambda: "3 background jobs ·" in chat.session.status())
    fake.happen(job("b-1", "exited", 2))
    await chat.shows("· background job b-1 exited with code 2: make all")
    assert "2 background jobs ·" in chat.session.status()
    fake.happen(job("b-2", "killed"), job("b-3", "lost"))
    await chat.shows("· background job b-2 was killed: make all")
    await chat.shows("· background job b-3 ended with the server: make all")
    assert "background" not in chat.session.status()
    await chat.enters("/kill", "there is nothing to cancel, and no background job is running")


async def test_the_help_is_two_columns(chat: Chat) -> None:
    await chat.enters("/help", "/quit")
    lines = chat.lines[[line.startswith("Enter") for line in chat.lines].index(True) :]
    column = len("/approvals [POLICY|RULE] ")
    assert {(line[column - 1], line[column] != " ") for line in lines} == {(" ", True)}


async def test_a_lost_connection_is_reported_once_and_the_chat_goes_on(chat: Chat, fake: FakeBedrock) -> None:
    fake.answers.append(says("Hello."))
    fake.cuts.extend([2, 1, 1])
    chat.session.enter("Hi")
    await chat.until(lambda: "Hello." in chat.screen and not chat.session.view.busy)
    assert chat.screen.count("connection lost") <= 2
    assert "connection lost" not in chat.session.status()


async def test_a_deleted_conversation_ends_the_chat(chat: Chat, fake: FakeBedrock) -> None:
    fake.deleted = True
    await asyncio.wait_for(chat.session.over.wait(), 10)
    assert "the conversation was deleted" in chat.screen


async def test_a_conversation_that_cannot_be_watched_ends_the_chat(chat: Chat, fake: FakeBedrock) -> None:
    fake.refuse("Subscribe", Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_STREAMS", "too many streams"))
    await asyncio.wait_for(chat.session.over.wait(), 10)
    assert "too many streams" in chat.screen


def view_of(*steps: v1.Event, at: float = 0.0) -> ConversationView:
    view = ConversationView()
    conversation = v1.Conversation(
        slug="s",
        model="models/demo",
        mode=v1.MODE_RESTRICTED,
        context_usage=v1.ContextUsage(used_tokens=42, usable_window_tokens=100),
    )
    view.observe(Event.from_proto(v1.Event(snapshot=v1.Event.Snapshot(conversation=conversation))), at)
    for step in steps:
        view.observe(Event.from_proto(step), at)
    return view


def test_the_status_line_counts_tools_and_seconds() -> None:
    running = v1.ConversationState.ToolExecuting(
        current=v1.ToolCall(tool_use_id="t2", tool="bash"), completed_count=1, remaining_count=2
    )
    view = view_of(state("tool_executing", "r", tool_executing=running), at=100.0)
    assert view.status(107.4, NOON) == "bash 2/4 7 s · context 42% · restricted · demo"
    running.deadline.seconds = 1
    view = view_of(state("tool_executing", "r", tool_executing=running), at=100.0)
    assert view.status(107.4, NOON) == "bash 2/4 waiting for a client 7 s · context 42% · restricted · demo"


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (None, "thinking attempt 2/3 · context 42% · restricted · demo · Esc cancels"),
        (60, "thinking attempt 2/3 · context 42% · restricted · demo"),
        (50, "thinking attempt 2/3 · context 42% · restricted"),
        (12, "thinking…"),
    ],
)
def test_the_status_line_fits_and_leaves_out_what_matters_least(width: int | None, line: str) -> None:
    asking = v1.ConversationState.LlmRequesting(attempt=2, max_attempts=3)
    view = view_of(state("llm_requesting", "r", llm_requesting=asking))
    assert view.status(0, NOON, width, keys="Esc cancels") == line


def test_the_status_line_counts_down_to_the_next_attempt() -> None:
    waiting = v1.ConversationState.LlmRequesting(
        attempt=2, max_attempts=3, phase=v1.ConversationState.LlmRequesting.PHASE_BACKOFF
    )
    waiting.retry_time.FromDatetime(datetime(2026, 1, 1, 12, 0, 2, tzinfo=UTC))
    view = view_of(state("llm_requesting", "r", llm_requesting=waiting))
    assert view.status(0, NOON).startswith("next attempt 2/3 in 2 s · ")


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (state("idle"), "idle"),
        (state("awaiting_tool_approval", "r"), "waiting for approval"),
        (state("cancelling", "r"), "cancelling"),
        (state("context_exhausted"), "context used up"),
        (
            state(
                "awaiting_sub_agents",
                "r",
                awaiting_sub_agents=v1.ConversationState.AwaitingSubAgents(pending=[v1.SubAgent()], completed_count=2),
            ),
            "3 sub-agents, 2 done",
        ),
        (
            state(
                "llm_requesting",
                "r",
                llm_requesting=v1.ConversationState.LlmRequesting(
                    attempt=1, phase=v1.ConversationState.LlmRequesting.PHASE_STREAMING
                ),
            ),
            "answering",
        ),
    ],
)
def test_the_status_line_says_what_is_going_on(step: v1.Event, words: str) -> None:
    assert view_of(step).status(0, NOON).split(" · ")[0] == words


async def test_the_transcript_survives_every_kind_of_event(chat: Chat, fake: FakeBedrock) -> None:
    reaped = v1.Event.ToolTreeReaped(tool_use_id="t1", pids=[1, 2])
    reaped.duration.FromMilliseconds(12)
    retrying = v1.Event.Retrying(attempt=2, max_attempts=3, error=v1.RunError(message="overloaded"))
    report = v1.Event.SubAgentsChanged.Report(task="x", task_index=1, state=v1.STATE_KIND_COMPLETED)
    agents = v1.Event.SubAgentsChanged(pending=[v1.SubAgent(task="y")], reports=[report])
    answer = stored("agent", v1.ContentBlock(reasoning="Hm."), v1.ContentBlock(text="Well."), request="r1", attempt=1)
    fake.happen(
        delta("Hm.", 0, reasoning=True),
        delta("Well.", 0),
        answer,
        stored("system", v1.ContentBlock(text="Mode: restricted")),
        v1.Event(retrying=retrying),
        v1.Event(context_warning=v1.ContextUsage(used_tokens=83, usable_window_tokens=100)),
        v1.Event(sub_agents_changed=agents),
        v1.Event(tool_tree_reaped=reaped),
        stopped("r", "interrupted", "round_cap"),
    )
    await chat.shows("its limit of model requests")
    for words in ("Hm.", "Well.", "· Mode: restricted", "attempt 2/3", "83%", "✓ x", "2 processes ended"):
        assert words in chat.screen
    assert (chat.screen.count("Hm."), chat.screen.count("Well.")) == (1, 1)


async def test_an_image_goes_with_what_is_said_next(chat: Chat, fake: FakeBedrock, tmp_path: Path) -> None:
    (tmp_path / "a.gif").write_bytes(b"GIF89a")
    (tmp_path / "a.txt").write_bytes(b"hello")
    fake.conversation.model = "models/big"
    fake.answers += [says("A cat."), says("Yes.")]
    for line in (f"/image {tmp_path}/a.txt", "/image /nowhere", f"/image {tmp_path}/a.gif", "Look.", "And?"):
        chat.session.enter(line)
    await chat.until(lambda: len(sent(fake)) == 2)

    assert "not a PNG, JPEG, GIF or WebP file" in chat.screen
    assert "No such file" in chat.screen
    assert "an image will be sent with your next message" in chat.screen
    requests = fake.asked(v1.SendMessageRequest)
    assert [[image.media_type for image in request.images] for request in requests] == [["image/gif"], []]


async def test_an_image_is_attached_only_if_the_model_may_take_it(
    chat: Chat, fake: FakeBedrock, tmp_path: Path
) -> None:
    (tmp_path / "a.gif").write_bytes(b"GIF89a")
    await chat.enters(f"/image {tmp_path}/a.gif", "not attached: model demo does not accept images")
    assert "will be sent" not in chat.screen
    fake.models[0].images = fake.models[0].images_assumed = True
    await chat.enters(f"/image {tmp_path}/a.gif", "with your next message; demo might not accept images")
    refusal = Refusal(grpc.StatusCode.INVALID_ARGUMENT, "IMAGE_INVALID", "model demo does not accept images")
    fake.refuse("SendMessage", refusal)
    await chat.enters("Look.", "· no images are attached")
    fake.answers.append(says("Hello."))
    await chat.enters("Then without.", "Hello.")
    requests = fake.asked(v1.SendMessageRequest)
    assert [len(request.images) for request in requests] == [1, 0]


async def test_rules_are_listed_and_revoked_in_a_chat(chat: Chat, fake: FakeBedrock) -> None:
    allow = v1.ApprovalRule.ACTION_ALLOW
    fake.conversation.approval_rules.append(
        v1.ApprovalRule(
            name=f"{NAME}/approvalRules/r7", action=allow, command="ls", origin=v1.ApprovalRule.ORIGIN_CONVERSATION
        )
    )
    await chat.enters("/approvals ask_nothing", "choose auto, ask_writes or ask_all")
    await chat.shows("r7  allow the command ls")
    chat.session.enter("/approvals r7")
    await chat.until(lambda: not fake.conversation.approval_rules)
    await chat.enters("/approvals", "no rules yet")
    assert fake.asked(v1.DeleteApprovalRuleRequest) == [
        v1.DeleteApprovalRuleRequest(name=f"{NAME}/approvalRules/{rule}") for rule in ("ask_nothing", "r7")
    ]


async def test_a_chat_asks_for_the_fields_and_sends_them_together(chat: Chat, fake: FakeBedrock) -> None:
    fake.answers.append(asks(asked({"branch": {"type": "string"}, "sure": {"type": "boolean"}}, "branch")))
    session = chat.session
    await chat.enters("Move it", "MCP server files needs your input for")
    await chat.until(lambda: isinstance(session.question, QuestionForm))
    assert "waiting for an answer" in session.view.activity(0, NOON)
    session.enter("", session.question)
    await chat.shows("this field is required")
    session.enter("main", session.question)
    await chat.until(lambda: isinstance(session.question, QuestionForm) and session.question.name == "sure")
    session.enter("y", session.question)
    await chat.until(lambda: bool(fake.asked(v1.AnswerQuestionRequest)))
    (request,) = fake.asked(v1.AnswerQuestionRequest)
    assert (request.name, dict(request.content)) == (f"{NAME}/questions/1", {"branch": "main", "sure": True})


async def test_a_chat_declines_and_says_what_comes_too_late(chat: Chat, fake: FakeBedrock) -> None:
    fake.answers.append(asks(asked({"branch": {"type": "string"}})))
    session = chat.session
    await chat.enters("/decline", "no question is open")
    await chat.asks("Move it")
    session.enter("main", form({"branch": {"type": "string"}}))
    await chat.shows("“main” came too late")
    session.enter("/decline", session.question)
    await chat.until(lambda: bool(fake.asked(v1.AnswerQuestionRequest)))
    (request,) = fake.asked(v1.AnswerQuestionRequest)
    assert (request.decline, request.HasField("content")) == (True, False)
