"""What both clients do about a stream that breaks: whether, and when, it is opened again."""

from __future__ import annotations

from bedrock import v1
from bedrock._backoff import Backoff
from bedrock._cursor import EventCursor
from bedrock._status import is_gap, may_resume
from bedrock.errors import BedrockError
from bedrock.events import Event

OPENING_SECONDS = 1.0
"""For how long a stream is tried again that cannot be opened: with the delays of `Backoff`, five attempts at most."""


class Opening:
    """Decides about a stream that breaks before it has brought anything; it is a read, so that it may be repeated."""

    def __init__(self) -> None:
        """Begin before the first attempt."""
        self.done = False
        """Whether a response has come, after which the same request would not go on where the stream broke."""
        self._backoff = Backoff(OPENING_SECONDS)

    def delay_after(self, error: BedrockError) -> float:
        """Return the seconds until the next attempt.

        Raises:
            BedrockError: The error itself, if another attempt would not help, or the time is up.
        """
        if self.done or error.code != "UNAVAILABLE":
            raise error
        delay = self._backoff.next(error.retry_after or 0.0)
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

    def receive(self, response: v1.SubscribeResponse) -> list[Event]:
        """Return what a response brings that is new."""
        events = self._cursor.receive(response)
        if self._cursor.progressed:
            self._resuming = True
            self._backoff.progress()
        return events

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
