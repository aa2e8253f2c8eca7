"""The agent learns that a run was cut off, and at which step (REQ-BED-005).

A cancel persists nothing but synthetic results (C3), so the history of a cancelled question looks like that of one that
was never answered. The notice waits until the next run begins and stands before its first message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.content import SystemKind
from actors.core.context import Rules
from actors.core.states import (
    AwaitingContinuation,
    AwaitingSubAgents,
    AwaitingToolApproval,
    LlmRequesting,
    Phase,
    State,
    ToolExecuting,
)
from actors.core.steps import texts
from actors.core.steps.pending_notices import deliver, put

if TYPE_CHECKING:
    from actors.core.steps.transition_builder import Draft

_KINDS = frozenset({SystemKind.INTERRUPTED})


def note_cancel(draft: Draft) -> None:
    """The user has cancelled the live run; a newer cancel's notice replaces one that waits."""
    _note(draft, texts.RUN_CANCELLED)


def note_restart(draft: Draft) -> None:
    """The server has gone away under the live run."""
    _note(draft, texts.RUN_CUT_OFF)


def deliver_interruption(draft: Draft) -> None:
    """The next run is about to begin: what came before it is over."""
    deliver(draft, _KINDS)


def _note(draft: Draft, text: str) -> None:
    if draft.context.rules < Rules.INTERRUPTIONS or draft.context.is_sub_agent or not draft.ledger.live:
        return
    put(draft, SystemKind.INTERRUPTED, text.format(step=_step(draft.before)), _KINDS)


def _step(state: State) -> str:
    """Where in a run a state stands, in words."""
    match state:
        case LlmRequesting(phase=Phase.STREAMING):
            return texts.WHILE_ANSWERING
        case AwaitingToolApproval():
            return texts.while_asking(call.name for call in state.calls if call.id in state.undecided)
        case ToolExecuting():
            return texts.while_running(next(call.name for call in state.calls if call.id == state.current_tool_id))
        case AwaitingSubAgents():
            return texts.WHILE_SUB_AGENTS_WORKED
        case AwaitingContinuation():
            return texts.WHILE_SUMMING_UP
        case _ if state.ledger.rounds > 1:
            return texts.after_step(state.ledger.rounds - 1)
        case _:
            return texts.BEFORE_ANSWERING
