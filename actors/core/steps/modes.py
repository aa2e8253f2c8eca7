"""Changes of the mode, and the notices that tell the agent about them (REQ-BED-016, REQ-BED-017)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core.content import SystemKind
from actors.core.context import ConvContext, Mode, Rules, wider
from actors.core.effects import PersistMode
from actors.core.errors import Reason, Rejected
from actors.core.notifications import ModeChanged
from actors.core.result import TransitionResult, ignored
from actors.core.states import AwaitingSubAgents, AwaitingToolApproval, State, ToolExecuting
from actors.core.steps import texts
from actors.core.steps.approvals import REQUEST_MODE_UPGRADE, traits_of
from actors.core.steps.notices import drop_notices, queue_notice
from actors.core.steps.transition_builder import TransitionBuilder

if TYPE_CHECKING:
    from actors.core.events import SetMode

KINDS = {
    Mode.RESTRICTED: SystemKind.MODE_RESTRICTED,
    Mode.WORKSPACE: SystemKind.MODE_WORKSPACE,
    Mode.UNRESTRICTED: SystemKind.MODE_UNRESTRICTED,
}
"""The kind of the notice about each mode."""


def set_mode(state: State, context: ConvContext, event: SetMode) -> TransitionResult:
    """Change the mode by command.

    The notice to the agent is persisted at once, or queued while a tool call has no result. Ignored if the mode is
    already set. Raises Rejected in a sub-agent, and for a mode that is not available.
    """
    if context.is_sub_agent:
        raise Rejected(Reason.SUB_AGENT)
    if event.mode is context.mode:
        return ignored(state)
    _check_available(context, event.mode)
    builder = TransitionBuilder(state, context, event.at)
    builder.add_effect(PersistMode(event.mode))
    if round_is_open(state):
        _queue(builder, event.mode)
    else:
        drop_notices(builder, KINDS.values())
        builder.add_system_message(KINDS[event.mode], _notice(context, event.mode))
    builder.place_state()
    builder.notify(ModeChanged(event.mode))
    after = replace(state, ledger=builder.ledger)
    return builder.stay(after) if round_is_open(state) else builder.stay_silently(after)


def change_mode(builder: TransitionBuilder, mode: Mode) -> None:
    """Change the mode while tool calls have no result yet, and queue the notice. The next call starts in the new mode.

    Raises Rejected if the mode is not available.
    """
    if builder.context.mode is mode:
        return
    _check_available(builder.context, mode)
    builder.add_effect(PersistMode(mode))
    builder.notify(ModeChanged(mode))
    builder.context = replace(builder.context, mode=mode)
    _queue(builder, mode)


def grant(builder: TransitionBuilder, mode: Mode) -> None:
    """Change to the mode that a person approved, if it is available and gives more rights than the present one."""
    if wider(mode, builder.context.mode) and available(builder.context, mode):
        change_mode(builder, mode)


def available(context: ConvContext, mode: Mode) -> bool:
    """Return whether the conversation may use the mode, and the machine that runs the server can enforce it."""
    match mode:
        case Mode.RESTRICTED:
            return context.restriction_available
        case Mode.WORKSPACE:
            return context.workspace_available
        case Mode.UNRESTRICTED:
            return context.unrestricted_available


def _check_available(context: ConvContext, mode: Mode) -> None:
    if not available(context, mode):
        raise Rejected(Reason.MODE_UNAVAILABLE)


def round_is_open(state: State) -> bool:
    """Return whether a tool call has no result yet; no other message may be persisted before that result."""
    if isinstance(state, AwaitingSubAgents):
        return bool(state.tool_use_id)
    return isinstance(state, (AwaitingToolApproval, ToolExecuting))


def _queue(builder: TransitionBuilder, mode: Mode) -> None:
    queue_notice(builder, KINDS[mode], _notice(builder.context, mode), KINDS.values())


def _notice(context: ConvContext, mode: Mode) -> str:
    asks = context.rules < Rules.OWN_TOOLS or traits_of(context, REQUEST_MODE_UPGRADE) is not None
    return texts.RESTRICTED_FOR_GOOD if mode is Mode.RESTRICTED and not asks else texts.MODES[mode]
