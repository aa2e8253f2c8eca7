"""Chains, identity and purity (REQ-BED-001; C51; I1, I2, I22, I39), over every column and row of the grid."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from actors.core.content import Text, ToolSuccess
from actors.core.context import ConvContext, Mode
from actors.core.effects import Effect, ExecuteTool, PersistMessage, PersistState, RequestContinuation, RequestLlm
from actors.core.errors import Rejected
from actors.core.events import ApprovalResponse, Event, FinishCancel, LlmStreamChunk, UserCancel
from actors.core.states import QueuedInput, State
from actors.core.transition import Step, run_chain, settle_event, transition
from tests.machine.columns import NOW, UPGRADE_1, Column, column, parent_columns, sub_agent_columns
from tests.machine.rows import ROWS, Case
from tests.machine.talk import Talk, bash

COLUMNS = [
    pytest.param(one, id=f"{'sub-agent: ' if one.context.is_sub_agent else ''}{one.name}")
    for one in (*parent_columns(), *sub_agent_columns())
]
STARTING = (RequestLlm, RequestContinuation, ExecuteTool)


def chain(case: Case) -> tuple[Step, ...]:
    """The steps; none if it was refused."""
    try:
        return run_chain(*case)
    except Rejected:
        return ()


@pytest.mark.parametrize("one", COLUMNS)
def test_every_step_keeps_the_laws_of_the_machine(one: Column) -> None:
    for make in ROWS.values():
        for case in make(one):
            steps = chain(case)
            assert chain(case) == steps
            _check_steps(case.state, steps)
            if steps:
                assert settle_event(steps[-1].new_state, 0) is None
            started = [effect for step in steps for effect in step.effects if isinstance(effect, STARTING)]
            assert len(started) <= 1


def _check_steps(state: State, steps: tuple[Step, ...]) -> None:
    """The state is persisted if and only if it changed; counters only grow; messages are numbered without a gap."""
    for step in steps:
        persisted = [effect.new_state for effect in step.effects if isinstance(effect, PersistState)]
        assert persisted == ([step.new_state] if step.new_state != state else [])
        before, after = state.ledger, step.new_state.ledger
        for counter in ("run", "req", "xid", "seq", "agents", "turns"):
            assert getattr(after, counter) >= getattr(before, counter)
        said = [effect.message.sequence for effect in step.effects if isinstance(effect, PersistMessage)]
        assert said == list(range(before.seq + 1, after.seq + 1))
        state = step.new_state


@pytest.mark.parametrize("one", COLUMNS)
def test_everything_survives_the_way_to_the_database_and_back(one: Column) -> None:
    assert _there_and_back(one.context, ConvContext) == one.context
    for make in ROWS.values():
        for case in make(one):
            assert _there_and_back(case.event, Event) == case.event
            for step in chain(case):
                assert _there_and_back(step.new_state, State) == step.new_state
                assert [_there_and_back(effect, Effect) for effect in step.effects] == list(step.effects)


def _there_and_back(value: object, kind: object) -> object:
    return msgspec.json.decode(msgspec.json.encode(value), type=kind)


def test_an_ignored_event_returns_the_very_same_state() -> None:
    for one in (*parent_columns(), *sub_agent_columns()):
        for case in ROWS["any LLM outcome, stale id"](one):
            assert transition(*case).new_state is case.state


def test_message_ids_come_from_counters_and_are_never_used_again() -> None:
    talk = Talk()
    for number in range(3):
        talk.say(f"m{number}")
        talk.call(bash(f"t{number}"))
        talk.result(ToolSuccess(f"t{number}", "ok"))
        talk.text("done")

    ids = [message.id for message in talk.messages]
    assert len(set(ids)) == len(ids)
    assert ids[:5] == ["m0", "c:1:2", "c:1:3", "c:1:4", "m1"]


def test_a_later_step_of_a_chain_sees_the_mode_that_an_earlier_one_set() -> None:
    talk = Talk(replace(column("Idle").context, mode=Mode.RESTRICTED))
    talk.say("go")
    talk.call(UPGRADE_1)
    talk.tell(ApprovalResponse(talk.at(), "t1", True))

    talk.result(ToolSuccess("t1", "granted"))

    assert [step.context.mode for step in talk.steps] == [Mode.RESTRICTED, Mode.UNRESTRICTED]


def test_a_cancelled_request_passes_through_cancelling_in_one_commit() -> None:
    talk = Talk()
    talk.say("go")

    talk.tell(UserCancel(talk.at()))

    assert [type(step.event) for step in talk.steps] == [UserCancel, FinishCancel]
    assert talk.walk == ["Cancelling", "Idle"]


@pytest.mark.parametrize("one", [column("Idle"), column("Error")], ids=lambda one: one.name)
def test_a_state_with_a_queue_is_never_idle(one: Column) -> None:
    waiting = QueuedInput("m1", "next", (), NOW)
    books = replace(one.state.ledger, follows=(waiting,))

    assert type(settle_event(replace(one.state, ledger=books), 5)).__name__ == "PromoteFollowUp"


def test_a_chunk_of_a_stream_that_runs_writes_nothing() -> None:
    one = column("LlmReq/stream")

    (step,) = run_chain(one.state, one.context, LlmStreamChunk(1, "c:r7", 1, Text("more"), True))

    assert step.new_state is one.state
    (delta,) = step.effects
    assert msgspec.json.decode(msgspec.json.encode(delta))["data"] == {
        "type": "text_delta",
        "request_id": "c:r7",
        "attempt": 1,
        "text": "more",
        "reasoning": True,
    }
