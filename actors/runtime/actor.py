"""The base class of actors: pykka's threading actor, with a mailbox of two lanes and answers that asyncio can await."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, cast

import pykka
from pykka import ActorDeadError, ActorRef, ActorRegistry
from pykka._envelope import Envelope
from pykka.messages import _ActorStop

from actors.ports.records import CommandOrigin, command_origin
from actors.ports.telemetry import trace_parent

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """A command to an actor whose sender waits for the answer."""

    command: Any
    deadline: float | None = None
    """When the command is dropped if it has not been applied yet, in monotonic seconds; None: never."""
    urgent: bool = False
    must_run: bool = False
    """Whether the command is applied even if its sender no longer waits."""
    asked_at: float = field(default_factory=time.monotonic)
    trace_parent: str = field(default_factory=trace_parent.get)
    origin: CommandOrigin | None = field(default_factory=command_origin.get)


class ActorFuture(pykka.Future[Any]):
    """The future that `ActorRef.ask` returns. It wraps a standard future: pykka's has no callbacks or cancellation."""

    def __init__(self) -> None:
        super().__init__()
        self.future: Future[Any] = Future()
        """The standard future, which asyncio can wrap. If cancelled before the actor begins, the request is dropped."""

    def set(self, value: Any = None) -> None:
        """Set the answer. If `value` is a standard future, its result becomes the answer once it is available."""
        if self.future.cancelled():  # a request that runs although its sender no longer waits
            return
        if isinstance(value, Future):
            forward(value, self.future)
        else:
            self.future.set_result(value)

    def set_exception(self, exc_info: Any = None) -> None:
        error = (exc_info or sys.exc_info())[1]
        if not self.future.cancelled():
            self.future.set_exception(error)

    def get(self, *, timeout: float | None = None) -> Any:
        """Wait for the answer. Raises the actor's error, or TimeoutError."""
        if self._get_hook is not None:  # pykka sets a hook on the future of `ActorRef.stop`
            return super().get(timeout=timeout)
        return self.future.result(timeout)


