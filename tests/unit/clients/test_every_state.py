"""Every state and every event, in every order of two, in everything that shows a conversation to people."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest
from bedrock import ConversationInfo, Event, Message, v1
from bedrock._shared.wrapper import enum_name
from bedrock.cli.chat.prompt import prompt_text
from bedrock.cli.chat.session import ChatSession
from bedrock.cli.commands import inspect as looking
from bedrock.cli.display.follower import ConversationView, Drawing
from bedrock.cli.display.transcript import AgentTree, Transcript
from bedrock.cli.text.style import Paint

from tests.support.fake_server import delta, discarded, output, result, state, stopped, stored
from tests.unit.clients.test_agents import TASKS, changed, report

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
KINDS = [enum_name(v1.StateKind, kind) or "unspecified" for kind in v1.StateKind.values()]
"""All states, and the one that a later server may add, which clients read as unspecified."""

CALL = v1.ToolCall(tool_use_id="t1", tool="bash")
APPROVAL = v1.PendingApproval(name="conversations/c1/approvals/t1", tool_call=CALL)
AGENT = v1.SubAgent(conversation="conversations/c1-a1", task=TASKS[0])
DETAILS = {
    "llm_requesting": v1.ConversationState.LlmRequesting(attempt=2, max_attempts=3),
    "awaiting_approval": v1.ConversationState.AwaitingApproval(pending=[APPROVAL]),
    "tool_executing": v1.ConversationState.ToolExecuting(current=CALL),
    "awaiting_sub_agents": v1.ConversationState.AwaitingSubAgents(pending=[AGENT]),
    "completed": v1.ConversationState.Completed(result="42"),
    "failed": v1.ConversationState.Failed(error=v1.RunError(message="no")),
}
OF_KIND = {"awaiting_tool_approval": "awaiting_approval"}


def states() -> Iterator[v1.Event]:
    """Each state as old and new servers tell it: with what belongs to it, and without."""
    for kind in KINDS:
        yield state(kind, "r")
        detail = OF_KIND.get(kind, kind)
        if detail in DETAILS:
            yield state(kind, "r", **{detail: DETAILS[detail]})


def events() -> Iterator[v1.Event]:
    """An event of each kind, the fullest and the emptiest."""
    yield delta("Well.", 0)
    yield stored("agent", v1.ContentBlock(text="Well."), request="r1", attempt=1)
    yield delta("Hm.", 0, reasoning=True)
    yield output("out", 0)
    yield discarded()
    yield stored("tool", result("a\nb"))
    yield stopped("r", "interrupted", "cancel_timeout")
    yield changed(report(0), report(1, "no"))
    yield v1.Event(approval_changed=v1.Event.ApprovalChanged(approval=APPROVAL))
    for field in v1.Event.DESCRIPTOR.oneofs_by_name["event"].fields:
        empty = v1.Event()
        getattr(empty, field.name).SetInParent()
        yield empty


STORY = [*states(), *events()]


def told(event: v1.Event) -> str:
    kind = event.WhichOneof("event") or ""
    return kind if kind != "state_changed" else enum_name(v1.StateKind, event.state_changed.state.kind) or "unspecified"


def show_to_everybody(*story: v1.Event) -> None:
    """Have all views take the events one after the other, and look at each of them after each."""
    views: list[tuple[Callable[[Event], object], Callable[[], object]]] = []
    for live in (True, False):
        lines: list[str] = []
        transcript = Transcript(Paint(True), lines.append, live=live, width=lambda: 40)
        views.append((transcript.show, partial(transcript.unfinished, 5)))
    tree = AgentTree()
    views.append((tree.observe, lambda: [*tree.lines(Paint(False), NOON, 40), *tree.endings(Paint(False))]))
    view = ConversationView()
    views.append((lambda event: view.observe(event, 0.0), lambda: view.status(1.0, NOON, 40, keys="Esc cancels")))
    session = cast(
        "ChatSession",
        SimpleNamespace(
            question=None,
            transcript=SimpleNamespace(unfinished=lambda room: []),
            agent_lines=lambda: tree.lines(Paint(False), NOON, 40),
            open_questions=0,
        ),
    )
    views.append((lambda _: None, lambda: prompt_text(session, Paint(False), 10, 60)))
    views.append((Drawing(Paint(False), lambda _: None).show_progress, lambda: None))
    for event in story:
        for take, look in views:
            take(Event.from_proto(event))
            look()


@pytest.mark.parametrize("first", STORY, ids=told)
def test_any_event_may_follow_any_other(first: v1.Event) -> None:
    """The states that a run goes through are many, and a watcher may come in the middle of it: nothing is assumed."""
    for second in STORY:
        show_to_everybody(first, second)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancel_is_watched_in_every_state(kind: str) -> None:
    for detail in (False, True):
        name = OF_KIND.get(kind, kind)
        before = state(kind, "r", **({name: DETAILS[name]} if detail and name in DETAILS else {}))
        show_to_everybody(before, state("cancelling", "r"), stopped("r", "interrupted"), state("idle"))


def test_only_sub_agents_that_are_cancelled_are_a_tree_while_cancelling() -> None:
    for before, shown in (("awaiting_sub_agents", 1), ("tool_executing", 0)):
        tree = AgentTree()
        tree.observe(Event.from_proto(state(before, "r", **{before: DETAILS[before]})))
        tree.observe(Event.from_proto(state("cancelling", "r")))
        assert len(tree.lines(Paint(False), NOON, 80)) == shown


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("archived", [False, True])
def test_every_state_is_listed_and_shown(kind: str, archived: bool) -> None:
    for event in states():
        now = event.state_changed.state
        if enum_name(v1.StateKind, now.kind) != (kind if kind != "unspecified" else ""):
            continue
        conversation = v1.Conversation(name="conversations/c1", slug="calm-otter-1234", state=now)
        if archived:
            conversation.archive_time.GetCurrentTime()
        info = ConversationInfo.from_proto(conversation)
        assert looking._facts(info)
        snapshot = v1.Event(snapshot=v1.Event.Snapshot(conversation=conversation))
        show_to_everybody(snapshot, state("cancelling", "r"), snapshot)


@pytest.mark.parametrize("role", v1.Role.keys())
def test_every_message_is_shown(role: str) -> None:
    for kind in v1.SystemMessageKind.values():
        message = v1.Message(role=v1.Role.Value(role), system_kind=kind)
        for content in ((), (v1.ContentBlock(text="a"),), (v1.ContentBlock(tool_call=CALL),)):
            message.content.extend(content)
            Transcript(Paint(True), lambda _: None, width=lambda: 40).history([Message.from_proto(message)], [])
