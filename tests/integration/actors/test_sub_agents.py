"""Sub-agents over real actors: they start, work at the same time, end in every way, and are told about once."""

import itertools
import json
import threading
from collections import Counter
from typing import Any

import msgspec
import pytest

from actors.adapters.tools.sub_agent_tools import SpawnSubAgentTool
from actors.core.content import SubAgentComplete
from actors.core.context import Budget, Limits, Mode
from actors.core.errors import ErrorKind
from actors.core.notifications import RunStop
from actors.core.states import Completed, Failed, Idle
from actors.messages import SendMessageCommand
from actors.ports import Commit, SandboxReport, ToolOutput
from actors.ports.store import UNARCHIVED, Selection
from actors.runtime.services import AgentLimits
from tests.integration.actors.family import FamilyBox, FamilyModel, aggregate, all_left, child, tasks
from tests.support.patience import PATIENCE, eventually
from tests.support.stores import StoreProxy

World = Any
Talk = Any


class CommitLog(StoreProxy):
    """Notes whose commits there were."""

    def __init__(self) -> None:
        super().__init__()
        self._commits: Counter[str] = Counter()

    def commit(self, *parts: Commit, urgent: bool = False) -> None:
        self.inner.commit(*parts, urgent=urgent)
        self._commits.update(part.record.id for part in parts)

    def of(self, conversation_id: str) -> int:
        return self._commits[conversation_id]


@pytest.mark.parametrize("order", list(itertools.permutations("abc")), ids="".join)
def test_three_sub_agents_end_in_any_order_and_are_reported_in_the_order_of_their_tasks(
    family: World, order: tuple[str, ...]
) -> None:
    talk = family.create()
    talk.send(tasks("wait a", "wait b", "wait c"))
    for number in (1, 2, 3):
        family.model.until_asked(f"{talk.id}-a{number}")
    for name in order:
        family.model.gates[name].set()
        number = "abc".index(name) + 1
        child(talk, number).rest(Completed)
    talk.rest(Idle)
    assert aggregate(talk) == [f'Task: "wait {name}"\nResult: {name}' for name in "abc"]
    assert talk.texts()[-1] == "All is told."
    all_left(family)


def test_each_outcome_is_reported_as_such(make_world: Any) -> None:
    world = make_world(model=FamilyModel(), box=FamilyBox(), limits=Limits(retry_base_ms=1, max_turns=3))
    talk = world.create()
    talk.send(
        tasks("submit 42", "error it is locked", "talk nothing", "use look", "last in time", "refused", "fill it")
    )
    talk.rest(Idle)
    assert aggregate(talk) == [
        'Task: "submit 42"\nResult: 42',
        'Task: "error it is locked"\nFailed: it is locked',
        'Task: "talk nothing"\nFailed: ended without calling submit_result or submit_error\n'
        "Partial result: I think: nothing",
        'Task: "use look"\nFailed: turn limit reached before result submission\nPartial result: turn 4',
        'Task: "last in time"\nResult: in time',
        'Task: "refused"\nFailed: Authentication failed: the key is wrong',
        'Task: "fill it"\nFailed: context exhausted before result submission\nPartial result: I read it all.',
    ]
    assert [world.model.asked(f"{talk.id}-a{number}") for number in range(1, 8)] == [1, 1, 3, 4, 4, 1, 1]
    for number in range(1, 8):
        child(talk, number).check()
    all_left(world)


def test_what_a_sub_agent_is(make_world: Any, tmp_path: Any) -> None:
    sandbox = Sandboxed()
    world = make_world(model=FamilyModel(), box=FamilyBox(), sandbox=sandbox)
    talk = world.create(mode=Mode.UNRESTRICTED, title="parent")
    talk.send(tasks("submit 42", "submit 43", cwd=str(tmp_path), max_turns=7, timeout_seconds=90))
    talk.rest(Idle)
    record = child(talk, 1).record
    assert (record.parent_conversation_id, record.user_initiated, record.principal) == (talk.id, False, "tester")
    assert (record.mode, record.cwd, record.title) == (Mode.RESTRICTED, str(tmp_path), "submit 42")
    assert talk.record.mode is Mode.UNRESTRICTED
    asked = {request.conversation_id: request for request in world.model.requests}
    offered = {key: [tool.name for tool in request.tools] for key, request in asked.items()}
    assert offered[record.id] == ["look", "linger", "read_file", "submit_result", "submit_error"]
    assert "spawn_sub_agent" in offered[talk.id]
    prompt = asked[record.id].system
    assert "You are a sub-agent" in prompt
    assert "You have 7 turns (responses) and 1 min 30 s." in prompt
    assert "request_mode_upgrade" not in prompt
    listed = world.truth.list(Selection("tester", UNARCHIVED), limit=10).records
    assert [each.id for each in listed] == [talk.id]
    assert set(world.truth.children(talk.id)) == {f"{talk.id}-a1", f"{talk.id}-a2"}
    all_left(world)
    assert sorted(world.box.forgotten) == [f"{talk.id}-a1", f"{talk.id}-a2"]


