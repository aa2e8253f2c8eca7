"""The rows of the matrix in actors/core/README.md: the events that each column gets.

A row of several events holds for each of them.
"""

from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from actors.core import events, states
from actors.core.content import Content, Delivery, Text, ToolSuccess, ToolUse, Usage
from actors.core.context import Budget, ConvContext, Mode
from actors.core.errors import ErrorKind, LlmFailure
from tests.machine.columns import BASH_1, BASH_2, CONVERSATION, NOW, PATCH_1, REQUEST_ID, RUN_ID, XID, Column

AT = NOW + 5


class Case(NamedTuple):
    """One question to the machine."""

    state: states.State
    context: ConvContext
    event: events.Event


Row = Callable[[Column], tuple[Case, ...]]

TASKS = (
    states.AgentTask("", "task 1", "/work", "model-1", 20, 60_000),
    states.AgentTask("", "task 2", "/work", "model-1", 20, 60_000),
)
SUBMIT = ToolUse("t1", "submit_result", '{"result": "all done"}')
SUBMIT_FAILURE = ToolUse("t1", "submit_result", '{"result": "no luck", "success": false}')
SUBMIT_ERROR = ToolUse("t1", "submit_error", '{"error": "no luck"}')
SUBMIT_BAD = ToolUse("t1", "submit_result", '{"result": 7}')


def attempt_of(state: states.State) -> int:
    """The attempt that an outcome must name to concern this state."""
    return (
        state.attempt
        if isinstance(state, (states.LlmRequesting, states.AwaitingContinuation, states.Cancelling))
        else 1
    )


def _events(*make: Callable[[states.State], events.Event]) -> Row:
    return lambda column: tuple(Case(column.state, column.context, one(column.state)) for one in make)


def _say(delivery: Delivery) -> Row:
    return _events(lambda state: events.UserMessage(AT, "m9", "hello", delivery=delivery))


def _answer(*content: Content, end_turn: bool = True, used: int | None = None, truncated: bool = False) -> Row:
    usage = None if used is None else Usage(input_tokens=used)
    return _events(
        lambda state: events.LlmResponse(AT, REQUEST_ID, attempt_of(state), content, end_turn, usage, truncated)
    )


def _failure(kind: ErrorKind, retry_after_ms: int | None = None) -> Row:
    failure = LlmFailure(kind, "the cause")
    return _events(lambda state: events.LlmError(AT, REQUEST_ID, attempt_of(state), failure, retry_after_ms))


def _round_cap(column: Column) -> tuple[Case, ...]:
    books = replace(column.state.ledger, rounds=column.context.limits.max_rounds)
    return (Case(replace(column.state, ledger=books), column.context, events.BeginLlm(AT)),)


def _budget_spent(column: Column) -> tuple[Case, ...]:
    books = replace(column.state.ledger, run_usage=Usage(50, 50))
    context = replace(column.context, budget=Budget(run_tokens=100))
    return (Case(replace(column.state, ledger=books), context, events.BeginLlm(AT)),)


def _stale_llm(column: Column) -> tuple[Case, ...]:
    """Another request's outcome, and another attempt's of this one."""
    attempt, failure = attempt_of(column.state), LlmFailure(ErrorKind.NETWORK, "late")
    identities = ((f"{CONVERSATION}:r6", attempt), (REQUEST_ID, attempt + 1))
    return tuple(
        Case(column.state, column.context, event)
        for request_id, other in identities
        for event in (
            events.LlmStreamStarted(AT, request_id, other),
            events.LlmStreamChunk(AT, request_id, other, Text("late")),
            events.LlmResponse(AT, request_id, other, (Text("late"),), True),
            events.LlmError(AT, request_id, other, failure),
            events.LlmAborted(AT, request_id, other),
        )
    )


def _stale_tool(column: Column) -> tuple[Case, ...]:
    """Another execution's outcome of the same call, and another call's of the same execution."""
    return tuple(
        Case(column.state, column.context, event)
        for call, execution in (("t1", XID - 1), ("t9", XID))
        for event in (
            events.ToolComplete(AT, call, execution, ToolSuccess(call, "late")),
            events.ToolTransient(AT, call, execution, "late"),
            events.ToolAborted(AT, call, execution),
            events.AgentsSpawned(AT, call, execution, TASKS),
            events.ToolRetryTimeout(AT, call, execution, 2),
        )
    )


