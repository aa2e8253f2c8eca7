"""Quotas: how much principals may use, the operator's settings for it, and the counts of what they have used."""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum

from msgspec import Struct

from actors.core.content import Usage
from actors.core.errors import QuotaExceededError
from actors.ports import Clock, StoreError
from actors.ports.records import Spending, day_of
from actors.ports.telemetry import Telemetry
from actors.runtime.admission import FairSlots

log = logging.getLogger(__name__)

# The quotas that are set, and their limits; costs are in millionths of a dollar.
Limits = Mapping["Quota", int]


class Quota(StrEnum):
    CONCURRENT_RUNS = "concurrent_runs"
    """Concurrent runs; sub-agents count as part of their parent's run."""
    CONCURRENT_MODEL_REQUESTS = "concurrent_model_requests"
    """Concurrent model requests of runs and sub-agents. Further requests wait for their turn."""
    STREAMS = "streams"
    """Concurrently open streams, including waiting calls, such as those that wait for the end of a run."""
    CALLS_PER_SECOND = "calls_per_second"
    """Calls per second; unused ones carry over, so that up to twice as many can be made at once."""
    STORED_BYTES = "stored_bytes"
    """Bytes of messages, images, instructions and client tools; for all principals together, the size of the
    database."""
    TOKENS_PER_DAY = "tokens_per_day"
    TOKENS_PER_MONTH = "tokens_per_month"
    COST_PER_DAY = "cost_per_day"
    COST_PER_MONTH = "cost_per_month"


# The quotas that limit spending on model requests.
SPENDING = (Quota.TOKENS_PER_DAY, Quota.TOKENS_PER_MONTH, Quota.COST_PER_DAY, Quota.COST_PER_MONTH)
COSTS = (Quota.COST_PER_DAY, Quota.COST_PER_MONTH)


# The maximum number of model requests that a server makes at the same time.
MOST_MODEL_REQUESTS = 1_000
# By default, a quarter of all concurrent model requests (their number divided by this) is kept free for others.
RESERVED_SHARE = 4


