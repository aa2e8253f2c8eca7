"""Thresholds of the context window, in tokens (REQ-BED-012, 019, 023)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.core.context import ConvContext


def near_full(used: int, context: ConvContext) -> bool:
    """Whether `used` tokens reach the warning threshold (default: 80 % of the usable window)."""
    return _reaches(used, context.limits.warn_ratio, context.usable_window)


def full(used: int, context: ConvContext) -> bool:
    """Whether `used` tokens reach the limit, so that a summary is due (default: 90 % of the usable window)."""
    return _reaches(used, context.limits.exhaust_ratio, context.usable_window)


def _reaches(used: int, ratio: float, usable: int) -> bool:
    """Whether `used` is at least `ratio` of `usable`; False for an unknown (0) window. Ratios count in 1/1000."""
    return usable > 0 and used * 1_000 >= round(ratio * 1_000) * usable
