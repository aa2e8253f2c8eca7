"""Effects: what cannot be performed reports its failure, and a cancel strikes what is about to begin."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from actors.conversation import settings
from actors.core.content import Text, Usage
from actors.core.effects import (
    AbortLlm,
    AbortTool,
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
from actors.core.events import (
    CancelTimeout,
    LlmAborted,
    LlmError,
    LlmResponse,
    RetryTimeout,
    SubAgentTimeout,
    ToolAborted,
    ToolComplete,
    ToolRetryTimeout,
    ToolTransient,
)
from actors.core.states import AgentSucceeded, AgentTask, Idle, Ledger
from actors.messages.commands import CreateConversationCommand
from actors.messages.outcomes import EffectOutcome, ToolRunnerStopped
from actors.ports import CancelToken, ConversationRecord, ModelAnswer, ModelRequest, ModelSink, ToolContext, ToolOutput
from actors.runners.effect_executor import EffectExecutor
from actors.runtime.admission import Admission

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.runtime.services import Services

PATIENCE = 10.0
REQUEST = RequestLlm("c1:r1", 1, "known", 0)
EXECUTE = ExecuteTool("t1", 1, "tool", "{}")


class Told:
    """What SubAgents was told."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def start(self, parent: ConversationRecord, task: AgentTask) -> None:
        self.heard.append(("start", parent.id, task))

    def cancel(self, agent_ids: Iterable[str], reason: str) -> None:
        self.heard.append(("cancel", *sorted(agent_ids)))

    def abandon(self, agent_ids: Iterable[str]) -> None:
        self.heard.append(("abandon", *sorted(agent_ids)))

    def ended(self, *told: Any) -> None:
        self.heard.append(("ended", *told))

    def last_text(self, agent_id: str) -> str:
        return f"{agent_id} is nearly there"


class Desk:
    def __init__(self, runtime: Services, inbox: Any, limit: int = 10) -> None:
        self.models: Any = runtime.models
        self.tools: Any = runtime.toolbox.tools  # type: ignore[attr-defined]
        self.admission = Admission(limit)
        self.inbox = inbox
        self.sub_agents = Told()
        self.executor = EffectExecutor(runtime, self.admission, inbox, self.sub_agents)  # type: ignore[arg-type]
        record, commit = settings.creation(runtime, "c1", CreateConversationCommand("p", "/tmp"), 1)
        runtime.store.commit(commit)
        self.context = runtime.context_of(record)
        self.record = record
        self.live(1)
        self.models.answer = at_once  # type: ignore[attr-defined]

    def live(self, run: int) -> ConversationRecord:
        self.record = msgspec.structs.replace(self.record, state=Idle(Ledger(run=run, live=run > 0)))
        return self.record

    def perform(self, effect: Any) -> None:
        self.executor.perform(effect, self.record, self.context)

    def outcomes(self, count: int = 1) -> list[Any]:
        return [told.event for told in self.inbox.wait_for(EffectOutcome, count)]


def at_once(request: ModelRequest, sink: ModelSink, cancel: CancelToken) -> ModelAnswer:
    return ModelAnswer((Text("hi"),), True)


@pytest.fixture
def desk(runtime: Services, inbox: Any) -> Any:
    made = Desk(runtime, inbox)
    yield made
    made.executor.stop_everything()


