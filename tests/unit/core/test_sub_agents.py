"""Sub-agents from both sides (REQ-BED-008, 009, 024, 026; C27 to C32, C50)."""

import pytest
from msgspec.structs import replace

from actors.core import effects, events, states
from actors.core.content import Delivery, SubAgentComplete, SystemKind, Text, ToolOutcome, ToolSuccess, ToolUse
from actors.core.context import Limits
from actors.core.errors import ErrorKind, InvalidTransition, Reason, Rejected
from actors.core.notifications import RunStop, StopReason, SubAgents
from tests.machine.columns import SUB_AGENT
from tests.machine.talk import OPEN, Talk, bash, messages

SPAWN = ToolUse("t1", "spawn_sub_agent", "{}")


def task(name: str, timeout_ms: int = 60_000) -> states.AgentTask:
    return states.AgentTask("", name, "/work", "model-1", 20, timeout_ms)


# --- the parent ---


def spawned(*names: str, then: tuple[ToolUse, ...] = (), call: ToolUse = SPAWN) -> Talk:
    talk = Talk(OPEN)
    talk.say("go")
    talk.call(call, *then)
    assert isinstance(talk.state, states.ToolExecuting)
    talk.tell(events.AgentsSpawned(talk.at(), "t1", talk.state.execution_id, tuple(task(name) for name in names)))
    return talk


def ended(talk: Talk, number: int, outcome: states.AgentOutcome) -> None:
    talk.tell(events.SubAgentResult(talk.at(), f"c-a{number}", outcome))


def test_the_transition_numbers_the_sub_agents_and_sets_their_deadlines() -> None:
    talk = spawned("one", "two")

    starts = talk.acts(effects.SpawnSubAgent)
    assert [(one.task.agent_id, one.task.task) for one in starts] == [("c-a1", "one"), ("c-a2", "two")]
    assert {one.deadline for one in starts} == {talk.clock + 60_000}
    assert isinstance(talk.state, states.AwaitingSubAgents)
    assert talk.state.pending_ids == ("c-a1", "c-a2")


def test_the_aggregate_lists_every_outcome_in_the_order_of_the_tasks() -> None:
    talk = spawned("one", "two", "three", "four")

    ended(talk, 4, states.AgentTimedOut("half"))
    ended(talk, 2, states.AgentFailed(ErrorKind.NO_RESULT, "gave up", "so far"))
    ended(talk, 1, states.AgentSucceeded("found it"))
    talk.tell(events.SubAgentTimeout(talk.at(), "c-a3"))

    text = (
        'Task: "one"\nResult: found it\n\n'
        'Task: "two"\nFailed: gave up\nPartial result: so far\n\n'
        'Task: "three"\nTimed out: no result before the deadline\n\n'
        'Task: "four"\nTimed out: no result before the deadline\nPartial result: half'
    )
    (message,) = messages(talk.last)
    assert message.content == (SubAgentComplete("t1", text, True, ToolOutcome.OK),)
    assert talk.acts(effects.CancelSubAgents) == [effects.CancelSubAgents(("c-a3",))]
    assert isinstance(talk.state, states.LlmRequesting)


def test_an_aggregate_without_any_success_is_an_error_for_the_model() -> None:
    talk = spawned("one")

    ended(talk, 1, states.AgentFailed(ErrorKind.NO_RESULT, "gave up"))

    (result,) = messages(talk.last)[0].content
    assert isinstance(result, SubAgentComplete)
    assert (result.success, result.outcome) == (False, ToolOutcome.ERROR)


def test_the_aggregate_says_what_was_corrected_in_the_call() -> None:
    talk = spawned("one", call=replace(SPAWN, corrected="Note: a."))

    ended(talk, 1, states.AgentSucceeded("found it"))

    (result,) = messages(talk.last)[0].content
    assert isinstance(result, SubAgentComplete)
    assert result.output == 'Task: "one"\nResult: found it\n\nNote: a.'


def test_each_end_is_shown_and_counted_once() -> None:
    talk = spawned("one", "two")

    ended(talk, 1, states.AgentSucceeded("a"))
    (note,) = talk.notes(SubAgents)
    assert [report.agent_id for report in note.reports] == ["c-a1"]
    assert [(agent.id, agent.index, agent.heading) for agent in note.pending] == [("c-a2", 1, "two")]
    ended(talk, 1, states.AgentSucceeded("again"))

    assert talk.steps == ()

    ended(talk, 2, states.AgentSucceeded("b"))
    (note,) = talk.notes(SubAgents)
    assert ([report.agent_id for report in note.reports], note.pending) == (["c-a1", "c-a2"], ())


