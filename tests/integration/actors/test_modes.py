"""Modes through real actors: when a change holds, who hears of it and when, and that nothing ever widens by itself."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from msgspec.structs import replace

from actors.adapters.tools.request_mode_upgrade import GRANTED, ModeUpgradeTool
from actors.core.content import MessageType, Text, ToolSuccess, ToolUse
from actors.core.context import ApprovalPolicy, Mode, Suggested
from actors.core.errors import Reason, Rejected
from actors.core.notifications import ApprovalRequested, ApprovalResolved, MessageAdded, ModeChanged
from actors.core.states import AwaitingToolApproval, Idle, ToolExecuting
from actors.messages import (
    CancelConversationCommand,
    ResolveApprovalCommand,
    SetModeCommand,
    SetModeResult,
    UpdateConversationCommand,
)
from actors.ports import Commit, SandboxReport, ToolOutput
from actors.ports.tools import NoMcpServers
from tests.integration.actors.conftest import Box, ShakyStore
from tests.support.patience import PATIENCE
from tests.support.services import NoSandbox
from tests.support.stores import new_store

World = Any

BASH = ToolUse("t1", "bash", "{}")
LOOK = ToolUse("t2", "look", "{}")
UPGRADE = ToolUse("t3", "request_mode_upgrade", '{"reason": "to fix it"}')
RESTRICTED, UNRESTRICTED = Mode.RESTRICTED, Mode.UNRESTRICTED


class Cell(NoSandbox):
    """A machine that can restrict tools."""

    report = SandboxReport("A", 7, pid_namespace=True, workspace_available=True)


class UpgradeBox(Box):
    """The scripted tools, and the real one that asks for more."""

    def __init__(self) -> None:
        super().__init__()
        self.tools["request_mode_upgrade"] = ModeUpgradeTool()  # type: ignore[assignment]


@pytest.fixture
def cell(make_world: Callable[..., World]) -> World:
    return make_world(box=UpgradeBox(), sandbox=Cell())


@pytest.fixture
def shaky_cell(make_world: Callable[..., World]) -> World:
    """A cell whose store can fail."""
    return make_world(ShakyStore(new_store()), box=UpgradeBox(), sandbox=Cell())


def refused(reason: Reason) -> Any:
    return pytest.raises(Rejected, check=lambda error: error.reason is reason)


def asked(talk: Any) -> None:
    talk.until(lambda: isinstance(talk.state, AwaitingToolApproval))


def notices(talk: Any) -> list[str]:
    """What the agent was told of modes: the word behind "now", which the kind of the message says too."""
    told = [added.message for added in talk.found(MessageAdded) if added.message.kind.startswith("mode_")]
    assert all(f"now {message.kind.removeprefix('mode_')}:" in message.content[0].text for message in told)
    assert all(message.type is MessageType.SYSTEM for message in told)
    return [message.content[0].text.split(" is now ")[1].split(":")[0] for message in told]


def seen_by_model(exchange: Any) -> list[list[str]]:
    """The last request, turn by turn: "use", "result", or the words of a text."""

    def word(block: Any) -> str:
        if isinstance(block, ToolUse):
            return "use"
        if not isinstance(block, Text):
            return "result"
        if "The user interrupted" in block.text:
            return "interrupted"
        return "notice" if "The mode is now" in block.text else block.text

    return [[word(block) for block in turn.content] for turn in exchange.request.turns]


def test_new_conversations_are_restricted_where_that_can_be_kept(cell: World, world: World) -> None:
    assert cell.create().record.mode is RESTRICTED
    assert world.create().record.mode is UNRESTRICTED


def test_a_change_while_idle_applies_at_once_and_the_model_is_informed(cell: World) -> None:
    talk = cell.create()
    answer = talk.ask(SetModeCommand(UNRESTRICTED))
    assert isinstance(answer, SetModeResult)
    assert (answer.record.mode, answer.surviving_jobs) == (UNRESTRICTED, ())
    assert talk.record.mode is UNRESTRICTED
    assert [changed.mode for changed in talk.found(ModeChanged)] == [UNRESTRICTED]
    assert notices(talk) == ["unrestricted"]
    exchange = talk.asks("go")
    assert seen_by_model(exchange) == [["notice", "go"]]
    exchange.call(BASH)
    run = talk.tool()
    assert run.context.mode is UNRESTRICTED
    run.finish.put(ToolOutput("ok"))
    talk.answer("done")


def test_changes_of_mode_and_cancels_are_committed_ahead_of_what_others_commit(cell: World) -> None:
    talk = cell.create()
    commit, ahead = cell.store.commit, []

    def seen(*parts: Commit, urgent: bool = False) -> None:
        ahead.append(urgent)
        commit(*parts, urgent=urgent)

    cell.store.commit = seen
    talk.asks("go")
    talk.ask(SetModeCommand(UNRESTRICTED))
    talk.cancel()
    assert ahead == [False, True, True]


def test_a_change_that_is_refused_leaves_a_call_that_is_held_back_its_mode(shaky_cell: World) -> None:
    talk = shaky_cell.create(mode=UNRESTRICTED)
    slow = talk.starts(BASH)
    talk.cancel()
    talk.asks("next").call(ToolUse("t5", "bash", "{}"))
    talk.until(lambda: isinstance(talk.state, ToolExecuting))
    shaky_cell.store.down = True
    with refused(Reason.STORE_UNAVAILABLE):
        talk.ask(SetModeCommand(RESTRICTED))
    slow.reap.set()
    held_back = talk.tool()
    shaky_cell.store.down = False
    assert (held_back.context.mode, talk.record.mode) == (UNRESTRICTED, UNRESTRICTED)
    held_back.finish.put(ToolOutput("ok"))
    talk.answer("done")


def test_a_narrower_mode_names_the_call_that_may_do_more_and_ends_it_if_asked(cell: World) -> None:
    talk = cell.create(mode=UNRESTRICTED)
    talk.asks("go").call(BASH, LOOK)
    first = talk.tool()
    answer = talk.ask(SetModeCommand(RESTRICTED))
    assert (answer.surviving_calls, answer.stopped_calls) == (("t1",), ())
    answer = talk.ask(SetModeCommand(RESTRICTED, stop_running=True))
    assert (answer.surviving_calls, answer.stopped_calls) == ((), ("t1",))
    assert first.context.cancel.cancelled, "it is dead or dying when the answer comes"
    first.reap.set()
    second = talk.tool("look")
    assert second.context.mode is RESTRICTED
    assert talk.ask(SetModeCommand(RESTRICTED, stop_running=True)).stopped_calls == (), "it may do no more than that"
    second.finish.put(ToolOutput("ok"))
    exchange = talk.exchange()
    assert seen_by_model(exchange) == [["go"], ["use", "use"], ["result", "result", "notice"]]
    exchange.say("done")
    talk.rest(Idle)


class UnrestrictedProgram(NoMcpServers):
    """A server whose program runs with all rights."""

    running = True

    def wider_than(self, conversation_id: str, mode: Mode) -> tuple[str, ...]:
        return ("files",) if self.running and mode is not UNRESTRICTED else ()

    def stop(self, conversation_id: str, wider_than: Mode | None = None) -> tuple[str, ...]:
        ended = self.wider_than(conversation_id, wider_than or RESTRICTED)
        self.running = self.running and not ended
        return ended


def test_a_narrower_mode_names_the_mcp_servers_that_may_do_more_and_ends_them_if_asked(
    make_world: Callable[..., World],
) -> None:
    talk = make_world(mcp=UnrestrictedProgram(), sandbox=Cell()).create(mode=UNRESTRICTED)
    for mode, stop, survives, stopped in (
        (UNRESTRICTED, True, (), ()),
        (RESTRICTED, False, ("files",), ()),
        (RESTRICTED, True, (), ("files",)),
        (RESTRICTED, True, (), ()),
    ):
        answer = talk.ask(SetModeCommand(mode, stop_running=stop))
        assert (answer.surviving_mcp_servers, answer.stopped_mcp_servers) == (survives, stopped)


def test_a_mode_that_cannot_be_kept_stops_nothing(world: World) -> None:
    talk = world.create()
    run = talk.starts(BASH)
    with refused(Reason.MODE_UNAVAILABLE):
        talk.ask(SetModeCommand(RESTRICTED, stop_running=True))
    assert not run.context.cancel.cancelled
    assert talk.ask(SetModeCommand(UNRESTRICTED, stop_running=True)).stopped_calls == ()
    run.finish.put(ToolOutput("ok"))
    talk.exchange().call(LOOK)
    following = talk.tool("look")
    assert following.context.mode is UNRESTRICTED
    following.finish.put(ToolOutput("ok"))
    talk.answer("done")


def test_a_change_that_the_store_refuses_stops_nothing(shaky_cell: World) -> None:
    talk = shaky_cell.create(mode=UNRESTRICTED)
    run = talk.starts(BASH)
    shaky_cell.store.down = True
    with refused(Reason.STORE_UNAVAILABLE):
        talk.ask(SetModeCommand(RESTRICTED, stop_running=True))
    shaky_cell.store.down = False
    assert not run.context.cancel.cancelled
    run.reap.set()
    run.finish.put(ToolOutput("ok"))
    talk.answer("done")


def test_a_change_goes_before_everything_that_waits(cell: World, hold: Any) -> None:
    """An approval that came earlier still starts its tool in the narrower mode."""
    talk = cell.create(mode=UNRESTRICTED, approval_policy=ApprovalPolicy.ASK_ALL)
    talk.asks("go").call(BASH)
    asked(talk)
    cell.faults.arm("commit.before", hold)
    waiting: list[Future[Any]] = [cell.supervisor.ask(talk.id, UpdateConversationCommand(title="busy"))]
    hold.wait()
    waiting += [
        cell.supervisor.ask(talk.id, each) for each in (ResolveApprovalCommand("t1", True), SetModeCommand(RESTRICTED))
    ]
    hold.release()
    for answer in waiting:
        answer.result(PATIENCE)
    run = talk.tool()
    assert run.context.mode is RESTRICTED
    told = [event.notification for event in talk.events()]
    assert told.index(ModeChanged(RESTRICTED)) < told.index(talk.found(ApprovalResolved)[0])
    run.finish.put(ToolOutput("ok"))
    talk.answer("done")


def test_a_tool_that_is_held_back_starts_in_the_mode_of_that_moment(cell: World) -> None:
    talk = cell.create(mode=UNRESTRICTED)
    dying = talk.starts(BASH)
    talk.cancel()
    talk.asks("again").call(LOOK)
    talk.until(lambda: isinstance(talk.state, ToolExecuting))
    talk.ask(SetModeCommand(RESTRICTED))
    assert cell.box.tools["look"].runs.empty()
    dying.reap.set()
    run = talk.tool("look")
    assert run.context.mode is RESTRICTED
    run.finish.put(ToolOutput("ok"))
    talk.answer("done")


def test_a_change_whose_caller_no_longer_waits_is_dropped(cell: World, hold: Any) -> None:
    talk = cell.create()
    cell.faults.arm("commit.before", hold)
    busy = cell.supervisor.ask(talk.id, UpdateConversationCommand(title="busy"))
    hold.wait()
    given_up = cell.supervisor.ask(talk.id, SetModeCommand(UNRESTRICTED))
    assert given_up.cancel()
    hold.release()
    busy.result(PATIENCE)
    talk.ask(UpdateConversationCommand(title="later"))
    assert talk.record.mode is RESTRICTED


# --- refusals -----------------------------------------------------------------------------------------------------


def test_a_mode_that_cannot_be_kept_is_refused_with_the_reason(world: World) -> None:
    talk = world.create()
    with refused(Reason.MODE_UNAVAILABLE) as refusal:
        talk.ask(SetModeCommand(RESTRICTED))
    assert str(refusal.value).startswith("restricted mode is not supported on this server: tests run no processes in /")
    assert talk.record.mode is UNRESTRICTED


# --- the agent asks -----------------------------------------------------------------------------------------------


def test_an_approved_request_widens_the_mode_for_what_comes_next(cell: World) -> None:
    talk = cell.create()
    talk.asks("go").call(UPGRADE, BASH)
    asked(talk)
    (question,) = talk.found(ApprovalRequested)
    assert question.call == UPGRADE
    assert talk.record.mode is RESTRICTED
    talk.ask(ResolveApprovalCommand("t3", True))
    run = talk.tool()
    assert run.context.mode is UNRESTRICTED, "the next tool of the same response"
    run.finish.put(ToolOutput("written"))
    exchange = talk.exchange()
    assert seen_by_model(exchange) == [["go"], ["use", "use"], ["result", "result", "notice"]]
    (granted, _) = (block for block in exchange.request.turns[-1].content if isinstance(block, ToolSuccess))
    assert granted.output == GRANTED
    exchange.say("done")
    talk.rest(Idle)
    assert talk.record.mode is UNRESTRICTED
    assert notices(talk) == ["unrestricted"]


class CellWithoutWorkspaces(Cell):
    """A machine that can restrict tools, but not keep the workspace mode in this directory."""

    def mode_refusal(self, mode: Mode, directory: str) -> str:
        return "it holds the token" if mode is Mode.WORKSPACE else ""


def test_a_request_for_a_mode_that_cannot_be_kept_is_refused_before_a_person_is_asked(
    make_world: Callable[..., World],
) -> None:
    talk = make_world(box=UpgradeBox(), sandbox=CellWithoutWorkspaces()).create()
    talk.asks("go").call(replace(UPGRADE, input='{"reason": "to edit", "mode": "workspace"}'))
    exchange = talk.exchange()
    assert talk.found(ApprovalRequested) == []
    (refusal,) = exchange.request.turns[-1].content
    assert "Workspace mode is not available: it holds the token. The mode is still restricted." in refusal.output
    exchange.say("done")
    talk.rest(Idle)


@pytest.mark.parametrize(
    ("sandbox", "mode"), [(Cell, "unrestricted"), (Cell, "workspace"), (CellWithoutWorkspaces, "")]
)
def test_a_question_says_whether_the_workspace_mode_can_be_had_instead(
    make_world: Callable[..., World], sandbox: type[Cell], mode: str
) -> None:
    talk = make_world(box=UpgradeBox(), sandbox=sandbox()).create()
    talk.asks("go").call(replace(UPGRADE, input=json.dumps({"reason": "to edit"} | ({"mode": mode} if mode else {}))))
    asked(talk)
    (question,) = talk.found(ApprovalRequested)
    assert question.workspace is (mode == "unrestricted")
    assert talk.state.suggestions == ((Suggested("t3", (), workspace=True),) if question.workspace else ())


@pytest.mark.parametrize(("mode", "to"), [(UNRESTRICTED, Mode.WORKSPACE), (Mode.WORKSPACE, RESTRICTED)])
def test_narrowing_by_one_step_names_what_runs_with_wider_rights_and_widening_names_nothing(
    cell: World, mode: Mode, to: Mode
) -> None:
    talk = cell.create()
    talk.ask(SetModeCommand(mode))
    run = talk.starts(BASH)
    assert run.context.mode is mode
    assert talk.ask(SetModeCommand(to)).surviving_calls == (BASH.id,)
    assert talk.ask(SetModeCommand(mode)).surviving_calls == ()
    assert talk.ask(SetModeCommand(to, stop_running=True)).stopped_calls == (BASH.id,)
    talk.answer("done")


def test_a_cancel_withdraws_an_approval_that_is_not_carried_out_yet(cell: World, hold: Any) -> None:
    talk = cell.create()
    talk.asks("go").call(UPGRADE)
    asked(talk)
    cell.faults.arm("tool.before", hold)
    talk.ask(ResolveApprovalCommand("t3", True))
    hold.wait()
    talk.cancel()
    hold.release()
    talk.rest(Idle)
    assert talk.record.mode is RESTRICTED
    assert talk.found(ModeChanged) == []


# --- over a restart -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(Mode))
def test_the_mode_survives_a_restart(make_world: Callable[..., World], mode: Mode) -> None:
    store = new_store()
    talk = make_world(store, sandbox=Cell()).create()
    talk.ask(SetModeCommand(mode))
    world = make_world(store, box=UpgradeBox(), sandbox=Cell())
    world.supervisor.start()
    again = type(talk)(world, talk.id)
    run = again.starts(BASH)
    assert run.context.mode is mode
    run.finish.put(ToolOutput("ok"))
    again.answer("done")


def _one_life(talk: Any) -> None:
    """Widened and narrowed by a person, widened by an approval, narrowed again."""
    talk.ask(SetModeCommand(UNRESTRICTED))
    talk.ask(SetModeCommand(RESTRICTED))
    talk.asks("go").call(UPGRADE)
    asked(talk)
    talk.ask(ResolveApprovalCommand("t3", True))
    talk.until(lambda: talk.record.mode is UNRESTRICTED)
    talk.ask(SetModeCommand(RESTRICTED))
    talk.ask(CancelConversationCommand())


def test_whatever_the_moment_of_the_end_the_mode_is_one_that_people_had_set(make_world: Callable[..., World]) -> None:
    """For every fault point that this life passes: what is stored then is what was committed, never more."""
    rehearsal = make_world(new_store(), box=UpgradeBox(), sandbox=Cell())
    _one_life(rehearsal.create())
    stored: list[tuple[Mode, list[Mode]]] = []
    store = new_store()
    world = make_world(store, box=UpgradeBox(), sandbox=Cell())
    talk = world.create()
    lock = threading.Lock()

    def look() -> None:
        with lock:
            record = store.load(talk.id)
            assert record is not None
            events = store.events(talk.id, after=0, limit=1000)
            said = [each.notification.mode for each in events if isinstance(each.notification, ModeChanged)]
            stored.append((record.mode, said))

    for number in range(len(world.faults.passed), len(rehearsal.faults.passed) + 20):
        world.faults.arm_pass(number, look)
    _one_life(talk)
    assert len(stored) > 10
    for mode, said in stored:
        assert mode is (said[-1] if said else RESTRICTED)
    assert UNRESTRICTED in [mode for mode, _ in stored], "some moments lie in the wide mode"
    assert talk.record.mode is RESTRICTED
