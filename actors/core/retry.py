"""When a failed attempt is tried again (C9, C10; REQ-BED-006). Times in milliseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.core.context import Limits


def delay(attempt: int, limits: Limits) -> int:
    """The wait before this attempt: base·2^(n-2), so 1 s before the second and 2 s before the third.

    Never longer than the longest Retry-After that is honoured.
    """
    return min(limits.retry_base_ms << (attempt - 2), limits.max_retry_after_ms)


def too_long(retry_after_ms: int | None, limits: Limits) -> bool:
    """Whether the provider asks for a longer wait than anybody should be left with: an error at once."""
    return retry_after_ms is not None and retry_after_ms > limits.max_retry_after_ms


def delay_with(retry_after_ms: int | None, attempt: int, limits: Limits) -> int:
    """The longer of our own wait and the provider's Retry-After, which must not be `too_long`."""
    return max(delay(attempt, limits), retry_after_ms or 0)


def attempts_left(attempt: int, limits: Limits) -> bool:
    """Whether another attempt may follow this one."""
    return attempt < limits.max_attempts
