"""Retries and errors (REQ-BED-006; C9 to C14): what people see, and what is tried again."""

import pytest
from msgspec.structs import replace

from actors.core import effects, events, states
from actors.core.content import MessageType, SystemKind, ToolError, ToolSuccess, ToolUse, Usage
from actors.core.context import Budget, ConvContext, Limits
from actors.core.errors import RETRYABLE, ErrorKind, LlmFailure
from actors.core.notifications import ApprovalDecision, ApprovalResolved, Retrying, RunStop, StopReason, StreamDiscarded
from actors.core.steps.retries import delay
from tests.machine.columns import SUB_AGENT, Column, column, parent_columns, sub_agent_columns
from tests.machine.talk import OPEN, Talk, bash, messages


def fail(talk: Talk, kind: ErrorKind, *, cause: str = "the cause", retry_after_ms: int | None = None) -> None:
    state = talk.state
    assert isinstance(state, states.LlmRequesting)
    failure = LlmFailure(kind, cause)
    talk.tell(events.LlmError(talk.at(), state.request_id, state.attempt, failure, retry_after_ms))


def retry(talk: Talk) -> None:
    assert isinstance(talk.state, states.LlmRequesting)
    talk.tell(events.RetryTimeout(talk.at(), talk.state.request_id, talk.state.attempt))


def spend(talk: Talk, usage: Usage) -> None:
    """The attempt fails, and has had its cost."""
    state = talk.state
    assert isinstance(state, states.LlmRequesting)
    failure = LlmFailure(ErrorKind.NETWORK, "the cause")
    talk.tell(events.LlmError(talk.at(), state.request_id, state.attempt, failure, None, usage))


def asked(context: ConvContext = OPEN) -> Talk:
    talk = Talk(context)
    talk.say("go")
    return talk


@pytest.mark.parametrize("kind", sorted(RETRYABLE))
def test_three_attempts_one_and_two_seconds_apart_then_an_error_that_says_so(kind: ErrorKind) -> None:
    talk = asked()
    waits = []
    for attempt in (1, 2):
        fail(talk, kind)
        (schedule,) = talk.acts(effects.ScheduleRetry)
        (note,) = talk.notes(Retrying)
        assert (schedule.attempt, note.attempt, note.max_attempts) == (attempt + 1, attempt + 1, 3)
        assert note.retry_at == talk.clock + schedule.delay_ms
        assert isinstance(talk.state, states.LlmRequesting)
        assert talk.state.last_error == LlmFailure(kind, "the cause")
        waits.append(schedule.delay_ms)
        retry(talk)
        assert talk.acts(effects.RequestLlm) == [effects.RequestLlm("c:r1", attempt + 1, "model-1", 1)]

    fail(talk, kind)

    assert waits == [1_000, 2_000]
    assert talk.state == states.Error(talk.state.ledger, "Failed after 3 attempts: the cause", kind)
    assert talk.notes(RunStop) == [RunStop("c:1", StopReason.ERROR, kind.value, "Failed after 3 attempts: the cause")]
    (message,) = messages(talk.last)
    assert (message.type, message.error_kind) == (MessageType.ERROR, kind.value)


@pytest.mark.parametrize("kind", sorted(set(ErrorKind) - RETRYABLE - {ErrorKind.AUTH, ErrorKind.CONTEXT_EXHAUSTED}))
def test_what_a_retry_cannot_mend_is_an_error_at_once(kind: ErrorKind) -> None:
    talk = asked()

    fail(talk, kind)

    assert talk.state == states.Error(talk.state.ledger, "the cause", kind)
    assert talk.walk == ["Failed"]


@pytest.mark.parametrize("cause", ["no key", "Authentication failed: no key"])
def test_an_auth_error_begins_with_its_name(cause: str) -> None:
    talk = asked()

    fail(talk, ErrorKind.AUTH, cause=cause)

    assert isinstance(talk.state, states.Error)
    assert talk.state.message == "Authentication failed: no key"


@pytest.mark.parametrize(
    ("retry_after_ms", "delay"), [(None, 1_000), (0, 1_000), (999, 1_000), (1_001, 1_001), (60_000, 60_000)]
)
def test_a_retry_after_within_bounds_is_honoured(retry_after_ms: int | None, delay: int) -> None:
    talk = asked()

    fail(talk, ErrorKind.RATE_LIMIT, retry_after_ms=retry_after_ms)

    assert talk.acts(effects.ScheduleRetry) == [effects.ScheduleRetry(delay, 2, effects.RetryOf.LLM, request_id="c:r1")]


def test_a_longer_retry_after_is_an_error_that_names_the_wait() -> None:
    talk = asked()

    fail(talk, ErrorKind.RATE_LIMIT, cause="slow down", retry_after_ms=60_001)

    assert isinstance(talk.state, states.Error)
    assert "61 s" in talk.state.message
    assert "slow down" in talk.state.message


def test_an_unrequested_abort_is_a_network_error() -> None:
    talk = asked()

    talk.tell(events.LlmAborted(talk.at(), "c:r1", 1))

    assert isinstance(talk.state, states.LlmRequesting)
    assert talk.state.last_error is not None
    assert (talk.state.phase, talk.state.last_error.kind) == (states.LlmPhase.BACKOFF, ErrorKind.NETWORK)


