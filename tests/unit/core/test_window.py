"""The thresholds of the model's window (REQ-BED-012, 019, 023)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from actors.core.content import Usage
from actors.core.context import Limits
from actors.core.thresholds import full, near_full
from tests.machine.columns import PARENT


@pytest.mark.parametrize("window", [10, 1_000, 30_000, 128_000, 199_990, 1_000_000])
def test_the_thresholds_are_exact(window: int) -> None:
    context = replace(PARENT, usable_window=window)

    assert not near_full(window * 8 // 10 - 1, context)
    assert near_full(window * 8 // 10, context)
    assert not full(window * 9 // 10 - 1, context)
    assert full(window * 9 // 10, context)


def test_the_thresholds_are_settings() -> None:
    context = replace(PARENT, limits=Limits(warn_ratio=0.5, exhaust_ratio=0.625))

    assert near_full(500, context)
    assert not full(624, context)
    assert full(625, context)


def test_an_unknown_window_is_never_full() -> None:
    context = replace(PARENT, usable_window=0)

    assert not near_full(10**9, context)
    assert not full(10**9, context)


def test_what_the_cache_read_and_wrote_fills_the_window_too() -> None:
    assert Usage(1, 10, 100, 1_000, cost_micros=9).context_tokens == 1_111
