"""A mailbox that closes, with two lanes: the urgent one is taken before the normal one, and each is FIFO.

Two deques and a queue of tokens: a PriorityQueue would be slower than pykka's own queue. A closed mailbox refuses
messages, so that no caller ever waits for a stopped actor.
"""

from __future__ import annotations

import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from pykka import ActorDeadError

if TYPE_CHECKING:
    from pykka._envelope import Envelope


class Mailbox:
    """pykka's ActorInbox with two lanes. `put` from any thread; `get` and closing from the actor's only."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._urgent: deque[Envelope[Any]] = deque()
        self._normal: deque[Envelope[Any]] = deque()
        self._closed = False

    def put(self, envelope: Envelope[Any], /) -> None:
        """Add a message, to the urgent lane if it has a true `urgent`.

        Once closed: raises ActorDeadError, or fails the envelope's reply if it has one.
        """
        lane = self._urgent if getattr(envelope.message, "urgent", False) else self._normal
        with self._lock:
            if not self._closed:
                lane.append(envelope)
                self._tokens.put(None)
                return
        refuse(envelope)

    def get(self) -> Envelope[Any]:
        """Take the next message; blocks."""
        self._tokens.get()
        with self._lock:
            return (self._urgent or self._normal).popleft()

    def empty(self) -> bool:
        with self._lock:
            return not (self._urgent or self._normal)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> tuple[Envelope[Any], ...]:
        """Refuse every message from now on; return those that were waiting."""
        with self._lock:
            self._closed = True
            waiting = (*self._urgent, *self._normal)
            self._urgent.clear()
            self._normal.clear()
            return waiting

    def close_if_empty(self) -> bool:
        """Close unless a message waits, so that an idle actor stops without losing one; return whether it closed."""
        with self._lock:
            if self._urgent or self._normal:
                return False
            self._closed = True
            return True


def refuse(envelope: Envelope[Any]) -> None:
    """Answer the sender of this message that the actor has stopped."""
    error = ActorDeadError("the actor has stopped")
    if envelope.reply_to is None:
        raise error
    envelope.reply_to.set_exception((ActorDeadError, error, None))
