"""A round of tool calls: which call runs next, the results of the calls, and calls that a client carries out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from actors.core import states
from actors.core.content import (
    MessageType,
    SubAgentComplete,
    ToolCancelled,
    ToolError,
    ToolOutcome,
    ToolResult,
    ToolUse,
)
from actors.core.context import ConvContext, Mode, Rules
from actors.core.effects import AbortTool, AwaitToolResult, ExecuteTool, TransitionResult
from actors.core.errors import Reason, Rejected
from actors.core.events import SubmitToolResult, ToolDeadline
from actors.core.notifications import CallStatus, ClientToolCall, QuestionChanged
from actors.core.steps import texts
from actors.core.steps.approvals import CallVerdict, evaluate, left_out, traits_of
from actors.core.steps.transition_builder import TransitionBuilder, ignored
from actors.core.summary import ContextState


def add_result(builder: TransitionBuilder, result: ToolResult) -> ToolResult:
    """Persist a result as a separate message, and return it."""
    builder.add_message(MessageType.TOOL, result)
    return result


def add_call_result(builder: TransitionBuilder, call: ToolUse, result: ToolResult) -> ToolResult:
    """Persist the result of a call that has run, with a note of what was corrected in the call."""
    output = f"{result.output}\n\n{call.corrected}" if call.corrected else result.output
    return add_result(builder, replace(result, tool_use_id=call.id, output=output))


def skip_calls(builder: TransitionBuilder, call_ids: Iterable[str], text: str) -> None:
    for call_id in call_ids:
        add_result(builder, skipped_result(call_id, text))


def skipped_result(call_id: str, text: str) -> ToolError:
    return ToolError(call_id, text, ToolOutcome.SKIPPED)


def cancel_calls(builder: TransitionBuilder, current: str, remaining: Iterable[str]) -> None:
    """Give the running call a cancelled result, and each call that has not started a skipped one."""
    add_result(builder, ToolCancelled(current, texts.CANCELLED))
    for call_id in remaining:
        add_result(builder, ToolCancelled(call_id, texts.SKIPPED, ToolOutcome.SKIPPED))


def cancel_undecided(builder: TransitionBuilder, call_ids: Iterable[str]) -> None:
    """Give cancelled results to calls that were waiting for approval; none of them had started."""
    for call_id in call_ids:
        add_result(builder, ToolCancelled(call_id, texts.CANCELLED))


def interrupt_calls(builder: TransitionBuilder, call_ids: Iterable[str]) -> None:
    for call_id in call_ids:
        add_result(builder, ToolCancelled(call_id, texts.INTERRUPTED))


def apply_tool_result(state: states.State, context: ConvContext, event: SubmitToolResult) -> TransitionResult:
    """Make a client's answer the result of its call. Raises Rejected if that call does not wait for an answer."""
    waiting = waiting_call(state)
    if waiting is None or waiting.current_tool_id != event.tool_use_id:
        raise Rejected(Reason.UNKNOWN_OR_DECIDED, texts.NO_SUCH_WAIT)
    builder = TransitionBuilder(waiting, context, event.at)
    end_waiting(builder, waiting, CallStatus.ANSWERED)
    took = max(0, event.at - waiting.deadline + _timeout(waiting, context))
    return complete_call(builder, waiting, replace(event.result, duration_ms=took))


