"""Builds the turns of a request for a summary: the whole history as text, without tools."""

from __future__ import annotations

import itertools
import operator
from typing import TYPE_CHECKING, NamedTuple

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
    text_of,
    tool_uses,
)
from actors.core.history.provider_view import TurnBuilder, in_provider_order, user_content
from actors.core.history.result_budget import UNLIMITED, Room, bounded, cut_text, image_remark, shares
from actors.core.window import content_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from actors.core.history.provider_view import Turn


_SMALLEST_PART = 64
"""The tokens of a block below which blocks are left out instead of being cut further."""
_FEWEST_PARTS = 8
_LEFT_OUT = "[{count} parts of the conversation are left out here, because the context window has no room for them]"


def summary_view(
    messages: Iterable[Message],
    through_sequence: int,
    rejected: Sequence[str],
    *,
    room: Room = UNLIMITED,
    used: int = 0,
    halved: int = 0,
) -> tuple[Turn, ...]:
    """Build the turns of the summary request (REQ-BED-020), without tool blocks and reasoning blocks.

    Calls and results are rendered as text, so that every provider accepts them without tool definitions. The last block
    asks for the summary and names the tools in `rejected`, whose calls did not run because the context is full.

    The longest blocks are cut until the history fits into `room`; it is halved for each time in `halved` that the
    provider found it too long. `used` are the tokens in the window as the provider last counted them; where it
    counted more than is estimated here, the estimate is corrected.
    """
    names, parts = dict[str, str](), list[_Part]()
    placed, _ = bounded(in_provider_order(messages, through_sequence), room, room.fixed)
    for message in placed:
        names.update((call.id, call.name) for call in tool_uses(message.content))
        role = "assistant" if message.type is MessageType.AGENT else "user"
        plain = (_plain(block, names) for block in user_content(message) if not isinstance(block, Reasoning))
        parts += (_Part(message.sequence, role, block) for block in plain)
    instruction = Text(_summary_instruction(rejected))
    if room.usable:
        estimate = room.fixed + _tokens(parts, room)
        fitting = room.usable * estimate // max(estimate, used, 1)
        if halved:
            fitting = min(fitting, estimate) >> halved
        parts = _shortened(parts, fitting - room.fixed - content_tokens((instruction,)), room)
    turns = TurnBuilder()
    for (_, role), of_message in itertools.groupby(parts, key=operator.itemgetter(0, 1)):
        turns.add(role, (part.block for part in of_message))
    turns.add("user", (instruction,))
    return turns.closed()


class _Part(NamedTuple):
    """A block of the history in the request for a summary."""

    sequence: int
    """The number of its message; 0 for a remark."""
    role: str
    block: Content


def _tokens(parts: Iterable[_Part], room: Room) -> int:
    return content_tokens((part.block for part in parts), images=room.images)


def _shortened(parts: list[_Part], tokens: int, room: Room) -> list[_Part]:
    """Return parts of at most about `tokens`: the longest are cut, and those in the middle left out if too many.

    _FEWEST_PARTS of _SMALLEST_PART are left whatever `tokens` is.
    """
    if _tokens(parts, room) <= tokens:
        return parts
    most = max(tokens // _SMALLEST_PART, _FEWEST_PARTS)
    if (lost := len(parts) - most) > 0:
        first = most // 4
        parts = [*parts[:first], _Part(0, "user", Text(_LEFT_OUT.format(count=lost))), *parts[first + lost :]]
    wanted = [_tokens((part,), room) for part in parts]
    given = [max(share, _SMALLEST_PART) for share in shares(wanted, tokens)]
    return [
        part if want <= share else part._replace(block=_cut(part.block, share))
        for part, want, share in zip(parts, wanted, given, strict=True)
    ]


def _cut(block: Content, tokens: int) -> Content:
    return Text(image_remark(block) if isinstance(block, Image) else cut_text(text_of((block,)), tokens))


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