class Patient:
    """A model that answers when the test lets it, or is cancelled."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def __call__(self, request: ModelRequest, sink: ModelSink, cancel: CancelToken) -> ModelAnswer:
        cancel.on_cancel(self.go.release)
        self.begun.release()
        assert self.go.acquire(timeout=PATIENCE)
        return ModelAnswer((Text("hi"),), True)


def test_a_request_is_made_with_the_tools_and_a_summary_without(desk: Desk) -> None:
    seen: list[ModelRequest] = []

    def answer(request: ModelRequest, sink: ModelSink, cancel: CancelToken) -> ModelAnswer:
        seen.append(request)
        return ModelAnswer((Text("hi"),), True)

    desk.models.answer = answer
    desk.tools["tool"] = lambda context: ToolOutput("")
    desk.perform(REQUEST)
    desk.outcomes()
    desk.perform(RequestContinuation("c1:r2", 1, "known", 0, ("bash",)))
    desk.outcomes(2)
    assert [[spec.name for spec in request.tools] for request in seen] == [["tool"], []]
    assert [request.system for request in seen] == [desk.record.system_prompt] * 2


def test_a_model_that_is_not_served_is_never_replaced(desk: Desk) -> None:
    desk.perform(RequestLlm("c1:r1", 1, "gone", 0))
    (error,) = desk.outcomes()
    assert isinstance(error, LlmError)
    assert error.error.kind is ErrorKind.INVALID_REQUEST
    assert "'gone'" in error.error.message


def test_a_full_house_refuses_and_has_room_again_when_somebody_left(runtime: Services, inbox: Any) -> None:
    desk = Desk(runtime, inbox, limit=1)
    patient = desk.models.answer = Patient()
    desk.perform(REQUEST)
    assert patient.begun.acquire(timeout=PATIENCE)
    desk.perform(RequestLlm("c1:r2", 1, "known", 0))
    (refused,) = desk.outcomes()
    assert refused.error.retryable
    patient.go.release()
    assert isinstance(desk.outcomes(2)[1], LlmResponse)
    assert desk.admission._places.acquire(timeout=PATIENCE), "it was to give its place back right after its report"


def test_without_a_thread_the_request_fails_for_now_and_its_place_is_free(
    runtime: Services, inbox: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(runtime, inbox, limit=1)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    desk.perform(REQUEST)
    desk.perform(EXECUTE)
    monkeypatch.undo()
    error, transient = desk.outcomes(2)
    assert error.error.retryable
    assert isinstance(transient, ToolTransient)
    assert not transient.begun
    assert desk.executor.all_gone
    assert desk.admission.enter() == ""


def test_an_abort_hangs_up(desk: Desk) -> None:
    patient = desk.models.answer = Patient()
    desk.perform(REQUEST)
    assert patient.begun.acquire(timeout=PATIENCE)
    desk.perform(AbortLlm("c1:r1"))
    assert desk.outcomes() == [LlmAborted(1_000, "c1:r1", 1)]
    desk.perform(AbortLlm("c1:r1"))


def test_a_pull_strikes_what_is_under_way_and_what_its_run_would_still_begin(desk: Desk) -> None:
    begun: list[str] = []

    def tool(context: ToolContext) -> ToolOutput:
        begun.append("tool")
        return ToolOutput("done")

    desk.tools["tool"] = tool
    patient = desk.models.answer = Patient()
    desk.perform(REQUEST)
    assert patient.begun.acquire(timeout=PATIENCE)
    work = desk.executor.work
    assert work is not None
    assert work.run == "c1:1"
    desk.executor.pull(work)
    assert isinstance(desk.outcomes()[0], LlmAborted)
    desk.perform(EXECUTE)
    assert isinstance(desk.outcomes(2)[1], ToolAborted)
    assert begun == []
    desk.live(2)
    desk.perform(replace_id(EXECUTE))
    assert isinstance(desk.outcomes(3)[2], ToolComplete)


def replace_id(effect: ExecuteTool) -> ExecuteTool:
    return msgspec.structs.replace(effect, execution_id=effect.execution_id + 1)


def test_a_pulled_summary_does_not_strike_the_next_one(desk: Desk) -> None:
    desk.live(0)
    summary = RequestContinuation("c1:r1", 1, "known", 0, ())
    desk.perform(summary)
    desk.outcomes()
    work = desk.executor.work
    assert work is not None
    assert work.run == ""
    desk.executor.pull(work)
    desk.perform(msgspec.structs.replace(summary, request_id="c1:r2"))
    assert isinstance(desk.outcomes(2)[1], LlmResponse)


def test_at_rest_there_is_no_work_and_the_tool_runner_goes(desk: Desk) -> None:
    desk.tools["tool"] = lambda context: ToolOutput("done")
    desk.perform(EXECUTE)
    desk.outcomes()
    assert not desk.executor.all_gone
    desk.executor.rest()
    assert desk.executor.work is None
    (left,) = desk.inbox.wait_for(ToolRunnerStopped)
    desk.executor.runner_left(left.runner)
    assert desk.executor.all_gone
    desk.perform(replace_id(EXECUTE))
    desk.outcomes(2)
    desk.executor.runner_left(left.runner)
    assert not desk.executor.all_gone, "that was the runner before"


def test_a_tool_after_its_runner_has_left_gets_another_one(desk: Desk) -> None:
    desk.tools["tool"] = lambda context: ToolOutput("done")
    desk.perform(EXECUTE)
    desk.outcomes()
    desk.executor.rest()
    desk.inbox.wait_for(ToolRunnerStopped)
    desk.perform(replace_id(EXECUTE))
    assert desk.outcomes(2)[1].execution_id == 2


def test_timers_bring_the_events_that_they_were_set_for(desk: Desk) -> None:
    desk.perform(ScheduleRetry(0, 2, RetryOf.LLM, request_id="c1:r1"))
    desk.perform(ScheduleRetry(0, 3, RetryOf.TOOL, tool_use_id="t1", execution_id=4))
    desk.perform(StartTimer(0, "c1:1"))
    assert desk.outcomes(3) == [
        RetryTimeout(1_000, "c1:r1", 2),
        ToolRetryTimeout(1_000, "t1", 4, 3),
        CancelTimeout(1_000, "c1:1"),
    ]
    assert [told.urgent for told in desk.inbox.of(EffectOutcome)] == [False, False, True]


def test_aborting_a_tool_when_none_ever_ran_is_nothing(desk: Desk) -> None:
    desk.perform(AbortTool("t1", 1))
    assert desk.executor.all_gone


def test_the_parent_is_told(desk: Desk) -> None:
    child = msgspec.structs.replace(desk.record, id="c1-a1", parent_conversation_id="c1")
    assert not desk.executor.parent_told
    desk.executor.perform(NotifyParent(AgentSucceeded("42")), child, desk.context)
    assert desk.sub_agents.heard == [("ended", "c1", "c1-a1", AgentSucceeded("42"), Usage())]
    assert desk.executor.parent_told


TASK = AgentTask("c1-a1", "look", "/tmp", "known", 20, 60_000)


def test_a_sub_agent_is_started_and_its_time_begins_to_run(desk: Desk) -> None:
    desk.perform(SpawnSubAgent(TASK, 1_000))
    assert desk.sub_agents.heard == [("start", "c1", TASK)]
    assert desk.outcomes() == [SubAgentTimeout(1_000, "c1-a1", "c1-a1 is nearly there")]


def test_what_is_left_of_sub_agents_at_rest_is_stopped_once_and_waited_for(desk: Desk) -> None:
    for number in (1, 2):
        desk.perform(SpawnSubAgent(replace_task(number), 60_000))
    desk.perform(CancelSubAgents(("c1-a1",)))
    desk.executor.rest()
    desk.executor.rest()
    assert desk.sub_agents.heard[2:] == [("cancel", "c1-a1"), ("abandon", "c1-a2")]
    for number in (1, 2):
        assert not desk.executor.all_gone
        desk.executor.agent_left(f"c1-a{number}")
    assert desk.executor.all_gone


def replace_task(number: int) -> AgentTask:
    return msgspec.structs.replace(TASK, agent_id=f"c1-a{number}")


def test_a_run_that_is_pulled_begins_nothing_any_more(desk: Desk) -> None:
    asked: list[ModelRequest] = []

    def answer(request: ModelRequest, sink: ModelSink, cancel: CancelToken) -> ModelAnswer:
        asked.append(request)
        return ModelAnswer((Text("hi"),), True)

    desk.models.answer = answer
    desk.executor.pull_run("c1:1")
    desk.perform(REQUEST)
    assert desk.outcomes() == [LlmAborted(1_000, "c1:r1", 1)]
    assert asked == []


class Points:
    def __init__(self) -> None:
        self.passed: list[str] = []

    def hit(self, point: str) -> None:
        self.passed.append(point)


def test_every_effect_has_a_fault_point_before_and_behind_it(runtime: Services, inbox: Any) -> None:
    points = Points()
    desk = Desk(replace(runtime, faults=points), inbox)
    effects = [REQUEST, AbortLlm("c1:r1"), StartTimer(0, "c1:1"), NotifyParent(AgentSucceeded("42"))]
    for effect in effects:
        desk.perform(effect)
    names = [type(effect).__name__ for effect in effects]
    assert points.passed == [f"effect.{when}.{name}" for name in names for when in ("before", "after")]