def test_a_retry_keeps_the_model_of_the_first_attempt() -> None:
    talk = asked()
    fail(talk, ErrorKind.NETWORK)
    talk.context = replace(talk.context, model_id="model-2")

    retry(talk)

    (request,) = talk.acts(effects.RequestLlm)
    assert request.model == "model-1"


def test_the_next_request_has_the_new_model() -> None:
    talk = asked()
    talk.call(bash("t1"))
    talk.context = replace(talk.context, model_id="model-2")

    talk.result(ToolSuccess("t1", "ok"))

    (request,) = talk.acts(effects.RequestLlm)
    assert request.model == "model-2"


def test_every_attempt_that_streamed_is_discarded_by_itself() -> None:
    talk = asked()
    talk.tell(events.LlmStreamStarted(talk.at(), "c:r1", 1))
    fail(talk, ErrorKind.NETWORK)
    retry(talk)
    talk.tell(events.LlmStreamStarted(talk.at(), "c:r1", 2))
    fail(talk, ErrorKind.AUTH)

    assert talk.every(StreamDiscarded) == [StreamDiscarded("c:r1", 1), StreamDiscarded("c:r1", 2)]


@pytest.mark.parametrize("summary", [False, True], ids=["answer", "summary"])
def test_an_attempt_that_has_begun_has_no_time_of_a_retry(summary: bool) -> None:
    talk = Talk(OPEN)
    if summary:
        talk.tell(events.TriggerContinuation(talk.at()))
    else:
        talk.say("go")
    talk.tell(events.LlmError(talk.at(), "c:r1", 1, LlmFailure(ErrorKind.NETWORK, "cut")))
    assert isinstance(talk.state, states.LlmRequesting | states.AwaitingContinuation)
    assert talk.state.retry_at > talk.clock
    talk.tell(events.RetryTimeout(talk.state.retry_at, "c:r1", 2))
    assert isinstance(talk.state, states.LlmRequesting | states.AwaitingContinuation)
    assert (talk.state.phase, talk.state.retry_at) == (states.LlmPhase.CONNECTING, 0)


def test_a_timer_that_comes_twice_or_during_an_attempt_starts_nothing() -> None:
    talk = asked()
    fail(talk, ErrorKind.NETWORK)
    retry(talk)

    talk.tell(events.RetryTimeout(talk.at(), "c:r1", 2))

    assert talk.steps == ()


def test_a_message_recovers_from_error() -> None:
    talk = asked()
    fail(talk, ErrorKind.AUTH)

    talk.say("try again")

    assert isinstance(talk.state, states.LlmRequesting)
    assert talk.walk == ["Idle", "ProcessingUserMessage", "AwaitingLLMResponse"]


# --- tools ---

READ = ToolUse("t1", "read_file", "{}")


def running(call: ToolUse) -> Talk:
    talk = asked()
    talk.call(call)
    return talk


def stumble(talk: Talk, *, begun: bool = True) -> None:
    state = talk.state
    assert isinstance(state, states.ToolExecuting)
    talk.tell(events.ToolTransient(talk.at(), state.current_tool_id, state.execution_id, "no worker", begun))


def test_a_tool_that_only_reads_is_tried_three_times_each_under_its_own_execution_id() -> None:
    talk = running(READ)
    waits, executions = [], [1]
    for attempt in (2, 3):
        stumble(talk)
        (schedule,) = talk.acts(effects.ScheduleRetry)
        waits.append(schedule.delay_ms)
        assert isinstance(talk.state, states.ToolExecuting)
        assert talk.state.phase is states.ToolPhase.BACKOFF
        talk.tell(events.ToolRetryTimeout(talk.at(), "t1", executions[-1], attempt))
        (started,) = talk.acts(effects.ExecuteTool)
        assert started.attempt == attempt
        executions.append(started.execution_id)

    stumble(talk)

    assert (waits, executions) == ([1_000, 2_000], [1, 2, 3])
    assert messages(talk.last)[0].content == (ToolError("t1", "Failed after 3 attempts: no worker"),)
    assert isinstance(talk.state, states.LlmRequesting)


@pytest.mark.parametrize("name", ["bash", "no_such_tool"])
def test_a_tool_that_may_have_changed_something_never_starts_twice(name: str) -> None:
    talk = running(ToolUse("t1", name, "{}"))

    stumble(talk)

    assert talk.acts(effects.ScheduleRetry) == []
    assert messages(talk.last)[0].content == (ToolError("t1", "Failed after 1 attempt: no worker"),)


def test_a_tool_that_provably_had_not_begun_is_tried_again_whatever_it_is() -> None:
    talk = running(bash("t1"))

    stumble(talk, begun=False)

    assert len(talk.acts(effects.ScheduleRetry)) == 1


def test_a_result_is_filed_under_the_call_it_answers() -> None:
    talk = running(bash("t1"))

    talk.result(ToolSuccess("t-wrong", "ok"))

    assert messages(talk.last)[0].content == (ToolSuccess("t1", "ok"),)


