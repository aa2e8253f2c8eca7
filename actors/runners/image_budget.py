"""Limits the images of a request: the latest ones of the history, as many as every provider takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core.content import Content, Image, Text, ToolSuccess
from actors.core.history import Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MAX_IMAGES = 100
"""Images in a request."""
MAX_BYTES = 15_000_000
"""Bytes of their views. In base64 that is 20 MB, of the 32 MB that a request may have."""


def within_limits(turns: Sequence[Turn], size_of: Callable[[Image], int]) -> tuple[Turn, ...]:
    """Return the turns with a remark in place of the oldest images, if they are too many or too large.

    `size_of` gives the bytes of a view. They are removed half of the limit at a time, so that the beginning of the
    requests, which providers cache, changes seldom. Which ones are removed depends on the history alone.
    """
    images = [image for turn in turns for image in _images(turn)]
    if not images:
        return tuple(turns)
    removed = max(_surplus([1] * len(images), MAX_IMAGES), _surplus([size_of(image) for image in images], MAX_BYTES))
    return tuple(_without(turns, removed)) if removed else tuple(turns)


def _surplus(costs: Sequence[int], limit: int) -> int:
    """Return how many of the first must be removed, so that the rest costs at most `limit`."""
    excess = sum(costs) - limit
    if excess <= 0:
        return 0
    step = limit // 2
    to_lose = -(-excess // step) * step
    lost = 0
    for index, cost in enumerate(costs):
        if lost >= to_lose:
            return index
        lost += cost
    return len(costs)


def _images(turn: Turn) -> Iterator[Image]:
    for block in turn.content:
        if isinstance(block, Image):
            yield block
        elif isinstance(block, ToolSuccess):
            yield from block.images


def _without(turns: Sequence[Turn], count: int) -> Iterator[Turn]:
    """Yield the turns without their first `count` images."""
    for turn in turns:
        if not count:
            yield turn
            continue
        content: list[Content] = []
        for block in turn.content:
            if isinstance(block, Image) and count:
                content.append(Text(_remark(block)))
                count -= 1
            elif isinstance(block, ToolSuccess) and block.images and count:
                lost = block.images[:count]
                output = "\n".join((block.output, *map(_remark, lost)))
                content.append(replace(block, output=output, images=block.images[count:]))
                count -= len(lost)
            else:
                content.append(block)
        yield Turn(turn.role, tuple(content))


def _remark(image: Image) -> str:
    return f"[an image, {image.media_type} {image.width}x{image.height}, that is no longer shown]"
