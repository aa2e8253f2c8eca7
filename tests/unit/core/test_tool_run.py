"""The tool runner's small machine (SEMANTICS C2, I16): never two tools in one directory, and every end is told once."""

from __future__ import annotations

import itertools

import pytest

from actors.core.content import ToolSuccess
from actors.core.effects import AbortTool, ExecuteTool
from actors.core.events import ToolAborted, ToolComplete
from actors.core.tool_run import (
    QUIESCE_MS,
    Input,
    Kill,
    Output,
    QuiesceTimeout,
    Quiescing,
    Ready,
    Receipt,
    ReportOutcome,
    ReportReceipt,
    Running,
    Start,
    ToolEnded,
    ToolRun,
    advance,
)


def execute(xid: int) -> ExecuteTool:
    return ExecuteTool(f"t{xid}", xid, "bash", "{}")


def abort(xid: int) -> AbortTool:
    return AbortTool(f"t{xid}", xid)


def receipt(xid: int, *pids: int) -> Receipt:
    return Receipt(f"t{xid}", xid, pids, 7)


def ended(xid: int, *pids: int) -> ToolEnded:
    return ToolEnded(ToolComplete(1, f"t{xid}", xid, ToolSuccess(f"t{xid}", "ok")), receipt(xid, *pids))


def play(*events: Input) -> tuple[ToolRun, list[tuple[Output, ...]]]:
    run: ToolRun = Ready()
    told = []
    for event in events:
        step = advance(run, event)
        run = step.run
        told.append(step.outputs)
    return run, told


def test_a_tool_is_started_and_its_outcome_reported() -> None:
    run, told = play(execute(1), ended(1))

    assert run == Ready(receipt(1))
    assert told == [(Start(execute(1)),), (ReportOutcome(ended(1).outcome),)]


def test_an_aborted_tool_is_killed_and_its_end_is_only_a_receipt() -> None:
    run, told = play(execute(1), abort(1), ended(1, 40, 41))

    assert run == Ready()
    assert told[1:] == [(Kill("t1", 1),), (ReportReceipt(receipt(1, 40, 41)),)]


def test_the_next_tool_waits_until_the_killed_one_is_gone() -> None:
    run, told = play(execute(1), abort(1), execute(2))
    assert run == Quiescing(execute(1), execute(2))
    assert told[2] == ()

    step = advance(run, ended(1))

    assert step.run == Running(execute(2))
    assert step.outputs == (ReportReceipt(receipt(1)), Start(execute(2)))


def test_a_waiting_tool_that_is_aborted_never_starts() -> None:
    run, told = play(execute(1), abort(1), execute(2), abort(2), ended(1))

    assert run == Ready()
    assert told[3:] == [(), (ReportReceipt(receipt(1)),)]


def test_another_tool_may_wait_in_the_place_of_an_aborted_one() -> None:
    run, told = play(execute(1), abort(1), execute(2), abort(2), execute(3), ended(1))

    assert run == Running(execute(3))
    assert told[-1][-1] == Start(execute(3))


def test_the_wait_is_bounded_and_what_is_left_counts_as_leaked() -> None:
    left = QuiesceTimeout(Receipt("t1", 1, (40,), 2_000, leaked=True))
    run, told = play(execute(1), abort(1), execute(2), left, ended(1))

    assert QUIESCE_MS == 2_000
    assert run == Running(execute(2))
    assert told[3:] == [(ReportReceipt(left.receipt), Start(execute(2))), ()]


def test_the_timeout_of_an_earlier_abort_does_not_touch_a_later_one() -> None:
    run, told = play(
        execute(1), abort(1), ended(1), execute(2), QuiesceTimeout(receipt(1)), abort(2), QuiesceTimeout(receipt(1))
    )

    assert run == Quiescing(execute(2))
    assert told[4] == told[6] == ()


def test_a_tool_that_died_before_its_abort_arrived_still_gets_its_receipt_once() -> None:
    aborted = ToolEnded(ToolAborted(1, "t1", 1), receipt(1, 40))
    run, told = play(execute(1), aborted, abort(1), abort(1))

    assert run == Ready()
    assert told[1:] == [(ReportOutcome(ToolAborted(1, "t1", 1)),), (ReportReceipt(receipt(1, 40)),), ()]


def test_a_call_while_one_runs_aborts_it_rather_than_running_beside_it() -> None:
    run, told = play(execute(1), execute(2))

    assert run == Quiescing(execute(1), execute(2))
    assert told[1] == (Kill("t1", 1),)


@pytest.mark.parametrize(
    "run", [Ready(), Running(execute(1)), Quiescing(execute(1)), Quiescing(execute(1), execute(2))]
)
@pytest.mark.parametrize("stale", [abort(9), ended(9), QuiesceTimeout(receipt(9))], ids=lambda one: type(one).__name__)
def test_what_concerns_another_execution_is_ignored(run: ToolRun, stale: Input) -> None:
    step = advance(run, stale)

    assert step.run is run
    assert step.outputs == ()


def test_no_order_of_events_ever_runs_two_tools_or_starts_one_twice() -> None:
    alphabet: tuple[Input, ...] = (
        execute(1), execute(2), abort(1), abort(2), ended(1), ended(2), QuiesceTimeout(receipt(1)),
    )  # fmt: skip
    for events in itertools.permutations(alphabet, 6):
        running: set[int] = set()
        started: list[int] = []
        run: ToolRun = Ready()
        for event in events:
            step = advance(run, event)
            run = step.run
            if isinstance(event, ToolEnded):
                running.discard(event.receipt.execution_id)
            for output in step.outputs:
                if isinstance(output, ReportReceipt):
                    running.discard(output.receipt.execution_id)
                if isinstance(output, Start):
                    assert not running, events
                    running.add(output.call.execution_id)
                    started.append(output.call.execution_id)
        assert len(started) == len(set(started)), events
