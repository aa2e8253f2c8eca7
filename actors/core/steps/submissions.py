"""The tools submit_result and submit_error, which end a sub-agent inside the transition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from actors.core.content import SubAgentComplete, ToolOutcome, ToolUse
from actors.core.errors import ErrorKind
from actors.core.fsm import ContextState
from actors.core.notifications import StopReason
from actors.core.steps import texts
from actors.core.steps.run_endings import complete_sub_agent, fail_sub_agent
from actors.core.steps.tool_results import add_result

if TYPE_CHECKING:
    from actors.core.result import TransitionResult
    from actors.core.steps.transition_builder import TransitionBuilder

SUBMIT_RESULT = "submit_result"
SUBMIT_ERROR = "submit_error"
SUBMISSIONS = frozenset({SUBMIT_RESULT, SUBMIT_ERROR})


class SubmitResult(Struct, frozen=True):
    """Input of submit_result."""

    result: str
    success: bool = True


class SubmitError(Struct, frozen=True):
    """Input of submit_error."""

    error: str


def submission_of(calls: tuple[ToolUse, ...], *, truncated: bool) -> SubmitResult | SubmitError | None:
    """Return the submission if the response consists of one complete and valid submission call only, else None."""
    if truncated or len(calls) != 1 or calls[0].name not in SUBMISSIONS:
        return None
    try:
        if calls[0].name == SUBMIT_RESULT:
            return msgspec.json.decode(calls[0].input, type=SubmitResult)
        return msgspec.json.decode(calls[0].input, type=SubmitError)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def has_submission(calls: tuple[ToolUse, ...]) -> bool:
    """Whether a submission call is among the calls."""
    return any(call.name in SUBMISSIONS for call in calls)


def accept_submission(
    builder: TransitionBuilder, call: ToolUse, submission: SubmitResult | SubmitError
) -> TransitionResult:
    """End the sub-agent with its submission; the call gets a result, so that its history stays valid."""
    through = ContextState.PROCESSING_LLM_RESPONSE
    if isinstance(submission, SubmitResult) and submission.success:
        add_result(builder, SubAgentComplete(call.id, texts.SUBMITTED))
        return complete_sub_agent(builder, submission.result, through)
    error = submission.result if isinstance(submission, SubmitResult) else submission.error
    add_result(builder, SubAgentComplete(call.id, texts.SUBMITTED, success=False, outcome=ToolOutcome.OK))
    kind, reason = ErrorKind.SUB_AGENT_ERROR, StopReason.ERROR
    return fail_sub_agent(builder, kind, error, reason, kind.value, through, keep_partial=False)
