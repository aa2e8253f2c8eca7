"""Approval of tool calls by a person: each request is answered or withdrawn exactly once (REQ-BED-015)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from actors.core.context import ApprovalPolicy, ConvContext, Mode, Rules, ToolTraits
from actors.core.fsm import ContextState
from actors.core.notifications import ApprovalRequested, ApprovalResolved, Decision
from actors.core.states import ApprovalKind, AwaitingToolApproval

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.core.content import ToolUse
    from actors.core.result import TransitionResult
    from actors.core.steps.transition_builder import TransitionBuilder

REQUEST_MODE_UPGRADE = "request_mode_upgrade"


class _UpgradeInput(Struct):
    mode: Mode = Mode.UNRESTRICTED


def requested_mode(call: ToolUse) -> Mode:
    """Return the mode that a request_mode_upgrade asks for: unrestricted if it names none, or its input is invalid."""
    try:
        return msgspec.json.decode(call.input, type=_UpgradeInput).mode
    except (msgspec.DecodeError, UnicodeError):
        return Mode.UNRESTRICTED


def traits_of(context: ConvContext, name: str) -> ToolTraits | None:
    """Return the traits of an offered tool, or None for an unknown one."""
    for traits in context.tools:
        if traits.name == name:
            return traits
    return None


def needs_approval(context: ConvContext, call: ToolUse) -> bool:
    """Whether a person must approve this call before it runs. An unknown tool counts as one that writes."""
    if call.bad_input:  # gets an error result in any mode
        return False
    traits = traits_of(context, call.name)
    if traits is not None and traits.always_asks:
        return True
    if call.name == REQUEST_MODE_UPGRADE:
        return not left_out(context, call)
    if context.approval_policy is ApprovalPolicy.AUTO or call.name in context.always_approved:
        return False
    return context.approval_policy is ApprovalPolicy.ASK_ALL or traits is None or traits.writes


def left_out(context: ConvContext, call: ToolUse) -> bool:
    """Whether the call asks for a wider mode in a conversation whose creator did not offer that: it never runs."""
    if call.name != REQUEST_MODE_UPGRADE or context.is_sub_agent or context.rules < Rules.OWN_TOOLS:
        return False
    return traits_of(context, call.name) is None


def approval_kind(call: ToolUse) -> ApprovalKind:
    """Return whether approval of the call upgrades the mode or only runs the tool."""
    return ApprovalKind.MODE_UPGRADE if call.name == REQUEST_MODE_UPGRADE else ApprovalKind.TOOL


def ask(
    builder: TransitionBuilder, calls: tuple[ToolUse, ...], questions: tuple[ToolUse, ...], request_id: str
) -> TransitionResult:
    """Ask about each call in `questions`, and run none of `calls` before all are answered.

    `calls` are all tool calls of the response to `request_id`.
    """
    builder.place_state()
    for call in questions:
        builder.notify(ApprovalRequested(call, approval_kind(call), builder.at))
    upgrade = any(approval_kind(call) is ApprovalKind.MODE_UPGRADE for call in questions)
    waiting = AwaitingToolApproval(
        builder.ledger,
        calls,
        tuple(call.id for call in questions),
        ApprovalKind.MODE_UPGRADE if upgrade else ApprovalKind.TOOL,
        request_id,
        builder.at,
    )
    return builder.finish(waiting, ContextState.PROCESSING_LLM_RESPONSE)


def resolve_question(builder: TransitionBuilder, tool_use_id: str, decision: Decision, reason: str = "") -> None:
    """Notify clients that the question about this call is decided."""
    builder.notify(ApprovalResolved(tool_use_id, decision, reason))


def withdraw_questions(builder: TransitionBuilder, tool_use_ids: Iterable[str]) -> None:
    """Notify clients that these questions no longer need an answer."""
    for tool_use_id in tool_use_ids:
        resolve_question(builder, tool_use_id, Decision.WITHDRAWN)
