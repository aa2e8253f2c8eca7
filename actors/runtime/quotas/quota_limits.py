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


MOST_MODEL_REQUESTS = 1_000
"""How many model requests a server makes at the same time, at most."""
KEPT_SHARE = 4
"""One in so many of the model requests is kept from each principal, for others."""


def fair_share(model_requests: int) -> int:
    """Return how many of the model requests of all together one principal may have, so that it never has all."""
    most = model_requests or MOST_MODEL_REQUESTS
    return max(most - max(most // KEPT_SHARE, 1), 1)


class QuotaSettings(Struct, frozen=True):
    """The quotas that an operator has set. One that is not named is not limited."""

    together: Limits = {}
    """For all principals together, the server's own user included."""
    each: Limits = {}
    """For each principal that is not among `named`."""
    named: Mapping[str, Limits] = {}
    """For these principals, by their names."""
    issuers: Mapping[str, Limits] = {}
    """For each principal of the template of an issuer, by the issuer's name."""

    def of(self, principal: str) -> Limits:
        """Return the quotas of a principal; "" stands for all principals together."""
        if not principal:
            return self.together
        if principal in self.named:
            return self.named[principal]
        issuer, colon, _ = principal.partition(":")
        return self.issuers.get(issuer, self.each) if colon else self.each

    def limits(self, *quotas: Quota) -> bool:
        """Return whether one of these quotas is set for anybody."""
        tables = (self.together, self.each, *self.named.values(), *self.issuers.values())
        return any(quota in table for table in tables for quota in quotas)
