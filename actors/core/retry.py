"""The schedule of retries after failed attempts (REQ-BED-006). Times are in milliseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.core.context import Limits


def delay(attempt: int, limits: Limits) -> int:
    """Return the wait before this attempt in ms: by default 1 s before the second one, doubled for each further one.

    The wait is never longer than `limits.max_retry_after_ms`.
    """
    return min(limits.retry_base_ms << (attempt - 2), limits.max_retry_after_ms)


def too_long(retry_after_ms: int | None, limits: Limits) -> bool:
    """Return whether the provider demands a longer wait than the limit; such a request fails at once."""
    return retry_after_ms is not None and retry_after_ms > limits.max_retry_after_ms


def delay_with(retry_after_ms: int | None, attempt: int, limits: Limits) -> int:
    """Return the longer of the scheduled delay and the provider's Retry-After, which must not be `too_long`; in ms."""
    return max(delay(attempt, limits), retry_after_ms or 0)


def attempts_left(attempt: int, limits: Limits) -> bool:
    """Return whether another attempt is allowed after this one."""
    return attempt < limits.max_attempts
