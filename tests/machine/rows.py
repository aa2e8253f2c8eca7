"""The rows of the matrix in actors/core/README.md: the events that each column gets.

A row of several events holds for each of them.
"""

from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from actors.core.content import Content, Delivery, Text, ToolSuccess, ToolUse, Usage
from actors.core.context import Budget, ConvContext, Mode
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.events import (
    AgentsSpawned,
    AnswerQuestion,
    ApprovalResponse,
    AskQuestion,
    BeginLlm,
    CancelTimeout,
    Event,
    FinishCancel,
    LlmAborted,
    LlmError,
    LlmResponse,
    LlmStreamChunk,
    LlmStreamStarted,
    PromoteFollowUp,
    QuestionOver,
    Restart,
    RetryTimeout,
    SetMode,
    SpawnSubAgents,
    StartSubAgent,
    SubAgentResult,
    SubAgentTimeout,
    SubmitToolResult,
    ToolAborted,
    ToolComplete,
    ToolDeadline,
    ToolRetryTimeout,
    ToolTransient,
    TriggerContinuation,
    UserCancel,
    UserMessage,
)
from actors.core.states import (
    AgentSucceeded,
    AgentTask,
    AwaitingContinuation,
    Cancelling,
    LlmRequesting,
    State,
    ToolExecuting,
)
from tests.machine.columns import BASH_1, BASH_2, CONVERSATION, NOW, PATCH_1, REQUEST_ID, RUN_ID, XID, Column

AT = NOW + 5


class Case(NamedTuple):
    """One question to the machine."""

    state: State
    context: ConvContext
    event: Event


Row = Callable[[Column], tuple[Case, ...]]

TASKS = (
    AgentTask("", "task 1", "/work", "model-1", 20, 60_000),
    AgentTask("", "task 2", "/work", "model-1", 20, 60_000),
)
SUBMIT = ToolUse("t1", "submit_result", '{"result": "all done"}')
SUBMIT_FAILURE = ToolUse("t1", "submit_result", '{"result": "no luck", "success": false}')
SUBMIT_ERROR = ToolUse("t1", "submit_error", '{"error": "no luck"}')
SUBMIT_BAD = ToolUse("t1", "submit_result", '{"result": 7}')


def attempt_of(state: State) -> int:
    """The attempt that an outcome must name to concern this state."""
    return state.attempt if isinstance(state, (LlmRequesting, AwaitingContinuation, Cancelling)) else 1


def _events(*make: Callable[[State], Event]) -> Row:
    return lambda column: tuple(Case(column.state, column.context, one(column.state)) for one in make)


def _say(delivery: Delivery) -> Row:
    return _events(lambda state: UserMessage(AT, "m9", "hello", delivery=delivery))


def _answer(*content: Content, end_turn: bool = True, used: int | None = None, truncated: bool = False) -> Row:
    usage = None if used is None else Usage(input_tokens=used)
    return _events(lambda state: LlmResponse(AT, REQUEST_ID, attempt_of(state), content, end_turn, usage, truncated))


def _failure(kind: ErrorKind, retry_after_ms: int | None = None) -> Row:
    failure = LlmFailure(kind, "the cause")
    return _events(lambda state: LlmError(AT, REQUEST_ID, attempt_of(state), failure, retry_after_ms))


def _round_cap(column: Column) -> tuple[Case, ...]:
    books = replace(column.state.ledger, rounds=column.context.limits.max_rounds)
    return (Case(replace(column.state, ledger=books), column.context, BeginLlm(AT)),)


def _budget_spent(column: Column) -> tuple[Case, ...]:
    books = replace(column.state.ledger, run_usage=Usage(50, 50))
    context = replace(column.context, budget=Budget(run_tokens=100))
    return (Case(replace(column.state, ledger=books), context, BeginLlm(AT)),)


def _stale_llm(column: Column) -> tuple[Case, ...]:
    """Another request's outcome, and another attempt's of this one."""
    attempt, failure = attempt_of(column.state), LlmFailure(ErrorKind.NETWORK, "late")
    identities = ((f"{CONVERSATION}:r6", attempt), (REQUEST_ID, attempt + 1))
    return tuple(
        Case(column.state, column.context, event)
        for request_id, other in identities
        for event in (
            LlmStreamStarted(AT, request_id, other),
            LlmStreamChunk(AT, request_id, other, Text("late")),
            LlmResponse(AT, request_id, other, (Text("late"),), True),
            LlmError(AT, request_id, other, failure),
            LlmAborted(AT, request_id, other),
        )
    )


def _stale_tool(column: Column) -> tuple[Case, ...]:
    """Another execution's outcome of the same call, and another call's of the same execution."""
    return tuple(
        Case(column.state, column.context, event)
        for call, execution in (("t1", XID - 1), ("t9", XID))
        for event in (
            ToolComplete(AT, call, execution, ToolSuccess(call, "late")),
            ToolTransient(AT, call, execution, "late"),
            ToolAborted(AT, call, execution),
            AgentsSpawned(AT, call, execution, TASKS),
            ToolRetryTimeout(AT, call, execution, 2),
        )
    )


def _stale_timers(column: Column) -> tuple[Case, ...]:
    current = attempt_of(column.state)
    identities = ((REQUEST_ID, current + 1), (f"{CONVERSATION}:r6", current))
    return tuple(Case(column.state, column.context, RetryTimeout(AT, *one)) for one in identities)


def _tool_attempt(state: State) -> int:
    return state.attempt if isinstance(state, ToolExecuting) else 2


