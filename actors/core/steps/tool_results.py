"""Results of tool calls: those of tools, and those that the server writes for calls that did not run.

Providers refuse a history in which a tool call has no result, so every call gets one before the next model request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core.content import MessageType, ToolCancelled, ToolError, ToolOutcome, ToolResult
from actors.core.steps import texts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.core.content import ToolUse
    from actors.core.steps.transition_builder import TransitionBuilder


def add_result(builder: TransitionBuilder, result: ToolResult) -> ToolResult:
    """Persist a result as a message of its own, and return the result."""
    builder.add_message(MessageType.TOOL, result)
    return result


def add_call_result(builder: TransitionBuilder, call: ToolUse, result: ToolResult) -> ToolResult:
    """Persist the result of a call that has run, with a note of what was corrected in the call."""
    output = f"{result.output}\n\n{call.corrected}" if call.corrected else result.output
    return add_result(builder, replace(result, tool_use_id=call.id, output=output))


def skip_calls(builder: TransitionBuilder, call_ids: Iterable[str], text: str) -> None:
    """Add an error result with `text` to each of these calls, none of which runs."""
    for call_id in call_ids:
        add_result(builder, skipped_result(call_id, text))


def skipped_result(call_id: str, text: str) -> ToolError:
    """Return the result of a call that the state machine did not run."""
    return ToolError(call_id, text, ToolOutcome.SKIPPED)


def cancel_calls(builder: TransitionBuilder, current: str, remaining: Iterable[str]) -> None:
    """Add cancelled results to the running call and to all calls that have not started."""
    add_result(builder, ToolCancelled(current, texts.CANCELLED))
    for call_id in remaining:
        add_result(builder, ToolCancelled(call_id, texts.SKIPPED, ToolOutcome.SKIPPED))


def cancel_undecided(builder: TransitionBuilder, call_ids: Iterable[str]) -> None:
    """Add cancelled results to calls that were waiting for approval; none of them had started."""
    for call_id in call_ids:
        add_result(builder, ToolCancelled(call_id, texts.CANCELLED))


def interrupt_calls(builder: TransitionBuilder, call_ids: Iterable[str]) -> None:
    """Add a result to each call that a restart of the server interrupted."""
    for call_id in call_ids:
        add_result(builder, ToolCancelled(call_id, texts.INTERRUPTED))
