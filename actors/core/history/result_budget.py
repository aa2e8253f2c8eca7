"""Cuts the tool results in a request so that they fit into what is left of the model's window."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from actors.core.content import (
    IMAGE_TOKENS,
    Content,
    Image,
    Message,
    MessageType,
    SystemKind,
    Text,
    ToolResult,
    ToolSuccess,
    content_tokens,
    is_tool_result,
    most_tokens,
    tool_uses,
)

# The factor by which the results of a round are cut further after the provider found the request too long.
NARROWED = 4
# Even after such a refusal, results of at most this many tokens are not cut further.
SMALLEST = 128
# The results of a round may fill half of the remaining window: its size divided by this.
_SHARE = 2

_HINTS = {
    "bash": "print less at a time, or write the output to a file and read that in parts",
    "read_file": "read on with offset and limit",
    "search": "search with a narrower pattern or path",
    "keyword_search": "search for fewer or more specific terms",
}
_HINT = "ask for less at a time"


class Room(Struct, frozen=True):
    """The facts that the cuts depend on, besides the history. Sizes are in tokens."""

    usable: int = 0
    """How many tokens a request may have; 0: any number, so nothing is cut."""
    fixed: int = 0
    images: bool = True
    """Whether requests contain images; if not, they contain a short text in place of each."""
    narrowed: int = 0
    """Results up to the message with this number are cut further: a provider found a request with them too long."""


UNLIMITED = Room()


def shares(wanted: Sequence[int], total: int) -> list[int]:
    """Divide `total` fairly: the smallest wishes are met in full, and the others get equal shares of what is left.

    A negative `total` counts as 0.
    """
    left, given = max(total, 0), [0] * len(wanted)
    for served, index in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        given[index] = min(wanted[index], left // (len(wanted) - served))
        left -= given[index]
    return given


def bounded(placed: Sequence[Message], room: Room, used: int) -> tuple[list[Message], int]:
    """Shorten tool results that need too many tokens; return the messages, and the number of tokens after them.

    `used` is the number of tokens before `placed`, which begins with the first message of the history or an answer.
    """
    if not room.usable:
        return list(placed), used
    shown: list[Message] = []
    for messages in _rounds(placed):
        cut, used = _bounded_round(messages, room, used)
        shown += cut
    return shown, used


def _rounds(placed: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Split the messages into rounds: each answer begins a new one."""
    begin = 0
    for index, message in enumerate(placed):
        if message.type is MessageType.AGENT and index > begin:
            yield placed[begin:index]
            begin = index
    yield placed[begin:]


def _bounded_round(messages: Sequence[Message], room: Room, used: int) -> tuple[list[Message], int]:
    names: dict[str, str] = {}
    rest = list(messages)
    answers = [rest.pop(0)] if rest and rest[0].type is MessageType.AGENT else []
    for answer in answers:
        names = {call.id: call.name for call in tool_uses(answer.content)}
        used = _after(answer, room, used)
    used += sum(content_tokens(_others(message), images=room.images) for message in rest)
    wanted = [_wanted(block, room) for message in rest for block in message.content if _is_result(message, block)]
    most = max(room.usable - used, 0) // _SHARE
    if any(message.sequence <= room.narrowed for message in rest):
        most = min(most, max(min(most, sum(wanted)) // NARROWED, SMALLEST * len(wanted)))
    if sum(wanted) <= most:
        return list(messages), used + sum(wanted)
    given = iter(shares(wanted, most))

    def fitted(message: Message) -> Message:
        content = tuple(
            _shortened(block, next(given), names, room) if _is_result(message, block) else block
            for block in message.content
        )
        return replace(message, content=content)

    shown = list(map(fitted, rest))
    used += sum(_wanted(block, room) for message in shown for block in message.content if _is_result(message, block))
    return [*answers, *shown], used


def _after(answer: Message, room: Room, used: int) -> int:
    """The number of tokens in use after an answer: the provider's count, or an estimate.

    A count larger than the window is not used: it belongs to another model, or to a request whose results were not cut.
    """
    counted = answer.usage.context_tokens if answer.usage else 0
    return counted if 0 < counted <= room.usable else used + content_tokens(answer.content, images=room.images)


def _others(message: Message) -> Iterator[Content]:
    return (block for block in message.content if not _is_result(message, block))


def _is_result(message: Message, block: Content) -> bool:
    told = message.kind is SystemKind.SUB_AGENT_RESULTS and isinstance(block, Text)
    return told or is_tool_result(block)


def _wanted(block: Content, room: Room) -> int:
    images = len(block.images) if isinstance(block, ToolSuccess) and room.images else 0
    return most_tokens(_text(block)) + images * IMAGE_TOKENS


def _text(block: Content) -> str:
    match block:
        case Text(text=text):
            return text
        case _:
            return block.output if is_tool_result(block) else ""


def _shortened(block: Content, tokens: int, names: Mapping[str, str], room: Room) -> Content:
    """A result cut to about `tokens`; if it has images, up to half of the tokens are reserved for its text."""
    if _wanted(block, room) <= tokens:
        return block
    if not is_tool_result(block):
        return Text(cut_text(_text(block), tokens, _HINT))
    hint = _HINTS.get(names.get(block.tool_use_id, ""), _HINT)
    if isinstance(block, ToolSuccess) and block.images and room.images:
        kept = max(tokens - min(most_tokens(block.output), tokens // 2), 0) // IMAGE_TOKENS
        tokens -= min(kept, len(block.images)) * IMAGE_TOKENS
        return _with_text(replace(block, images=block.images[:kept]), tokens, hint, block.images[kept:])
    return _with_text(block, tokens, hint)


def _with_text(block: ToolResult, tokens: int, hint: str, lost: Sequence[Image] = ()) -> ToolResult:
    return replace(block, output="\n".join((cut_text(block.output, tokens, hint), *map(image_remark, lost))))


def image_remark(image: Image) -> str:
    size = f"{image.media_type} {image.width}x{image.height}"
    return f"[an image, {size}, is left out here, because the context window has no room for it]"


def cut_text(text: str, tokens: int, hint: str = "") -> str:
    """If the text is longer than `tokens`, replace its middle with a remark that ends with `hint`."""
    if most_tokens(text) <= tokens:
        return text
    left = max(tokens - most_tokens(_remark(len(text), hint)), 0) // 2
    head = text[: _fitting(text, left)]
    backwards = text[len(head) :][::-1]
    tail = backwards[: _fitting(backwards, left)][::-1]
    head = head[: head.rfind("\n", len(head) // 2) + 1] or head
    tail = tail[tail.find("\n", 0, len(tail) // 2) + 1 :]
    return f"{head}{_remark(len(text) - len(head) - len(tail), hint)}{tail}"


def _fitting(text: str, tokens: int) -> int:
    """How many leading characters take at most `tokens`."""
    return bisect.bisect_right(
        range(1, min(len(text), 3 * tokens) + 1), tokens, key=lambda end: most_tokens(text[:end])
    )


def _remark(count: int, hint: str) -> str:
    end = f": {hint}" if hint else ""
    return f"\n[{count:,} characters are left out here, because the context window has no room for them{end}]\n"
