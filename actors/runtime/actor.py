"""The base class of actors, and the envelope for requests to them, which carries a future for the answer."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

import pykka
from pykka import ActorDeadError, ActorRef
from pykka._envelope import Envelope

from actors.ports.store.audit import command_origin
from actors.ports.telemetry import trace_parent
from actors.runtime.mailbox import Mailbox

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.runtime.thread_pool import ThreadPool

log = logging.getLogger(__name__)

_numbers = itertools.count(1)

Request = TypeVar("Request")


class AskEnvelope(Generic[Request]):
    """A request to an actor, and the future for its answer.

    The future is a standard one, which an asyncio loop can await, because pykka's future has no callbacks.
    """

    def __init__(self, request: Request, *, deadline: float | None = None, urgent: bool = False) -> None:
        self.request = request
        self.deadline = deadline
        """In monotonic seconds; after that time the request is dropped without being applied. None: no deadline."""
        self.urgent = urgent
        self.asked_at = time.monotonic()
        self.trace_parent = trace_parent.get()
        self.origin = command_origin.get()
        self.answer: Future[Any] = Future()
        self._wanted: bool | None = None

    def claim(self) -> bool:
        """Claim the request, so that it can no longer be cancelled. Return False if it was cancelled already."""
        if self._wanted is None:
            self._wanted = self.answer.set_running_or_notify_cancel()
        return self._wanted

    def succeed(self, value: object) -> None:
        """Answer the request. Ignored if it was answered before, or if the caller has cancelled it."""
        if self.claim() and not self.answer.done():
            self.answer.set_result(value)

    def fail(self, error: BaseException) -> None:
        """Answer the request with an error. Ignored in the same cases as `succeed`."""
        if self.claim() and not self.answer.done():
            self.answer.set_exception(error)


class Actor(pykka.ThreadingActor):
    """An actor with one thread and one mailbox, which never drops a message silently.

    Subclasses implement `receive`. An exception of `receive` is passed to `on_fault` on the actor's thread; the actor
    then continues.
    """

    def __init__(self) -> None:
        # This does the same as pykka's constructor, except for the name. pykka chooses a random name for its registry,
        # which these actors do not use, and that costs a system call, which releases the interpreter's lock.
        self.actor_urn = f"{type(self).__name__}-{next(_numbers)}"
        self.mailbox = self.actor_inbox = self._create_actor_inbox()
        self.actor_stopped = threading.Event()
        self._actor_ref = ActorRef(self)

    @staticmethod
    def _create_actor_inbox() -> Mailbox:
        return Mailbox()

    def launch(self, threads: ThreadPool) -> Self:
        """Start the actor on a thread of the pool. Raises RuntimeError if no thread can be started.

        This replaces pykka's `start`, which would start a new thread and add the actor to a global registry. Without
        that, the caller must keep the reference to the actor.
        """
        threads.run(self._actor_loop, type(self).__name__)
        return self

    def receive(self, message: Any) -> None:
        """Handle one message. Called on the actor's thread."""
        raise NotImplementedError

    def on_fault(self, message: Any, error: BaseException) -> None:
        """Handle an exception that `receive` raised for `message`, which is always a bug. Called on the actor's thread.

        By default it is logged, and returned to the sender if the message is a request.
        """
        log.error("fault in %s on %s", type(self).__name__, type(message).__name__, exc_info=error)
        if isinstance(message, AskEnvelope):
            message.fail(error)

    def on_receive(self, message: Any) -> None:
        """Call `receive` and catch its exceptions, because pykka would otherwise stop this actor or all actors."""
        try:
            self.receive(message)
        except BaseException as error:  # noqa: BLE001 -- a fault must be reported, and must not end the actor
            self._report_fault(message, error)

    def _report_fault(self, message: Any, error: BaseException) -> None:
        try:
            self.on_fault(message, error)
        except BaseException:
            log.critical("%s failed to handle its own fault and stops", type(self).__name__, exc_info=True)
            self.terminate()

    @property
    def stopped(self) -> bool:
        """Whether the actor no longer accepts messages. Safe to read from any thread."""
        return self.mailbox.closed or self.actor_stopped.is_set()

    def terminate(self, refusal: Exception | None = None) -> None:
        """Stop after the current message, and answer queued requests with `refusal`, by default an ActorDeadError.

        Only the actor's thread may call this.
        """
        self.actor_stopped.set()
        for envelope in self.mailbox.close():
            if isinstance(envelope.message, AskEnvelope):
                envelope.message.fail(refusal or ActorDeadError("the actor has stopped"))
            elif envelope.reply_to is not None:
                envelope.reply_to.set(None)

    def on_stop(self) -> None:
        """Handle pykka's stop message."""
        self.terminate()


def tell_all(ref: ActorRef[Any], messages: Iterable[object]) -> bool:
    """Send messages in one step, so that no other message comes between them; return False if the actor has stopped."""
    try:
        cast("Mailbox", ref.actor_inbox).put_all([Envelope(message) for message in messages])
    except ActorDeadError:
        return False
    return True


def tell(ref: ActorRef[Any], message: object) -> bool:
    """Send a message; return False if the actor has stopped and did not accept it."""
    try:
        ref.tell(message)
    except ActorDeadError:
        return False
    return True
