"""What the effects of a transition become, and what is tried again later."""

import socket
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from actors import ports
from actors.conversation import creation
from actors.conversation.pipeline import PAUSES_MS, CommitRetries, Prepared
from actors.core import events
from actors.core.content import Text
from actors.core.context import ToolGroup, ToolTraits
from actors.core.effects import (
    AbortLlm,
    AbortTool,
    AwaitToolResult,
    CancelSubAgents,
    ExecuteTool,
    NotifyParent,
    RequestContinuation,
    RequestLlm,
    RetryOf,
    ScheduleRetry,
    SpawnSubAgent,
    StartTimer,
)
from actors.core.errors import ErrorKind
from actors.core.states import AgentSucceeded, AgentTask, Idle, Ledger
from actors.messages import CreateConversationCommand, EffectOutcome, ModelRequestOverdue, ToolsEnded
from actors.runners.effect_executor import EffectExecutor
from actors.runners.llm_runner import ABORT_MS
from actors.runtime.admission import Admission
from actors.runtime.services import Services
from tests.support.patience import PATIENCE, eventually

# Effects: what cannot be performed reports its failure, and a cancel strikes what is about to begin.


REQUEST = RequestLlm("c1:r1", 1, "known", 0)
EXECUTE = ExecuteTool("t1", 1, "tool", "{}")


class Told:
    """What SubAgents was told."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def start(self, parent: ports.ConversationRecord, task: AgentTask) -> None:
        self.heard.append(("start", parent.id, task))

    def cancel(self, agent_ids: Iterable[str], reason: str) -> None:
        self.heard.append(("cancel", *sorted(agent_ids)))

    def abandon(self, agent_ids: Iterable[str]) -> None:
        self.heard.append(("abandon", *sorted(agent_ids)))

    def report_end(self, *told: Any) -> None:
        self.heard.append(("ended", *told))

    def last_text(self, agent_id: str) -> str:
        return f"{agent_id} is nearly there"


class ToolHarness:
    def __init__(self, services: Services, inbox: Any, limit: int = 10) -> None:
        self.models: Any = services.models
        self.tools: Any = services.toolbox.tools  # type: ignore[attr-defined]
        self.instant: set[str] = services.toolbox.instant  # type: ignore[attr-defined]
        self.timers = services.timers
        self.admission = Admission(limit)
        self.inbox = inbox
        self.sub_agents = Told()
        self.executor = EffectExecutor(services, self.admission, inbox, self.sub_agents)  # type: ignore[arg-type]
        record, commit = creation.new_conversation(services, "c1", CreateConversationCommand("p", "/tmp"), 1)
        services.store.commit(commit)
        self.context = services.context_of(record)
        self.record = record
        self.live(1)
        self.models.answer = at_once  # type: ignore[attr-defined]

    def live(self, run: int) -> ports.ConversationRecord:
        self.record = msgspec.structs.replace(self.record, state=Idle(Ledger(run=run, live=run > 0)))
        return self.record

    def perform(self, effect: Any) -> None:
        self.executor.perform(effect, self.record, self.context)

    def outcomes(self, count: int = 1) -> list[Any]:
        return [told.event for told in self.inbox.wait_for(EffectOutcome, count)]


def at_once(request: ports.ModelRequest, sink: ports.ModelSink, cancel: ports.CancelToken) -> ports.ModelAnswer:
    return ports.ModelAnswer((Text("hi"),), True)


@pytest.fixture
def harness(services: Services, inbox: Any) -> Any:
    made = ToolHarness(services, inbox)
    yield made
    made.executor.stop_runners()


def test_a_call_that_only_computes_is_computed_unless_its_run_is_cancelled(harness: ToolHarness) -> None:
    harness.tools["tool"] = lambda context: ports.ToolOutput("out")
    harness.instant.add("tool")
    context = msgspec.structs.replace(harness.context, tools=(ToolTraits("tool", ToolGroup.OTHER),))
    for cancelled in (False, True):
        if cancelled:
            harness.executor.cancel_run_now(ports.live_run(harness.record))
        outcome = harness.executor.compute(EXECUTE, harness.record, context)
        assert (outcome is None) == cancelled
    harness.perform(EXECUTE)
    assert isinstance(harness.outcomes()[0], events.ToolAborted)


class Patient:
    """A model that answers when the test lets it, or is cancelled."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def __call__(
        self, request: ports.ModelRequest, sink: ports.ModelSink, cancel: ports.CancelToken
    ) -> ports.ModelAnswer:
        cancel.on_cancel(self.go.release)
        self.begun.release()
        assert self.go.acquire(timeout=PATIENCE)
        return ports.ModelAnswer((Text("hi"),), True)


