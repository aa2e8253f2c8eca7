"""A fork over the wire: its requests begin with the bytes of its origin's, and it is a conversation of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from bedrock.errors import CycleRunning, NotForkable, NotFound, RevisionTooOld

from tests.e2e.fake_provider import calls, held, says
from tests.e2e.patience import within

if TYPE_CHECKING:
    from collections.abc import Callable

    from bedrock import Conversation

    from tests.e2e.chat import Chat

SHELL = ("bash", {"cmd": "echo hi"})


def assert_whole(fork: Conversation) -> None:
    """Verify and replay find nothing."""
    assert fork.verify() == []
    assert [step.difference for step in fork.replay() if step.difference] == []


def texts(fork: Conversation) -> list[str]:
    return [message.text for message in fork.messages() if message.role in ("user", "agent") and message.text]


def test_the_requests_of_a_fork_begin_with_those_of_its_origin(open_chat: Callable[..., Chat]) -> None:
    chat = open_chat(title="Flowers", labels={"team": "blue"})
    part = chat.part
    part.then(calls(SHELL, text="Let me look."), says("One."), says("Two."), says("Another two."), says("Three."))
    chat.ask("First.")
    chat.ask("Second.")
    theirs = part.exchanges[-1].received.body
    fork = chat.conversation.fork(title="A fork")
    info = fork.get()
    assert (info.forked_from, info.title, info.labels) == (chat.conversation.get().name, "A fork", {"team": "blue"})
    assert info.forked_at == [cycle.name for cycle in chat.conversation.cycles()][-1]
    assert info.total_usage.total_tokens == 0
    assert within(fork.send("Third.").answer) == "Another two."
    ours = part.exchanges[-1].received.body
    assert ours.startswith(theirs[: theirs.rindex(b"]")])
    assert "files are as they are now" in part.exchanges[-1].question
    assert [cycle.name.rpartition(":")[2] for cycle in fork.cycles()] == ["1", "2", "3"]
    (forked,) = [message for message in fork.messages() if message.system_kind == "forked"]
    assert "forked" in forked.text
    assert chat.ask("Third.") == "Three."
    chat.assert_valid()
    assert_whole(fork)


def test_rewinding_a_busy_conversation_leaves_it_alone(open_chat: Callable[..., Chat]) -> None:
    chat = open_chat()
    waits = held(says("Two."))
    chat.part.then(says("One."), waits, says("Another two."))
    with pytest.raises(NotForkable):
        chat.conversation.fork()
    chat.ask("First.")
    run = chat.send("Second.")
    exchange = chat.part.next_reached(waits)
    live = chat.conversation.get().state.run
    with pytest.raises(CycleRunning):
        chat.conversation.fork(live)
    fork = chat.conversation.rewind()
    assert within(fork.send("Instead.").answer) == "Another two."
    exchange.go.set()
    assert within(run.answer) == "Two."
    assert [text.split(" #")[0] for text in texts(fork)] == ["First.", "One.", "Instead.", "Another two."]


def test_a_fork_can_be_watched_exported_and_outlives_its_origin(open_chat: Callable[..., Chat]) -> None:
    chat = open_chat()
    chat.part.then(says("One."), says("Two."))
    chat.ask("First.")
    fork = chat.conversation.fork()
    chat.conversation.delete()
    with pytest.raises(NotFound):
        chat.conversation.get()
    began = fork.get().revision
    with pytest.raises(RevisionTooOld):
        next(iter(fork.events(after_revision=0)))
    first = next(iter(fork.events()))
    assert first.snapshot
    assert first.snapshot.conversation.revision == began
    run = fork.send("Second.")
    assert within(run.answer) == "Two."
    seen = [event.revision for event in fork.events(after_revision=began, until_settled=True) if event.revision]
    assert seen[-1] == fork.get().revision
    exported = [json.loads(line) for line in fork.export()]
    assert [line["message"]["sequence"] for line in exported if line["kind"] == "message"] == ["1", "2", "3", "4", "5"]
    assert min(int(line["event"]["revision"]) for line in exported if line["kind"] == "event") == began + 1
    assert_whole(fork)
