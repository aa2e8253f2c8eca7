"""Questions to a person: every one that was asked ends exactly once (REQ-BED-015; SEMANTICS C15, C16)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.notifications import ApprovalResolved, Decision

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.core.steps.transition_builder import Draft


def resolve(draft: Draft, tool_use_id: str, decision: Decision, reason: str = "") -> None:
    """A person answered."""
    draft.notify(ApprovalResolved(tool_use_id, decision, reason))


def withdraw_questions(draft: Draft, tool_use_ids: Iterable[str]) -> None:
    """Nobody needs an answer any more."""
    for tool_use_id in tool_use_ids:
        resolve(draft, tool_use_id, Decision.WITHDRAWN)