ROWS: dict[str, Row] = {
    "StartSubAgent": _events(lambda state: StartSubAgent(AT, "m9", "the task")),
    "UserMessage reject": _say(Delivery.REJECT),
    "UserMessage steer": _say(Delivery.STEER),
    "UserMessage follow_up": _say(Delivery.FOLLOW_UP),
    "UserCancel": _events(lambda state: UserCancel(AT)),
    "UserCancel discard_queued": _events(lambda state: UserCancel(AT, discard_queued=True)),
    "UserCancel other run": _events(lambda state: UserCancel(AT, run_id=f"{CONVERSATION}:2")),
    "SetMode other mode": _events(lambda state: SetMode(AT, Mode.UNRESTRICTED)),
    "SetMode same mode": _events(lambda state: SetMode(AT, Mode.RESTRICTED)),
    "Approval approve t1": _events(lambda state: ApprovalResponse(AT, "t1", True)),
    "Approval deny t1": _events(lambda state: ApprovalResponse(AT, "t1", False)),
    "Approval unknown/decided": _events(lambda state: ApprovalResponse(AT, "t9", True)),
    "TriggerContinuation": _events(lambda state: TriggerContinuation(AT)),
    "SpawnSubAgents": _events(lambda state: SpawnSubAgents(AT, "m9", TASKS)),
    "BeginLlm (settle)": _events(lambda state: BeginLlm(AT)),
    "BeginLlm, round cap": _round_cap,
    "BeginLlm, budget spent": _budget_spent,
    "FinishCancel (settle)": _events(lambda state: FinishCancel(AT)),
    "PromoteFollowUp (settle)": _events(lambda state: PromoteFollowUp(AT)),
    "LlmStreamStarted": _events(lambda state: LlmStreamStarted(AT, REQUEST_ID, attempt_of(state))),
    "LlmStreamChunk": _events(lambda state: LlmStreamChunk(AT, REQUEST_ID, attempt_of(state), Text("to"))),
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
    "LlmAborted": _events(lambda state: LlmAborted(AT, REQUEST_ID, attempt_of(state))),
    "any LLM outcome, stale id": _stale_llm,
    "RetryTimeout match": _events(lambda state: RetryTimeout(AT, REQUEST_ID, attempt_of(state))),
    "RetryTimeout stale": _stale_timers,
    "ToolComplete match": _events(lambda state: ToolComplete(AT, "t1", XID, ToolSuccess("t1", "result"))),
    "ToolTransient match": _events(lambda state: ToolTransient(AT, "t1", XID, "no worker")),
    "ToolAborted match": _events(lambda state: ToolAborted(AT, "t1", XID)),
    "ToolRetryTimeout match": _events(lambda state: ToolRetryTimeout(AT, "t1", XID, _tool_attempt(state))),
    "AgentsSpawned match": _events(lambda state: AgentsSpawned(AT, "t1", XID, TASKS)),
    "any tool outcome, stale id": _stale_tool,
    "SubmitToolResult t1": _events(lambda state: SubmitToolResult(AT, "t1", ToolSuccess("t1", "sent"))),
    "SubmitToolResult other call": _events(lambda state: SubmitToolResult(AT, "t2", ToolSuccess("t2", "sent"))),
    "ToolDeadline match": _events(lambda state: ToolDeadline(AT, "t1", XID)),
    "ToolDeadline, stale id": _events(
        lambda state: ToolDeadline(AT, "t1", XID - 1), lambda state: ToolDeadline(AT, "t9", XID)
    ),
    "AskQuestion match": _events(lambda state: AskQuestion(AT, "t1", XID, 2, "files", "And then?", 60_000)),
    "AskQuestion, stale id or repeated": _events(
        lambda state: AskQuestion(AT, "t1", XID - 1, 2, "files", "And then?", 60_000),
        lambda state: AskQuestion(AT, "t1", XID, 0, "files", "And then?", 60_000),
    ),
    "AnswerQuestion 1": _events(lambda state: AnswerQuestion(AT, 1, True, "{}")),
    "AnswerQuestion 1, declined": _events(lambda state: AnswerQuestion(AT, 1, False)),
    "AnswerQuestion other question": _events(lambda state: AnswerQuestion(AT, 9, True, "{}")),
    "QuestionOver, timed out": _events(lambda state: QuestionOver(AT, "t1", XID, 1, timed_out=True)),
    "QuestionOver, dropped": _events(lambda state: QuestionOver(AT, "t1", XID, 1, timed_out=False)),
    "QuestionOver, stale id": _events(
        lambda state: QuestionOver(AT, "t1", XID - 1, 1, timed_out=True),
        lambda state: QuestionOver(AT, "t1", XID, 9, timed_out=True),
    ),
    "SubAgentResult known": _events(lambda state: SubAgentResult(AT, f"{CONVERSATION}-a1", AgentSucceeded("result 1"))),
    "SubAgentResult unknown/dup": _events(
        lambda state: SubAgentResult(AT, f"{CONVERSATION}-a9", AgentSucceeded("whose?")),
        lambda state: SubAgentTimeout(AT, f"{CONVERSATION}-a9"),
    ),
    "SubAgentTimeout known": _events(lambda state: SubAgentTimeout(AT, f"{CONVERSATION}-a1")),
    "CancelTimeout match": _events(lambda state: CancelTimeout(AT, RUN_ID)),
    "Restart": _events(lambda state: Restart(AT)),
}
