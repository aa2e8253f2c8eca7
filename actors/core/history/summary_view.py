"""Builds the turns of a request for a summary: the whole history as text, without tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core import tags
from actors.core.content import (
    Content,
    Image,
    Message,
    MessageType,
    Reasoning,
    SubAgentComplete,
    Text,
    ToolCancelled,
    ToolError,
    ToolSuccess,
    ToolUse,
    tool_uses,
)
from actors.core.history.provider_view import TurnBuilder, in_provider_order, user_content

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from actors.core.history.provider_view import Turn


def summary_view(messages: Iterable[Message], through_sequence: int, rejected: Sequence[str]) -> tuple[Turn, ...]:
    """Build the turns of the summary request (REQ-BED-020), without tool blocks and reasoning blocks.

    Calls and results are rendered as text, so that every provider accepts them without tool definitions. The last block
    asks for the summary and names the tools in `rejected`, whose calls did not run because the context is full.
    """
    turns, names = TurnBuilder(), dict[str, str]()
    for message in in_provider_order(messages, through_sequence):
        names.update((call.id, call.name) for call in tool_uses(message.content))
        role = "assistant" if message.type is MessageType.AGENT else "user"
        turns.add(
            role, tuple(_plain(block, names) for block in user_content(message) if not isinstance(block, Reasoning))
        )
    turns.add("user", (Text(_summary_instruction(rejected)),))
    return turns.closed()


def _plain(block: Content, names: dict[str, str]) -> Content:
    match block:
        case ToolUse():
            return Text(f'<{tags.CALL} name="{block.name}">\n{tags.escape_calls(block.input)}\n</{tags.CALL}>')
        case ToolSuccess() | ToolError() | ToolCancelled() | SubAgentComplete():
            name = names.get(block.tool_use_id, "")
            images = len(block.images) if isinstance(block, ToolSuccess) else 0
            output = tags.escape_calls(block.output) + (f"\n[{images} image(s) left out]" if images else "")
            return Text(f'<{tags.RESULT} name="{name}" outcome="{block.outcome.value}">\n{output}\n</{tags.RESULT}>')
        case Text() | Reasoning() | Image():
            return block


def _summary_instruction(rejected: Sequence[str]) -> str:
    asked = (
        "The context of this conversation is full, so it ends here. Write a summary from which the work can be "
        "continued in a new conversation by somebody who sees nothing else: what was asked for, what was done and "
        "decided and why, what was found out (names of files, commands, values), what is still open and the next "
        "step. Answer with the summary only. No tools are available."
    )
    if not rejected:
        return asked
    names = ", ".join(dict.fromkeys(rejected))
    return f"{asked}\nThese tools were called last and were not run, because the context is full: {names}."