class Sandboxed:
    """Restriction is available, though nothing here needs it."""

    report = SandboxReport("A", 4, pid_namespace=True)
    protected: tuple[str, ...] = ()

    def mode_refusal(self, mode: Mode, directory: str) -> str:
        return ""


def test_files_are_given_with_the_task_and_what_is_cut_is_said(family: World) -> None:
    talk = family.create()
    family.box.files = {"small": "     1\tone\n", "large": "     1\tx\n" * 20_000, "late": "     1\ttwo\n"}
    talk.send(tasks("submit 42", read_first=["small", "large", "late"]))
    talk.rest(Idle)
    (said,) = (block.text for block in family.truth.history(f"{talk.id}-a1", 1)[0].content)
    assert said.startswith("submit 42\n\n# Files\n")
    assert '<file path="small">\n     1\tone\n</file>' in said
    assert '<file path="large">\n     1\tx\n     1\tx\n' in said
    kept = said.count("     1\tx\n")
    assert f"[{9 * (20_000 - kept)} more bytes are left out here: read_file shows them]\n</file>" in said
    assert '<file path="late">\n[11 more bytes are left out here: read_file shows them]\n</file>' in said
    assert 65_000 < len(said.encode()) < 66_500
    assert aggregate(talk)[0] == 'Task: "submit 42"\nResult: 42'


def test_a_call_with_a_wrong_task_starts_nothing(family: World) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"task": "  "}, "`tasks[1].task`: must not be empty"),
        ({"task": "x" * 16_385}, "`tasks[1].task`: must be at most 16,384 bytes"),
        ({"model": "gpt-9"}, "`tasks[1].model`: model 'gpt-9' is not available; available models: scripted"),
        ({"cwd": "nowhere"}, "`tasks[1].cwd`: directory not found"),
        ({"mode": "unrestricted"}, "`tasks[1].mode`: sub-agents are always restricted"),
        ({"max_turns": 101}, "`tasks[1].max_turns`: must be 1 to 100"),
        ({"timeout_seconds": 7_201}, "`tasks[1].timeout_seconds`: must be 1 to 7,200 seconds"),
        ({"read_first": ["small", "gone"]}, "`tasks[1].read_first[1]`: Cannot read gone: no such file."),
    ]
    family.box.files = {"small": "     1\tone\n"}
    for fields, text in wrong:
        talk = family.create()
        talk.send(json.dumps([{"task": "submit 1"}, {"task": "submit 2"} | fields]))
        talk.rest(Idle)
        assert talk.texts()[2].startswith(f"No sub-agent was started. {text}"), talk.texts()[2]
        assert family.truth.children(talk.id) == ()
        assert talk.state.ledger.agents == 0


def test_a_sub_agent_cannot_start_sub_agents(family: World) -> None:
    talk = family.create()
    talk.send(tasks("nest it", max_turns=1))
    talk.rest(Idle)
    assert family.truth.children(f"{talk.id}-a1") == ()
    refusal = "No sub-agent was started. `tasks`: sub-agents cannot be started in this conversation"
    assert child(talk, 1).texts()[2] == refusal


# --- time limits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("doing", ["hang", "use linger", "overloaded"])
def test_a_time_limit_holds_whatever_the_sub_agent_is_doing(make_world: Any, doing: str) -> None:
    world = make_world(model=FamilyModel(), box=FamilyBox(), agents=AgentLimits(min_timeout_ms=1))
    talk = world.create()
    task = {"task": doing}
    _spawn_with_timeout(talk, [task, {"task": "submit quick"}], milliseconds=300)
    talk.rest(Idle)
    partial = "\nPartial result: turn 1" if doing == "use linger" else ""
    assert aggregate(talk)[0] == f'Task: "{doing}"\nTimed out: no result before the deadline{partial}'
    assert aggregate(talk)[1] == 'Task: "submit quick"\nResult: quick'
    failed = child(talk, 1).rest(Failed)
    assert (failed.kind, failed.error) == (ErrorKind.CANCELLED, "cancelled before result submission: its time ran out")
    all_left(world)
    eventually(world.model.at_rest, "no request to a model left")


def _spawn_with_timeout(talk: Talk, wanted: list[dict[str, Any]], *, milliseconds: int) -> None:
    """Seconds are the least that a model can ask for; the tool's answer is made shorter."""
    tool = SpawnSubAgentTool()

    class Hasty:
        spec = tool.spec

        def run(self, arguments: Any, context: Any) -> ToolOutput:
            output = tool.run(arguments, context)
            hasty = (msgspec.structs.replace(task, timeout_ms=milliseconds) for task in output.agents)
            return ToolOutput("", agents=tuple(hasty))

    ordinary = talk.world.box.get
    talk.world.box.get = lambda name: Hasty() if name == "spawn_sub_agent" else ordinary(name)
    talk.send(json.dumps(wanted))


# --- many -------------------------------------------------------------------------------------------------------------


