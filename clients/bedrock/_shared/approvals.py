"""What becomes of a question that nobody answers."""

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
"""What the agent is told, and every watcher, of a question that was left open."""


@dataclass(frozen=True, slots=True)
class QuestionPolicy(Generic[DecideT]):
    """Who answers when a run asks whether a tool call may run."""

    decide: DecideT | None
    """A function of the approval; None if there is none, so that what is left open is denied."""
    wait_for_others: bool
    """Whether questions are left open, because somebody else answers them."""


def say_denied(approval: Approval) -> None:
    """Tell the person in front of the program that a question was denied, and why."""
    _log.warning(
        "%s was denied, because nobody answered: answer in the loop, or pass on_approval= or wait_for_others=True",
        approval.tool,
    )


def question_of_others(approval: Approval) -> ApprovalNeeded:
    """Make the error for a question of the run before, which is not ours to deny."""
    return ApprovalNeeded(
        f"the run before this one asks whether {approval.tool} may run; answer that, or pass wait_for_others=True",
        approval,
    )
