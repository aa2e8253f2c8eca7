"""The integration tests that seed 2 asks for, under its own words, one each.

Over real actors, but for the states that never rest and those of sub-agents, which are lived through on the machine
itself; families over real actors are in test_sub_agents.py and test_sub_agents_stopped.py.
"""

from collections.abc import Callable
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from actors.core import states
from actors.core.content import SubAgentComplete, ToolSuccess, ToolUse
from actors.core.context import ApprovalPolicy
from actors.core.effects import CancelSubAgents, NotifyParent, SpawnSubAgent
from actors.core.errors import ErrorKind
from actors.core.events import AgentsSpawned, SubAgentResult, SubAgentTimeout, UserCancel
from actors.core.history import open_calls, violations
from actors.core.notifications import Retrying, RunStop, StateChanged
from actors.messages import TriggerContinuationCommand
from actors.ports import ToolOutput
from tests.machine.columns import SUB_AGENT
from tests.machine.talk import OPEN
from tests.machine.talk import Talk as Machine

World = Any
Talk = Any

BASH = ToolUse("t1", "bash", '{"cmd": "ls"}')
LOOK = ToolUse("t2", "look", "{}")
SPAWN = ToolUse("t1", "spawn_sub_agent", "{}")


def task(name: str) -> states.AgentTask:
    return states.AgentTask("", name, "/tmp", "scripted", 20, 60_000)


def history(talk: Talk) -> Any:
    return talk.world.truth.history(talk.id, talk.state.ledger.seq)


# --- Full conversation flow: user message → LLM → tools (serial) → response ---------------------------------------


def test_full_conversation_flow(world: World) -> None:
    talk = world.create()
    talk.asks("list the files").call(BASH, LOOK)
    first = talk.tool("bash")
    assert world.box.tools["look"].started == 0
    first.finish.put(ToolOutput("a.txt"))
    talk.tool("look").finish.put(ToolOutput("it is empty"))
    last = talk.exchange()
    assert [block.output for block in last.request.turns[-1].content] == ["a.txt", "it is empty"]
    last.say("There is a.txt, and it is empty.")
    talk.rest(states.Idle)
    assert talk.texts()[-1] == "There is a.txt, and it is empty."
    kinds = [change.state.kind for change in talk.found(StateChanged)]
    walk = [kind for kind, before in zip(kinds, ["", *kinds], strict=False) if kind != before]
    assert walk == ["awaiting_llm", "llm_requesting", "tool_executing", "awaiting_llm", "llm_requesting", "idle"]


# --- Cancellation at each state with message chain verification ---------------------------------------------------


def _streaming(talk: Talk) -> None:
    exchange = talk.asks("tell me a story")
    exchange.sink.text("Once upon")
    exchange.sink.flush()
    talk.until(lambda: isinstance(talk.state, states.LlmRequesting) and talk.state.phase is states.LlmPhase.STREAMING)


def _asked(talk: Talk) -> None:
    talk.asks("go").call(BASH, LOOK)
    talk.until(lambda: isinstance(talk.state, states.AwaitingToolApproval))


def _at_a_tool(talk: Talk) -> None:
    talk.asks("go").call(BASH, LOOK)
    talk.tool().reap.set()
    talk.until(lambda: isinstance(talk.state, states.ToolExecuting))


def _failed_run(talk: Talk) -> None:
    talk.asks("go").fail(ErrorKind.AUTH)
    talk.until(lambda: isinstance(talk.state, states.Error))


def _summarising(talk: Talk) -> None:
    talk.ask(TriggerContinuationCommand())
    talk.exchange()
    talk.until(lambda: isinstance(talk.state, states.AwaitingContinuation))


def _exhausted(talk: Talk) -> None:
    talk.ask(TriggerContinuationCommand())
    talk.exchange().say("This is what was done.")
    talk.until(lambda: isinstance(talk.state, states.ContextExhausted))


