"""Cancel and restart in every state (REQ-BED-005, 007; C1 to C3, C35): a valid history, one run-stop."""

from __future__ import annotations

import pytest

from actors.core.content import ToolCancelled, ToolOutcome
from actors.core.effects import ExecuteTool, RequestContinuation, RequestLlm
from actors.core.events import Restart, UserCancel
from actors.core.notifications import RunStop, StopReason, StreamDiscarded
from actors.core.states import Failed, Idle
from tests.machine.columns import Column, parent_columns, sub_agent_columns
from tests.machine.talk import Talk, messages

LIVE = [one for one in (*parent_columns(), *sub_agent_columns()) if one.state.ledger.live]


def name_of(one: Column) -> str:
    return f"{'sub-agent ' if one.context.is_sub_agent else ''}{one.name}"


@pytest.mark.parametrize("one", LIVE, ids=name_of)
def test_a_restart_leaves_no_run_in_progress_and_starts_nothing(one: Column) -> None:
    talk = Talk(one.context, one.state)

    talk.tell(Restart(talk.at()))

    assert isinstance(talk.state, Failed if one.context.is_sub_agent else Idle)
    assert talk.notes(RunStop) == [RunStop("c:3", StopReason.INTERRUPTED, "restart")]
    assert not [effect for effect in talk.last if isinstance(effect, (RequestLlm, RequestContinuation, ExecuteTool))]
    results = [block for message in messages(talk.last) for block in message.content]
    assert all(one == ToolCancelled(one.tool_use_id, "Interrupted by server restart") for one in results)  # type: ignore[union-attr]
    streamed = "stream" in one.name or "grace" in one.name
    assert len(talk.notes(StreamDiscarded)) == streamed


@pytest.mark.parametrize("one", LIVE, ids=name_of)
def test_a_restart_of_what_a_restart_left_changes_nothing(one: Column) -> None:
    talk = Talk(one.context, one.state)
    talk.tell(Restart(talk.at()))

    assert talk.tell(Restart(talk.at())) == ()


@pytest.mark.parametrize("kind", ["cancel", "restart"])
def test_results_of_tools_that_ran_are_not_written_again(kind: str) -> None:
    one = next(column for column in parent_columns() if column.name == "ToolExec")
    talk = Talk(one.context, one.state)

    talk.tell(UserCancel(talk.at()) if kind == "cancel" else Restart(talk.at()))

    results = [message.content[0] for message in messages(talk.last)]
    skipped = ToolCancelled("t2", "Skipped due to cancellation", ToolOutcome.SKIPPED)
    assert results[1] == (skipped if kind == "cancel" else ToolCancelled("t2", "Interrupted by server restart"))
    assert [result.tool_use_id for result in results] == ["t1", "t2"]  # type: ignore[union-attr]


@pytest.mark.parametrize("run_id", ["", "c:3"])
def test_a_cancel_of_the_live_run_is_taken_and_of_another_is_not(run_id: str) -> None:
    one = next(column for column in parent_columns() if column.name == "ToolExec")
    talk = Talk(one.context, one.state)

    assert talk.tell(UserCancel(talk.at(), run_id="c:2")) == ()
    talk.tell(UserCancel(talk.at(), run_id=run_id))

    assert talk.notes(RunStop) == [RunStop("c:3", StopReason.INTERRUPTED)]
