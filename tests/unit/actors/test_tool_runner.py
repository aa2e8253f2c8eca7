"""The tool runner: every call ends in an outcome, every kill in a receipt, two tools never at once."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from actors import ports
from actors.core import tool_run
from actors.core.content import ToolError, ToolSuccess
from actors.core.context import ConvContext, ToolGroup, ToolTraits
from actors.core.effects import AbortTool, ExecuteTool
from actors.core.events import ToolAborted, ToolComplete, ToolTransient
from actors.core.tool_run import KillReceipt
from actors.messages import EffectOutcome, ToolsEnded
from actors.runners.side_queries import SideQueries
from actors.runners.tool_runner import EndTools, RunTool, ToolRights, ToolRunner, computed
from actors.runtime.actor import tell
from actors.runtime.admission import Admission
from actors.runtime.services import Services, SystemClock
from tests.support import samples
from tests.support.patience import PATIENCE

CONTEXT = ConvContext(
    "c1", "/tmp", "known", 1_000, tools=tuple(ToolTraits(name, ToolGroup.OTHER) for name in ("tool", "next", "stuck"))
)


class Shop:
    """A runner, the tools that it runs, and the conversation that hears of them."""

    def __init__(self, services: Services, inbox: Any) -> None:
        self.services = services
        self.inbox = inbox
        self.tools: dict[str, Callable[[ports.ToolContext], ports.ToolOutput]] = services.toolbox.tools  # type: ignore[attr-defined]
        self.runner = ToolRunner.start(services, inbox, SideQueries(services, Admission(1)))
        self.calls = 0
        self.rights = ToolRights()

    def execute(self, name: str = "tool", cancel: ports.CancelToken | None = None) -> ports.CancelToken:
        self.calls += 1
        token = cancel or ports.CancelToken()
        effect = ExecuteTool(f"t{self.calls}", self.calls, name, "{}")
        self.last = RunTool(effect, "local", CONTEXT, token, self.rights)
        assert tell(self.runner, self.last)
        return token

    def abort(self, number: int) -> None:
        tell(self.runner, AbortTool(f"t{number}", number))

    def outcomes(self, count: int = 1) -> list[Any]:
        return [told.event for told in self.inbox.wait_for(EffectOutcome, count)]

    def receipts(self, count: int = 1) -> list[KillReceipt]:
        return list(self.inbox.wait_for(KillReceipt, count))

    def end(self) -> None:
        tell(self.runner, EndTools())

    def all_ended(self) -> bool:
        return ToolsEnded(self.last) in self.inbox.wait_for(ToolsEnded)


@pytest.fixture
def shop(services: Services, inbox: Any) -> Any:
    made = Shop(services, inbox)
    yield made
    assert made.runner.stop(timeout=PATIENCE)


class Stuck:
    """A tool that ends when it is cancelled, or when the test lets it; it dies only when the test lets it."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.finish = threading.Event()
        self.die = threading.Event()

    def __call__(self, context: ports.ToolContext) -> ports.ToolOutput:
        context.cancel.on_cancel(self.finish.set)
        self.begun.set()
        assert self.finish.wait(PATIENCE)
        if context.cancel.cancelled:
            assert self.die.wait(PATIENCE)
            context.reaped((30, 10))
            context.reaped((20,))
        return ports.ToolOutput("done")


def fail(error: BaseException) -> Callable[[ports.ToolContext], ports.ToolOutput]:
    def run(context: ports.ToolContext) -> ports.ToolOutput:
        raise error

    return run


CALL = ExecuteTool("t1", 1, "tool", "{}")


def test_an_instant_tool_is_computed_with_the_same_outcome_each_time(services: Services) -> None:
    box: Any = services.toolbox
    box.tools["tool"] = lambda context: ports.ToolOutput(str(context.mode), is_error=True, display="shown")
    record = samples.record(updated_at=7)
    assert computed(services, CALL, record, CONTEXT) is None, "a tool that is not instant needs the runner"
    box.instant.add("tool")
    outcomes = [computed(services, CALL, record, CONTEXT) for _ in range(2)]
    assert outcomes == [ToolComplete(7, "t1", 1, ToolError("t1", "unrestricted", display="shown"))] * 2


