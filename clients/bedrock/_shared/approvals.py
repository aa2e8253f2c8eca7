"""What happens to an approval that the loop has not answered."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from bedrock.errors import ApprovalNeeded

if TYPE_CHECKING:
    from bedrock.states import Approval

DecideT = TypeVar("DecideT")

_log = logging.getLogger("bedrock")

DENIED_NOTE = "Denied automatically: the program that sent the message went on without an answer."
"""The note of an automatic denial, for the agent and for every watcher."""


@dataclass(frozen=True, slots=True)
class QuestionPolicy(Generic[DecideT]):
    """Who decides about tool calls that need approval."""

    decide: DecideT | None
    """A function of the approval; None if there is none, so that an unanswered question is denied."""
    wait_for_others: bool
    """Whether questions stay open for other clients to answer."""


def log_denied(approval: Approval) -> None:
    """Log a warning that a question was denied, and why."""
    _log.warning(
        "%s was denied, because the loop did not answer: answer there, or pass on_approval= or wait_for_others=True",
        approval.tool,
    )


def question_of_others(approval: Approval) -> ApprovalNeeded:
    """Return the error for a question of an earlier run, which this one may not deny."""
    return ApprovalNeeded(
        f"the run before this one asks whether {approval.tool} may run; answer that, or pass wait_for_others=True",
        approval,
    )
