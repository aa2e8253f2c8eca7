"""The pace of reading streamed answers: with more model requests in flight, reads are less frequent and larger."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.ports import CancelToken, Clock

SECONDS_PER_REQUEST = 0.0005
SHORTEST_PAUSE = 0.005
"""Shorter pauses, in seconds, are skipped, because they would cost more than they save."""
LONGEST_PAUSE = 0.05


class ReadPace:
    """Delays the reads of one answer, so that a busy server needs fewer and larger reads. Runner's thread.

    The interval grows with the number of requests in flight; for a few requests there are no pauses, and answers that
    arrive more slowly are not delayed. Data that arrives during a pause waits in the socket, and is then read at once.
    Principals have equal parts of all reads: one with few requests has no pauses because of another with many.

    Args:
        pressure: Returns how many model requests were in flight in this process if each principal had as many as the
            one that this answer is for.
    """

    def __init__(self, clock: Clock, pressure: Callable[[], int], cancel: CancelToken) -> None:
        self._clock = clock
        self._pressure = pressure
        self._cancel = cancel
        self._last_read = float("-inf")

    def wait(self) -> None:
        """Wait until the next read is due; a cancel ends the pause."""
        interval = min(self._pressure() * SECONDS_PER_REQUEST, LONGEST_PAUSE)
        pause = self._last_read + interval - self._clock.monotonic()
        if interval >= SHORTEST_PAUSE and pause > 0:
            self._cancel.wait(pause)
        self._last_read = self._clock.monotonic()