def end_wait(state: states.State, context: ConvContext, event: ToolDeadline) -> TransitionResult:
    """Give an error result to a call that no client answered before the deadline. Ignored for other calls."""
    waiting = waiting_call(state)
    if waiting is None or (waiting.current_tool_id, waiting.execution_id) != (event.tool_use_id, event.execution_id):
        return ignored(state)
    builder = TransitionBuilder(waiting, context, event.at)
    end_waiting(builder, waiting, CallStatus.TIMED_OUT)
    waited = _timeout(waiting, context)
    text = texts.client_silent(waited // 1_000)
    return complete_call(builder, waiting, ToolError(event.tool_use_id, text, ToolOutcome.TIMED_OUT, waited))


def waiting_call(state: states.State) -> states.ToolExecuting | None:
    """The state if its current call waits for a client's answer, else None."""
    return state if isinstance(state, states.ToolExecuting) and state.deadline else None


def _timeout(state: states.ToolExecuting, context: ConvContext) -> int:
    traits = traits_of(context, current_call(state).name)
    return traits.timeout_ms if traits is not None else 0


class Failure(NamedTuple):
    """How a tool call failed. Two calls with equal values failed in the same way."""

    result: str
    tool: str = ""
    """The name of the tool; "" if all calls of the response failed for a reason unrelated to their tools."""
    input: str = ""
    """The input of the call; "" if it is invalid, in which case `result` says what is wrong with it."""


def run_next_call(
    builder: TransitionBuilder,
    calls: tuple[ToolUse, ...],
    remaining: tuple[str, ...],
    completed: tuple[ToolResult, ...],
    *through: ContextState,
    refused: tuple[str, ...] = (),
) -> TransitionResult:
    """Start the first of the remaining calls or, if none is left, the next model request.

    Some calls get an error result instead: in a sub-agent, those that need approval (`refused`); calls to client tools
    that the mode forbids, or with invalid input; and request_mode_upgrade where it is not offered.
    """
    by_id = {call.id: call for call in calls}
    while remaining:
        call, remaining = by_id[remaining[0]], remaining[1:]
        refusal = _refusal(builder.context, call, refused)
        if refusal is None:
            return _start(builder, calls, call, remaining, completed, *through, refused=refused)
        completed = (*completed, add_result(builder, refusal))
    return end_round(builder, failures_of(calls, completed), *through)


def _refused_by_first_rules(context: ConvContext, call: ToolUse) -> bool:
    """Whether a sub-agent's call is refused by the rules before `Rules.OWN_TOOLS`, which decide when its turn comes."""
    asks = context.is_sub_agent and context.rules < Rules.OWN_TOOLS
    return asks and evaluate(context, call, None).verdict is CallVerdict.ASK


def end_round(builder: TransitionBuilder, failures: tuple[Failure, ...], *through: ContextState) -> TransitionResult:
    """Request the model's next answer, because every tool call in its last answer has a result."""
    begins = through or isinstance(builder.before, states.AwaitingToolApproval)
    passed = (*through, ContextState.EXECUTING_TOOLS) if begins else ()
    reason = states.LlmReason.TOOL_RESULTS
    return await_answer(builder, reason, failures, *passed, ContextState.PROCESSING_TOOL_RESULTS)


def failures_of(calls: Iterable[ToolUse], results: Iterable[ToolResult]) -> tuple[Failure, ...]:
    """How the calls of a response failed; () if any of them did not fail."""
    by_id = {call.id: call for call in calls}
    failures = []
    for result in results:
        call = by_id[result.tool_use_id]
        if not (isinstance(result, ToolError) or (isinstance(result, SubAgentComplete) and not result.success)):
            return ()
        failures.append(Failure(result.output, call.name, "" if call.bad_input else call.input))
    return tuple(failures)


def await_answer(
    builder: TransitionBuilder, reason: states.LlmReason, failures: tuple[Failure, ...], *through: ContextState
) -> TransitionResult:
    """Request the model's next answer. `failures` says how the last response's calls failed; () if not all of them did.

    If they failed in the same way as those of the response before, a note in the last result says so. The third time in
    a row, the run fails instead, unless steers (messages that join the run) are waiting.
    """
    if builder.context.rules < Rules.NOTHING_LOST:
        return builder.finish(states.AwaitingLlm(builder.ledger, reason), *through)
    failure = hashlib.sha256(repr(sorted(set(failures))).encode()).hexdigest() if failures else ""
    repeats = builder.ledger.repeats + 1 if failure and failure == builder.ledger.failure else 0
    builder.ledger = replace(builder.ledger, failure=failure, repeats=repeats)
    error = ""
    if repeats == 1:
        builder.add_to_last_result(texts.REPEATED)
    elif repeats and not builder.ledger.steers:
        error = texts.repeated(repeats + 1, failures[0].tool, failures[0].result)
    return builder.finish(states.AwaitingLlm(builder.ledger, reason, error), *through)


def deny_calls(
    builder: TransitionBuilder, calls: tuple[ToolUse, ...], denied: str, text: str, *through: ContextState
) -> TransitionResult:
    """Add results to all calls in a response after a denial: `text` to the denied call, a fixed text to the others."""
    results = [
        add_result(builder, ToolError(call.id, text, ToolOutcome.DENIED))
        if call.id == denied
        else add_result(builder, skipped_result(call.id, texts.OTHER_DENIED))
        for call in calls
    ]
    return await_answer(builder, states.LlmReason.DENIED, failures_of(calls, results), *through)


def start_execution(builder: TransitionBuilder, call: ToolUse, attempt: int) -> int:
    """Start a call and return its execution id, which is never reused."""
    builder.place_state()
    xid = builder.ledger.xid + 1
    builder.ledger = replace(builder.ledger, xid=xid)
    builder.add_effect(ExecuteTool(call.id, xid, call.name, call.input, attempt))
    return xid


def _start(
    builder: TransitionBuilder,
    calls: tuple[ToolUse, ...],
    call: ToolUse,
    remaining: tuple[str, ...],
    completed: tuple[ToolResult, ...],
    *through: ContextState,
    refused: tuple[str, ...],
) -> TransitionResult:
    traits = traits_of(builder.context, call.name)
    if traits is not None and traits.client:
        deadline = builder.at + traits.timeout_ms
        xid = _start_waiting(builder, call, deadline)
    else:
        deadline = 0
        xid = start_execution(builder, call, 1)
    state = states.ToolExecuting(
        builder.ledger, call.id, remaining, completed, calls, xid, deadline=deadline, refused_ids=refused
    )
    return builder.finish(state, *through)


def _start_waiting(builder: TransitionBuilder, call: ToolUse, deadline: int) -> int:
    builder.place_state()
    xid = builder.ledger.xid + 1
    builder.ledger = replace(builder.ledger, xid=xid)
    builder.notify(ClientToolCall(call, CallStatus.PENDING, deadline))
    builder.add_effect(AwaitToolResult(call.id, xid, deadline))
    return xid


def _refusal(context: ConvContext, call: ToolUse, refused: tuple[str, ...]) -> ToolError | None:
    if call.bad_input:
        return ToolError(call.id, call.bad_input)
    if call.id in refused or _refused_by_first_rules(context, call):
        return skipped_result(call.id, texts.CANNOT_ASK)
    if left_out(context, call):
        return skipped_result(call.id, texts.NOT_OFFERED)
    traits = traits_of(context, call.name)
    if traits is not None and traits.client and traits.writes and context.mode is Mode.RESTRICTED:
        return skipped_result(call.id, texts.NOT_IN_MODE[context.mode])
    return None


def stop_call(builder: TransitionBuilder, state: states.ToolExecuting) -> None:
    """Stop the current call: kill its processes, or notify clients that its answer is no longer needed."""
    withdraw_asked(builder, state)
    if state.deadline:
        end_waiting(builder, state, CallStatus.WITHDRAWN)
    elif state.phase is states.ToolPhase.RUNNING:
        builder.add_effect(AbortTool(state.current_tool_id, state.execution_id))


def end_waiting(builder: TransitionBuilder, state: states.ToolExecuting, status: CallStatus) -> None:
    builder.notify(ClientToolCall(current_call(state), status, state.deadline))


def withdraw_asked(builder: TransitionBuilder, state: states.ToolExecuting) -> None:
    """Withdraw all questions of the current call, because the call ends or starts again."""
    for question in state.questions:
        end_question(builder, state, question, states.QuestionStatus.WITHDRAWN)


def end_question(
    builder: TransitionBuilder, state: states.ToolExecuting, question: states.Question, status: states.QuestionStatus
) -> None:
    past = (*builder.ledger.past_questions, states.PastQuestion(question.number, status))[-states.MAX_PAST_QUESTIONS :]
    builder.ledger = replace(builder.ledger, past_questions=past)
    builder.notify(QuestionChanged(current_call(state), question, status))


def complete_call(builder: TransitionBuilder, state: states.ToolExecuting, result: ToolResult) -> TransitionResult:
    """Persist the current call's result and start the next call; after the last call, a model request is due."""
    done = (*state.completed_results, add_call_result(builder, current_call(state), result))
    return run_next_call(builder, state.calls, state.remaining_tool_ids, done, refused=state.refused_ids)


def current_call(state: states.ToolExecuting) -> ToolUse:
    return next(call for call in state.calls if call.id == state.current_tool_id)
