"""The mode, and how the agent learns of it (SEMANTICS C48; REQ-BED-016, 017)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core.content import SystemKind
from actors.core.context import ConvContext, Mode
from actors.core.effects import PersistMode
from actors.core.errors import Reason, Rejected
from actors.core.notifications import ModeChanged
from actors.core.result import TransitionResult, ignored
from actors.core.states import AwaitingSubAgents, AwaitingToolApproval, State, ToolExecuting
from actors.core.steps import texts
from actors.core.steps.pending_notices import forget, put
from actors.core.steps.transition_builder import Draft

if TYPE_CHECKING:
    from actors.core.events import SetMode

KINDS = {Mode.RESTRICTED: SystemKind.MODE_RESTRICTED, Mode.UNRESTRICTED: SystemKind.MODE_UNRESTRICTED}
"""The notice of each mode."""


def set_mode(state: State, context: ConvContext, event: SetMode) -> TransitionResult:
    """Change the mode at once; the agent is told at once too, unless that would split a tool round."""
    if context.is_sub_agent:
        raise Rejected(Reason.SUB_AGENT)
    if event.mode is context.mode:
        return ignored(state)
    _check_available(context, event.mode)
    draft = Draft(state, context, event.at)
    draft.act(PersistMode(event.mode))
    if round_is_open(state):
        _queue(draft, event.mode)
    else:
        forget(draft, KINDS.values())
        draft.say_system(KINDS[event.mode], texts.MODES[event.mode])
    draft.place_state()
    draft.notify(ModeChanged(event.mode))
    after = replace(state, ledger=draft.ledger)
    return draft.stay(after) if round_is_open(state) else draft.stay_unseen(after)


def change_mode(draft: Draft, mode: Mode) -> None:
    """Another mode within an open tool round: the agent is told behind it (C15, C48). Raises Rejected."""
    if draft.context.mode is mode:
        return
    _check_available(draft.context, mode)
    draft.act(PersistMode(mode))
    draft.notify(ModeChanged(mode))
    _queue(draft, mode)


def _check_available(context: ConvContext, mode: Mode) -> None:
    if mode is Mode.RESTRICTED and not context.restriction_available:
        raise Rejected(Reason.MODE_UNAVAILABLE)


def round_is_open(state: State) -> bool:
    """Whether a tool_use is unanswered, so that nothing may come between it and its result."""
    if isinstance(state, AwaitingSubAgents):
        return bool(state.tool_use_id)
    return isinstance(state, (AwaitingToolApproval, ToolExecuting))


def _queue(draft: Draft, mode: Mode) -> None:
    """A newer notice of the mode replaces the one that waits."""
    put(draft, KINDS[mode], texts.MODES[mode], KINDS.values())
