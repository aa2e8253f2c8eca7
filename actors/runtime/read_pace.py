"""The pace of reading streamed answers: the more model requests are in flight, the fewer and larger the reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.ports import CancelToken, Clock

SECONDS_PER_REQUEST = 0.0005
SHORTEST_PAUSE = 0.005
"""If the interval between reads is shorter than this, in seconds, there are no pauses: they would not pay off."""
LONGEST_PAUSE = 0.05
LONGEST_LAG = 0.1
"""The longest pause, in seconds, while a conversation takes text late."""


class ReadPace:
    """Delays the reads of one answer, so that a busy server needs fewer and larger reads. Used by one thread only.

    The interval between reads grows with the number of model requests in flight. While there are only a few, there are
    no pauses, and an answer whose data arrives less often than the interval is not delayed. Data that arrives during a
    pause waits in the socket and is then read at once. Principals share the reads equally: a principal with few
    requests gets no pauses because of another with many.

    Args:
        clock: Provides the time.
        pressure: Returns the number of model requests in flight that determines the interval. It is an estimate: the
            requests of this answer's principal, multiplied by the number of principals that have any.
        cancel: Ends a pause when cancelled.
    """

    def __init__(self, clock: Clock, pressure: Callable[[], int], cancel: CancelToken) -> None:
        self._clock = clock
        self._pressure = pressure
        self._cancel = cancel
        self._last_read = float("-inf")

    def wait(self, lag: float) -> None:
        """Block until the next read is due; a cancel ends the pause.

        `lag` is how many seconds the conversation took to fetch the text that was read before. If there are pauses,
        they are at least as long: reading faster than conversations fetch text would only slow all of them down.
        """
        interval = min(self._pressure() * SECONDS_PER_REQUEST, LONGEST_PAUSE)
        if interval >= SHORTEST_PAUSE:
            pause = self._last_read + max(interval, min(lag, LONGEST_LAG)) - self._clock.monotonic()
            if pause > 0:
                self._cancel.wait(pause)
        self._last_read = self._clock.monotonic()