ARRIVE: dict[type[states.State], Callable[[Talk], None]] = {
    states.Idle: lambda talk: None,
    states.LlmRequesting: _streaming,
    states.AwaitingToolApproval: _asked,
    states.ToolExecuting: _at_a_tool,
    states.Error: _failed_run,
    states.AwaitingContinuation: _summarising,
    states.ContextExhausted: _exhausted,
}
"""How a conversation gets there over real actors."""
UNTOUCHED = (states.Idle, states.Error, states.ContextExhausted, states.Completed, states.Failed)
"""Where there is nothing to cancel."""


def _cancelled_over_actors(world: World, state: type[states.State]) -> None:
    policy = ApprovalPolicy.ASK_ALL if state is states.AwaitingToolApproval else ApprovalPolicy.AUTO
    talk = world.create(approval_policy=policy)
    ARRIVE[state](talk)
    assert isinstance(talk.state, state)

    receipt = talk.cancel()

    assert receipt.no_op == (state in UNTOUCHED)
    talk.rest(state if state in UNTOUCHED else states.Idle)
    assert open_calls(history(talk)) == ()
    assert "Once upon" not in talk.texts()
    if state is not states.ContextExhausted:
        talk.turn("and now?", "All is well.")


def _due() -> Machine:
    """The first step of a chain: it never rests, but a cancel must find it in order."""
    started = Machine(OPEN)
    first = started.say("go")[0]
    machine = Machine(first.context, first.new_state)
    machine.effects = list(first.effects)
    return machine


def _with_sub_agents() -> Machine:
    machine = Machine(OPEN)
    machine.say("go")
    machine.call(SPAWN, BASH_2)
    assert isinstance(machine.state, states.ToolExecuting)
    machine.tell(AgentsSpawned(machine.at(), "t1", machine.state.execution_id, (task("one"), task("two"))))
    return machine


def _cancelling() -> Machine:
    machine = _with_sub_agents()
    machine.tell(UserCancel(machine.at()))
    return machine


def _over(*calls: ToolUse) -> Machine:
    """A sub-agent that has submitted this, or was cancelled."""
    machine = Machine(SUB_AGENT)
    machine.start()
    if calls:
        machine.call(*calls)
    else:
        machine.tell(UserCancel(machine.at()))
    return machine


BASH_2 = ToolUse("t2", "bash", "{}")
STAGED: dict[type[states.State], Callable[[], Machine]] = {
    states.AwaitingLlm: _due,
    states.AwaitingSubAgents: _with_sub_agents,
    states.Cancelling: _cancelling,
    states.Completed: lambda: _over(ToolUse("t1", "submit_result", '{"result": "done"}')),
    states.Failed: _over,
}
"""The machine in the other states."""


def _cancelled_on_the_machine(state: type[states.State]) -> None:
    machine = STAGED[state]()
    assert isinstance(machine.state, state)
    waited = isinstance(machine.state, states.AwaitingSubAgents | states.Cancelling)

    machine.tell(UserCancel(machine.at()))

    if state in UNTOUCHED or state is states.Cancelling:
        assert machine.steps == ()
    for agent_id in ("c-a1", "c-a2") if waited else ():
        assert isinstance(machine.state, states.Cancelling)
        gone = states.AgentFailed(ErrorKind.CANCELLED, "cancelled before result submission")
        machine.tell(SubAgentResult(machine.at(), agent_id, gone))
    assert isinstance(machine.state, state if state in UNTOUCHED else states.Idle)
    assert violations(machine.messages) == ()
    assert open_calls(machine.messages) == ()


@pytest.mark.parametrize("state", get_args(states.State), ids=lambda state: state.__name__)
def test_cancellation_at_each_state(world: World, state: type[states.State]) -> None:
    if state in ARRIVE:
        _cancelled_over_actors(world, state)
    else:
        _cancelled_on_the_machine(state)


