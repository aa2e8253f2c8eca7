"""Authorization: the role that each method requires, the audit of refused calls, and the end of calls that lose rights.

A method without a role is refused to every caller. The first refusal of a caller for a given reason is written to the
audit trail within a second. Repetitions within the same minute are only counted, and add one more entry at the end
of the minute. If a principal has too many different refusals in a minute, the excess is also only counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from bedrock.v1 import catalog_service_pb2, conversation_service_pb2
from google.api import annotations_pb2
from msgspec.structs import replace

from actors.core.errors import Reason, Rejected
from actors.ports import DatabaseAwayError, StoreError
from actors.ports.records import AuditEntry, CommandOrigin, Outcome
from server.auth.authentication import Authentication
from server.auth.principals import Caller, Role

CATALOG, CONVERSATIONS = "/bedrock.v1.CatalogService/", "/bedrock.v1.ConversationService/"
_HTTP: Any = annotations_pb2.http
_METHODS = [
    method
    for file in (conversation_service_pb2.DESCRIPTOR, catalog_service_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
    for method in service.methods
]
READING = frozenset(method.name for method in _METHODS if method.GetOptions().Extensions[_HTTP].get)
FOR_OPERATORS = frozenset({"ListAuditEntries", "ListNodes"})
NEEDED: dict[str, Role] = {
    f"/{method.containing_service.full_name}/{method.name}": Role.OPERATOR
    if method.name in FOR_OPERATORS
    else Role.READER
    if method.name in READING
    else Role.USER
    for method in _METHODS
}
_SUFFICIENT = {needed: frozenset(role for role in Role if role.includes(needed)) for needed in Role}


def check_role(method: str, role: Role) -> None:
    needed = NEEDED.get(method)
    if needed is None or role not in _SUFFICIENT[needed]:
        why = f"role {needed} is required" if needed else "no role is"
        raise Rejected(Reason.PERMISSION_DENIED, f"this token's role, {role}, is not allowed to do that: {why}")


log = logging.getLogger(__name__)

# How many seconds a refusal waits before it is written, so that several can be written in one batch.
FLUSH_SECONDS = 1.0
# The length in seconds of the period in which equal refusals are counted as one entry.
WINDOW_SECONDS = 60.0
# The maximum number of different refusals that are recorded in a period: for all callers together, and for one
# principal. All callers without a token count as one principal.
MOST, MOST_OF_ONE = 600, 100
RETRY_SECONDS = 5.0

Key = tuple[CommandOrigin, str, str]


class Refusals:
    """Collects refused calls for the audit trail. Use only on the event loop.

    `put` writes entries on another thread, and may raise StoreError; `now_ms` returns milliseconds since 1970.
    """

    def __init__(self, put: Callable[[Sequence[AuditEntry]], Awaitable[None]], now_ms: Callable[[], int]) -> None:
        self._put, self._now_ms = put, now_ms
        # How often each refusal of this period was repeated.
        self._seen: Counter[Key] = Counter()
        # How many different refusals of each principal were recorded in this period.
        self._different: Counter[str] = Counter()
        # How many refusals of each principal were only counted in this period, because a maximum had been reached.
        self._left_out: Counter[str] = Counter()
        self._waiting: list[AuditEntry] = []
        self._window: asyncio.TimerHandle | None = None
        self._flush: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._closed = False

    def note(self, origin: CommandOrigin, conversation: str, reason: str) -> None:
        """Record a refused call. `conversation` is the id of an existing conversation; "" if the call concerns none."""
        if self._closed:
            return
        if self._window is None:
            self._window = asyncio.get_running_loop().call_later(WINDOW_SECONDS, self._end_window)
        key = (replace(origin, request_id=""), conversation, reason)
        if key in self._seen:
            self._seen[key] += 1
        elif len(self._seen) >= MOST or self._different[origin.principal] >= MOST_OF_ONE:
            self._left_out[origin.principal] += 1
        else:
            self._seen[key] = 0
            self._different[origin.principal] += 1
            self._waiting.append(AuditEntry(self._now_ms(), Outcome.REFUSED, origin, reason, conversation))
            self._flush_later(FLUSH_SECONDS)

    async def close(self) -> None:
        """Write the refusals that have been collected so far. Later refusals are dropped."""
        self._closed = True
        for timer in (self._window, self._flush):
            if timer is not None:
                timer.cancel()
        self._collect()
        if self._writing is not None:
            await self._writing
        await self._write()

    def _end_window(self) -> None:
        self._window = None
        self._collect()
        if self._waiting:
            self._flush_later(0)

    def _collect(self) -> None:
        at = self._now_ms()
        repeated = [(key, count) for key, count in self._seen.items() if count]
        for (origin, conversation, reason), count in repeated:
            self._waiting.append(AuditEntry(at, Outcome.REFUSED, origin, reason, conversation, count))
        for principal, count in self._left_out.items():
            self._waiting.append(AuditEntry(at, Outcome.REFUSED, CommandOrigin(principal), count=count))
        for counter in (self._seen, self._different, self._left_out):
            counter.clear()

    def _flush_later(self, seconds: float) -> None:
        if self._flush is None:
            self._flush = asyncio.get_running_loop().call_later(seconds, self._begin_write)

    def _begin_write(self) -> None:
        self._flush = None
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())
            self._writing.add_done_callback(self._written)

    def _written(self, _task: asyncio.Task[None]) -> None:
        self._writing = None
        if self._waiting and not self._closed:
            self._flush_later(RETRY_SECONDS)

    async def _write(self) -> None:
        """Write the waiting entries. If the store fails, the newest 2 * MOST entries wait for the next attempt."""
        entries, self._waiting = self._waiting, []
        if not entries:
            return
        try:
            await self._put(entries)
        except StoreError as error:
            kept = (entries + self._waiting)[-2 * MOST :]
            lost = len(entries) + len(self._waiting) - len(kept)
            self._waiting = kept
            if lost or not isinstance(error, DatabaseAwayError):  # the store itself logs a DatabaseAwayError
                log.warning("cannot write refused calls to the audit trail; retrying (%d lost): %s", lost, error)


CHECK_SECONDS = 1.0


class CallRevokedError(Exception):
    """The token or the certificate of a running call is no longer valid."""


class LiveCalls:
    """The running calls whose token or certificate can become invalid, each with the task that serves it."""

    def __init__(self, authentication: Authentication) -> None:
        self._authentication = authentication
        self._tasks: dict[asyncio.Task[object], Caller] = {}
        self._revoked: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def serving(self, caller: Caller) -> Generator[None]:
        """Check the caller every CHECK_SECONDS.

        Once the caller is invalid, the block is cancelled and raises CallRevokedError.
        """
        task = asyncio.current_task()
        if task is None or not (caller.token or caller.certificate_ends):
            yield
            return
        self._tasks[task] = caller
        if self._timer is None:
            self._check_later()
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._revoked:
                raise
            task.uncancel()
            raise CallRevokedError from None
        finally:
            self._tasks.pop(task, None)
            self._revoked.discard(task)

    def _check_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check)

    def _check(self) -> None:
        """Cancel the calls whose caller's token or certificate is no longer valid. Runs once per CHECK_SECONDS."""
        self._timer = None
        for task, caller in self._tasks.items():
            if task not in self._revoked and not self._authentication.accepts(caller):
                self._revoked.add(task)
                task.cancel()
        if self._tasks:
            self._check_later()
