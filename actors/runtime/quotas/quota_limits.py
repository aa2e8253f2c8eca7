"""The quotas of a server: what each principal, and all of them together, may use."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

Limits = Mapping["Quota", int]
"""The quotas that are set, by name; costs are in millionths of a dollar."""


class Quota(StrEnum):
    """The quotas, by the names that settings and refusals have for them."""

    CONCURRENT_RUNS = "concurrent_runs"
    """Runs at the same time. A run of a sub-agent is part of its parent's."""
    CONCURRENT_MODEL_REQUESTS = "concurrent_model_requests"
    """Model requests of runs at the same time, sub-agents included. A further one waits for its turn."""
    STREAMS = "streams"
    """Open streams, and calls that wait."""
    CALLS_PER_SECOND = "calls_per_second"
    """Calls a second; twice as many at once after a quiet second."""
    STORED_BYTES = "stored_bytes"
    """Bytes of stored messages, images, instructions and clients' tools; of all together the bytes of the database."""
    TOKENS_PER_DAY = "tokens_per_day"
    """Tokens of input and output from midnight to midnight, UTC."""
    TOKENS_PER_MONTH = "tokens_per_month"
    """Tokens of input and output of a calendar month, UTC."""
    COST_PER_DAY = "cost_per_day"
    """Millionths of a dollar from midnight to midnight, UTC."""
    COST_PER_MONTH = "cost_per_month"
    """Millionths of a dollar of a calendar month, UTC."""


SPENDING = (Quota.TOKENS_PER_DAY, Quota.TOKENS_PER_MONTH, Quota.COST_PER_DAY, Quota.COST_PER_MONTH)
"""The quotas of what model requests spend."""
COSTS = (Quota.COST_PER_DAY, Quota.COST_PER_MONTH)


class QuotaSettings(Struct, frozen=True):
    """The quotas that an operator has set. One that is not named is not limited."""

    together: Limits = {}
    """For all principals together, the server's own user included."""
    each: Limits = {}
    """For each principal that is not among `named`."""
    named: Mapping[str, Limits] = {}
    """For these principals, by their names."""

    def of(self, principal: str) -> Limits:
        """Return the quotas of a principal; "" stands for all principals together."""
        return self.named.get(principal, self.each) if principal else self.together

    def limits(self, *quotas: Quota) -> bool:
        """Return whether one of these quotas is set for anybody."""
        tables = (self.together, self.each, *self.named.values())
        return any(quota in table for table in tables for quota in quotas)