@pytest.mark.parametrize(
    "run", [lambda context: context.on_output("more than a result"), lambda context: 1 / 0], ids=["acts", "fails"]
)
def test_a_call_that_cannot_be_computed_is_left_to_the_runner(shop: Shop, run: Any) -> None:
    shop.tools["tool"] = run
    shop.services.toolbox.instant.add("tool")  # type: ignore[attr-defined]
    assert computed(shop.services, CALL, samples.record(), CONTEXT) is None
    for number in (1, 2):
        shop.execute()
        assert isinstance(shop.outcomes(number)[-1], ToolComplete)


def test_a_tool_runs_in_its_conversations_directory_and_answers(shop: Shop) -> None:
    seen: list[ports.ToolContext] = []

    def run(context: ports.ToolContext) -> ports.ToolOutput:
        seen.append(context)
        return ports.ToolOutput("out", display="{}")

    shop.tools["tool"] = run
    shop.execute()
    (outcome,) = shop.outcomes()
    assert isinstance(outcome, ToolComplete)
    assert (outcome.tool_use_id, outcome.execution_id) == ("t1", 1)
    assert isinstance(outcome.result, ToolSuccess)
    assert (outcome.result.output, outcome.result.display) == ("out", "{}")
    assert (seen[0].working_directory, seen[0].conversation_id) == ("/tmp", "c1")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ports.SandboxUnavailableError("no Landlock"), "Not run: no Landlock"),
        (ZeroDivisionError("a bug"), "The tool failed because of an internal error."),
        (SystemExit(3), "The tool failed because of an internal error."),
    ],
)
def test_a_tool_that_raises_gives_an_error_result(shop: Shop, error: BaseException, text: str) -> None:
    shop.tools["tool"] = fail(error)
    shop.execute()
    (outcome,) = shop.outcomes()
    assert outcome.result == ToolError("t1", text)


def test_an_error_of_the_tool_is_a_result(shop: Shop) -> None:
    shop.tools["tool"] = lambda context: ports.ToolOutput("no such file", is_error=True)
    shop.execute()
    (outcome,) = shop.outcomes()
    assert isinstance(outcome.result, ToolError)
    assert outcome.result.output == "no such file"


