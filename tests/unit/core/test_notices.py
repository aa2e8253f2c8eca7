"""Modes and how the agent hears of them (REQ-BED-016, 017; SEMANTICS C48, I40)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from actors.core.content import SystemKind, ToolSuccess
from actors.core.context import Mode
from actors.core.effects import PersistMode, PersistState
from actors.core.errors import Reason, Rejected
from actors.core.events import Restart, SetMode, TriggerContinuation, UserCancel
from actors.core.notifications import ModeChanged, StateChanged
from actors.core.states import AwaitingContinuation, Idle, LlmRequesting
from actors.core.transition import run_chain
from tests.machine.columns import PARENT, parent_columns
from tests.machine.talk import Talk, bash, messages

RESTRICTED, UNRESTRICTED = Mode.RESTRICTED, Mode.UNRESTRICTED


def in_a_round() -> Talk:
    talk = Talk(PARENT)
    talk.say("go")
    talk.call(bash("t1"), bash("t2"))
    return talk


def test_a_mode_change_outside_a_tool_round_is_said_at_once() -> None:
    talk = Talk(PARENT)
    talk.say("go")

    talk.set_mode(UNRESTRICTED)

    (message,) = messages(talk.last)
    assert (message.kind, message.run, message.meta) == (SystemKind.MODE_UNRESTRICTED, "c:1", False)
    assert talk.acts(PersistMode) == [PersistMode(UNRESTRICTED)]
    assert talk.notes(ModeChanged) == [ModeChanged(UNRESTRICTED)]
    assert talk.notes(StateChanged) == []
    assert talk.acts(PersistState) == [PersistState(talk.state)]


def test_a_mode_change_within_a_tool_round_waits_for_the_inference_boundary() -> None:
    talk = in_a_round()

    talk.set_mode(UNRESTRICTED)
    assert talk.said == []
    assert talk.context.mode is UNRESTRICTED
    talk.result(ToolSuccess("t1", "one"))
    assert [kind for kind, _ in talk.said] == ["tool"]
    talk.result(ToolSuccess("t2", "two"))

    assert [kind for kind, _ in talk.said] == ["tool", "system"]
    assert talk.state.ledger.pending_notices == ()


def test_of_several_changes_within_a_round_only_the_last_is_said() -> None:
    talk = in_a_round()

    talk.set_mode(UNRESTRICTED)
    talk.set_mode(RESTRICTED)
    assert len(talk.state.ledger.pending_notices) == 1
    talk.result(ToolSuccess("t1", "one"))
    talk.result(ToolSuccess("t2", "two"))

    (notice,) = [text for kind, text in talk.said if kind == "system"]
    assert "now restricted" in notice
    assert talk.context.mode is RESTRICTED


@pytest.mark.parametrize("event", [UserCancel(9_000), Restart(9_000)], ids=["cancel", "restart"])
def test_a_waiting_notice_survives_and_is_said_before_the_next_request(event: UserCancel | Restart) -> None:
    talk = in_a_round()
    talk.set_mode(UNRESTRICTED)

    talk.tell(event)
    assert [kind for kind, _ in talk.said] == ["tool", "tool"]
    talk.say("again")

    assert [kind for kind, _ in talk.said] == ["user", "system"]
    assert isinstance(talk.state, LlmRequesting)


def test_a_change_that_can_be_said_at_once_replaces_a_notice_that_waits() -> None:
    talk = in_a_round()
    talk.set_mode(UNRESTRICTED)
    talk.tell(UserCancel(talk.at()))

    talk.set_mode(RESTRICTED)

    assert isinstance(talk.state, Idle)
    assert talk.state.ledger.pending_notices == ()
    assert [kind for kind, _ in talk.said] == ["system"]


def test_a_waiting_notice_is_said_before_a_summary_request_too() -> None:
    talk = in_a_round()
    talk.set_mode(UNRESTRICTED)
    talk.tell(UserCancel(talk.at()))

    talk.tell(TriggerContinuation(talk.at()))

    assert [kind for kind, _ in talk.said] == ["system"]
    assert isinstance(talk.state, AwaitingContinuation)
    assert talk.state.through_sequence == talk.messages[-1].sequence


@pytest.mark.parametrize("column", parent_columns()[:-1], ids=lambda one: one.name)
def test_a_mode_that_this_server_cannot_enforce_is_refused_in_every_state(column: object) -> None:
    context = replace(PARENT, mode=UNRESTRICTED, restriction_available=False)

    with pytest.raises(Rejected) as refused:
        run_chain(column.state, context, SetMode(1, RESTRICTED))  # type: ignore[attr-defined]

    assert refused.value.reason is Reason.MODE_UNAVAILABLE


def test_a_message_stored_while_a_request_is_in_flight_is_later_than_what_the_request_contains() -> None:
    talk = Talk(PARENT)
    talk.say("go")

    talk.set_mode(UNRESTRICTED)
    talk.text("done")

    root, notice, answer = talk.messages
    assert answer.through_sequence == root.sequence < notice.sequence < answer.sequence