def test_ten_that_end_at_once_again_and_again(make_world: Any) -> None:
    family = make_world(model=FamilyModel(), box=FamilyBox(), idle_seconds=3600.0)
    before = set(threading.enumerate())

    def threads() -> list[str]:
        return sorted(thread.name.rpartition("-")[0] for thread in set(threading.enumerate()) - before)

    talk = family.create()
    times = 8
    for number in range(times):
        talk.send(tasks(*(f"submit {number * 10 + each}" for each in range(10))))
        talk.rest(Idle)
    all_left(family)
    told = [
        block
        for message in family.truth.history(talk.id, talk.state.ledger.seq)
        for block in message.content
        if isinstance(block, SubAgentComplete)
    ]
    assert [block.output.count("Result: ") for block in told] == [10] * times
    assert len(family.truth.children(talk.id)) == 10 * times
    parent = ["ConversationActor", "LlmRunner", "ToolRunner"]
    eventually(lambda: threads() == parent, "only the idle parent has threads")
    object.__setattr__(family.services, "idle_seconds", 0.0)
    talk.send(tasks("submit 80"))
    eventually(lambda: not threads(), "the parent has none once its idle time is over")


def test_the_number_of_running_sub_agents_is_limited_for_the_server(make_world: Any) -> None:
    world = make_world(model=FamilyModel(), box=FamilyBox(), agents=AgentLimits(at_once=2))
    talk = world.create()
    talk.send(tasks("wait a", "wait b", "submit c"))
    world.model.until_asked(f"{talk.id}-a1")
    world.model.until_asked(f"{talk.id}-a2")
    other = world.create()
    other.send(tasks("submit d"))
    other.rest(Idle)
    assert "could not be started: this server is already running its limit of 2 sub-agents" in aggregate(other)[0]
    for name in "ab":
        world.model.gates[name].set()
    talk.rest(Idle)
    assert [text.partition("\n")[2][:7] for text in aggregate(talk)] == ["Result:", "Result:", "Failed:"]
    all_left(world)
    other.send(tasks("submit e"))
    other.rest(Idle)
    assert "Result: e" in other.texts()[-2]


def test_sub_agents_that_end_while_their_parent_is_busy_are_one_commit(make_world: Any, hold: Any) -> None:
    world = make_world(CommitLog(), model=FamilyModel(), box=FamilyBox())
    talk = world.create()
    talk.send(tasks(*(f"wait {name}" for name in "abcde")))
    for number in range(1, 6):
        world.model.until_asked(f"{talk.id}-a{number}")
    world.faults.arm("commit.before", hold)
    steer = world.supervisor.ask(talk.id, SendMessageCommand(text="be quick", delivery="steer"))
    hold.wait()
    for name in "abcde":
        world.model.gates[name].set()
    eventually(lambda: world.supervisor.live_count() == 1, "the sub-agents have ended")
    before = world.store.of(talk.id)
    hold.release()
    steer.result(PATIENCE)
    talk.rest(Idle)
    assert world.store.of(talk.id) - before == 3, "the steer, the end of the wait with all results, and the answer"
    assert aggregate(talk) == [f'Task: "wait {name}"\nResult: {name}' for name in "abcde"]
    all_left(world)


# --- budgets ----------------------------------------------------------------------------------------------------------


def test_what_sub_agents_spend_counts_for_their_parent_which_stops_with_a_named_reason(family: World) -> None:
    talk = family.create(budget=Budget(conversation_tokens=500))
    talk.send(tasks("submit 1", "submit 2", "submit 3"))
    talk.rest(Idle)
    assert talk.state.ledger.total_usage.context_tokens == 500, "two requests of its own, and three"
    assert talk.state.ledger.run_usage.context_tokens == 500
    talk.send(tasks("submit 4"))
    talk.rest(Idle)
    assert talk.texts()[-1] == "Stopped: the budget of 500 tokens is spent. Raise it to go on."
    assert [stop.detail for stop in talk.found(RunStop)] == ["", "budget"]


def test_together_sub_agents_cannot_spend_more_than_is_left(family: World) -> None:
    talk = family.create(budget=Budget(run_tokens=500, conversation_cost_micros=100_000))
    talk.send(tasks("use look", "use look"))
    talk.rest(Idle)
    shares = [child(talk, number).record.budget for number in (1, 2)]
    assert shares == [Budget(0, 200, 49_950)] * 2
    assert [family.model.asked(f"{talk.id}-a{number}") for number in (1, 2)] == [2, 2]
    assert aggregate(talk)[0].endswith("Failed: budget reached before result submission\nPartial result: turn 2")
    assert [stop.detail for stop in talk.found(RunStop)] == ["budget"]


def test_nothing_is_started_from_a_spent_budget(family: World) -> None:
    talk = family.create(budget=Budget(run_tokens=100))
    talk.send(tasks("submit 1"))
    talk.rest(Idle)
    assert aggregate(talk) == [
        'Task: "submit 1"\nFailed: it could not be started: the budget of 100 tokens per run is spent'
    ]
    assert family.model.asked(f"{talk.id}-a1") == 0