def test_an_unknown_tool_and_an_invalid_input_are_error_results(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.execute("nonsense")
    assert "nonsense" in shop.outcomes()[0].result.output

    def parse(name: str, raw: str) -> Any:
        raise ports.InvalidToolInputError("cmd is missing")

    monkeypatch.setattr(shop.services.toolbox, "parse", parse)
    shop.execute()
    assert shop.outcomes(2)[1].result == ToolError("t2", "cmd is missing")


@pytest.mark.parametrize("begun", [True, False])
def test_a_failure_of_the_infrastructure_says_whether_the_tool_had_begun(shop: Shop, begun: bool) -> None:
    shop.tools["tool"] = fail(ports.ToolTransientError("worker lost", begun=begun))
    shop.execute()
    (outcome,) = shop.outcomes()
    assert isinstance(outcome, ToolTransient)
    assert (outcome.message, outcome.begun) == ("worker lost", begun)


def test_a_killed_tool_gives_a_receipt_and_no_outcome(shop: Shop) -> None:
    stuck = shop.tools["tool"] = Stuck()
    shop.execute()
    assert stuck.begun.wait(PATIENCE)
    shop.abort(1)
    assert stuck.finish.wait(PATIENCE)
    assert shop.inbox.messages == []
    stuck.die.set()
    (receipt,) = shop.receipts()
    assert (receipt.tool_use_id, receipt.execution_id, receipt.pids, receipt.leaked) == ("t1", 1, (10, 20, 30), False)
    assert shop.inbox.of(EffectOutcome) == []


def test_one_that_died_before_the_abort_arrived_still_gives_its_receipt(shop: Shop) -> None:
    stuck = shop.tools["tool"] = Stuck()
    stuck.die.set()
    token = shop.execute()
    assert stuck.begun.wait(PATIENCE)
    token.cancel()
    assert isinstance(shop.outcomes()[0], ToolAborted)
    shop.abort(1)
    assert shop.receipts()[0].pids == (10, 20, 30)


def test_the_receipt_counts_from_the_kill(services: Services, inbox: Any) -> None:
    class Clock(SystemClock):
        seconds = 100.0

        def monotonic(self) -> float:
            return self.seconds

    clock = Clock()
    shop = Shop(replace(services, clock=clock), inbox)
    stuck = shop.tools["tool"] = Stuck()
    token = shop.execute()
    assert stuck.begun.wait(PATIENCE)
    clock.seconds = 200.0
    token.cancel()
    clock.seconds = 200.25
    stuck.die.set()
    shop.abort(1)
    assert shop.receipts()[0].milliseconds == 250
    shop.end()
    assert shop.all_ended()


def test_tracked_processes_are_killed_even_if_one_of_them_resists(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    killed: list[str] = []

    class Process:
        def __init__(self, name: str) -> None:
            self.name = name

        def kill(self) -> None:
            if self.name == "a":
                raise OSError("already gone")
            killed.append(self.name)

        def signal(self, number: int) -> None:
            raise AssertionError

        def wait(self) -> Any:
            raise AssertionError

    stuck = Stuck()
    stuck.die.set()

    def run(context: ports.ToolContext) -> ports.ToolOutput:
        for name in "abc":
            context.track(Process(name))
        return stuck(context)

    shop.tools["tool"] = run
    token = shop.execute()
    assert stuck.begun.wait(PATIENCE)
    token.cancel()
    shop.outcomes()
    assert killed == ["b", "c"]
    assert "could not be stopped" in caplog.text


def test_the_end_is_reported_when_all_kills_are_confirmed(shop: Shop) -> None:
    stuck = shop.tools["tool"] = Stuck()
    shop.execute()
    assert stuck.begun.wait(PATIENCE)
    shop.abort(1)
    shop.end()
    assert stuck.finish.wait(PATIENCE)
    assert not shop.inbox.of(ToolsEnded)
    stuck.die.set()
    assert shop.all_ended()
    assert [type(message) for message in shop.inbox.messages] == [KillReceipt, ToolsEnded]


def test_an_end_kills_abandoned_programs_without_a_report(shop: Shop) -> None:
    stuck = shop.tools["tool"] = Stuck()
    stuck.die.set()
    shop.execute()
    assert stuck.begun.wait(PATIENCE)
    shop.end()
    assert shop.all_ended()
    assert stuck.finish.is_set()


def test_a_tool_that_comes_before_the_end_is_run_and_ended_later(shop: Shop) -> None:
    first = shop.tools["tool"] = Stuck()
    shop.execute()
    assert first.begun.wait(PATIENCE)
    shop.abort(1)
    shop.end()
    shop.tools["next"] = lambda context: ports.ToolOutput("next")
    shop.execute("next")
    first.die.set()
    assert shop.outcomes()[0].tool_use_id == "t2"
    assert not shop.inbox.of(ToolsEnded)
    shop.end()
    assert shop.all_ended()


def test_a_bug_in_the_runner_is_an_outcome_too(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def advance(run: object, event: object) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(tool_run, "advance", advance)
    token = shop.execute()
    (outcome,) = shop.outcomes()
    assert isinstance(outcome.result, ToolError)
    assert token.cancelled
    monkeypatch.undo()
    shop.tools["tool"] = lambda context: ports.ToolOutput("fine again")
    shop.execute()
    assert shop.outcomes(2)[1].tool_use_id == "t2"


def test_output_stops_with_the_cancel(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, str, str]] = []
    monkeypatch.setattr(shop.services.bus, "tool_output", lambda *args: shown.append(args))
    said, cancelled = threading.Event(), threading.Event()

    def run(context: ports.ToolContext) -> ports.ToolOutput:
        context.on_output("before")
        said.set()
        assert cancelled.wait(PATIENCE)
        context.on_output("after")
        return ports.ToolOutput("done")

    shop.tools["tool"] = run
    token = shop.execute()
    assert said.wait(PATIENCE)
    token.cancel()
    cancelled.set()
    shop.outcomes()
    assert shown == [("c1", "t1", "before")]
