"""Thresholds of the context window: when to warn and when to summarize (REQ-BED-012, 019, 023). Units are tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.core.context import ConvContext


def near_full(used: int, context: ConvContext) -> bool:
    """Return whether `used` tokens reach the warning threshold (by default 80 % of the usable window)."""
    return _reaches(used, context.limits.warn_ratio, context.usable_window)


def full(used: int, context: ConvContext) -> bool:
    """Return whether `used` tokens reach the limit at which a summary is due (by default 90 % of the usable window)."""
    return _reaches(used, context.limits.exhaust_ratio, context.usable_window)


def _reaches(used: int, ratio: float, usable: int) -> bool:
    """Return whether `used` is at least `ratio` (rounded to 1/1000) of `usable`; False if `usable` is unknown (0)."""
    return usable > 0 and used * 1_000 >= round(ratio * 1_000) * usable
