"""The waits between attempts (I12)."""

from __future__ import annotations

import pytest

from actors.core.context import Limits
from actors.core.thresholds import attempts_left, delay, delay_with, too_long

LIMITS = Limits()


def test_the_waits_are_the_seeds() -> None:
    assert [delay(attempt, LIMITS) for attempt in (2, 3)] == [1_000, 2_000]


def test_the_waits_double_never_shrink_and_stay_bearable() -> None:
    waits = [delay(attempt, LIMITS) for attempt in range(2, 40)]

    assert waits == sorted(waits)
    assert waits[4] == 16_000
    assert max(waits) == 60_000


def test_the_base_is_a_setting() -> None:
    assert delay(3, Limits(retry_base_ms=10)) == 20


@pytest.mark.parametrize(
    ("retry_after", "expected"), [(None, 1_000), (0, 1_000), (-5, 1_000), (999, 1_000), (1_001, 1_001)]
)
def test_the_longer_of_both_waits_holds(retry_after: int | None, expected: int) -> None:
    assert delay_with(retry_after, 2, LIMITS) == expected


@pytest.mark.parametrize(("retry_after", "expected"), [(None, False), (0, False), (60_000, False), (60_001, True)])
def test_a_wait_above_a_minute_is_too_long(retry_after: int | None, expected: bool) -> None:
    assert too_long(retry_after, LIMITS) is expected


@pytest.mark.parametrize(("attempt", "expected"), [(1, True), (2, True), (3, False), (4, False)])
def test_there_are_three_attempts(attempt: int, expected: bool) -> None:
    assert attempts_left(attempt, LIMITS) is expected
