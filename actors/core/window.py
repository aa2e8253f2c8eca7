"""How full the model's window is (REQ-BED-012, 019, 023). Tokens throughout."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.core.context import ConvContext


def near_full(used: int, context: ConvContext) -> bool:
    """Whether `used` tokens call for a warning: 80 % of the usable window, or what the limits say."""
    return _reaches(used, context.limits.warn_ratio, context.usable_window)


def full(used: int, context: ConvContext) -> bool:
    """Whether `used` tokens start the continuation: 90 % of the usable window, or what the limits say."""
    return _reaches(used, context.limits.exhaust_ratio, context.usable_window)


def _reaches(used: int, ratio: float, usable: int) -> bool:
    """Whether `used` is at least this part of `usable`; never of an unknown (0) window. Ratios count in 1/1000."""
    return usable > 0 and used * 1_000 >= round(ratio * 1_000) * usable
