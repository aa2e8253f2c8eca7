"""The quotas that a server can have, and the operator's settings for them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

Limits = Mapping["Quota", int]
"""The quotas that are set, and their limits; costs are in millionths of a dollar."""


class Quota(StrEnum):
    """The quotas, with the names that settings and error messages use."""

    CONCURRENT_RUNS = "concurrent_runs"
    """Runs at the same time. A run is the work on a user's message, including that of sub-agents."""
    CONCURRENT_MODEL_REQUESTS = "concurrent_model_requests"
    """Model requests that runs and their sub-agents make at the same time. Further requests wait for their turn."""
    STREAMS = "streams"
    """Open streams at the same time. A call that waits, for example for the end of a run, counts as a stream."""
    CALLS_PER_SECOND = "calls_per_second"
    """Calls per second. Calls left unused in one second are added to the next: at most twice as many at once."""
    STORED_BYTES = "stored_bytes"
    """Bytes of stored messages, images, instructions and client tools.

    The limit for all principals together applies to the size of the database instead.
    """
    TOKENS_PER_DAY = "tokens_per_day"
    """Input and output tokens per day, which begins at midnight UTC."""
    TOKENS_PER_MONTH = "tokens_per_month"
    """Input and output tokens per calendar month, UTC."""
    COST_PER_DAY = "cost_per_day"
    """Cost of model requests per day, which begins at midnight UTC, in millionths of a dollar."""
    COST_PER_MONTH = "cost_per_month"
    """Cost of model requests per calendar month, UTC, in millionths of a dollar."""


SPENDING = (Quota.TOKENS_PER_DAY, Quota.TOKENS_PER_MONTH, Quota.COST_PER_DAY, Quota.COST_PER_MONTH)
"""The quotas that limit spending on model requests."""
COSTS = (Quota.COST_PER_DAY, Quota.COST_PER_MONTH)


MOST_MODEL_REQUESTS = 1_000
"""The maximum number of model requests that a server makes at the same time."""
KEPT_SHARE = 4
"""One divided by this is the share of concurrent model requests that, by default, no single principal can occupy."""


def fair_share(model_requests: int) -> int:
    """Return how many concurrent model requests a single principal may have by default, so that others get some.

    `model_requests` is the limit for all principals together; 0 stands for `MOST_MODEL_REQUESTS`.
    """
    most = model_requests or MOST_MODEL_REQUESTS
    return max(most - max(most // KEPT_SHARE, 1), 1)


class QuotaSettings(Struct, frozen=True):
    """The quotas that an operator has set. A quota that is not set means no limit."""

    together: Limits = {}
    """Limits for all principals together, including the server's own user."""
    each: Limits = {}
    """Limits for each principal to which neither `named` nor `issuers` applies."""
    named: Mapping[str, Limits] = {}
    """Limits for single principals, by the principal's name."""
    issuers: Mapping[str, Limits] = {}
    """Limits for each principal whose tokens come from an identity provider (issuer), by issuer. `named` goes first."""

    def of(self, principal: str) -> Limits:
        """Return the limits of a principal; "" stands for all principals together."""
        if not principal:
            return self.together
        if principal in self.named:
            return self.named[principal]
        issuer, colon, _ = principal.partition(":")
        return self.issuers.get(issuer, self.each) if colon else self.each

    def limits(self, *quotas: Quota) -> bool:
        """Return whether any of these quotas is set for anyone."""
        tables = (self.together, self.each, *self.named.values(), *self.issuers.values())
        return any(quota in table for table in tables for quota in quotas)
