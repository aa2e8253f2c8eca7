"""The tool runner's small machine (C2): one tool at a time, and a barrier behind a killed one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.core.effects import AbortTool, ExecuteTool
from actors.core.events import ToolAborted
from actors.core.tool_run import (
    Input,
    KillReceipt,
    KillTool,
    Output,
    QuiesceTimeout,
    Quiescing,
    Ready,
    ReportOutcome,
    ReportReceipt,
    Running,
    StartTool,
    ToolEnded,
    ToolRun,
    advance,
)


def call(number: int) -> ExecuteTool:
    return ExecuteTool(f"t{number}", number, "bash", "{}")


def abort(number: int) -> AbortTool:
    return AbortTool(f"t{number}", number)


def receipt(number: int, *, leaked: bool = False) -> KillReceipt:
    return KillReceipt(f"t{number}", number, (4711,), 3, leaked)


def ended(number: int) -> ToolEnded:
    return ToolEnded(ToolAborted(0, f"t{number}", number), receipt(number))


def timeout(number: int) -> QuiesceTimeout:
    return QuiesceTimeout(receipt(number, leaked=True))


CASES: list[tuple[str, ToolRun, Input, ToolRun, tuple[Output, ...]]] = [
    ("the first tool starts", Ready(), call(1), Running(call(1)), (StartTool(call(1)),)),
    ("the end of one is remembered", Running(call(1)), ended(1), Ready(receipt(1)), (ReportOutcome(ended(1).outcome),)),
    ("the next starts", Ready(receipt(1)), call(2), Running(call(2)), (StartTool(call(2)),)),
    ("an abort kills", Running(call(1)), abort(1), Quiescing(call(1)), (KillTool("t1", 1),)),
    ("an abort that comes late gets its receipt", Ready(receipt(1)), abort(1), Ready(), (ReportReceipt(receipt(1)),)),
    ("the next tool waits", Quiescing(call(1)), call(2), Quiescing(call(1), call(2)), ()),
    ("what waits can be aborted", Quiescing(call(1), call(2)), abort(2), Quiescing(call(1)), ()),
    ("the last one to ask waits", Quiescing(call(1), call(2)), call(3), Quiescing(call(1), call(3)), ()),
    ("all are dead", Quiescing(call(1)), ended(1), Ready(), (ReportReceipt(receipt(1)),)),
    (
        "all are dead, the next starts",
        Quiescing(call(1), call(2)),
        ended(1),
        Running(call(2)),
        (ReportReceipt(receipt(1)), StartTool(call(2))),
    ),
    (
        "some do not die in time",
        Quiescing(call(1), call(2)),
        timeout(1),
        Running(call(2)),
        (ReportReceipt(receipt(1, leaked=True)), StartTool(call(2))),
    ),
    (
        "one that was given up without a word is killed",
        Running(call(1)),
        call(2),
        Quiescing(call(1), call(2)),
        (KillTool("t1", 1),),
    ),
]


@pytest.mark.parametrize(("run", "event", "after", "outputs"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_what_concerns_the_runner(run: ToolRun, event: Input, after: ToolRun, outputs: tuple[Output, ...]) -> None:
    step = advance(run, event)
    assert (step.run, step.outputs) == (after, outputs)


@pytest.mark.parametrize("run", [Ready(), Ready(receipt(1)), Running(call(1)), Quiescing(call(1), call(2))])
@pytest.mark.parametrize("event", [abort(9), ended(9), timeout(9)])
def test_what_concerns_another_execution_is_ignored(run: ToolRun, event: Input) -> None:
    step = advance(run, event)
    assert step.run is run
    assert step.outputs == ()


@pytest.mark.parametrize("event", [ended(1), timeout(1)])
def test_what_comes_twice_counts_once(event: Input) -> None:
    step = advance(Quiescing(call(1)), event)
    assert advance(step.run, event) == type(step)(step.run)


def test_another_attempt_of_the_same_call_is_another_execution() -> None:
    again = ExecuteTool("t1", 2, "bash", "{}", 2)
    step = advance(Running(again), ended(1))
    assert step.outputs == ()


class World:
    """Workers that live and die, and a conversation that asks; remembers what it was told."""

    def __init__(self) -> None:
        self.run: ToolRun = Ready()
        self.alive: list[int] = []
        self.leaked: list[int] = []
        self.asked: list[int] = []
        self.started: list[int] = []
        self.aborted: set[int] = set()
        self.killed: list[int] = []
        self.outcomes: list[int] = []
        self.receipts: list[int] = []

    def give(self, event: Input) -> None:
        before = self.run
        step = advance(before, event)
        if not step.outputs:
            assert step.run is before or isinstance(step.run, Quiescing)
        self.run = step.run
        for output in step.outputs:
            self._take(output)

    def _take(self, output: Output) -> None:
        match output:
            case StartTool(call=started):
                assert self.alive == [], "two tools at once"
                self.alive.append(started.execution_id)
                self.started.append(started.execution_id)
            case KillTool(execution_id=number):
                assert number in self.alive
                self.killed.append(number)
            case ReportOutcome(outcome=outcome):
                assert outcome.execution_id not in self.killed
                self.outcomes.append(outcome.execution_id)
            case ReportReceipt(receipt=reported):
                assert reported.execution_id in self.aborted
                assert reported.execution_id not in self.receipts
                assert reported.leaked == (reported.execution_id in self.leaked)
                self.receipts.append(reported.execution_id)

    def execute(self) -> None:
        """The conversation gives up what it asked for before, if it has not heard of its end."""
        number = len(self.asked) + 1
        self.aborted |= set(self.asked) - set(self.outcomes)
        self.asked.append(number)
        self.give(call(number))

    def abort(self, number: int) -> None:
        if number in self.asked:
            self.aborted.add(number)
        self.give(abort(number))

    def end(self) -> None:
        if self.alive:
            self.give(ended(self.alive.pop()))

    def time_out(self) -> None:
        """Only those that were killed are waited for."""
        if self.alive and self.alive[0] in self.killed:
            self.leaked.append(self.alive.pop())
            self.give(timeout(self.leaked[-1]))

    def late(self) -> None:
        """A leaked worker returns after all."""
        for number in self.leaked:
            self.give(ended(number))


moves = st.lists(
    st.one_of(
        st.sampled_from(["execute", "end", "time_out", "late", "abort last"]),
        st.integers(1, 8),
    ),
    max_size=25,
)


@settings(max_examples=200)
@given(moves)
def test_never_two_at_once_every_kill_has_its_receipt_and_no_caller_waits_for_ever(script: list[str | int]) -> None:
    world = World()
    for move in script:
        match move:
            case "execute":
                world.execute()
            case "end":
                world.end()
            case "time_out":
                world.time_out()
            case "late":
                world.late()
            case "abort last":
                world.abort(len(world.asked))
            case int():
                world.abort(move)
            case _:
                raise AssertionError(move)
    while world.alive:
        world.end()
    assert isinstance(world.run, Ready)
    assert set(world.receipts) >= set(world.killed)
    assert set(world.outcomes).isdisjoint(world.killed)
    unstarted = set(world.asked) - set(world.started)
    assert unstarted <= world.aborted
    assert set(world.started) == set(world.outcomes) | set(world.killed)
    assert world.started == sorted(world.started)
