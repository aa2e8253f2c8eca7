"""Limits the images of a request to the latest ones, so that every provider accepts the request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core.content import Content, Image, Text, ToolSuccess, images_of
from actors.core.history.provider_view import Prefix, ProviderView, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MAX_IMAGES = 100
"""Maximum images in a request."""
MAX_BYTES = 15_000_000
"""Maximum bytes of all images of a request. As base64 they take 20 MB of the 32 MB that a request may have."""


def within_limits(turns: Sequence[Turn], size_of: Callable[[Image], int]) -> tuple[Turn, ...]:
    """Return the turns with a remark in place of the oldest images, if there are too many or their total is too large.

    `size_of` returns the size in bytes of an image as it is sent. Many images (half the limit) are removed at a time,
    so that the beginning of requests, which providers cache, rarely changes. Which images are removed depends only on
    the history.
    """
    removed = _to_remove(_sizes(turns, size_of))
    return tuple(_without(turns, removed)) if removed else tuple(turns)


class ImageBudget:
    """Applies the image limits to the views of a growing history.

    The result equals that of `within_limits`, but only new turns are processed.
    """

    def __init__(self) -> None:
        self._seen = Prefix()
        """Identifies the leading turns of the last view that no longer change."""
        self._sizes: list[int] = []
        """The sizes in bytes of the images in the turns that no longer change."""
        self._removed = 0
        self._kept = _Kept()

    def apply(self, view: ProviderView, size_of: Callable[[Image], int]) -> ProviderView:
        """Return the view, with its oldest images replaced by remarks if it exceeds the limits.

        The settled turns (those with which all later views begin) change only if more images are removed than before.
        Raises what `size_of` raises.
        """
        if not view.begins_with(self._seen):
            self._seen, self._sizes, self._removed, self._kept = Prefix(), [], 0, _Kept()
        tail, before = view.turns[view.settled :], len(self._sizes)
        sizes = self._sizes + _sizes(view.turns[self._seen.settled : view.settled], size_of)
        removed = _to_remove(sizes + _sizes(tail, size_of))
        if min(removed, before) != min(self._removed, before):
            self._kept = _Kept()
        self._seen, self._sizes, self._removed = view.prefix, sizes, removed
        if not removed:
            return view
        kept = self._kept
        kept.add(view.turns[len(kept.turns) : view.settled], removed)
        turns = (*kept.turns, *_without(tail, max(0, removed - len(sizes))))
        return ProviderView(turns, view.settled, kept.lineage, view.settled_calls)


class _Kept:
    """The settled turns (those that no longer change), without the images that were removed."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.lineage = object()
        self._images = 0
        """The number of images in these turns before any image was removed."""

    def add(self, turns: Sequence[Turn], removed: int) -> None:
        """Add turns. The oldest `removed` images of the whole history, not only of these turns, are left out."""
        self.turns += _without(turns, max(0, removed - self._images))
        self._images += sum(1 for turn in turns for _ in images_of(turn.content))


def _to_remove(sizes: Sequence[int]) -> int:
    return max(_surplus([1] * len(sizes), MAX_IMAGES), _surplus(sizes, MAX_BYTES))


def _surplus(costs: Sequence[int], limit: int) -> int:
    """Return how many leading items must be removed so that the costs of the rest add up to at most `limit`.

    More are removed than necessary: the excess is rounded up to a multiple of half the limit; see `within_limits`.
    """
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


def _sizes(turns: Sequence[Turn], size_of: Callable[[Image], int]) -> list[int]:
    return [size_of(image) for turn in turns for image in images_of(turn.content)]


def _without(turns: Sequence[Turn], count: int) -> Iterator[Turn]:
    """Yield the turns, with a remark in place of each of the first `count` images."""
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
