"""What the agent is told of: modes, images, dates (REQ-BED-016, 017; C48, I40), and what was cut off (REQ-BED-005)."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from actors.core import content, events
from actors.core.context import ApprovalPolicy, ConvContext, Mode, Rules
from actors.core.effects import AbortTool, ExecuteTool, PersistMode, PersistState, RequestContinuation, RequestLlm
from actors.core.errors import ErrorKind, LlmFailure, Reason, Rejected
from actors.core.history import provider_view
from actors.core.notifications import ModeChanged, RunStop, StateChanged, StopReason, StreamDiscarded
from actors.core.states import AgentSucceeded, AwaitingContinuation, Failed, Idle, LlmRequesting
from actors.core.transition import run_chain
from tests.machine.columns import PARENT, SUB_AGENT, Column, parent_columns, sub_agent_columns
from tests.machine.rows import TASKS
from tests.machine.talk import OPEN, Talk, bash, messages, words

# Modes and how the agent hears of them (REQ-BED-016, 017; C48, I40).


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
    assert (message.kind, message.run, message.meta) == (content.SystemKind.MODE_UNRESTRICTED, "c:1", False)
    assert talk.acts(PersistMode) == [PersistMode(UNRESTRICTED)]
    assert talk.notes(ModeChanged) == [ModeChanged(UNRESTRICTED)]
    assert talk.notes(StateChanged) == []
    assert talk.acts(PersistState) == [PersistState(talk.state)]


def test_a_mode_change_within_a_tool_round_waits_for_the_inference_boundary() -> None:
    talk = in_a_round()

    talk.set_mode(UNRESTRICTED)
    assert talk.said == []
    assert talk.context.mode is UNRESTRICTED
    talk.result(content.ToolSuccess("t1", "one"))
    assert [kind for kind, _ in talk.said] == ["tool"]
    talk.result(content.ToolSuccess("t2", "two"))

    assert [kind for kind, _ in talk.said] == ["tool", "system"]
    assert talk.state.ledger.pending_notices == ()


def test_of_several_changes_within_a_round_only_the_last_is_said() -> None:
    talk = in_a_round()

    talk.set_mode(UNRESTRICTED)
    talk.set_mode(RESTRICTED)
    assert len(talk.state.ledger.pending_notices) == 1
    talk.result(content.ToolSuccess("t1", "one"))
    talk.result(content.ToolSuccess("t2", "two"))

    (notice,) = [text for kind, text in talk.said if kind == "system"]
    assert "now restricted" in notice
    assert talk.context.mode is RESTRICTED


@pytest.mark.parametrize("event", [events.UserCancel(9_000), events.Restart(9_000)], ids=["cancel", "restart"])
def test_a_waiting_notice_survives_and_is_said_before_the_next_request(
    event: events.UserCancel | events.Restart,
) -> None:
    talk = in_a_round()
    talk.set_mode(UNRESTRICTED)

    talk.tell(event)
    assert [kind for kind, _ in talk.said] == ["tool", "tool"]
    talk.say("again")

    kinds = [message.kind for message in messages(talk.last)]
    assert kinds == [content.SystemKind.INTERRUPTED, content.SystemKind.NONE, content.SystemKind.MODE_UNRESTRICTED]
    assert isinstance(talk.state, LlmRequesting)


def test_a_change_that_can_be_said_at_once_replaces_a_notice_that_waits() -> None:
    talk = in_a_round()
    talk.set_mode(UNRESTRICTED)
    talk.tell(events.UserCancel(talk.at()))

    talk.set_mode(RESTRICTED)

    assert isinstance(talk.state, Idle)
    assert [notice.kind for notice in talk.state.ledger.pending_notices] == [content.SystemKind.INTERRUPTED]
    assert [kind for kind, _ in talk.said] == ["system"]


def test_a_waiting_notice_is_said_before_a_summary_request_too() -> None:
    talk = in_a_round()
    talk.set_mode(UNRESTRICTED)
    talk.tell(events.UserCancel(talk.at()))

    talk.tell(events.TriggerContinuation(talk.at()))

    kinds = [message.kind for message in messages(talk.last)]
    assert kinds == [content.SystemKind.MODE_UNRESTRICTED, content.SystemKind.INTERRUPTED]
    assert isinstance(talk.state, AwaitingContinuation)
    assert talk.state.through_sequence == talk.messages[-1].sequence


@pytest.mark.parametrize("mode", [RESTRICTED, Mode.WORKSPACE])
@pytest.mark.parametrize("column", parent_columns()[:-1], ids=lambda one: one.name)
def test_a_mode_that_this_server_cannot_enforce_is_refused_in_every_state(column: object, mode: Mode) -> None:
    context = replace(PARENT, mode=UNRESTRICTED, restriction_available=False, workspace_available=False)

    with pytest.raises(Rejected) as refused:
        run_chain(column.state, context, events.SetMode(1, mode))  # type: ignore[attr-defined]

    assert refused.value.reason is Reason.MODE_UNAVAILABLE
    assert str(refused.value) == f"{mode.value} mode is not available on this server"


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
    assert isinstance(result, content.ToolCancelled)
    assert "restricted" in result.output
    assert talk.context.mode is RESTRICTED
    assert talk.tell(events.ToolAborted(talk.at(), "t1", 1)) == (), "its own end is late"
    talk.result(content.ToolSuccess("t2", "two"))
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
    talk.result(content.ToolError("t1", "no"))

    talk.set_mode(RESTRICTED, "t1")

    assert talk.acts(AbortTool) == []
    assert talk.said == []
    assert talk.set_mode(RESTRICTED, "t1") == ()


def test_a_call_that_waits_for_its_next_attempt_starts_in_the_new_mode_anyway() -> None:
    talk = running("t1")
    talk.tell(events.ToolTransient(talk.at(), "t1", 1, "no process", begun=False))

    talk.set_mode(RESTRICTED, "t1")

    assert talk.acts(AbortTool) == []
    assert talk.said == []


@pytest.mark.parametrize("column", parent_columns(), ids=lambda column: column.name)
def test_stopping_calls_that_do_not_run_changes_nothing_else(column: Column) -> None:
    def after(event: events.SetMode) -> object:
        try:
            return run_chain(column.state, column.context, event)
        except Rejected as refusal:
            return refusal.reason

    plain, stopping = (after(events.SetMode(1, UNRESTRICTED, stop)) for stop in ((), ("t0",)))

    assert str(plain) == str(stopping).replace("stop=('t0',)", "stop=()")


PICTURE = content.Image("sha256-1", "image/png", 30, 20)
SHOWN = content.ToolSuccess("t1", "a.png", (PICTURE,))


def shown(context: ConvContext = OPEN) -> Talk:
    """A conversation whose first message has an image."""
    talk = Talk(context)
    talk.tell(events.UserMessage(talk.at(), "look", "look", (PICTURE,)))
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
    talk.tell(events.TriggerContinuation(talk.at()))
    assert talk.said == []


def test_a_queued_message_after_a_refusal_goes_out_with_the_notice() -> None:
    talk = shown()
    talk.say("later", content.Delivery.FOLLOW_UP)
    hidden(talk)

    talk.tell(events.LlmError(talk.at(), "c:r1", 1, LlmFailure(ErrorKind.INVALID_REQUEST, "no images")))

    assert [kind for kind, _ in talk.said] == ["error", "user", "system"]
    assert talk.acts(RequestLlm)


def test_a_summary_is_asked_for_with_the_notice() -> None:
    talk = shown()
    talk.text("I see.")
    hidden(talk)
    talk.tell(events.TriggerContinuation(talk.at()))
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


@pytest.mark.parametrize("delivery", [content.Delivery.STEER, content.Delivery.FOLLOW_UP])
def test_a_queued_message_of_a_new_day_is_told_the_date_too(delivery: content.Delivery) -> None:
    talk = Talk(TODAY)
    talk.say("a")
    talk.say("b", delivery)
    dated(talk, "2026-11-29")
    if delivery is content.Delivery.STEER:
        talk.call(bash("t1"))
        talk.result(content.ToolSuccess("t1", "ok"))
    else:
        talk.text("A")
    assert talk.said[-2:] == [("system", "The date is now 2026-11-29 (UTC)."), ("user", "b")]


def test_logs_without_a_date_know_no_notice_of_it() -> None:
    talk = Talk(replace(OPEN, prompt_date="2026-11-28"))
    talk.say("a")
    assert talk.said == [("user", "a")]


# The agent is told of a run that was cut off, and at which step (REQ-BED-005; C48).


def asked() -> Talk:
    talk = Talk()
    talk.say("first")
    return talk


def streaming() -> Talk:
    talk = asked()
    talk.tell(events.LlmStreamChunk(talk.at(), "c:r1", 1, content.Text("half a")))
    return talk


def backing_off() -> Talk:
    talk = asked()
    talk.tell(events.LlmError(talk.at(), "c:r1", 1, LlmFailure(ErrorKind.NETWORK, "down")))
    return talk


def running_tools() -> Talk:
    talk = asked()
    talk.call(bash("t1"), bash("t2"))
    return talk


def after_tools() -> Talk:
    talk = running_tools()
    talk.result(content.ToolSuccess("t1", "one"))
    talk.result(content.ToolSuccess("t2", "two"))
    return talk


def asking() -> Talk:
    talk = Talk(replace(OPEN, approval_policy=ApprovalPolicy.ASK_ALL))
    talk.say("first")
    talk.call(bash("t1"))
    return talk


def with_sub_agents() -> Talk:
    talk = running_tools()
    talk.tell(events.AgentsSpawned(talk.at(), "t1", 1, TASKS))
    return talk


def summing_up() -> Talk:
    talk = asked()
    talk.call(bash("t1"), used=OPEN.usable_window)
    return talk


STEPS: list[tuple[Callable[[], Talk], str]] = [
    (asked, "before you answered"),
    (streaming, "while you were answering"),
    (backing_off, "before you answered"),
    (running_tools, "while bash was running"),
    (after_tools, "after your answer 1 of it"),
    (asking, "while it waited for approval of bash"),
    (with_sub_agents, "while sub-agents were at work"),
    (summing_up, "while you were writing the summary"),
]


def settle(talk: Talk) -> None:
    """The sub-agents' last words."""
    for agent in getattr(talk.state, "pending_agents", ()):
        talk.tell(events.SubAgentResult(talk.at(), agent.agent_id, AgentSucceeded("late")))


