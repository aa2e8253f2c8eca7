"""Submissions: tool calls or answers that hand over the result of a run and thereby end it.

Sub-agents call submit_result or submit_error. In a run with an output schema the agent calls submit_output, or answers
with the value itself if the provider enforces the schema. The value was checked against the schema when the answer was
read, before this transition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from actors.core.content import SubAgentComplete, SystemKind, ToolError, ToolOutcome, ToolSuccess, ToolUse
from actors.core.errors import ErrorKind
from actors.core.fsm import ContextState
from actors.core.notifications import StopReason
from actors.core.states import AwaitingLlm, LlmReason
from actors.core.steps import texts
from actors.core.steps.run_endings import become_idle, complete_sub_agent, fail_run, fail_sub_agent
from actors.core.steps.tool_results import add_result

if TYPE_CHECKING:
    from actors.core.events import LlmResponse
    from actors.core.result import TransitionResult
    from actors.core.steps.transition_builder import TransitionBuilder

SUBMIT_RESULT = "submit_result"
SUBMIT_ERROR = "submit_error"
SUBMISSIONS = frozenset({SUBMIT_RESULT, SUBMIT_ERROR})
SUBMIT_OUTPUT = "submit_output"


class SubmitResult(Struct, frozen=True):
    """Input of submit_result."""

    result: str
    success: bool = True


class SubmitError(Struct, frozen=True):
    """Input of submit_error."""

    error: str


def submission_of(calls: tuple[ToolUse, ...], *, truncated: bool) -> SubmitResult | SubmitError | None:
    """Return the submission if the only call of the response is a complete and valid submission, else None."""
    if truncated or len(calls) != 1 or calls[0].name not in SUBMISSIONS:
        return None
    try:
        if calls[0].name == SUBMIT_RESULT:
            return msgspec.json.decode(calls[0].input, type=SubmitResult)
        return msgspec.json.decode(calls[0].input, type=SubmitError)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def has_submission(calls: tuple[ToolUse, ...]) -> bool:
    """Return whether a submission call is among the calls."""
    return any(call.name in SUBMISSIONS for call in calls)


def accept_submission(
    builder: TransitionBuilder, call: ToolUse, submission: SubmitResult | SubmitError
) -> TransitionResult:
    """End the sub-agent with its submission; the call gets a result, so that the history stays valid."""
    through = ContextState.PROCESSING_LLM_RESPONSE
    if isinstance(submission, SubmitResult) and submission.success:
        add_result(builder, SubAgentComplete(call.id, texts.SUBMITTED))
        return complete_sub_agent(builder, submission.result, through)
    error = submission.result if isinstance(submission, SubmitResult) else submission.error
    add_result(builder, SubAgentComplete(call.id, texts.SUBMITTED, success=False, outcome=ToolOutcome.OK))
    kind, reason = ErrorKind.SUB_AGENT_ERROR, StopReason.ERROR
    return fail_sub_agent(builder, kind, error, reason, kind.value, through, keep_partial=False)


def has_output_call(calls: tuple[ToolUse, ...]) -> bool:
    """Return whether a call of submit_output is among the calls."""
    return any(call.name == SUBMIT_OUTPUT for call in calls)


def take_output(builder: TransitionBuilder, event: LlmResponse, calls: tuple[ToolUse, ...]) -> TransitionResult:
    """Handle an answer that tries to end a run with an output schema, with or without a call of submit_output.

    A valid value completes the run, unless steers (messages that join the run) wait: then the run goes on, and a later
    value counts. If the value is missing or invalid, the agent is reminded; after too many reminders the run fails.
    """
    through = ContextState.PROCESSING_LLM_RESPONSE
    if event.output:
        accept_output(builder, calls)
        if builder.ledger.steers:
            return builder.finish(AwaitingLlm(builder.ledger, LlmReason.STEER), through)
        return become_idle(builder, StopReason.COMPLETED, "", through, output=event.output)
    problem = event.output_problem or texts.OUTPUT_MISSING
    for call in calls:
        add_result(builder, ToolError(call.id, texts.output_misfit(problem)))
    if event.refusal:
        return fail_run(builder, ErrorKind.OUTPUT_INVALID, texts.OUTPUT_REFUSED, through)
    if builder.ledger.nudges >= builder.context.limits.max_nudges:
        return fail_run(builder, ErrorKind.OUTPUT_INVALID, texts.output_invalid(problem), through)
    builder.ledger = replace(builder.ledger, nudges=builder.ledger.nudges + 1)
    if not calls:
        builder.add_system_message(SystemKind.OUTPUT_NUDGE, texts.output_nudge(problem), meta=True)
    return builder.finish(AwaitingLlm(builder.ledger, LlmReason.NUDGE), through)


def accept_output(builder: TransitionBuilder, calls: tuple[ToolUse, ...]) -> None:
    """Give the submit_output call a success result; `calls` is empty if the answer's text was the submitted value."""
    for call in calls:
        add_result(builder, ToolSuccess(call.id, texts.OUTPUT_TAKEN))
