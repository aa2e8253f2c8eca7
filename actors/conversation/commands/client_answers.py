"""Handles clients' answers to tool calls that do not wait for an answer, or no longer wait for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core.content import ToolError, ToolOutcome, ToolSuccess, ToolUse, is_tool_result
from actors.core.errors import Reason, Rejected
from actors.messages.commands import SubmitToolResultResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.core.content import Message
    from actors.messages.commands import SubmitToolResultCommand

_CAUSES = {
    ToolOutcome.OK: ("answered", "a client has answered this call"),
    ToolOutcome.ERROR: ("answered", "this call has its result"),
    ToolOutcome.TIMED_OUT: ("timed_out", "the time to answer this call is over"),
    ToolOutcome.CANCELLED: ("withdrawn", "this call was withdrawn"),
    ToolOutcome.SKIPPED: ("withdrawn", "this call was never made"),
    ToolOutcome.DENIED: ("withdrawn", "this call was denied"),
}
"""For each outcome of a tool call: the machine-readable cause and the text with which a late answer is refused."""


def late_answer(history: Sequence[Message], request: SubmitToolResultCommand) -> SubmitToolResultResult:
    """Return the stored result of a finished call if the client has sent the same result again, else raise Rejected."""
    for message in reversed(history):
        for block in message.content:
            if isinstance(block, ToolUse) and block.id == request.tool_use_id:
                raise _unknown()
            if not (is_tool_result(block) and block.tool_use_id == request.tool_use_id):
                continue
            if not _is_of_client(history, request.tool_use_id):
                raise _unknown()
            if isinstance(block, (ToolSuccess, ToolError)) and _same(block, request.result):
                return SubmitToolResultResult(message, duplicate=True)
            cause, text = _CAUSES[block.outcome]
            raise Rejected(Reason.UNKNOWN_OR_DECIDED, text, cause)
    raise _unknown()


def _unknown() -> Rejected:
    return Rejected(Reason.UNKNOWN_OR_DECIDED, "no call of this id waits for an answer of a client", "unknown")


def _is_of_client(history: Sequence[Message], tool_use_id: str) -> bool:
    calls = (block for message in history for block in message.content if isinstance(block, ToolUse))
    return any(call.id == tool_use_id and call.group is not None for call in calls)


def _same(stored: ToolSuccess | ToolError, answer: ToolSuccess | ToolError) -> bool:
    """Return whether the stored result equals the client's answer, apart from the fields that the server adds."""
    return replace(stored, duration_ms=0) == replace(answer, tool_use_id=stored.tool_use_id, duration_ms=0)
