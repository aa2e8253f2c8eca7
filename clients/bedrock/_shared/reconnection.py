"""What both clients do about calls that fail and streams that break: whether, and when, they are tried again."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bedrock import v1
from bedrock._shared.backoff import Backoff
from bedrock._shared.status import is_gap, may_resume

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from bedrock._shared.cursor import EventCursor
    from bedrock.errors import BedrockError

ATTEMPTS = 5
"""Of one call. With the delays of `Backoff` that is about two seconds: long enough for a restart of the server, short
enough to notice that there is none."""

READS = frozenset(
    {
        v1.BrowseDirectoryRequest,
        v1.GetConversationRequest,
        v1.GetServerInfoRequest,
        v1.ListConversationsRequest,
        v1.ListMessagesRequest,
        v1.ListModelsRequest,
        v1.ListQueueRequest,
        v1.ListRequestCyclesRequest,
        v1.ListToolsRequest,
        v1.VerifyConversationRequest,
    }
)
"""What asks for one answer and changes nothing."""


def repeatable(request: Message) -> bool:
    """Whether a call that was perhaps carried out may be made again: it is a read, or its request id is known then."""
    return type(request) in READS or bool(getattr(request, "request_id", ""))


class Attempts:
    """Decides about a call that found no server, or lost it before the answer was complete."""

    def __init__(self, *, last: bool = False) -> None:
        """Begin before the first attempt."""
        self.last = last
        """Whether the attempt under way is the last one: the call must not be made twice, or has brought something
        that the same request would bring again."""
        self._left = ATTEMPTS
        self._connected_afresh = False
        self._backoff = Backoff(math.inf)

    def may_connect_afresh(self) -> bool:
        """Whether a call that was not sent may be made on a new connection, even if it was the last attempt: once."""
        first, self._connected_afresh = not self._connected_afresh, True
        return first

    def delay_after(self, error: BedrockError) -> float:
        """Return the seconds until the next attempt.

        Raises:
            BedrockError: The error itself, if another attempt would not help, or all have been made.
        """
        if self.last or error.code != "UNAVAILABLE":
            raise error
        self._left -= 1
        delay = self._backoff.next(error.retry_after or 0.0) if self._left else None
        if delay is None:
            raise error
        return delay


class Reconnection:
    """Takes what the streams of one watcher bring, and decides about the next stream."""

    def __init__(self, cursor: EventCursor, give_up_after: float, *, resuming: bool) -> None:
        """Begin before the first stream.

        Args:
            cursor: Where the watcher stands; it is moved on.
            give_up_after: Seconds without progress after which an error is final.
            resuming: Whether the server is known to be there, so that even the first stream may be tried again.
        """
        self._cursor = cursor
        self._resuming = resuming
        self._backoff = Backoff(give_up_after)

    def receive(self, response: v1.SubscribeResponse) -> None:
        """Take what a response brings that is new; it is due at the cursor then."""
        self._cursor.due.extend(self._cursor.receive(response))
        if self._cursor.progressed:
            self._resuming = True
            self._backoff.progress()

    def delay_after(self, error: BedrockError) -> float:
        """Return the seconds until the next stream; zero if it begins afresh because too much was missed.

        Raises:
            BedrockError: The error itself, if another stream would not help, or the time is up.
        """
        if self._resuming and is_gap(error):
            self._cursor.start_afresh()
            return 0.0
        if not (self._resuming and may_resume(error)):
            raise error
        delay = self._backoff.next(error.retry_after or 0.0)
        if delay is None:
            raise error
        return delay
