"""The retry policy of both clients: delays, and whether failed calls and broken streams are tried again."""

from __future__ import annotations

import math
import random
import time
from typing import TYPE_CHECKING

from bedrock import v1
from bedrock._shared.status import is_gap, may_resume

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from bedrock._shared.cursor import EventCursor
    from bedrock.errors import BedrockError

FIRST_SECONDS = 0.1
"""The delay after the first failure."""

LONGEST_SECONDS = 5.0
"""The longest delay between two attempts."""

ATTEMPTS = 5
"""Attempts of one call. With the delays of `Backoff` they take about two seconds: long enough for a server to restart,
short enough to report soon that none is running."""

READS = frozenset(
    {
        v1.BrowseDirectoryRequest,
        v1.GetApprovalRequest,
        v1.GetAttachmentRequest,
        v1.GetApprovalRuleRequest,
        v1.GetConversationRequest,
        v1.GetMessageRequest,
        v1.GetModelRequest,
        v1.GetQuestionRequest,
        v1.GetRequestCycleRequest,
        v1.GetQuotasRequest,
        v1.GetServerInfoRequest,
        v1.GetToolRequest,
        v1.ListApprovalsRequest,
        v1.ListAuditEntriesRequest,
        v1.ListApprovalRulesRequest,
        v1.ListConversationsRequest,
        v1.ListMessagesRequest,
        v1.ListModelsRequest,
        v1.ListNodesRequest,
        v1.ListQuestionsRequest,
        v1.ListQueueRequest,
        v1.ListRequestCyclesRequest,
        v1.ListToolsRequest,
        v1.VerifyConversationRequest,
        v1.WaitRequestCycleRequest,
    }
)
"""The request types of calls that only read."""


def repeatable(request: Message) -> bool:
    """Return whether a call that may have been executed is idempotent: it only reads, or has a request id."""
    return type(request) in READS or bool(getattr(request, "request_id", ""))


class Backoff:
    """Delays that double, with jitter, until there is progress or the time limit is reached."""

    def __init__(self, max_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with no failures counted.

        Args:
            max_seconds: `next` returns None this many seconds after the first failure since the last progress.
            clock: Returns monotonic seconds.
        """
        self._max_seconds = max_seconds
        self._clock = clock
        self._failures = 0
        self._since = 0.0

    def progress(self) -> None:
        """Reset the delays, because something new has arrived."""
        self._failures = 0

    def next(self, at_least: float = 0.0) -> float | None:
        """Return the seconds to wait before the next attempt; None if the time limit is reached."""
        if not self._failures:
            self._since = self._clock()
        elif self._clock() - self._since >= self._max_seconds:
            return None
        delay = min(FIRST_SECONDS * 2.0**self._failures, LONGEST_SECONDS)
        self._failures += 1
        return max(at_least, delay * random.uniform(0.8, 1.2))  # noqa: S311 -- spreads load, guards nothing


class Attempts:
    """Decides whether to repeat a call that found no server, or lost it before the response was complete."""

    def __init__(self, *, last: bool = False) -> None:
        """Begin before the first attempt."""
        self.last = last
        """Whether no attempt may follow: the call is not idempotent, or has already yielded something that a repetition
        would yield twice."""
        self._left = ATTEMPTS
        self._new_connection_tried = False
        self._backoff = Backoff(math.inf)

    def may_try_new_connection(self) -> bool:
        """Return True the first time: an unsent call may use a new connection once, even after the last attempt."""
        first, self._new_connection_tried = not self._new_connection_tried, True
        return first

    def delay_after(self, error: BedrockError) -> float:
        """Return the seconds until the next attempt.

        Raises:
            BedrockError: The error itself, if another attempt would not help, or all have been made.
        """
        # By a stopping server: a caller's own cancellation never arrives here.
        cut = error.code == "CANCELLED" and not error.reason
        if self.last or not (cut or error.code == "UNAVAILABLE"):
            raise error
        self._left -= 1
        delay = self._backoff.next(error.retry_after or 0.0) if self._left else None
        if delay is None:
            raise error
        return delay


class Reconnection:
    """Passes the responses of one watcher to its cursor, and decides when a broken stream is resumed."""

    def __init__(self, cursor: EventCursor, max_seconds: float, *, resuming: bool) -> None:
        """Begin before the first stream.

        Args:
            cursor: The position of the watcher; it advances.
            max_seconds: Seconds without progress after which an error is final.
            resuming: Whether the server was reached before, so that even the first stream is tried again.
        """
        self._cursor = cursor
        self._resuming = resuming
        self._backoff = Backoff(max_seconds)

    def receive(self, response: v1.SubscribeResponse) -> None:
        """Pass a response to the cursor, which puts new events into `due`."""
        self._cursor.due.extend(self._cursor.receive(response))
        if self._cursor.progressed:
            self._resuming = True
            self._backoff.progress()

    def delay_after(self, error: BedrockError) -> float:
        """Return the seconds until the next stream; zero if it restarts with a snapshot because events are missing.

        Raises:
            BedrockError: The error itself, if another stream would not help, or the time is up.
        """
        if self._resuming and is_gap(error):
            self._cursor.restart_with_snapshot()
            return 0.0
        if not (self._resuming and may_resume(error)):
            raise error
        delay = self._backoff.next(error.retry_after or 0.0)
        if delay is None:
            raise error
        return delay