class Mailbox:
    """An inbox for pykka with two lanes: the urgent lane, which is emptied first, and the normal one. Each is FIFO.

    pykka's stop message is the last one: it closes the mailbox, which then refuses messages. pykka's own inbox would
    lose them. Call `get` and `get_if` only on the actor's thread; the rest is thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._urgent: deque[Envelope[Any]] = deque()
        self._normal: deque[Envelope[Any]] = deque()
        self._asleep = False
        """Whether the actor sleeps until a message arrives; the thread that adds a message releases `_sleep`."""
        self._sleep = threading.Lock()  # a bare lock: a Condition would create a lock for each sleep
        self._sleep.acquire()
        self.closed = False
        """Whether every further message is refused."""

    def put(self, envelope: Envelope[Any], /) -> None:
        """Add a message, to the urgent lane if it is `urgent`. Raises ActorDeadError if the mailbox is closed."""
        urgent = getattr(envelope.message, "urgent", False)
        self._add((envelope,), self._urgent if urgent else self._normal, last=isinstance(envelope.message, _ActorStop))

    def put_all(self, envelopes: Iterable[Envelope[Any]]) -> None:
        """Add messages to the normal lane in one step, so that the actor finds all of them together.

        Raises ActorDeadError.
        """
        self._add(envelopes, self._normal)

    def _add(self, envelopes: Iterable[Envelope[Any]], lane: deque[Envelope[Any]], *, last: bool = False) -> None:
        with self._lock:
            if self.closed:
                raise ActorDeadError("the actor has stopped")
            lane.extend(envelopes)
            self.closed = last
            asleep, self._asleep = self._asleep, False
        if asleep:  # outside of `_lock`, because the woken actor needs `_lock` next
            self._sleep.release()

    def get(self) -> Envelope[Any]:
        """Remove and return the next message. Blocks until there is one. Skips requests that were cancelled."""
        while True:
            with self._lock:
                lane = self._urgent or self._normal
                envelope = lane.popleft() if lane else None
                self._asleep = envelope is None
            if envelope is None:
                self._sleep.acquire()
            elif _is_wanted(envelope):
                return envelope

    def get_if(self, wanted: Callable[[Any], bool]) -> Envelope[Any] | None:
        """Remove and return the next message if it is not urgent and `wanted` accepts it, else None. Never blocks."""
        with self._lock:
            if self._urgent or not self._normal or not wanted(self._normal[0].message):
                return None
            return self._normal.popleft()

    def empty(self) -> bool:
        with self._lock:
            return not (self._urgent or self._normal)

    def close_if_empty(self) -> bool:
        """Stop the actor unless a message waits; return whether it stops. An idle actor thus loses no message."""
        with self._lock:
            if self._urgent or self._normal or self.closed:
                return False
            self._close()
            return True

    def close(self) -> tuple[Envelope[Any], ...]:
        """Stop the actor after its current message; return the waiting messages, which the actor will not get."""
        with self._lock:
            return self._close()

    def _close(self) -> tuple[Envelope[Any], ...]:
        waiting = (*self._urgent, *self._normal)
        self._urgent.clear()
        self._normal = deque([Envelope(_ActorStop())])
        self.closed = True
        if self._asleep:
            self._asleep = False
            self._sleep.release()
        return waiting


class Actor(pykka.ThreadingActor):
    """An actor that reports every fault and survives it. Subclasses implement `receive`.

    Unlike in pykka, a closed mailbox refuses messages, and the answer to a request is a standard future.
    """

    use_daemon_thread = True

    def __init__(self) -> None:
        super().__init__()
        self.mailbox = cast("Mailbox", self.actor_inbox)

    @staticmethod
    def _create_actor_inbox() -> Mailbox:
        return Mailbox()

    @staticmethod
    def _create_future() -> ActorFuture:
        return ActorFuture()

    def _start_actor_loop(self) -> None:
        try:
            super()._start_actor_loop()
        except RuntimeError:  # the system cannot start another thread; pykka would keep the actor in its registry
            ActorRegistry.unregister(self.actor_ref)
            raise

    def receive(self, message: Any) -> Any:
        """Handle one message, and return the answer to a request, or a future for it. Called on the actor's thread."""
        raise NotImplementedError

    def on_fault(self, message: Any, error: BaseException) -> BaseException:
        """Handle an exception from `receive`, and return the error for the sender. Called on the actor's thread."""
        log.error("unexpected error in %s handling %s", type(self).__name__, type(message).__name__, exc_info=error)
        return error

    def on_receive(self, message: Any) -> Any:
        """Call `receive` and catch its exceptions: pykka would stop this actor, or for a BaseException all actors."""
        try:
            return self.receive(message)
        except BaseException as error:  # noqa: BLE001 -- a fault must be reported, and must not end the actor
            return failed(self._fault(message, error))

    def _fault(self, message: Any, error: BaseException) -> BaseException:
        try:
            return self.on_fault(message, error)
        except BaseException:
            log.critical("%s failed to handle its own fault; stopping it", type(self).__name__, exc_info=True)
            for envelope in self.mailbox.close():
                if envelope.reply_to is not None:
                    envelope.reply_to.set(failed(ActorDeadError("the actor has stopped")))
            return error


def tell(ref: ActorRef[Any], *messages: object) -> bool:
    """Send messages in one step, so that no other comes between them; return False if the actor has stopped."""
    try:
        if len(messages) == 1:
            ref.tell(messages[0])
        else:
            cast("Mailbox", ref.actor_inbox).put_all([Envelope(message) for message in messages])
    except ActorDeadError:
        return False
    return True


def ask(ref: ActorRef[Any], message: object) -> Future[Any]:
    """Send a request and return the future for its answer, without waiting. Raises ActorDeadError if it was refused."""
    future = cast("ActorFuture", ref.ask(message, block=False)).future
    if future.done() and isinstance(error := future.exception(), ActorDeadError):
        raise error  # pykka puts the refusal of an actor that has ended into the future
    return future


def failed(error: BaseException) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


def forward(source: Future[Any], target: Future[Any]) -> None:
    """Pass the result or the error of `source` on to `target`, unless `target` is cancelled first."""

    def copy(done: Future[Any]) -> None:
        if not (target.running() or target.set_running_or_notify_cancel()):
            return
        if (error := done.exception()) is not None:
            target.set_exception(error)
        else:
            target.set_result(done.result())

    source.add_done_callback(copy)


def _is_wanted(envelope: Envelope[Any]) -> bool:
    """Whether to deliver a message; False for a cancelled request. A delivered request can no longer be cancelled."""
    answer = cast("ActorFuture | None", envelope.reply_to)
    if answer is None or answer.future.set_running_or_notify_cancel():
        return True
    return getattr(envelope.message, "must_run", False)