def test_a_request_is_made_with_the_tools_and_a_summary_without(harness: ToolHarness) -> None:
    seen: list[ports.ModelRequest] = []

    def answer(request: ports.ModelRequest, sink: ports.ModelSink, cancel: ports.CancelToken) -> ports.ModelAnswer:
        seen.append(request)
        return ports.ModelAnswer((Text("hi"),), True)

    harness.models.answer = answer
    harness.tools["tool"] = lambda context: ports.ToolOutput("")
    harness.perform(REQUEST)
    harness.outcomes()
    harness.perform(RequestContinuation("c1:r2", 1, "known", 0, ("bash",)))
    harness.outcomes(2)
    assert [[spec.name for spec in request.tools] for request in seen] == [["tool"], []]
    assert [request.system for request in seen] == [harness.record.system_prompt] * 2


def test_a_model_that_is_not_served_is_never_replaced(harness: ToolHarness) -> None:
    harness.perform(RequestLlm("c1:r1", 1, "gone", 0))
    (error,) = harness.outcomes()
    assert isinstance(error, events.LlmError)
    assert error.error.kind is ErrorKind.INVALID_REQUEST
    assert "'gone'" in error.error.message


def test_without_a_thread_the_request_fails_for_now_and_its_place_is_free(
    services: Services, inbox: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = ToolHarness(services, inbox, limit=1)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    harness.perform(REQUEST)
    harness.perform(EXECUTE)
    monkeypatch.undo()
    error, transient = harness.outcomes(2)
    assert error.error.retryable
    assert isinstance(transient, events.ToolTransient)
    assert not transient.begun
    assert harness.executor.all_stopped
    assert harness.admission.acquire() == ""


def test_an_urgent_cancel_stops_running_and_not_yet_started_work_of_its_run(harness: ToolHarness) -> None:
    begun: list[str] = []

    def tool(context: ports.ToolContext) -> ports.ToolOutput:
        begun.append("tool")
        return ports.ToolOutput("done")

    harness.tools["tool"] = tool
    patient = harness.models.answer = Patient()
    harness.perform(REQUEST)
    assert patient.begun.acquire(timeout=PATIENCE)
    work = harness.executor.in_flight
    assert work is not None
    assert work.run == "c1:1"
    harness.executor.cancel_now(work)
    assert isinstance(harness.outcomes()[0], events.LlmAborted)
    harness.perform(EXECUTE)
    assert isinstance(harness.outcomes(2)[1], events.ToolAborted)
    assert begun == []
    harness.live(2)
    harness.perform(replace_id(EXECUTE))
    assert isinstance(harness.outcomes(3)[2], events.ToolComplete)


def replace_id(effect: ExecuteTool) -> ExecuteTool:
    return msgspec.structs.replace(effect, execution_id=effect.execution_id + 1)


def test_a_pulled_summary_does_not_strike_the_next_one(harness: ToolHarness) -> None:
    harness.live(0)
    summary = RequestContinuation("c1:r1", 1, "known", 0, ())
    harness.perform(summary)
    harness.outcomes()
    work = harness.executor.in_flight
    assert work is not None
    assert work.run == ""
    harness.executor.cancel_now(work)
    harness.perform(msgspec.structs.replace(summary, request_id="c1:r2"))
    assert isinstance(harness.outcomes(2)[1], events.LlmResponse)


def test_the_requests_of_a_conversation_share_a_thread(harness: ToolHarness) -> None:
    threads: list[threading.Thread] = []

    def answer(request: ports.ModelRequest, sink: ports.ModelSink, cancel: ports.CancelToken) -> ports.ModelAnswer:
        threads.append(threading.current_thread())
        return ports.ModelAnswer((Text("hi"),), True)

    harness.models.answer = answer
    for attempt in (1, 2):
        harness.perform(RequestLlm("c1:r1", attempt, "known", 0))
        harness.outcomes(attempt)
    assert threads[0] is threads[1]
    harness.executor.stop_runners()
    threads[0].join(PATIENCE)
    assert not threads[0].is_alive()


def test_a_runner_that_does_not_come_back_after_a_cancel_is_replaced_and_ends_when_it_does(
    harness: ToolHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving, resolved = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def resolve(*_: object) -> Any:
        resolving.set()
        assert resolved.wait(PATIENCE)
        raise socket.gaierror(socket.EAI_AGAIN, "try again")

    def answer(request: ports.ModelRequest, sink: ports.ModelSink, cancel: ports.CancelToken) -> ports.ModelAnswer:
        threads.append(threading.current_thread())
        if request.attempt == 1:
            socket.getaddrinfo("api.example.com", 443)
        return ports.ModelAnswer((Text("hi"),), True)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    harness.models.answer = answer
    harness.perform(REQUEST)
    assert resolving.wait(PATIENCE)
    harness.perform(AbortLlm("c1:r1"))
    harness.perform(RequestLlm("c1:r1", 2, "known", 0))
    (overdue,) = harness.inbox.wait_for(ModelRequestOverdue)
    assert harness.inbox.of(EffectOutcome) == [], "the next request waits for the first one until it is overdue"
    harness.executor.replace_llm_runner(overdue.request)
    (answered,) = harness.outcomes()
    assert isinstance(answered, events.LlmResponse)
    assert threads[0] is not threads[1]
    harness.executor.replace_llm_runner(overdue.request)
    resolved.set()
    threads[0].join(PATIENCE)
    assert not threads[0].is_alive()
    assert harness.outcomes(2)[1] == events.LlmAborted(1_000, "c1:r1", 1)
    eventually(lambda: harness.admission.in_flight == 0, "both slots are free")
    harness.executor.replace_llm_runner(overdue.request)
    harness.perform(RequestLlm("c1:r1", 3, "known", 0))
    assert isinstance(harness.outcomes(3)[2], events.LlmResponse)


def test_a_cancelled_request_that_ends_in_time_keeps_its_runner(harness: ToolHarness) -> None:
    patient = harness.models.answer = Patient()
    harness.perform(REQUEST)
    assert patient.begun.acquire(timeout=PATIENCE)
    harness.perform(AbortLlm("c1:r1"))
    harness.outcomes()
    passed = threading.Event()
    eventually(lambda: harness.admission.in_flight == 0, "the request has ended")
    harness.timers.after(ABORT_MS + 1, passed.set)
    assert passed.wait(PATIENCE)
    assert not harness.inbox.of(ModelRequestOverdue)


def test_when_idle_there_is_no_work_and_the_tools_have_ended(harness: ToolHarness) -> None:
    harness.tools["tool"] = lambda context: ports.ToolOutput("done")
    harness.perform(EXECUTE)
    harness.outcomes()
    assert not harness.executor.all_stopped
    harness.executor.on_idle()
    assert harness.executor.in_flight is None
    (first,) = harness.inbox.wait_for(ToolsEnded)
    harness.executor.tools_ended(first.call)
    assert harness.executor.all_stopped
    harness.executor.on_idle()
    harness.perform(replace_id(EXECUTE))
    assert harness.outcomes(2)[1].execution_id == 2
    assert len(harness.inbox.of(ToolsEnded)) == 1, "there was nothing to end"
    harness.executor.tools_ended(first.call)
    assert not harness.executor.all_stopped, "that was the call before"


def test_a_tool_after_the_runner_has_failed_gets_another_one(harness: ToolHarness) -> None:
    harness.tools["tool"] = lambda context: ports.ToolOutput("done")
    harness.perform(EXECUTE)
    harness.outcomes()
    runner = harness.executor._tool_runner
    assert runner is not None
    assert runner.stop(timeout=PATIENCE)
    harness.executor.on_idle()
    assert harness.executor.all_stopped
    harness.perform(replace_id(EXECUTE))
    assert harness.outcomes(2)[1].execution_id == 2


def test_timers_bring_the_events_that_they_were_set_for(harness: ToolHarness) -> None:
    harness.perform(ScheduleRetry(0, 2, RetryOf.LLM, request_id="c1:r1"))
    harness.perform(ScheduleRetry(0, 3, RetryOf.TOOL, tool_use_id="t1", execution_id=4))
    harness.perform(StartTimer(0, "c1:1"))
    assert harness.outcomes(3) == [
        events.RetryTimeout(1_000, "c1:r1", 2),
        events.ToolRetryTimeout(1_000, "t1", 4, 3),
        events.CancelTimeout(1_000, "c1:1"),
    ]
    assert [told.urgent for told in harness.inbox.of(EffectOutcome)] == [False, False, True]


@pytest.mark.parametrize("then", [REQUEST, EXECUTE, AwaitToolResult("t2", 5, 10**9), None])
def test_a_wait_that_is_over_keeps_no_timer(harness: ToolHarness, then: Any) -> None:
    harness.tools["tool"] = lambda context: ports.ToolOutput("done")
    harness.perform(AwaitToolResult("t1", 4, 10**8))
    (timer,) = harness.timers._due
    if then is None:
        harness.executor.on_idle()
    else:
        harness.perform(then)
    assert timer not in harness.timers._due


def test_aborting_a_tool_when_none_ever_ran_is_nothing(harness: ToolHarness) -> None:
    harness.perform(AbortTool("t1", 1))
    assert harness.executor.all_stopped


TASK = AgentTask("c1-a1", "look", "/tmp", "known", 20, 60_000)


def test_remaining_sub_agents_of_an_idle_parent_is_stopped_once_and_waited_for(harness: ToolHarness) -> None:
    for number in (1, 2):
        harness.perform(SpawnSubAgent(replace_task(number), 60_000))
    harness.perform(CancelSubAgents(("c1-a1",)))
    harness.executor.on_idle()
    harness.executor.on_idle()
    assert harness.sub_agents.heard[2:] == [("cancel", "c1-a1"), ("abandon", "c1-a2")]
    for number in (1, 2):
        assert not harness.executor.all_stopped
        harness.executor.sub_agent_stopped(f"c1-a{number}")
    assert harness.executor.all_stopped


def replace_task(number: int) -> AgentTask:
    return msgspec.structs.replace(TASK, agent_id=f"c1-a{number}")


def test_a_run_that_is_pulled_begins_nothing_any_more(harness: ToolHarness) -> None:
    asked: list[ports.ModelRequest] = []

    def answer(request: ports.ModelRequest, sink: ports.ModelSink, cancel: ports.CancelToken) -> ports.ModelAnswer:
        asked.append(request)
        return ports.ModelAnswer((Text("hi"),), True)

    harness.models.answer = answer
    harness.executor.cancel_run_now("c1:1")
    harness.perform(REQUEST)
    assert harness.outcomes() == [events.LlmAborted(1_000, "c1:r1", 1)]
    assert asked == []


class Points:
    def __init__(self) -> None:
        self.passed: list[str] = []

    def hit(self, point: str) -> None:
        self.passed.append(point)


def test_every_effect_has_a_fault_point_before_and_behind_it(services: Services, inbox: Any) -> None:
    points = Points()
    harness = ToolHarness(replace(services, faults=points), inbox)
    effects = [REQUEST, AbortLlm("c1:r1"), StartTimer(0, "c1:1"), NotifyParent(AgentSucceeded("42"))]
    for effect in effects:
        harness.perform(effect)
    names = [type(effect).__name__ for effect in effects]
    assert points.passed == [f"effect.{when}.{name}" for name in names for when in ("before", "after")]


# The retry queue: nothing is lost while the store fails, and the order is kept.


class OpenedStore:
    """A store that a test opens and closes, and the timers that it owns."""

    def __init__(self) -> None:
        self.open = True
        self.applied: list[str] = []
        self.pauses: list[int] = []
        self.together = 1
        """How many entries share a commit."""
        self.tried: list[tuple[str, ...]] = []
        self.queue: CommitRetries[str] = CommitRetries("c1", self.prepare, self.pauses.append)

    def prepare(self, entries: Sequence[str]) -> Prepared:
        shared = tuple(entries[: self.together])
        if shared[0] == "bug":
            raise ZeroDivisionError if self.open else ports.StoreUnavailableError("disk full")
        return Prepared(len(shared), lambda: self.commit(shared))

    def commit(self, entries: tuple[str, ...]) -> None:
        self.tried.append(entries)
        if not self.open:
            raise ports.StoreUnavailableError("disk full")
        if "late bug" in entries:
            raise ZeroDivisionError
        self.applied += entries

    def take(self, entry: str) -> bool:
        return self.queue.enqueue(entry)


def test_while_the_store_works_everything_passes_straight_through() -> None:
    harness = OpenedStore()
    assert harness.take("a")
    assert harness.take("b")
    assert harness.applied == ["a", "b"]
    assert not harness.queue
    assert harness.pauses == []


def test_what_is_refused_waits_and_keeps_its_order() -> None:
    harness = OpenedStore()
    harness.open = False
    assert not harness.take("a")
    assert not harness.take("b")
    assert list(harness.queue) == ["a", "b"]
    harness.open = True
    assert harness.take("c")
    assert harness.applied == ["a", "b", "c"]


def test_the_pauses_grow_to_a_bound_and_one_timer_is_set_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    harness = OpenedStore()
    harness.open = False
    harness.take("a")
    harness.take("b")
    assert harness.pauses == [PAUSES_MS[0]]
    for _ in range(len(PAUSES_MS) + 1):
        harness.queue.retry()
    assert harness.pauses == [*PAUSES_MS, PAUSES_MS[-1], PAUSES_MS[-1]]
    assert [record.levelname for record in caplog.records].count("CRITICAL") == 1
    harness.open = True
    harness.queue.retry()
    assert harness.applied == ["a", "b"]
    harness.open = False
    harness.take("c")
    assert harness.pauses[-1] == PAUSES_MS[0]


def test_what_was_put_off_is_tried_again_once_as_the_first_or_the_last() -> None:
    harness = OpenedStore()
    harness.open = False
    harness.take("a")
    harness.queue.requeue("cancel", first=True)
    harness.queue.requeue("doubt")
    harness.queue.requeue("doubt")
    assert list(harness.queue) == ["cancel", "a", "doubt"]
    assert len(harness.pauses) == 1
    harness.open = True
    harness.queue.retry()
    assert harness.applied == ["cancel", "a", "doubt"]


def test_an_entry_that_cannot_be_applied_is_dropped_and_the_others_are_kept() -> None:
    harness = OpenedStore()
    harness.open = False
    harness.take("bug")
    harness.take("b")
    harness.open = True
    with pytest.raises(ZeroDivisionError):
        harness.queue.flush()
    assert list(harness.queue) == ["b"]
    assert harness.pauses
    harness.queue.retry()
    assert harness.applied == ["b"]
    assert not harness.queue


def test_what_is_cleared_is_tried_no_more() -> None:
    harness = OpenedStore()
    harness.open = False
    harness.take("a")
    harness.queue.clear()
    harness.open = True
    harness.queue.retry()
    assert harness.applied == []


def test_entries_that_share_a_commit_are_refused_together_and_committed_again_as_they_were() -> None:
    harness = OpenedStore()
    harness.together = 3
    harness.open = False
    harness.queue.enqueue("a", "b")
    harness.take("c")
    harness.open = True
    harness.take("d")
    assert harness.tried == [("a", "b"), ("a", "b"), ("a", "b"), ("c", "d")]
    assert harness.applied == ["a", "b", "c", "d"]


def test_what_is_put_before_refused_entries_is_committed_before_them() -> None:
    harness = OpenedStore()
    harness.together = 2
    harness.open = False
    harness.queue.enqueue("a", "b")
    harness.queue.requeue("cancel", first=True)
    harness.together = 1
    harness.open = True
    harness.queue.retry()
    assert harness.applied == ["cancel", "a", "b"]


def test_a_commit_that_breaks_takes_its_entries_with_it_and_no_others() -> None:
    harness = OpenedStore()
    harness.together = 2
    with pytest.raises(ZeroDivisionError):
        harness.queue.enqueue("late bug", "b", "c")
    assert list(harness.queue) == ["c"]
    harness.queue.retry()
    assert harness.applied == ["c"]


def test_entries_that_were_refused_together_are_not_joined_by_others_if_some_are_committed_before() -> None:
    harness = OpenedStore()
    harness.open, harness.together = False, 2
    for entry in "ab":
        harness.queue.requeue(entry)
    harness.queue.retry()
    assert harness.tried == [("a", "b")]
    harness.queue.requeue("c")
    harness.open, harness.together = True, 1
    prepare = harness.prepare

    def two_at_most(entries: Sequence[str]) -> Prepared:
        prepared = prepare(entries)
        harness.together = 2
        return prepared

    harness.queue._prepare = two_at_most
    harness.queue.retry()
    assert harness.tried[-3:] == [("a",), ("b",), ("c",)]
