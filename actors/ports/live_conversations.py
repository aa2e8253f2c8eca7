"""Conversations at work: time and ids, how they are found, what they publish, and the token that cancels their work."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from actors.core.notifications import TextDelta
from actors.core.states import Ledger
from actors.ports.records import ConversationRecord, StoredEvent

log = logging.getLogger(__name__)


class Clock(Protocol):
    """A source of time. Thread-safe."""

    def now_ms(self) -> int:
        """The milliseconds since the epoch (UTC), for records and events."""
        ...

    def monotonic(self) -> float:
        """A time in seconds that never goes back, for deadlines and durations."""
        ...


class Ids(Protocol):
    """A source of new ids. Thread-safe."""

    def conversation(self) -> str:
        """A new conversation id: lower-case letters, digits and '-'. Ids are never reused."""
        ...

    def message(self) -> str:
        """A new message id."""
        ...

    def slug(self) -> str:
        """A short readable name for a conversation, which may be in use already."""
        ...


class FaultPoints(Protocol):
    """Named points at which tests inject failures, delays or the death of the process. Thread-safe."""

    def hit(self, point: str) -> None:
        """Mark that the code has reached this point, such as "commit.before". In tests, this may raise or block."""
        ...


class NoFaultPoints:
    """The implementation of FaultPoints for production, which does nothing."""

    def hit(self, point: str) -> None: ...


class CancelToken:
    """Cancels one piece of work. Thread-safe; cancelling again has no effect."""

    def __init__(self) -> None:
        self.cancelled = False
        """Whether the work was cancelled; only `cancel` sets it. A plain attribute, because loops read it often."""
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        # `cancel` releases these locks, one for each thread in `wait`; using an Event would take longer than the wait.
        self._waiting: list[threading.Lock] = []

    def cancel(self) -> None:
        """Cancel the work, and run the callbacks on the caller's thread.

        Callbacks must not block. If one raises an exception, it is logged, and the others still run.
        """
        # Callbacks run without the lock, because they may register or forget other callbacks.
        with self._lock:
            if self.cancelled:
                return
            self.cancelled = True
            callbacks, self._callbacks = self._callbacks, []
            waiting = tuple(self._waiting)
        for held in waiting:
            held.release()
        for callback in callbacks:
            try:
                callback()
            except Exception:
                log.exception("part of the cancelled work could not be stopped")

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Run `callback` when the token is cancelled, at once if it is cancelled already."""
        with self._lock:
            if not self.cancelled:
                self._callbacks.append(callback)
                return
        callback()

    def forget(self, callback: Callable[[], None]) -> bool:
        """Remove a callback, so that finished work keeps no resources alive; False if it is no longer registered."""
        with self._lock:
            if callback not in self._callbacks:
                return False
            self._callbacks.remove(callback)
            return True

    def wait(self, seconds: float) -> bool:
        """Block until the token is cancelled, for at most `seconds`; return whether it is cancelled."""
        held = threading.Lock()
        held.acquire()
        with self._lock:
            if self.cancelled:
                return True
            self._waiting.append(held)
        try:
            held.acquire(timeout=max(seconds, 0.0))
        finally:
            with self._lock:
                self._waiting.remove(held)
        return self.cancelled


class EventBus(Protocol):
    """Publishes events to watchers. Thread-safe; never blocks for long."""

    def publish(
        self, conversation_id: str, events: tuple[StoredEvent, ...], record: ConversationRecord | None = None
    ) -> None:
        """Publish committed events, in order, together with the conversation's record as it is after these events."""
        ...

    def text_delta(self, conversation_id: str, revision: int, *deltas: TextDelta) -> bool:
        """Publish streamed text, which is not stored; False if `revision` is not the newest published one."""
        ...

    def tool_output(self, conversation_id: str, tool_use_id: str, text: str) -> None:
        """Publish the next piece of the output of a running tool call. The output is not stored."""
        ...

    def created(self, record: ConversationRecord) -> None:
        """Publish a new conversation, which has no events yet."""
        ...

    def deleted(self, conversation_id: str, record: ConversationRecord | None = None) -> None:
        """End the watches of a deleted conversation. `record` is its last record or, for a sub-agent, its parent's."""
        ...


class LiveConversation(Protocol):
    """A conversation that currently has an actor. Thread-safe; nothing here blocks."""

    @property
    def conversation_id(self) -> str: ...

    @property
    def ledger(self) -> Ledger | None:
        """The counters and queues of the conversation's state (its ledger); None while the state is not loaded."""
        ...

    def deliver(self, message: object) -> bool:
        """Put a message into the actor's mailbox; return False if the actor has stopped."""
        ...

    def cancel_run_now(self, run: str) -> None:
        """Stop this run's work at once and keep it from starting more.

        Deliver the cancel command first; otherwise the stop counts as a failure.
        """
        ...


class ConversationDirectory(Protocol):
    """The conversations of one process, by id. Thread-safe; nothing here blocks."""

    def deliver(self, conversation_id: str, message: object) -> Future[Any] | None:
        """Put a message into the mailbox of the conversation's actor, starting an actor if there is none.

        Returns None while the server is stopping. Raises RuntimeError if no thread is left for an actor.
        """
        ...

    def live(self, conversation_id: str) -> LiveConversation | None:
        """The conversation, if it has an actor that accepts messages; otherwise None."""
        ...

    def on_started(self, conversation: Any) -> None:
        """Add a conversation whose actor is being started."""
        ...

    def on_idle(self) -> None:
        """Note that a conversation has become idle; a server that is shutting down waits for this."""
        ...

    def on_stopped(self, conversation: LiveConversation) -> None:
        """Remove a conversation whose actor has closed its mailbox."""
        ...
