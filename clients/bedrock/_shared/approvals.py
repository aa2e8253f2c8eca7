"""Decides approvals that the caller's loop over the events has not answered."""

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
    """The caller's rule for tool calls that need approval."""

    decide: DecideT | None
    """The function that decides an approval; if None, unanswered approvals are denied."""
    wait_for_others: bool
    """Whether approvals stay open, so that other clients can answer them."""


def log_denied(approval: Approval) -> None:
    """Log a warning that an approval was denied, and why."""
    _log.warning(
        "%s was denied, because the loop did not answer: answer there, or pass on_approval= or wait_for_others=True",
        approval.tool,
    )


def question_of_others(approval: Approval) -> ApprovalNeeded:
    """Return the error for an open approval of an earlier run, which the caller of this run must not deny."""
    return ApprovalNeeded(
        f"the run before this one asks whether {approval.tool} may run; answer that, or pass wait_for_others=True",
        approval,
    )