def test_the_tools_after_the_spawn_run_after_it() -> None:
    talk = spawned("one", then=(bash("t2"),))
    assert talk.acts(effects.ExecuteTool) == []

    ended(talk, 1, states.AgentSucceeded("a"))

    assert [one.tool_use_id for one in talk.acts(effects.ExecuteTool)] == ["t2"]
    assert isinstance(talk.state, states.ToolExecuting)
    assert [type(result).__name__ for result in talk.state.completed_results] == ["SubAgentComplete"]


def test_the_results_before_the_spawn_are_kept() -> None:
    talk = Talk(OPEN)
    talk.say("go")
    talk.call(bash("t0"), SPAWN, bash("t2"))
    talk.result(ToolSuccess("t0", "zero"))
    assert isinstance(talk.state, states.ToolExecuting)
    talk.tell(events.AgentsSpawned(talk.at(), "t1", talk.state.execution_id, (task("one"),)))
    ended(talk, 1, states.AgentSucceeded("a"))

    assert isinstance(talk.state, states.ToolExecuting)
    assert [result.tool_use_id for result in talk.state.completed_results] == ["t0", "t1"]


def test_a_spawn_without_tasks_is_an_error_result() -> None:
    talk = spawned()

    assert isinstance(talk.state, states.LlmRequesting)
    assert messages(talk.last)[0].content[0].outcome is ToolOutcome.ERROR  # type: ignore[union-attr]


def test_the_command_spawns_in_a_run_of_its_own_whose_aggregate_is_a_system_message() -> None:
    talk = Talk(OPEN)

    talk.tell(events.SpawnSubAgents(talk.at(), "m1", (task("one"), task("two"))))
    (root,) = messages(talk.last)
    assert (root.id, root.run, root.delivery) == ("m1", "c:1", "direct")
    ended(talk, 1, states.AgentSucceeded("a"))
    ended(talk, 2, states.AgentSucceeded("b"))

    (message,) = messages(talk.last)
    assert message.kind is SystemKind.SUB_AGENT_RESULTS
    assert talk.said == [("system", 'Task: "one"\nResult: a\n\nTask: "two"\nResult: b')]
    assert isinstance(talk.state, states.LlmRequesting)


def test_the_command_needs_a_task() -> None:
    with pytest.raises(InvalidTransition):
        Talk(OPEN).tell(events.SpawnSubAgents(1, "m1", ()))


def test_agent_ids_are_never_used_again() -> None:
    talk = Talk(OPEN)
    talk.tell(events.SpawnSubAgents(talk.at(), "m1", (task("one"), task("two"))))
    talk.tell(events.UserCancel(talk.at()))
    talk.tell(events.CancelTimeout(talk.at(), "c:1"))

    talk.tell(events.SpawnSubAgents(talk.at(), "m2", (task("three"),)))

    assert [one.task.agent_id for one in talk.acts(effects.SpawnSubAgent)] == ["c-a3"]


def test_the_wait_for_cancelled_sub_agents_is_bounded_and_says_so() -> None:
    talk = spawned("one")
    talk.tell(events.UserCancel(talk.at()))
    assert talk.tell(events.CancelTimeout(talk.at(), "c:9")) == ()

    talk.tell(events.CancelTimeout(talk.at(), "c:1"))

    assert isinstance(talk.state, states.Idle)
    assert talk.notes(RunStop) == [RunStop("c:1", StopReason.INTERRUPTED, "cancel_timeout")]


def test_a_second_cancel_changes_nothing_unless_it_drops_the_queue() -> None:
    talk = spawned("one")
    talk.say("next", Delivery.FOLLOW_UP)
    talk.tell(events.UserCancel(talk.at()))

    assert talk.tell(events.UserCancel(talk.at())) == ()
    assert len(talk.tell(events.UserCancel(talk.at(), discard_queued=True))) == 1
    assert talk.tell(events.UserCancel(talk.at(), discard_queued=True)) == ()
    ended(talk, 1, states.AgentSucceeded("late"))

    assert isinstance(talk.state, states.Idle)
    assert [(note.reason, note.detail) for note in talk.notes(RunStop)] == [
        (StopReason.INTERRUPTED, ""),
        (StopReason.INTERRUPTED, "not_run"),
    ]


# --- the sub-agent ---


def sub_agent(**limits: int) -> Talk:
    talk = Talk(replace(SUB_AGENT, limits=Limits(**limits)))
    talk.start("look around")
    return talk


def parent_hears(talk: Talk) -> list[states.AgentOutcome]:
    """Everything that the parent was ever told."""
    return [effect.result for effect in talk.effects if isinstance(effect, effects.NotifyParent)]


