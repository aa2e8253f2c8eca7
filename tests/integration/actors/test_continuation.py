"""A context that fills up: over real actors, from the last answer that fits to the summary (REQ-BED-019 to 021)."""

from __future__ import annotations

from typing import Any

import pytest

from actors.core.content import ToolUse, Usage
from actors.core.errors import ErrorKind, Reason, Rejected
from actors.core.notifications import ContextWarning, Fate, QueueChanged, RunStop
from actors.core.states import ContextExhausted, Idle
from actors.messages.commands import ContinueConversationCommand, TriggerContinuationCommand

World = Any

BASH = ToolUse("t1", "bash", "{}")


def full(world: World) -> Usage:
    """90 % of the model's usable window."""
    return Usage(input_tokens=world.model.info.usable_window * 9 // 10)


def test_at_ninety_percent_no_tool_runs_and_the_summary_is_written(world: World) -> None:
    talk = world.create()
    talk.send("go on")
    talk.exchange().say(BASH, end_turn=False, usage=full(world))
    summary = talk.exchange()
    assert summary.request.tools == ()
    assert "bash" in summary.request.turns[-1].content[-1].text
    summary.say("This is what was done.")
    assert talk.rest(ContextExhausted).summary == "This is what was done."
    assert world.box.tools["bash"].started == 0
    assert "Not executed: context limit reached" in talk.texts()
    assert len(talk.found(ContextWarning)) == 1
    assert [(stop.reason.value, stop.detail) for stop in talk.found(RunStop)] == [("interrupted", "context_exhausted")]
    with pytest.raises(Rejected, check=lambda error: error.reason is Reason.CONTEXT_EXHAUSTED):
        talk.send("more")


def test_a_summary_that_cannot_be_had_is_replaced(world: World) -> None:
    talk = world.create()
    talk.send("go on")
    talk.exchange().say(BASH, end_turn=False, usage=full(world))
    for _ in range(3):
        talk.exchange().fail(ErrorKind.SERVER_ERROR, "overloaded")
    assert talk.rest(ContextExhausted).summary.startswith("The context is used up and no summary could be written.")


def test_a_summary_by_request_that_cannot_be_had_leaves_the_conversation_as_it_was(world: World) -> None:
    talk = world.create()
    talk.send("hello")
    talk.exchange().say("hi", usage=Usage(input_tokens=10))
    talk.rest(Idle)
    talk.ask(TriggerContinuationCommand())
    for _ in range(3):
        talk.exchange().fail(ErrorKind.NETWORK, "no route to the provider")
    talk.rest(Idle)
    assert talk.texts()[-1].endswith("as it was before: Failed after 3 attempts: no route to the provider")
    talk.send("go on")
    exchange = talk.exchange()
    assert "no route" not in str(exchange.request.turns)
    exchange.say("done")
    talk.rest(Idle)


def test_an_answer_that_found_no_room_left_is_summarised_and_not_continued(world: World) -> None:
    talk = world.create()
    talk.send("go on")
    talk.exchange().say("and th", end_turn=False, truncated=True, context_full=True, usage=Usage(10, 5))
    talk.exchange().say("the summary")
    assert talk.rest(ContextExhausted).summary == "the summary"
    assert world.model.asked == 2


def test_what_waited_when_the_context_was_used_up_has_its_fate_and_the_successor_is_informed(world: World) -> None:
    talk = world.create()
    talk.send("go on")
    exchange = talk.exchange()
    for text in ("then the tests", "then the docs"):
        talk.send(text, delivery="follow_up")
    exchange.say("That is all I could do.", usage=full(world))
    talk.exchange().say("the summary")
    talk.rest(ContextExhausted)
    fates = [(told.input.text, told.fate) for told in talk.found(QueueChanged) if told.fate is not Fate.QUEUED]
    assert fates == [("then the tests", Fate.DISCARDED), ("then the docs", Fate.DISCARDED)]
    assert [stop.detail for stop in talk.found(RunStop)] == ["context_exhausted", "not_run", "not_run"]

    successor = talk.ask(ContinueConversationCommand(include_summary=True))

    (seed,) = world.truth.messages(successor.id, after=0, limit=10)
    assert successor.state.ledger.follows == ()
    assert "the summary\n\n" in seed.content[0].text
    assert seed.content[0].text.endswith("comes back to them:\n\n- then the tests\n\n- then the docs")


def test_the_successor_of_a_conversation_in_which_nothing_waited_begins_with_the_summary(world: World) -> None:
    talk = world.create()
    talk.send("go on")
    talk.exchange().say("That is all I could do.", usage=full(world))
    talk.exchange().say("the summary")
    talk.rest(ContextExhausted)

    successor = talk.ask(ContinueConversationCommand(include_summary=True))

    (seed,) = world.truth.messages(successor.id, after=0, limit=10)
    assert seed.content[0].text.endswith("which was summarised:\n\nthe summary")
