"""A mailbox that can be closed. It has an urgent lane, which is emptied first, and a normal one; each lane is FIFO.

The mailbox consists of two deques and a lock on which the actor sleeps, which is cheaper than a PriorityQueue or
pykka's own queue. A closed mailbox refuses messages, so that no caller ever waits for a stopped actor.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from pykka import ActorDeadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pykka._envelope import Envelope


class Mailbox:
    """The implementation of pykka's ActorInbox with two lanes.

    `put` and `put_all` are safe to call from any thread, all other methods only from the actor's thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._urgent: deque[Envelope[Any]] = deque()
        self._normal: deque[Envelope[Any]] = deque()
        self._closed = False
        self._asleep = False
        """Whether the actor sleeps until a message arrives; the next thread that adds one releases `_sleep`."""
        self._sleep = threading.Lock()
        self._sleep.acquire()

    def put(self, envelope: Envelope[Any], /) -> None:
        """Add a message: to the urgent lane if its attribute `urgent` is true, otherwise to the normal lane.

        If the mailbox is closed, the sender gets an ActorDeadError: as the reply if it waits for one, otherwise raised
        here.
        """
        if not self._add(self._urgent if getattr(envelope.message, "urgent", False) else self._normal, (envelope,)):
            refuse(envelope)

    def put_all(self, envelopes: Iterable[Envelope[Any]]) -> None:
        """Add messages to the normal lane in one step, so that the actor finds all of them together.

        Raises ActorDeadError if the mailbox is closed.
        """
        if not self._add(self._normal, envelopes):
            raise ActorDeadError("the actor has stopped")

    def _add(self, lane: deque[Envelope[Any]], envelopes: Iterable[Envelope[Any]]) -> bool:
        with self._lock:
            if self._closed:
                return False
            lane.extend(envelopes)
            asleep, self._asleep = self._asleep, False
        if asleep:  # `_sleep` is released outside `_lock`, because the woken actor needs `_lock` next
            self._sleep.release()
        return True

    def get(self) -> Envelope[Any]:
        """Remove and return the next message. Blocks until there is one."""
        while True:
            with self._lock:
                if lane := self._urgent or self._normal:
                    return lane.popleft()
                self._asleep = True
            self._sleep.acquire()

    def get_next_if(self, wanted: Callable[[Any], bool]) -> Envelope[Any] | None:
        """Remove and return the next message if it is not urgent and `wanted` accepts it, else None. Never blocks."""
        with self._lock:
            if self._urgent or not self._normal or not wanted(self._normal[0].message):
                return None
            return self._normal.popleft()

    def empty(self) -> bool:
        with self._lock:
            return not (self._urgent or self._normal)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> tuple[Envelope[Any], ...]:
        """Refuse every message from now on; return the messages that were waiting."""
        with self._lock:
            self._closed = True
            waiting = (*self._urgent, *self._normal)
            self._urgent.clear()
            self._normal.clear()
            return waiting

    def close_if_empty(self) -> bool:
        """Close the mailbox unless a message waits in it; return whether it was closed.

        With this, an actor that stops because it is idle loses no message.
        """
        with self._lock:
            if self._urgent or self._normal:
                return False
            self._closed = True
            return True


def refuse(envelope: Envelope[Any]) -> None:
    """Answer a message with ActorDeadError, because the actor has stopped; raise it if no reply is awaited."""
    error = ActorDeadError("the actor has stopped")
    if envelope.reply_to is None:
        raise error
    envelope.reply_to.set_exception((ActorDeadError, error, None))