def seen(talk: Talk) -> list[str]:
    """What the request in flight contains of the user's turns, block by block."""
    assert isinstance(talk.state, LlmRequesting)
    turns = provider_view(talk.messages, talk.state.through_sequence)
    return [
        block.text
        for turn in turns
        for block in turn.content
        if isinstance(block, content.Text) and turn.role == "user"
    ]


@pytest.mark.parametrize(("busy", "step"), STEPS, ids=[busy.__name__ for busy, _ in STEPS])
def test_the_next_request_says_between_the_two_questions_that_the_user_interrupted_and_where(
    busy: Callable[[], Talk], step: str
) -> None:
    talk = busy()
    talk.tell(events.UserCancel(talk.at()))
    assert all(kind == "tool" for kind, _ in talk.said), "a cancel persists nothing but synthetic results"
    settle(talk)
    assert isinstance(talk.state, Idle)

    talk.say("second")

    first, notice, second = seen(talk)
    assert (first, second) == ("first", "second")
    assert notice.startswith(f"<system-notice>\nThe user interrupted the run {step}")
    (message, _) = messages(talk.last)
    assert (message.type, message.kind, message.run, message.meta) == (
        content.MessageType.SYSTEM,
        content.SystemKind.INTERRUPTED,
        "",
        True,
    )
    assert talk.state.ledger.pending_notices == ()