def submit(name: str, raw: str) -> ToolUse:
    return ToolUse("t1", name, raw)


def test_a_sub_agent_is_started_once() -> None:
    talk = sub_agent()

    (root,) = talk.messages
    assert (root.id, root.delivery, root.run) == ("task", "direct", "c:1")
    with pytest.raises(Rejected) as refused:
        talk.tell(events.StartSubAgent(talk.at(), "again", "another task"))
    assert refused.value.reason is Reason.ALREADY_STARTED


def test_a_sub_agent_that_was_cancelled_before_its_task_came_cannot_be_started() -> None:
    talk = Talk(SUB_AGENT)
    talk.tell(events.UserCancel(talk.at()))

    with pytest.raises(Rejected) as refused:
        talk.start()

    assert refused.value.reason is Reason.TERMINAL
    assert parent_hears(talk) == [states.AgentFailed(ErrorKind.CANCELLED, "cancelled before result submission")]
    assert talk.every(RunStop) == []


@pytest.mark.parametrize("raw", ['{"result": "42"}', '{"result": "42", "success": true, "extra": 1}'])
def test_a_submitted_result_completes_the_sub_agent_and_its_history_is_paired(raw: str) -> None:
    talk = sub_agent()

    talk.answer(Text("here"), submit("submit_result", raw), end_turn=False)

    assert talk.state == states.Completed(talk.state.ledger, "42")
    assert parent_hears(talk) == [states.AgentSucceeded("42")]
    assert talk.said == [("agent", "here"), ("tool", "submitted")]
    assert talk.acts(effects.ExecuteTool) == []


@pytest.mark.parametrize(
    "call", [submit("submit_error", '{"error": "no"}'), submit("submit_result", '{"result": "no", "success": false}')]
)
def test_a_submitted_failure_fails_it_without_a_partial_result(call: ToolUse) -> None:
    talk = sub_agent()

    talk.answer(Text("some text"), call, end_turn=False)

    assert parent_hears(talk) == [states.AgentFailed(ErrorKind.SUB_AGENT_ERROR, "no")]
    assert messages(talk.last)[1].content == (SubAgentComplete("t1", "submitted", success=False),)
    assert isinstance(talk.state, states.Failed)


@pytest.mark.parametrize(
    "raw",
    ["", "{", "null", "[]", "{}", '{"result": 7}', '{"result": "x", "success": "yes"}', '{"error": "x"}', "[" * 9_999],
)
def test_a_submission_with_invalid_input_is_refused_and_may_be_repeated(raw: str) -> None:
    talk = sub_agent()

    talk.call(submit("submit_result", raw))

    assert isinstance(talk.state, states.LlmRequesting)
    assert "must be the only call" in talk.said[1][1]


def test_two_submissions_in_one_response_are_both_refused() -> None:
    talk = sub_agent()

    talk.call(submit("submit_result", '{"result": "x"}'), ToolUse("t2", "submit_error", '{"error": "y"}'))

    assert isinstance(talk.state, states.LlmRequesting)
    assert len([one for one in talk.said if "must be the only call" in one[1]]) == 2


def test_a_submission_that_was_cut_off_is_not_taken() -> None:
    talk = sub_agent()

    talk.answer(submit("submit_result", '{"result": "x"}'), end_turn=False, truncated=True)

    assert isinstance(talk.state, states.LlmRequesting)
    assert "cut off" in talk.said[1][1]


def test_a_whole_submission_is_taken_even_from_a_full_window() -> None:
    talk = sub_agent()

    talk.call(submit("submit_result", '{"result": "x"}'), used=990)

    assert parent_hears(talk) == [states.AgentSucceeded("x")]


def test_a_full_window_fails_a_sub_agent_with_what_it_had() -> None:
    talk = sub_agent()
    talk.answer(Text("found something"), bash("t1"), end_turn=False)
    talk.result(ToolSuccess("t1", "ok"))

    talk.call(bash("t2"), used=900)

    outcome = states.AgentFailed(
        ErrorKind.CONTEXT_EXHAUSTED, "context exhausted before result submission", "found something"
    )
    assert parent_hears(talk) == [outcome]


def test_a_text_is_nudged_twice_in_a_row_and_then_fails_with_the_last_text() -> None:
    talk = sub_agent()
    for text in ("one", "two"):
        talk.text(text)
        (nudge,) = [message for message in messages(talk.last) if message.type == "system"]
        assert (nudge.kind, nudge.meta) == (SystemKind.NUDGE, True)

    talk.text("three")

    (outcome,) = parent_hears(talk)
    assert isinstance(outcome, states.AgentFailed)
    assert (outcome.kind, outcome.partial_result) == (ErrorKind.NO_RESULT, "three")
    (stop,) = talk.notes(RunStop)
    assert (stop.reason, stop.detail) == (StopReason.ERROR, "no_result")