def _stale_timers(column: Column) -> tuple[Case, ...]:
    current = attempt_of(column.state)
    identities = ((REQUEST_ID, current + 1), (f"{CONVERSATION}:r6", current))
    return tuple(Case(column.state, column.context, events.RetryTimeout(AT, *one)) for one in identities)


def _tool_attempt(state: states.State) -> int:
    return state.attempt if isinstance(state, states.ToolExecuting) else 2


ROWS: dict[str, Row] = {
    "StartSubAgent": _events(lambda state: events.StartSubAgent(AT, "m9", "the task")),
    "UserMessage reject": _say(Delivery.REJECT),
    "UserMessage steer": _say(Delivery.STEER),
    "UserMessage follow_up": _say(Delivery.FOLLOW_UP),
    "UserCancel": _events(lambda state: events.UserCancel(AT)),
    "UserCancel discard_queued": _events(lambda state: events.UserCancel(AT, discard_queued=True)),
    "UserCancel other run": _events(lambda state: events.UserCancel(AT, run_id=f"{CONVERSATION}:2")),
    "SetMode other mode": _events(lambda state: events.SetMode(AT, Mode.UNRESTRICTED)),
    "SetMode same mode": _events(lambda state: events.SetMode(AT, Mode.RESTRICTED)),
    "Approval approve t1": _events(lambda state: events.ApprovalResponse(AT, "t1", True)),
    "Approval deny t1": _events(lambda state: events.ApprovalResponse(AT, "t1", False)),
    "Approval unknown/decided": _events(lambda state: events.ApprovalResponse(AT, "t9", True)),
    "TriggerContinuation": _events(lambda state: events.TriggerContinuation(AT)),
    "SpawnSubAgents": _events(lambda state: events.SpawnSubAgents(AT, "m9", TASKS)),
    "BeginLlm (settle)": _events(lambda state: events.BeginLlm(AT)),
    "BeginLlm, round cap": _round_cap,
    "BeginLlm, budget spent": _budget_spent,
    "FinishCancel (settle)": _events(lambda state: events.FinishCancel(AT)),
    "PromoteFollowUp (settle)": _events(lambda state: events.PromoteFollowUp(AT)),
    "LlmStreamStarted": _events(lambda state: events.LlmStreamStarted(AT, REQUEST_ID, attempt_of(state))),
    "LlmStreamChunk": _events(lambda state: events.LlmStreamChunk(AT, REQUEST_ID, attempt_of(state), Text("to"))),
    "LlmResponse text end": _answer(Text("r7")),
    "LlmResponse text end, first ≥80%": _answer(Text("r7"), used=800),
    "LlmResponse text end=false": _answer(Text("r7"), end_turn=False),
    "LlmResponse empty end": _answer(),
    "LlmResponse empty end=false": _answer(end_turn=False),
    "LlmResponse tools auto": _answer(Text("r7"), BASH_1, BASH_2, end_turn=False),
    "LlmResponse tools need approval": _answer(Text("r7"), PATCH_1, BASH_2, end_turn=False),
    "LlmResponse tools truncated": _answer(Text("r7"), BASH_1, end_turn=False, truncated=True),
    "LlmResponse submit_result alone": _answer(Text("r7"), SUBMIT, end_turn=False),
    "LlmResponse submit_result success=false": _answer(Text("r7"), SUBMIT_FAILURE, end_turn=False),
    "LlmResponse submit_error alone": _answer(Text("r7"), SUBMIT_ERROR, end_turn=False),
    "LlmResponse submit_result, bad input": _answer(Text("r7"), SUBMIT_BAD, end_turn=False),
    "LlmResponse submit_* with others": _answer(Text("r7"), SUBMIT, BASH_2, end_turn=False),
    "LlmResponse ≥90% with tools": _answer(Text("r7"), BASH_1, end_turn=False, used=900),
    "LlmError retryable": _failure(ErrorKind.NETWORK),
    "LlmError Retry-After > 60 s": _failure(ErrorKind.RATE_LIMIT, 60_001),
    "LlmError non-retryable": _failure(ErrorKind.AUTH),
    "LlmError unknown (local fault)": _failure(ErrorKind.UNKNOWN),
    "LlmError context overflow": _failure(ErrorKind.CONTEXT_EXHAUSTED),
    "LlmAborted": _events(lambda state: events.LlmAborted(AT, REQUEST_ID, attempt_of(state))),
    "any LLM outcome, stale id": _stale_llm,
    "RetryTimeout match": _events(lambda state: events.RetryTimeout(AT, REQUEST_ID, attempt_of(state))),
    "RetryTimeout stale": _stale_timers,
    "ToolComplete match": _events(lambda state: events.ToolComplete(AT, "t1", XID, ToolSuccess("t1", "result"))),
    "ToolTransient match": _events(lambda state: events.ToolTransient(AT, "t1", XID, "no worker")),
    "ToolAborted match": _events(lambda state: events.ToolAborted(AT, "t1", XID)),
    "ToolRetryTimeout match": _events(lambda state: events.ToolRetryTimeout(AT, "t1", XID, _tool_attempt(state))),
    "AgentsSpawned match": _events(lambda state: events.AgentsSpawned(AT, "t1", XID, TASKS)),
    "any tool outcome, stale id": _stale_tool,
    "SubmitToolResult t1": _events(lambda state: events.SubmitToolResult(AT, "t1", ToolSuccess("t1", "sent"))),
    "SubmitToolResult other call": _events(lambda state: events.SubmitToolResult(AT, "t2", ToolSuccess("t2", "sent"))),
    "ToolDeadline match": _events(lambda state: events.ToolDeadline(AT, "t1", XID)),
    "ToolDeadline, stale id": _events(
        lambda state: events.ToolDeadline(AT, "t1", XID - 1), lambda state: events.ToolDeadline(AT, "t9", XID)
    ),
    "AskQuestion match": _events(lambda state: events.AskQuestion(AT, "t1", XID, 2, "files", "And then?", 60_000)),
    "AskQuestion, stale id or repeated": _events(
        lambda state: events.AskQuestion(AT, "t1", XID - 1, 2, "files", "And then?", 60_000),
        lambda state: events.AskQuestion(AT, "t1", XID, 0, "files", "And then?", 60_000),
    ),
    "AnswerQuestion 1": _events(lambda state: events.AnswerQuestion(AT, 1, True, "{}")),
    "AnswerQuestion 1, declined": _events(lambda state: events.AnswerQuestion(AT, 1, False)),
    "AnswerQuestion other question": _events(lambda state: events.AnswerQuestion(AT, 9, True, "{}")),
    "QuestionOver, timed out": _events(lambda state: events.QuestionOver(AT, "t1", XID, 1, timed_out=True)),
    "QuestionOver, dropped": _events(lambda state: events.QuestionOver(AT, "t1", XID, 1, timed_out=False)),
    "QuestionOver, stale id": _events(
        lambda state: events.QuestionOver(AT, "t1", XID - 1, 1, timed_out=True),
        lambda state: events.QuestionOver(AT, "t1", XID, 9, timed_out=True),
    ),
    "SubAgentResult known": _events(
        lambda state: events.SubAgentResult(AT, f"{CONVERSATION}-a1", states.AgentSucceeded("result 1"))
    ),
    "SubAgentResult unknown/dup": _events(
        lambda state: events.SubAgentResult(AT, f"{CONVERSATION}-a9", states.AgentSucceeded("whose?")),
        lambda state: events.SubAgentTimeout(AT, f"{CONVERSATION}-a9"),
    ),
    "SubAgentTimeout known": _events(lambda state: events.SubAgentTimeout(AT, f"{CONVERSATION}-a1")),
    "CancelTimeout match": _events(lambda state: events.CancelTimeout(AT, RUN_ID)),
    "Restart": _events(lambda state: events.Restart(AT)),
}