def fair_share(model_requests: int) -> int:
    """How many concurrent requests one principal may have by default, of `model_requests` (0: MOST_MODEL_REQUESTS)."""
    most = model_requests or MOST_MODEL_REQUESTS
    return max(most - max(most // RESERVED_SHARE, 1), 1)


class QuotaSettings(Struct, frozen=True):
    together: Limits = {}
    each: Limits = {}
    named: Mapping[str, Limits] = {}
    issuers: Mapping[str, Limits] = {}
    """Limits for each principal whose tokens an identity provider issues, keyed by issuer. `named` takes precedence."""

    def of(self, principal: str) -> Limits:
        """The limits of a principal; "" stands for all principals together."""
        if not principal:
            return self.together
        if principal in self.named:
            return self.named[principal]
        issuer, colon, _ = principal.partition(":")
        return self.issuers.get(issuer, self.each) if colon else self.each

    def limits(self, *quotas: Quota) -> bool:
        """Whether any of these quotas is set for anyone."""
        tables = (self.together, self.each, *self.named.values(), *self.issuers.values())
        return any(quota in table for table in tables for quota in quotas)


# The minimum validity of a measurement, in seconds.
MEASURED_SECONDS = 10.0
# A measurement is valid for at least this many times as long as it took: measuring takes at most 1 % of the time.
COST = 100


class _Measurement:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value = 0
        """The measured bytes, plus the bytes that were added since."""
        self.due = float("-inf")


class StoredBytes:
    """Measures the bytes that each principal has stored.

    Thread-safe; `of` and `add` block while they measure, and raise the errors of `measure`.
    """

    def __init__(self, measure: Callable[[str], int], clock: Clock) -> None:
        self._measure, self._clock = measure, clock
        self._measured: dict[str, _Measurement] = {}

    def of(self, principal: str) -> int:
        """The stored bytes, measured again if the last measurement is too old."""
        last = self._measured.setdefault(principal, _Measurement())
        with last.lock:
            return self._current(principal, last)

    def add(self, principal: str, more: int, limit: int) -> int:
        """Count `more` bytes unless the sum would exceed `limit`; return how many were stored before.

        If the caller then fails to store them, they count until the next measurement.
        """
        last = self._measured.setdefault(principal, _Measurement())
        with last.lock:
            before = self._current(principal, last)
            if before + more <= limit:
                last.value += more
            return before

    def _current(self, principal: str, last: _Measurement) -> int:
        """The stored bytes, measured again if the last measurement is too old. The caller holds `last.lock`."""
        now = self._clock.monotonic()
        if now >= last.due:
            last.value = self._measure(principal)
            last.due = now + max(MEASURED_SECONDS, COST * (self._clock.monotonic() - now))
        return last.value

    def forget(self, principal: str) -> None:
        """Drop the principal's measurement after a deletion, so that the next `of` or `add` measures again."""
        self._measured.pop(principal, None)


# The name that stands for all principals together.
TOGETHER = ""
MILLISECONDS = 1_000
# The suggested retry delay, in milliseconds, for quotas that have room again as soon as a run or a stream ends.
RETRY_MS = 1_000
# The minimum seconds between two queries of what all servers that share the store have spent.
LEARN_SECONDS = 10.0
DAY_MS = 86_400_000


class QuotaUse(Struct, frozen=True):
    """One quota and how much of it is used."""

    principal: str
    """The principal; "" for the quota of all principals together."""
    quota: Quota
    limit: int
    used: int
    resets_at: int = 0
    """When counting starts again, in milliseconds since the epoch; 0 if the quota is not per day or month."""


class QuotaBook:
    """Counts what each principal uses. Thread-safe; methods that may block say so.

    Runs, requests, streams and calls are counted in this process, because none outlives it. Spending (tokens and money)
    is stored in the commit of the answer that caused it.
    """

    def __init__(
        self,
        settings: QuotaSettings,
        clock: Clock,
        spendings: Iterable[Spending] = (),
        telemetry: Telemetry | None = None,
        *,
        stored_bytes: Callable[[str], int] = lambda _principal: 0,
        put_spending: Callable[[Spending], None] = lambda _spending: None,
        spent_by_all: Callable[[], Iterable[Spending]] | None = None,
    ) -> None:
        """Begin with this month's `spendings`. The functions access a store, and may block.

        `put_spending` stores the spending of deleted conversations, which have no more commits; `spent_by_all` returns
        the month's spending of all servers that share the store.
        """
        self._settings = settings
        self._clock = clock
        self._telemetry = telemetry or Telemetry()
        self._lock = threading.Lock()
        # The principals of the conversations that have an open run, by conversation id.
        self._runs: dict[str, str] = {}
        self._running: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._calls: dict[str, _Bucket] = {}
        self._spent: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.limits_runs = settings.limits(Quota.CONCURRENT_RUNS, Quota.STORED_BYTES, *SPENDING)
        """Whether `begin_run` has anything to count or check."""
        self._limits_calls = settings.limits(Quota.CALLS_PER_SECOND)
        self._limits_streams = settings.limits(Quota.STREAMS)
        self.counts_spending = settings.limits(*SPENDING)
        """Whether spending has to be recorded, because a quota limits it."""
        self.model_slots = FairSlots(
            settings.together.get(Quota.CONCURRENT_MODEL_REQUESTS, 0),
            lambda principal: settings.of(principal).get(Quota.CONCURRENT_MODEL_REQUESTS, 0),
        )
        self.limits_stored = settings.limits(Quota.STORED_BYTES)
        self._stored = StoredBytes(stored_bytes, clock)
        self._put_spending = put_spending
        self._spent_by_all = spent_by_all
        self._learned_at = clock.monotonic()
        for spending in spendings:
            self._add(spending)

    # --- runs -------------------------------------------------------------------------------------------------

    def begin_run(self, principal: str, conversation_id: str) -> bool:
        """Count a run before its beginning is committed; return whether to call `end_run` should the commit fail.

        May block. Raises QuotaExceededError (runs, spending or storage) or StoreError.
        """
        self._learn()
        self.check_stored(principal)
        with self._lock:
            if conversation_id in self._runs:
                return False
            if (exceeded := self._nothing_left(principal)) is not None:
                raise self._refused(exceeded)
            self._check(Quota.CONCURRENT_RUNS, principal, self._running)
            self._runs[conversation_id] = principal
            self._running.update((principal, TOGETHER))
            return True

    def end_run(self, conversation_id: str) -> None:
        with self._lock:
            if (principal := self._runs.pop(conversation_id, None)) is not None:
                _subtract(self._running, principal)

    # --- storage ----------------------------------------------------------------------------------------------

    def check_stored(self, principal: str) -> None:
        """Check that the quota of stored bytes is not used up. May block. Raises QuotaExceededError or StoreError."""
        for whose in (principal, TOGETHER):
            limit = self._settings.of(whose).get(Quota.STORED_BYTES, 0)
            if limit and (used := self._stored.of(whose)) >= limit:
                retry_ms = int(MEASURED_SECONDS * MILLISECONDS)
                raise self._refused(_exceeded(Quota.STORED_BYTES, whose, limit, used, retry_ms))

    def reserve_bytes(self, principal: str, more: int) -> None:
        """Count bytes that will be stored. May block. Raises QuotaExceededError or StoreError."""
        for whose in (principal, TOGETHER):
            limit = self._settings.of(whose).get(Quota.STORED_BYTES, 0)
            if limit and (used := self._stored.add(whose, more, limit)) + more > limit:
                retry_ms = int(MEASURED_SECONDS * MILLISECONDS)
                raise self._refused(_exceeded(Quota.STORED_BYTES, whose, limit, used, retry_ms, needed=more))

    def deleted(self, conversation_id: str, principal: str) -> None:
        """Note that a conversation was deleted: end its run, and let the principal's stored bytes be measured again."""
        self.end_run(conversation_id)
        for whose in (principal, TOGETHER):
            self._stored.forget(whose)

    # --- spending ---------------------------------------------------------------------------------------------

    def spending(self, principal: str, used: tuple[int, int], at: int) -> Spending | None:
        """The record to store for `used` (tokens, millionths of a dollar); None if it need not be recorded."""
        if not self.counts_spending or not any(used):
            return None
        return Spending(principal, day_of(at), *used)

    def spend(self, spending: Spending) -> None:
        with self._lock:
            self._add(spending)

    def spend_alone(self, principal: str, used: Usage) -> None:
        """Store and count what a request of a deleted conversation used. May block.

        If it cannot be stored, it is counted in memory until the server ends.
        """
        spending = self.spending(principal, (used.context_tokens, used.cost_micros), self._clock.now_ms())
        if spending is None:
            return
        try:
            self._put_spending(spending)
        except StoreError as error:
            log.warning("cannot store the usage of a deleted conversation; a restart forgets it: %s", error)
        self.spend(spending)

    def spent(self, principal: str, more: tuple[int, int] = (0, 0)) -> str:
        """Which spending quota is used up, in words; "" if none is. `more` is usage that has not been counted yet."""
        if not self.counts_spending:
            return ""
        with self._lock:
            exceeded = self._nothing_left(principal, more)
        return exceeded.described if exceeded else ""

    def _learn(self) -> None:
        """Query what all servers have spent, at most once in LEARN_SECONDS. May block; raises StoreError.

        This server's latest spending may be in memory only, so the larger of both amounts counts.
        """
        now = self._clock.monotonic()
        if self._spent_by_all is None or not self.counts_spending or now < self._learned_at + LEARN_SECONDS:
            return
        self._learned_at = now
        sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for spending in self._spent_by_all():
            for whose, period, amount in _amounts(spending):
                sums[whose][period] += amount
        with self._lock:
            for whose, periods in sums.items():
                self._spent[whose] |= periods  # keeps the larger number for each period

    # --- calls and streams ------------------------------------------------------------------------------------

    def admit_call(self, principal: str) -> None:
        """Count a gRPC call of a principal. Raises QuotaExceededError, in which case the call is not counted."""
        if not self._limits_calls:
            return
        now = self._clock.monotonic()
        with self._lock:
            buckets = [self._bucket(each, rate, now) for each, rate in self._rates(principal)]
            for bucket in buckets:
                if bucket.tokens < 1:
                    wait = math.ceil((1 - bucket.tokens) / bucket.rate * MILLISECONDS)
                    rate = bucket.rate
                    raise self._refused(_exceeded(Quota.CALLS_PER_SECOND, bucket.principal, rate, rate, wait))
            for bucket in buckets:
                bucket.tokens -= 1

    @contextmanager
    def stream(self, principal: str) -> Generator[None]:
        if not self._limits_streams:
            yield
            return
        with self._lock:
            self._check(Quota.STREAMS, principal, self._streams)
            self._streams.update((principal, TOGETHER))
        try:
            yield
        finally:
            with self._lock:
                _subtract(self._streams, principal)

    # --- reports ----------------------------------------------------------------------------------------------

    def uses(self, principal: str) -> tuple[QuotaUse, ...]:
        """The use of each quota, in the order of `Quota`. May block. Raises StoreError."""
        self._learn()
        now = self._clock.now_ms()
        limits = self._settings.of(principal)
        stored = self._stored.of(principal) if Quota.STORED_BYTES in limits else 0
        with self._lock:
            return tuple(
                QuotaUse(principal, quota, limits[quota], used, _resets_at(quota, now))
                for quota in Quota
                if quota in limits
                for used in [stored if quota is Quota.STORED_BYTES else self._used(quota, principal, now)]
            )

    def known_principals(self) -> tuple[str, ...]:
        """The principals that have their own quotas or use anything, sorted by name."""
        with self._lock:
            users = self._running.keys() | self._streams.keys() | self._spent.keys()
        return tuple(sorted((users | self._settings.named.keys()) - {TOGETHER}))

    def _used(self, quota: Quota, principal: str, now: int) -> int:
        match quota:
            case Quota.CONCURRENT_RUNS:
                return self._running[principal]
            case Quota.CONCURRENT_MODEL_REQUESTS:
                return self.model_slots.used(principal)
            case Quota.STREAMS:
                return self._streams[principal]
            case Quota.CALLS_PER_SECOND:
                return self._recent_calls(principal)
            case _:
                return self._spent[principal][_period(quota, day_of(now))] if principal in self._spent else 0

    # --- checks; callers hold the lock ------------------------------------------------------------------------

    def _check(self, quota: Quota, principal: str, counts: Counter[str]) -> None:
        for whose in (principal, TOGETHER):
            limit, used = self._settings.of(whose).get(quota, 0), counts[whose]
            if 0 < limit <= used:
                raise self._refused(_exceeded(quota, whose, limit, used, RETRY_MS))

    def _nothing_left(self, principal: str, more: tuple[int, int] = (0, 0)) -> QuotaExceededError | None:
        """The error for a spending quota that is used up; None if none is."""
        now = self._clock.now_ms()
        for whose in (principal, TOGETHER):
            for quota in SPENDING:
                limit = self._settings.of(whose).get(quota, 0)
                used = self._used(quota, whose, now) + more[quota in COSTS]
                if 0 < limit <= used:
                    return _exceeded(quota, whose, limit, used, _resets_at(quota, now) - now)
        return None

    def _refused(self, exceeded: QuotaExceededError) -> QuotaExceededError:
        self._telemetry.quota_exceeded(exceeded.quota)
        return exceeded

    def _add(self, spending: Spending) -> None:
        for whose, period, amount in _amounts(spending):
            self._spent[whose][period] += amount

    def _rates(self, principal: str) -> Iterable[tuple[str, int]]:
        for whose in (principal, TOGETHER):
            if rate := self._settings.of(whose).get(Quota.CALLS_PER_SECOND, 0):
                yield whose, rate

    def _bucket(self, principal: str, rate: int, now: float) -> _Bucket:
        bucket = self._calls.get(principal)
        if bucket is None:
            bucket = self._calls[principal] = _Bucket(principal, rate, now)
        bucket.fill(now)
        return bucket

    def _recent_calls(self, principal: str) -> int:
        bucket = self._calls.get(principal)
        if bucket is None:
            return 0
        bucket.fill(self._clock.monotonic())
        return min(bucket.rate, math.ceil(2 * bucket.rate - bucket.tokens))


class _Bucket:
    """A token bucket for a principal's calls: refilled at the quota's rate, it holds the tokens of 2 seconds."""

    def __init__(self, principal: str, rate: int, now: float) -> None:
        self.principal, self.rate = principal, rate
        self.tokens = 2.0 * rate
        self._filled = now

    def fill(self, now: float) -> None:
        self.tokens = min(2.0 * self.rate, self.tokens + (now - self._filled) * self.rate)
        self._filled = now


def _exceeded(
    quota: Quota, principal: str, limit: int, used: int, retry_ms: int, *, needed: int = 0
) -> QuotaExceededError:
    dollars = quota in COSTS
    return QuotaExceededError(
        quota.value, principal, limit=limit, used=used, retry_ms=retry_ms, needed=needed, dollars=dollars
    )


def _amounts(spending: Spending) -> Iterable[tuple[str, str, int]]:
    for whose in (spending.principal, TOGETHER):
        for quota in SPENDING:
            yield whose, _period(quota, spending.day), spending.cost_micros if quota in COSTS else spending.tokens


def _subtract(counts: Counter[str], principal: str) -> None:
    for whose in (principal, TOGETHER):
        counts[whose] -= 1
        if counts[whose] <= 0:
            del counts[whose]


def _period(quota: Quota, day: int) -> str:
    """The key of a quota's counter for `day` (days since the epoch), or for the month that contains that day."""
    if quota in {Quota.TOKENS_PER_DAY, Quota.COST_PER_DAY}:
        return f"{quota} {day}"
    date = datetime.fromtimestamp(day * DAY_MS / MILLISECONDS, UTC)
    return f"{quota} {date.year}-{date.month}"


def _resets_at(quota: Quota, now: int) -> int:
    """When counting starts again for a quota, in milliseconds since the epoch; 0 if the quota has no period."""
    if quota not in SPENDING:
        return 0
    day = day_of(now)
    if quota in {Quota.TOKENS_PER_DAY, Quota.COST_PER_DAY}:
        return (day + 1) * DAY_MS
    date = datetime.fromtimestamp(day * DAY_MS / MILLISECONDS, UTC)
    following = date.replace(year=date.year + date.month // 12, month=date.month % 12 + 1, day=1)
    return int(following.timestamp() * MILLISECONDS)


def first_day_of_month(now: int) -> int:
    """The first day of the current month, in days since the epoch; `now` is in milliseconds since the epoch."""
    date = datetime.fromtimestamp(day_of(now) * DAY_MS / MILLISECONDS, UTC)
    return int(date.replace(day=1).timestamp() * MILLISECONDS) // DAY_MS
