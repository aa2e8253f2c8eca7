"""Which images a request still shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.core.content import Image, Text, ToolSuccess
from actors.core.history import ImageBudget, Prefix, ProviderView, Turn, within_limits
from actors.core.history.provider_view import MAX_BYTES, MAX_IMAGES

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


@given(
    sizes=st.lists(st.integers(0, MAX_BYTES // 2), min_size=1, max_size=40),
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30),
)
def test_a_budget_that_grows_gives_what_the_limits_give(sizes: list[int], steps: list[tuple[int, int]]) -> None:
    """However the turns are divided into settled and open ones; and what one prefix stands for never changes."""
    whole, budget, lineage = history(len(sizes)), ImageBudget(), object()
    prefixes: list[tuple[Prefix, tuple[Turn, ...]]] = []
    settled = 0
    for grown, still_open in (*steps, (2 * len(sizes), 0)):
        settled = min(len(whole), settled + grown)
        view = ProviderView(whole[: settled + still_open], settled, lineage)
        limited = budget.apply(view, lambda image: sizes[int(image.attachment[7:])])
        assert limited.turns == within_limits(view.turns, lambda image: sizes[int(image.attachment[7:])])
        for prefix, turns in prefixes:
            if limited.begins_with(prefix):
                assert limited.turns[: prefix.settled] == turns
        prefixes.append((limited.prefix, limited.turns[: limited.settled]))


def test_a_history_of_another_lineage_is_measured_again() -> None:
    budget = ImageBudget()
    for turns in (history(MAX_IMAGES + 1), history(3), history(MAX_IMAGES + 1)[2:]):
        view = ProviderView(turns, len(turns), object())
        assert budget.apply(view, lambda image: 1).turns == within_limits(turns, lambda image: 1)


def test_when_the_budget_cannot_measure_an_image_it_measures_it_next_time() -> None:
    budget, view = ImageBudget(), ProviderView(history(3), 6, object())
    with pytest.raises(ZeroDivisionError):
        budget.apply(view, lambda image: 1 // (image.attachment != "sha256-1"))
    assert budget.apply(view, lambda image: MAX_BYTES).turns == within_limits(view.turns, lambda image: MAX_BYTES)
