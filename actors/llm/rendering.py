"""Rendering of turns that both protocols share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

from actors.core.content import (
    Content,
    Image,
    SubAgentComplete,
    Text,
    ToolCancelled,
    ToolError,
    ToolResult,
    ToolSuccess,
    ToolUse,
)


def is_result(block: Content) -> TypeGuard[ToolResult]:
    return isinstance(block, ToolSuccess | ToolError | ToolCancelled | SubAgentComplete)


def failed(result: ToolResult) -> bool:
    """Whether the model is told that the call failed."""
    match result:
        case ToolSuccess():
            return False
        case SubAgentComplete():
            return not result.success
        case ToolError() | ToolCancelled():
            return True


def result_text(result: ToolResult) -> str:
    """What the model reads of a result; never empty, since some providers refuse that."""
    images = result.images if isinstance(result, ToolSuccess) else ()
    parts = [result.output] if result.output.strip() else []
    return "\n".join((*parts, *map(shown, images))) or "(no output)"


def shown(image: Image) -> str:
    """An image as text."""
    return f"[image {image.media_type} {image.width}x{image.height}]"


def spoken(content: Iterable[Content]) -> bool:
    """Whether an assistant turn holds more than reasoning and blanks."""
    return any(isinstance(b, ToolUse) or (isinstance(b, Text) and b.text.strip()) for b in content)


def merged(messages: Iterable[tuple[str, Sequence[Any]]]) -> list[tuple[str, list[Any]]]:
    """`messages` without empty ones, neighbours of one role joined."""
    result: list[tuple[str, list[Any]]] = []
    for role, parts in messages:
        if not parts:
            continue
        if result and result[-1][0] == role:
            result[-1][1].extend(parts)
        else:
            result.append((role, list(parts)))
    return result