# --- faults of the server ---


@pytest.mark.parametrize(
    "where",
    [*parent_columns(), *sub_agent_columns()],
    ids=lambda one: f"{'sub-agent ' if one.context.is_sub_agent else ''}{one.name}",
)
def test_an_internal_fault_ends_the_run_as_an_unknown_error(where: Column) -> None:
    talk = Talk(where.context, where.state)
    ledger = where.state.ledger

    talk.tell(events.InternalFault(talk.at(), "see the log"))

    if where.name in {"Idle", "Error", "CtxExhausted", "Completed", "Failed"}:
        assert talk.steps == ()
        return
    wanted = states.Failed if where.context.is_sub_agent else states.Error
    assert isinstance(talk.state, wanted)
    stop = RunStop(f"c:{ledger.run}", StopReason.ERROR, "unknown", "see the log")
    assert talk.notes(RunStop) == ([stop] if ledger.live else [])
    calls = [message.content[0].tool_use_id for message in messages(talk.last) if message.type == "tool"]  # type: ignore[union-attr]
    assert calls == _open_calls(where)


@pytest.mark.parametrize(
    ("name", "ended"),
    [
        ("LlmReq/conn", [effects.AbortLlm("c:r7")]),
        ("LlmReq/backoff", []),
        ("AwaitCont", [effects.AbortLlm("c:r7")]),
        ("ToolExec", [effects.AbortTool("t1", 5)]),
        ("ToolExec/backoff", []),
        ("AwaitSub", [effects.CancelSubAgents(("c-a1", "c-a2"))]),
        ("Cancelling/sub", [effects.CancelSubAgents(("c-a1",))]),
    ],
)
def test_an_internal_fault_stops_what_runs(name: str, ended: list[effects.Effect]) -> None:
    one = column(name)
    talk = Talk(one.context, one.state)

    talk.tell(events.InternalFault(talk.at(), "see the log"))

    assert [
        effect
        for effect in talk.last
        if isinstance(effect, (effects.AbortLlm, effects.AbortTool, effects.CancelSubAgents))
    ] == ended


@pytest.mark.parametrize(("name", "asked_for"), [("Approval", ["t1"]), ("Approval(2)", ["t1", "t2"])])
def test_an_internal_fault_withdraws_what_was_asked(name: str, asked_for: list[str]) -> None:
    one = column(name)
    talk = Talk(one.context, one.state)

    talk.tell(events.InternalFault(talk.at(), "see the log"))

    assert [(note.tool_use_id, note.decision) for note in talk.notes(ApprovalResolved)] == [
        (call, ApprovalDecision.WITHDRAWN) for call in asked_for
    ]


def _open_calls(where: Column) -> list[str]:
    calls = {"Approval": 2, "Approval(2)": 2, "ToolExec": 2, "ToolExec(last)": 1, "ToolExec(upgrade)": 1}
    calls |= {"ToolExec/backoff": 1, "ToolExec(client)": 2, "ToolExec(asks)": 2, "AwaitSub": 2, "AwaitSub(last)": 1}
    return ["t1", "t2"][: calls.get(where.name, 0)]


def test_a_budget_that_a_failed_attempt_has_spent_ends_the_run_instead_of_the_next_attempt() -> None:
    talk = asked(replace(OPEN, budget=Budget(run_tokens=100)))
    spend(talk, Usage(100))
    assert isinstance(talk.state, states.LlmRequesting)

    retry(talk)

    assert talk.acts(effects.RequestLlm) == []
    assert isinstance(talk.state, states.Idle)
    assert [(stop.reason, stop.detail) for stop in talk.notes(RunStop)] == [(StopReason.INTERRUPTED, "budget")]
    assert [message.kind for message in messages(talk.last)] == [SystemKind.BUDGET]


def test_a_budget_that_was_raised_during_the_wait_lets_the_next_attempt_begin() -> None:
    talk = asked(replace(OPEN, budget=Budget(run_tokens=100)))
    spend(talk, Usage(100))
    talk.context = replace(talk.context, budget=Budget(run_tokens=101))

    retry(talk)

    assert len(talk.acts(effects.RequestLlm)) == 1


def test_a_sub_agent_whose_share_a_failed_attempt_has_spent_fails() -> None:
    talk = Talk(replace(SUB_AGENT, budget=Budget(conversation_tokens=1)))
    talk.start()
    spend(talk, Usage(1))

    retry(talk)

    assert isinstance(talk.state, states.Failed)
    assert talk.state.kind is ErrorKind.BUDGET


# The waits between attempts (I12).


LIMITS = Limits()


def test_the_waits_are_the_seeds() -> None:
    assert [delay(attempt, LIMITS) for attempt in (2, 3)] == [1_000, 2_000]


def test_the_waits_double_never_shrink_and_stay_bearable() -> None:
    waits = [delay(attempt, LIMITS) for attempt in range(2, 40)]

    assert waits == sorted(waits)
    assert waits[4] == 16_000
    assert max(waits) == 60_000


def test_the_base_is_a_setting() -> None:
    assert delay(3, Limits(retry_base_ms=10)) == 20