def test_tool_calls_reset_the_nudges() -> None:
    talk = sub_agent()
    talk.text("one")
    talk.text("two")
    talk.call(bash("t1"))
    talk.result(ToolSuccess("t1", "ok"))

    talk.text("three")

    assert isinstance(talk.state, states.LlmRequesting)
    assert talk.state.ledger.nudges == 1


def test_an_empty_end_keeps_the_earlier_text_as_the_last() -> None:
    talk = sub_agent(max_nudges=0)
    talk.answer(Text("worth keeping"), bash("t1"), end_turn=False)
    talk.result(ToolSuccess("t1", "ok"))

    talk.answer()

    assert parent_hears(talk)[0].partial_result == "worth keeping"  # type: ignore[union-attr]


def test_after_the_last_turn_comes_one_announced_grace_turn_in_which_no_tool_runs() -> None:
    talk = sub_agent(max_turns=2)
    for call in ("t1", "t2"):
        talk.call(bash(call))
        talk.result(ToolSuccess(call, "ok"))
    (announcement,) = [message for message in messages(talk.last) if message.type == "system"]
    assert (announcement.kind, announcement.meta) == (SystemKind.GRACE, True)

    talk.answer(Text("nearly there"), bash("t3"), end_turn=False)

    assert talk.acts(effects.ExecuteTool) == []
    assert talk.said == [("agent", "nearly there"), ("tool", "Not executed: turn limit reached")]
    outcome = states.AgentFailed(ErrorKind.TURN_LIMIT, "turn limit reached before result submission", "nearly there")
    assert parent_hears(talk) == [outcome]
    assert talk.state.ledger.turns == 3


def test_continuations_count_as_turns_and_the_grace_turn_is_announced_in_one() -> None:
    talk = sub_agent(max_turns=1)

    talk.answer(Text("part"), end_turn=False)
    assert [message.kind for message in messages(talk.last)][1] is SystemKind.GRACE
    talk.answer(Text("part"), end_turn=False)

    assert isinstance(talk.state, states.Failed)
    assert talk.state.kind is ErrorKind.TURN_LIMIT
    assert len([effect for effect in talk.effects if isinstance(effect, effects.RequestLlm)]) == 2


def test_a_submission_in_the_grace_turn_counts() -> None:
    talk = sub_agent(max_turns=1)
    talk.call(bash("t1"))
    talk.result(ToolSuccess("t1", "ok"))

    talk.call(submit("submit_result", '{"result": "just in time"}'))

    assert parent_hears(talk) == [states.AgentSucceeded("just in time")]


def test_a_cancelled_sub_agent_stops_its_work_and_says_why() -> None:
    thinking, working = sub_agent(), sub_agent()
    working.call(bash("t1"))

    thinking.tell(events.UserCancel(thinking.at(), reason="its deadline passed"))
    working.tell(events.UserCancel(working.at()))

    assert len(thinking.acts(effects.AbortLlm)) == 1
    assert working.acts(effects.AbortTool) == [effects.AbortTool("t1", 1)]
    assert parent_hears(thinking) == [
        states.AgentFailed(ErrorKind.CANCELLED, "cancelled before result submission: its deadline passed")
    ]


def test_the_turns_of_its_task_count_for_a_sub_agent_not_those_of_the_limits() -> None:
    talk = Talk(SUB_AGENT)
    talk.tell(events.StartSubAgent(talk.at(), "m-1", "be quick", max_turns=1))
    assert talk.context.limits.max_turns > 1
    talk.call(bash("t1"))
    talk.result(ToolSuccess("t1", "ok"))
    (announcement,) = [message for message in messages(talk.last) if message.type == "system"]
    assert announcement.kind is SystemKind.GRACE
    talk.call(bash("t2"))
    assert isinstance(talk.state, states.Failed)
    assert talk.state.kind is ErrorKind.TURN_LIMIT


def test_the_last_text_of_a_sub_agent_that_timed_out_is_reported() -> None:
    talk = spawned("one")
    talk.tell(events.SubAgentTimeout(talk.at(), "c-a1", "half of it"))
    (told,) = messages(talk.last)[0].content
    assert isinstance(told, SubAgentComplete)
    assert told.output == 'Task: "one"\nTimed out: no result before the deadline\nPartial result: half of it'
