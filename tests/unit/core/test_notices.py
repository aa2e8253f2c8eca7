"""Modes and how the agent hears of them (REQ-BED-016, 017; C48, I40)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from actors.core.content import Delivery, Image, SystemKind, ToolCancelled, ToolError, ToolSuccess
from actors.core.context import ConvContext, Mode, Rules
from actors.core.effects import AbortTool, ExecuteTool, PersistMode, PersistState, RequestLlm
from actors.core.errors import ErrorKind, LlmFailure, Reason, Rejected
from actors.core.events import (
    LlmError,
    Restart,
    SetMode,
    ToolAborted,
    ToolTransient,
    TriggerContinuation,
    UserCancel,
    UserMessage,
)
from actors.core.notifications import ModeChanged, StateChanged
from actors.core.states import AwaitingContinuation, Idle, LlmRequesting
from actors.core.transition import run_chain
from tests.machine.columns import PARENT, Column, parent_columns
from tests.machine.talk import OPEN, Talk, bash, messages

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

    kinds = [message.kind for message in messages(talk.last)]
    assert kinds == [SystemKind.INTERRUPTED, SystemKind.NONE, SystemKind.MODE_UNRESTRICTED]
    assert isinstance(talk.state, LlmRequesting)


def test_a_change_that_can_be_said_at_once_replaces_a_notice_that_waits() -> None:
    talk = in_a_round()
    talk.set_mode(UNRESTRICTED)
    talk.tell(UserCancel(talk.at()))

    talk.set_mode(RESTRICTED)

    assert isinstance(talk.state, Idle)
    assert [notice.kind for notice in talk.state.ledger.pending_notices] == [SystemKind.INTERRUPTED]
    assert [kind for kind, _ in talk.said] == ["system"]


def test_a_waiting_notice_is_said_before_a_summary_request_too() -> None:
    talk = in_a_round()
    talk.set_mode(UNRESTRICTED)
    talk.tell(UserCancel(talk.at()))

    talk.tell(TriggerContinuation(talk.at()))

    kinds = [message.kind for message in messages(talk.last)]
    assert kinds == [SystemKind.MODE_UNRESTRICTED, SystemKind.INTERRUPTED]
    assert isinstance(talk.state, AwaitingContinuation)
    assert talk.state.through_sequence == talk.messages[-1].sequence


@pytest.mark.parametrize("mode", [RESTRICTED, Mode.WORKSPACE])
@pytest.mark.parametrize("column", parent_columns()[:-1], ids=lambda one: one.name)
def test_a_mode_that_this_server_cannot_enforce_is_refused_in_every_state(column: object, mode: Mode) -> None:
    context = replace(PARENT, mode=UNRESTRICTED, restriction_available=False, workspace_available=False)

    with pytest.raises(Rejected) as refused:
        run_chain(column.state, context, SetMode(1, mode))  # type: ignore[attr-defined]

    assert refused.value.reason is Reason.MODE_UNAVAILABLE


def test_a_message_stored_while_a_request_is_in_flight_is_later_than_what_the_request_contains() -> None:
    talk = Talk(PARENT)
    talk.say("go")

    talk.set_mode(UNRESTRICTED)
    talk.text("done")

    root, notice, answer = talk.messages
    assert answer.through_sequence == root.sequence < notice.sequence < answer.sequence


# --- a call that may do more than the mode allows (REQ-BED-016) -----------------------------------------------------


def running(*calls: str) -> Talk:
    """An unrestricted conversation whose first call runs."""
    talk = Talk(replace(OPEN, restriction_available=True))
    talk.say("go")
    talk.call(*map(bash, calls))
    return talk


def test_a_call_that_is_stopped_for_the_mode_ends_and_the_next_one_runs() -> None:
    talk = running("t1", "t2")

    talk.set_mode(RESTRICTED, "t1")

    assert talk.acts(AbortTool) == [AbortTool("t1", 1)]
    assert [effect.tool_use_id for effect in talk.acts(ExecuteTool)] == ["t2"]
    (message,) = messages(talk.last)
    (result,) = message.content
    assert isinstance(result, ToolCancelled)
    assert "restricted" in result.output
    assert talk.context.mode is RESTRICTED
    assert talk.tell(ToolAborted(talk.at(), "t1", 1)) == (), "its own end is late"
    talk.result(ToolSuccess("t2", "two"))
    assert [kind for kind, _ in talk.said] == ["tool", "system"]


def test_after_the_last_call_was_stopped_the_model_goes_on_and_knows_its_mode() -> None:
    talk = running("t1")

    talk.set_mode(RESTRICTED, "t1")

    assert [kind for kind, _ in talk.said] == ["tool", "system"]
    assert len(talk.acts(RequestLlm)) == 1


def test_what_an_earlier_change_has_left_can_be_stopped_later() -> None:
    talk = running("t1")
    talk.set_mode(RESTRICTED)

    talk.set_mode(RESTRICTED, "t1")

    assert talk.acts(AbortTool) == [AbortTool("t1", 1)]
    assert talk.acts(PersistMode) == []
    assert [kind for kind, _ in talk.said] == ["tool", "system"], "the notice that waited"


def test_only_the_call_that_runs_is_stopped() -> None:
    talk = running("t1", "t2")
    talk.result(ToolError("t1", "no"))

    talk.set_mode(RESTRICTED, "t1")

    assert talk.acts(AbortTool) == []
    assert talk.said == []
    assert talk.set_mode(RESTRICTED, "t1") == ()


def test_a_call_that_waits_for_its_next_attempt_starts_in_the_new_mode_anyway() -> None:
    talk = running("t1")
    talk.tell(ToolTransient(talk.at(), "t1", 1, "no process", begun=False))

    talk.set_mode(RESTRICTED, "t1")

    assert talk.acts(AbortTool) == []
    assert talk.said == []


@pytest.mark.parametrize("column", parent_columns(), ids=lambda column: column.name)
def test_stopping_calls_that_do_not_run_changes_nothing_else(column: Column) -> None:
    def after(event: SetMode) -> object:
        try:
            return run_chain(column.state, column.context, event)
        except Rejected as refusal:
            return refusal.reason

    plain, stopping = (after(SetMode(1, UNRESTRICTED, stop)) for stop in ((), ("t0",)))

    assert str(plain) == str(stopping).replace("stop=('t0',)", "stop=()")


PICTURE = Image("sha256-1", "image/png", 30, 20)
SHOWN = ToolSuccess("t1", "a.png", (PICTURE,))


def shown(context: ConvContext = OPEN) -> Talk:
    """A conversation whose first message has an image."""
    talk = Talk(context)
    talk.tell(UserMessage(talk.at(), "look", "look", (PICTURE,)))
    return talk


def hidden(talk: Talk, model: str = "blind") -> None:
    talk.context = replace(talk.context, model_id=model, takes_images=False)


def test_a_model_that_takes_no_images_is_told_so_once_before_its_next_request() -> None:
    talk = shown()
    assert [kind for kind, _ in talk.said] == ["user"]
    talk.text("I see.")
    hidden(talk)

    talk.say("and now?")

    (_, _), (kind, text) = talk.said
    assert (kind, text.startswith("The model blind takes no images")) == ("system", True)
    talk.text("No.")
    talk.say("sure?")
    assert [kind for kind, _ in talk.said] == ["user"]


def test_each_image_of_a_tool_and_each_other_model_that_takes_none_is_told_of() -> None:
    talk = Talk(replace(OPEN, takes_images=False))
    talk.say("go")
    for _ in range(2):
        talk.call(bash("t1"))
        talk.result(SHOWN)
        assert [kind for kind, _ in talk.said] == ["tool", "system"]
    talk.text("done")
    hidden(talk, "another")
    talk.say("and?")
    assert talk.said[-1][1].startswith("The model another takes no images")
    talk.text("no")
    talk.tell(TriggerContinuation(talk.at()))
    assert talk.said == []


def test_a_queued_message_after_a_refusal_goes_out_with_the_notice() -> None:
    talk = shown()
    talk.say("later", Delivery.FOLLOW_UP)
    hidden(talk)

    talk.tell(LlmError(talk.at(), "c:r1", 1, LlmFailure(ErrorKind.INVALID_REQUEST, "no images")))

    assert [kind for kind, _ in talk.said] == ["error", "user", "system"]
    assert talk.acts(RequestLlm)


def test_a_summary_is_asked_for_with_the_notice() -> None:
    talk = shown()
    talk.text("I see.")
    hidden(talk)
    talk.tell(TriggerContinuation(talk.at()))
    assert [kind for kind, _ in talk.said] == ["system"]


def test_logs_of_the_third_edition_know_no_notice_of_images() -> None:
    talk = shown(replace(OPEN, rules=Rules.OWN_TOOLS))
    talk.text("I see.")
    hidden(talk)
    talk.say("and now?")
    assert [kind for kind, _ in talk.said] == ["user"]
    assert talk.state.ledger.hidden_from is None


TODAY = replace(OPEN, date="2026-11-28", prompt_date="2026-11-28")


def dated(talk: Talk, date: str) -> None:
    talk.context = replace(talk.context, date=date)


def test_a_new_date_is_told_once_before_the_first_message_of_the_day() -> None:
    talk = Talk(TODAY)
    talk.say("a")
    assert talk.said == [("user", "a")]
    talk.text("A")
    dated(talk, "2026-11-29")
    talk.say("b")
    assert talk.said == [("system", "The date is now 2026-11-29 (UTC)."), ("user", "b")]
    assert talk.messages[-2].meta
    talk.text("B")
    talk.say("c")
    assert talk.said == [("user", "c")]
    talk.text("C")
    dated(talk, "2026-11-28")
    talk.say("d")
    assert talk.said[0] == ("system", "The date is now 2026-11-28 (UTC).")


@pytest.mark.parametrize("delivery", [Delivery.STEER, Delivery.FOLLOW_UP])
def test_a_queued_message_of_a_new_day_is_told_the_date_too(delivery: Delivery) -> None:
    talk = Talk(TODAY)
    talk.say("a")
    talk.say("b", delivery)
    dated(talk, "2026-11-29")
    if delivery is Delivery.STEER:
        talk.call(bash("t1"))
        talk.result(ToolSuccess("t1", "ok"))
    else:
        talk.text("A")
    assert talk.said[-2:] == [("system", "The date is now 2026-11-29 (UTC)."), ("user", "b")]


def test_logs_without_a_date_know_no_notice_of_it() -> None:
    talk = Talk(replace(OPEN, prompt_date="2026-11-28"))
    talk.say("a")
    assert talk.said == [("user", "a")]
