"""A context that fills up: over real actors, from the last answer that fits to the summary (REQ-BED-019 to 021)."""

from __future__ import annotations

from typing import Any

import pytest

from actors.core.content import ToolUse, Usage
from actors.core.errors import ErrorKind, Reason, Rejected
from actors.core.notifications import ContextWarning, RunStop
from actors.core.states import ContextExhausted

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
