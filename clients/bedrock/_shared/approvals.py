"""The policy for approvals and tools' questions that the caller leaves unanswered while reading the events of a run."""

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
"""The note that an automatic denial carries. The agent and every client that watches the conversation can read it."""


@dataclass(frozen=True, slots=True)
class QuestionPolicy(Generic[DecideT, FillInT]):
    """What to do about approvals and tools' questions that the caller leaves unanswered."""

    decide: DecideT | None
    """The caller's function that decides an approval; None if unanswered approvals are denied."""
    fill_in: FillInT | None
    """The caller's function that answers a question of a tool; None if unanswered questions are declined."""
    wait_for_others: bool
    """Whether unanswered approvals and questions stay open, so that other clients can answer them."""

    def __post_init__(self) -> None:
        if self.fill_in is not None and not callable(self.fill_in):
            raise TypeError(f"on_question={self.fill_in!r} answers nothing; give a function, or None")


def log_denied(approval: Approval) -> None:
    """Log a warning that an approval was denied because the caller's loop over the run's events had not answered it."""
    _log.warning(
        "%s was denied, because the loop did not answer: answer there, or pass on_approval= or wait_for_others=True",
        approval.tool,
    )


def log_declined(question: Question) -> None:
    """Log a warning that a tool question was declined because the caller's loop over the events had not answered it."""
    _log.warning(
        "what the MCP server %s asked was declined, because the loop did not answer: answer there, or pass on_question="
        " or wait_for_others=True",
        question.mcp_server,
    )


def question_of_others(approval: Approval) -> ApprovalNeeded:
    """Return the error to raise when an earlier run's approval is still open.

    The program that waits for this run must not deny an approval of another run.
    """
    return ApprovalNeeded(
        f"the run before this one asks whether {approval.tool} may run; answer that, or pass wait_for_others=True",
        approval,
    )
