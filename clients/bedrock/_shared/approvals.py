"""Decides approvals, and tools' questions, that the caller's loop over the events has not answered."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from bedrock.errors import ApprovalNeeded

if TYPE_CHECKING:
    from bedrock.states import Approval, Question

DecideT = TypeVar("DecideT")
FillInT = TypeVar("FillInT")

_log = logging.getLogger("bedrock")

DENIED_NOTE = "Denied automatically: the program that sent the message went on without an answer."
"""The note of an automatic denial, for the agent and for every watcher."""


@dataclass(frozen=True, slots=True)
class QuestionPolicy(Generic[DecideT, FillInT]):
    """The caller's rule for tool calls that need approval, and for what running tools ask."""

    decide: DecideT | None
    """The function that decides an approval; if None, unanswered approvals are denied."""
    fill_in: FillInT | None
    """The function that answers what a tool asks a person; if None, unanswered questions are declined."""
    wait_for_others: bool
    """Whether approvals and questions stay open, so that other clients can answer them."""

    def __post_init__(self) -> None:
        if self.fill_in is not None and not callable(self.fill_in):
            raise TypeError(f"on_question={self.fill_in!r} answers nothing; give a function, or None")


def log_denied(approval: Approval) -> None:
    """Log a warning that an approval was denied, and why."""
    _log.warning(
        "%s was denied, because the loop did not answer: answer there, or pass on_approval= or wait_for_others=True",
        approval.tool,
    )


def log_declined(question: Question) -> None:
    """Log a warning that a tool's question was declined, and why."""
    _log.warning(
        "what the MCP server %s asked was declined, because the loop did not answer: answer there, or pass on_question="
        " or wait_for_others=True",
        question.mcp_server,
    )


def question_of_others(approval: Approval) -> ApprovalNeeded:
    """Return the error for an open approval of an earlier run, which the caller of this run must not deny."""
    return ApprovalNeeded(
        f"the run before this one asks whether {approval.tool} may run; answer that, or pass wait_for_others=True",
        approval,
    )