# --- Error recovery: retry exhaustion, non-retryable errors -------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "attempts", "begins"),
    [
        (ErrorKind.NETWORK, 3, "Failed after 3 attempts: "),
        (ErrorKind.RATE_LIMIT, 3, "Failed after 3 attempts: "),
        (ErrorKind.AUTH, 1, "Authentication failed: "),
        (ErrorKind.INVALID_REQUEST, 1, "no such thing"),
    ],
)
def test_error_recovery(world: World, kind: ErrorKind, attempts: int, begins: str) -> None:
    talk = world.create()
    talk.send("go")
    for attempt in range(1, attempts + 1):
        exchange = talk.exchange()
        assert exchange.request.attempt == attempt
        exchange.fail(kind, "no such thing")
    failed = talk.rest(states.Error)
    assert failed.error_kind is kind
    assert failed.message.startswith(begins)
    assert [retry.attempt for retry in talk.found(Retrying)] == list(range(2, attempts + 1))
    talk.turn("once more", "Now it works.")
    assert [stop.reason.value for stop in talk.found(RunStop)] == ["error", "completed"]


# --- Sub-agent spawning, result submission, aggregation -----------------------------------------------------------


def test_sub_agent_spawning_result_submission_aggregation() -> None:
    parent = Machine(OPEN)
    parent.say("go")
    parent.call(SPAWN)
    assert isinstance(parent.state, states.ToolExecuting)
    tasks = tuple(task(name) for name in ("find it", "break it", "wait for it"))
    parent.tell(AgentsSpawned(parent.at(), "t1", parent.state.execution_id, tasks))
    finder, breaker, waiter = parent.acts(SpawnSubAgent)

    broken = _lived(breaker, ToolUse("b1", "submit_error", '{"error": "it does not break"}'))
    parent.tell(SubAgentResult(parent.at(), breaker.task.agent_id, broken.result))
    found = _lived(finder, ToolUse("f1", "submit_result", '{"result": "behind the door"}'))
    parent.tell(SubAgentResult(parent.at(), finder.task.agent_id, found.result))
    assert isinstance(parent.state, states.AwaitingSubAgents)
    parent.tell(SubAgentTimeout(parent.at(), waiter.task.agent_id))

    assert parent.acts(CancelSubAgents) == [CancelSubAgents((waiter.task.agent_id,))]
    assert isinstance(parent.state, states.LlmRequesting)
    (aggregate,) = parent.messages[-1].content
    assert isinstance(aggregate, SubAgentComplete)
    assert aggregate.output.split("\n\n") == [
        'Task: "find it"\nResult: behind the door',
        'Task: "break it"\nFailed: it does not break',
        'Task: "wait for it"\nTimed out: no result before the deadline',
    ]
    assert violations(parent.messages) == ()


def _lived(spawn: SpawnSubAgent, submission: ToolUse) -> NotifyParent:
    """A sub-agent's life: it gets its task, uses a tool, submits; what its parent is told."""
    child = Machine(replace(SUB_AGENT, conversation_id=spawn.task.agent_id))
    child.start(spawn.task.task)
    child.call(ToolUse("x1", "read_file", "{}"))
    child.result(ToolSuccess("x1", "a line"))
    child.call(submission)
    (told,) = child.acts(NotifyParent)
    assert violations(child.messages) == ()
    assert open_calls(child.messages) == ()
    return told


# --- Server restart recovery --------------------------------------------------------------------------------------


def test_server_restart_recovery(world: World) -> None:
    talk = world.create()
    talk.asks("go").call(BASH, LOOK)
    talk.tool("bash").finish.put(ToolOutput("a.txt"))
    talk.tool("look").reap.set()
    before = history(talk)
    successor = type(world)(world.store)
    try:
        assert successor.supervisor.start() == (talk.id,)
        after = type(talk)(successor, talk.id)
        after.rest(states.Idle)
        assert history(after)[: len(before)] == before
        assert after.texts()[-2:] == ["a.txt", "Interrupted by server restart"]
        assert open_calls(history(after)) == ()
        assert successor.model.asked == 0
        after.turn("where were we?", "At a.txt.")
    finally:
        successor.close()