def test_a_restart_is_reported_as_such() -> None:
    talk = running_tools()
    talk.tell(events.Restart(talk.at()))

    talk.say("second")

    assert "The server was stopped and the run was cut off while bash was running" in seen(talk)[1]


def test_a_restart_during_a_cancel_leaves_the_notice_of_the_cancel() -> None:
    talk = with_sub_agents()
    talk.tell(events.UserCancel(talk.at()))
    talk.tell(events.Restart(talk.at()))

    talk.say("second")

    assert "The user interrupted the run while sub-agents were at work" in seen(talk)[1]


def test_a_newer_cancel_replaces_the_notice_that_waits() -> None:
    """The follow-up's run is cut off before its request was built from the notice: none is said twice."""
    talk = streaming()
    talk.say("queued", content.Delivery.FOLLOW_UP)
    talk.tell(events.UserCancel(talk.at()))
    assert [kind for kind, _ in talk.said] == ["system", "user"], "the follow-up's run has begun"

    talk.tell(events.UserCancel(talk.at()))
    talk.say("third")

    notices = [text for text in seen(talk) if "interrupted" in text]
    assert len(notices) == 2
    assert "while you were answering" in notices[0]
    assert "before you answered" in notices[1]


def test_of_two_cancels_without_a_run_that_was_built_between_them_the_last_is_said() -> None:
    talk = asked()
    talk.tell(events.UserCancel(talk.at()))
    cancelled_once = talk.state.ledger.pending_notices
    talk.tell(events.TriggerContinuation(talk.at()))
    assert [kind for kind, _ in talk.said] == ["system"], "a summary is a request too"
    talk.tell(events.UserCancel(talk.at()))

    assert len(cancelled_once) == 1
    assert talk.state.ledger.pending_notices == (), "no run was cut off this time"


