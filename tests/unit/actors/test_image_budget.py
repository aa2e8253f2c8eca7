"""Which images a request still shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from actors.core.content import Image, Text, ToolSuccess
from actors.core.history import Turn
from actors.runners.image_budget import MAX_BYTES, MAX_IMAGES, within_limits

if TYPE_CHECKING:
    from collections.abc import Iterator


def image(number: int) -> Image:
    return Image(f"sha256-{number}", "image/png", 10, 20)


def history(count: int) -> tuple[Turn, ...]:
    """Every second image is a tool's."""
    turns = []
    for number in range(count):
        shot = image(number)
        result = ToolSuccess(f"t{number}", "seen", (shot,))
        turns.append(Turn("user", (Text(f"{number}"), shot) if number % 2 else (result, Text(f"{number}"))))
        turns.append(Turn("assistant", (Text("ok"),)))
    return tuple(turns)


def shown(turns: tuple[Turn, ...]) -> Iterator[int]:
    for turn in turns:
        for block in turn.content:
            images = (block,) if isinstance(block, Image) else getattr(block, "images", ())
            yield from (int(each.attachment[7:]) for each in images)


def test_what_fits_is_left_as_it_is() -> None:
    turns = history(MAX_IMAGES)
    assert within_limits(turns, lambda image: MAX_BYTES // MAX_IMAGES) == turns
    assert within_limits((), lambda image: 0) == ()


def test_the_oldest_go_half_of_what_is_allowed_at_a_time() -> None:
    left = within_limits(history(MAX_IMAGES + 1), lambda image: 1)
    assert list(shown(left)) == list(range(MAX_IMAGES // 2, MAX_IMAGES + 1))
    assert repr(left[:4]).count("[an image, image/png 10x20, that is no longer shown]") == 2


def test_large_ones_go_too() -> None:
    left = within_limits(history(6), lambda image: MAX_BYTES // 5)
    assert list(shown(left)) == [3, 4, 5]
    assert list(shown(within_limits(history(1), lambda image: MAX_BYTES + 1))) == []


@given(sizes=st.lists(st.integers(0, MAX_BYTES // 2), max_size=40))
def test_what_is_left_always_fits_and_the_beginning_changes_seldom(sizes: list[int]) -> None:
    before: tuple[Turn, ...] = ()
    changes = 0
    for count in range(len(sizes) + 1):
        turns = within_limits(history(count), lambda image: sizes[int(image.attachment[7:])])
        assert sum(sizes[number] for number in shown(turns)) <= MAX_BYTES
        changes += turns[: len(before)] != before
        before = turns
    assert changes <= 2 * sum(sizes) / MAX_BYTES
