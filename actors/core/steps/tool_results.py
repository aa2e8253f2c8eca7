"""Results of tool calls: real ones as they arrive, synthetic ones for calls that did not run (C5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.content import MessageType, ToolCancelled, ToolError, ToolOutcome, ToolResult
from actors.core.steps import texts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.core.steps.transition_builder import TransitionBuilder


def add_result(builder: TransitionBuilder, result: ToolResult) -> ToolResult:
    """Persist one result as a message of its own."""
    builder.add_message(MessageType.TOOL, result)
    return result


def skip_calls(builder: TransitionBuilder, call_ids: Iterable[str], text: str) -> None:
    """None of these calls runs; the model is told why."""
    for call_id in call_ids:
        add_result(builder, skipped_result(call_id, text))


def skipped_result(call_id: str, text: str) -> ToolError:
    """The result of a call that the machine did not let run."""
    return ToolError(call_id, text, ToolOutcome.SKIPPED)


def cancel_calls(builder: TransitionBuilder, current: str, remaining: Iterable[str]) -> None:
    """One result for the call that was under way and one for each that waited (C3, I6)."""
    add_result(builder, ToolCancelled(current, texts.CANCELLED))
    for call_id in remaining:
        add_result(builder, ToolCancelled(call_id, texts.SKIPPED, ToolOutcome.SKIPPED))


def cancel_unasked(builder: TransitionBuilder, call_ids: Iterable[str]) -> None:
    """A cancel while questions were open: nothing had begun, every call is cancelled alike."""
    for call_id in call_ids:
        add_result(builder, ToolCancelled(call_id, texts.CANCELLED))


def interrupt_calls(builder: TransitionBuilder, call_ids: Iterable[str]) -> None:
    """A restart cut these calls off."""
    for call_id in call_ids:
        add_result(builder, ToolCancelled(call_id, texts.INTERRUPTED))


def deny_calls(builder: TransitionBuilder, call_ids: Iterable[str], denied: str, reason: str) -> None:
    """One denial keeps the whole response from running (C16)."""
    for call_id in call_ids:
        if call_id == denied:
            add_result(builder, ToolError(call_id, texts.denied(reason), ToolOutcome.DENIED))
        else:
            add_result(builder, skipped_result(call_id, texts.OTHER_DENIED))