def test_discarded_follow_ups_stand_before_the_notice() -> None:
    talk = streaming()
    talk.say("dropped", content.Delivery.FOLLOW_UP)
    talk.tell(events.UserCancel(talk.at(), discard_queued=True))

    talk.say("second")

    first, dropped, notice, second = seen(talk)
    assert (first, dropped, second) == ("first", "dropped", "second")
    assert "Do not take up again what was asked before this notice" in notice


def test_a_notice_is_also_given_for_sub_agents_started_by_a_user() -> None:
    talk = asked()
    talk.tell(events.UserCancel(talk.at()))

    talk.tell(events.SpawnSubAgents(talk.at(), "root", TASKS))

    assert [message.kind for message in messages(talk.last)] == [
        content.SystemKind.INTERRUPTED,
        content.SystemKind.NONE,
    ]


def test_a_cancel_of_nothing_and_one_of_a_sub_agent_leave_no_notice() -> None:
    idle = Talk()
    idle.tell(events.UserCancel(idle.at()))
    idle.say("first")
    assert [kind for kind, _ in idle.said] == ["user"]

    child = Talk(SUB_AGENT)
    child.start()
    child.tell(events.UserCancel(child.at()))
    assert child.state.ledger.pending_notices == ()


def test_a_log_of_the_first_edition_is_replayed_as_it_was_written() -> None:
    talk = Talk(replace(OPEN, rules=Rules.FIRST))
    talk.say("first")
    talk.tell(events.UserCancel(talk.at()))
    talk.say("second")

    assert [words(message) for message in talk.messages] == ["first", "second"]


# Cancel and restart in every state (REQ-BED-005, 007; C1 to C3, C35): a valid history, one run-stop.


LIVE = [one for one in (*parent_columns(), *sub_agent_columns()) if one.state.ledger.live]


def name_of(one: Column) -> str:
    return f"{'sub-agent ' if one.context.is_sub_agent else ''}{one.name}"


@pytest.mark.parametrize("one", LIVE, ids=name_of)
def test_a_restart_leaves_no_run_in_progress_and_starts_nothing(one: Column) -> None:
    talk = Talk(one.context, one.state)

    talk.tell(events.Restart(talk.at()))

    assert isinstance(talk.state, Failed if one.context.is_sub_agent else Idle)
    assert talk.notes(RunStop) == [RunStop("c:3", StopReason.INTERRUPTED, "restart")]
    assert not [effect for effect in talk.last if isinstance(effect, (RequestLlm, RequestContinuation, ExecuteTool))]
    results = [block for message in messages(talk.last) for block in message.content]
    assert all(one == content.ToolCancelled(one.tool_use_id, "Interrupted by server restart") for one in results)  # type: ignore[union-attr]
    streamed = "stream" in one.name or "grace" in one.name
    assert len(talk.notes(StreamDiscarded)) == streamed


@pytest.mark.parametrize("kind", ["cancel", "restart"])
def test_results_of_tools_that_ran_are_not_written_again(kind: str) -> None:
    one = next(column for column in parent_columns() if column.name == "ToolExec")
    talk = Talk(one.context, one.state)

    talk.tell(events.UserCancel(talk.at()) if kind == "cancel" else events.Restart(talk.at()))

    results = [message.content[0] for message in messages(talk.last)]
    skipped = content.ToolCancelled("t2", "Skipped due to cancellation", content.ToolOutcome.SKIPPED)
    assert results[1] == (skipped if kind == "cancel" else content.ToolCancelled("t2", "Interrupted by server restart"))
    assert [result.tool_use_id for result in results] == ["t1", "t2"]  # type: ignore[union-attr]


@pytest.mark.parametrize("run_id", ["", "c:3"])
def test_a_cancel_of_the_live_run_is_taken_and_of_another_is_not(run_id: str) -> None:
    one = next(column for column in parent_columns() if column.name == "ToolExec")
    talk = Talk(one.context, one.state)

    assert talk.tell(events.UserCancel(talk.at(), run_id="c:2")) == ()
    talk.tell(events.UserCancel(talk.at(), run_id=run_id))

    assert talk.notes(RunStop) == [RunStop("c:3", StopReason.INTERRUPTED)]
