"""Model requests: an actor per conversation makes them on its own thread, one at a time, and reports the outcomes."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from msgspec.structs import replace
from pykka import ActorDeadError, ActorRef

from actors import ports
from actors.common.machine import exhausted_resource, resource_failure
from actors.core.content import Content, Message, Usage
from actors.core.context import CallSubject, ConvContext
from actors.core.effects import RequestContinuation, RequestLlm
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.events import LlmAborted, LlmError, LlmResponse, LlmStreamStarted
from actors.messages import EffectOutcome, ModelRequestOverdue
from actors.publishing.hub import TextWindow
from actors.runners.request_builder import RequestBuilder, find_model, respond
from actors.runtime.actor import Actor, Mailbox, tell
from actors.runtime.admission import Admission, ReadPace, SlotRequest
from actors.runtime.offered_tools import checked_calls, output_of
from actors.runtime.services import Services, call_subjects, with_refusals

log = logging.getLogger(__name__)

# How many times a request for a summary is cut in half and sent again if the provider finds it too long.
MAX_SUMMARY_REFUSALS = 3

# The milliseconds after which the runner of a cancelled request is replaced. An abort takes longer only during name
# resolution, which nothing can interrupt.
ABORT_MS = 50


@dataclass(eq=False)
class LlmRequest:
    """Message to an LLM runner: make this attempt. The functions in it are called on the runner's thread."""

    request_id: str
    attempt: int
    find: Callable[[], ports.Model]
    """Finds the model, if necessary by asking providers. Raises ModelFailedError."""
    build: Callable[[ports.Model, int], ports.ModelRequest]
    """Builds the request, shorter after each refusal by the provider. Raises StoreError or ImagesUnavailableError."""
    check_calls: Callable[[tuple[Content, ...], tuple[ports.ToolSpec, ...]], tuple[Content, ...]]
    """Returns the answer's content with its calls corrected and checked, given the tools of the request."""
    subjects: Callable[[tuple[Content, ...]], tuple[CallSubject, ...]]
    """Returns the commands and paths that each call in the answer concerns."""
    max_refusals: int
    """How many times the request is made shorter and sent again if the provider finds it too long."""
    output_schema: str
    """The JSON Schema of the run's output; "" if the run has none."""
    cancel: ports.CancelToken
    respond: Callable[[ports.Model, ports.ModelRequest, ports.ModelSink, ports.CancelToken], ports.ModelAnswer]
    """Makes the request. Raises like `Model.respond`."""
    window: TextWindow
    pace: ReadPace
    on_end: Callable[[], None]
    """Called when the attempt is over."""
    unclaimed: Callable[[Usage], None]
    """Called with the tokens of an attempt whose outcome the actor did not accept, because it had stopped."""
    queued_at: int
    """When the attempt began to wait for a slot, in ms since the epoch."""
    waited_ms: int = 0
    ended: bool = False
    """Whether the attempt is over, or will never begin."""


class LlmRunner(Actor):
    """Makes one conversation's model requests, one at a time. A cancelled request is reported as aborted."""

    def __init__(self, owner: ActorRef[Any], clock: ports.Clock) -> None:
        super().__init__()
        self._owner = owner
        self._clock = clock

    def receive(self, message: LlmRequest) -> None:
        Attempt(message, self._owner, self._clock).run()


class Attempt:
    """One attempt at a model request, and the ModelSink that gets its answer. Call only on the runner's thread."""

    def __init__(self, request: LlmRequest, reply_to: ActorRef[Any], clock: ports.Clock) -> None:
        self._request = request
        self._reply_to = reply_to
        self._clock = clock
        self._streaming = False
        self._text_begun = False
        self._start: LlmStreamStarted | None = None
        """The event that reports the start of the stream, if it has yet to be sent to the actor; otherwise None."""

    def run(self) -> None:
        try:
            self._report(self._outcome())
        finally:
            self._request.ended = True
            self._request.on_end()

    def started(self) -> None:
        """Record that the answer's stream has begun (interface ModelSink)."""
        if not self._streaming:
            self._streaming = True
            request = self._request
            now = self._clock.now_ms()
            self._start = LlmStreamStarted(now, request.request_id, request.attempt, request.waited_ms)

    def text(self, text: str, *, reasoning: bool = False) -> None:
        if text:
            self.started()
            self._text_begun = True
            self._request.window.put(text, reasoning=reasoning)

    def flush(self) -> None:
        """Report the start of the stream and pass its text on, then pause if many streams are open. See ModelSink."""
        if self._request.cancel.cancelled:
            return
        if start := self._take_start():
            tell(self._reply_to, *start)
        self._request.window.pass_on()
        self._request.pace.wait(text=self._text_begun)

    def _take_start(self) -> tuple[EffectOutcome, ...]:
        start, self._start = self._start, None
        return (EffectOutcome(start),) if start is not None else ()

    def _report(self, event: LlmResponse | LlmError | LlmAborted) -> None:
        """Send the outcome, together with the stream's start if that is unsent, so that one commit stores both."""
        if self._request.cancel.cancelled:
            told = tell(self._reply_to, EffectOutcome(self._aborted(event.usage)))
        else:
            self._request.window.pass_on()
            told = tell(self._reply_to, *self._take_start(), EffectOutcome(event))
        if not told and event.usage is not None:
            self._request.unclaimed(event.usage)

    def _outcome(self) -> LlmResponse | LlmError | LlmAborted:
        request = self._request
        if request.cancel.cancelled:
            return self._aborted()
        try:
            model = request.find()
            built, answer, refused = self._ask(model)
            answer = replace(answer, content=request.check_calls(answer.content, built.tools))
            return self._response(answer, narrowed=refused > 0)
        except ports.ModelAbortedError as aborted:
            return self._aborted(aborted.usage)
        except ports.ModelFailedError as failed:
            return self._error(failed.failure, failed.retry_after_ms, failed)
        except ports.StoreError as failed:
            if text := exhausted_resource(failed):
                return self._error(resource_failure(text))
            text = "The stored history could not be read; see the server log."
            return self._error(LlmFailure(ErrorKind.SERVER_ERROR, text))
        except ports.ImagesUnavailableError as unavailable:
            if request.cancel.cancelled:  # the error may come from an image decoder that the cancel killed
                return self._aborted()
            return self._error(LlmFailure(ErrorKind.SERVER_ERROR, f"An image could not be prepared: {unavailable}."))
        except BaseException as fault:  # without an outcome the conversation would wait forever
            if text := exhausted_resource(fault):
                return self._error(resource_failure(text))
            log.exception("internal error in a model request", extra={"request": request.request_id})
            text = "Internal error during the model request. Send a message to continue; see the server log."
            return self._error(LlmFailure(ErrorKind.UNKNOWN, text))

    def _ask(self, model: ports.Model) -> tuple[ports.ModelRequest, ports.ModelAnswer, int]:
        """The request, its answer, and how often the request was shortened. Raises like `build` and `respond`."""
        request, refused = self._request, 0
        built = request.build(model, refused)
        while True:
            try:
                return built, request.respond(model, built, self, request.cancel), refused
            except ports.ModelFailedError as failed:
                too_long = failed.failure.kind is ErrorKind.CONTEXT_EXHAUSTED and not self._streaming
                if not too_long or refused >= request.max_refusals:
                    raise
                refused += 1
                shorter = request.build(model, refused)
                if shorter.turns == built.turns:
                    raise
                built = shorter

    def _aborted(self, usage: Usage | None = None) -> LlmAborted:
        return LlmAborted(self._clock.now_ms(), self._request.request_id, self._request.attempt, usage)

    def _response(self, answer: ports.ModelAnswer, *, narrowed: bool) -> LlmResponse:
        schema = self._request.output_schema
        output, problem = output_of(schema, answer) if schema else ("", "")
        return LlmResponse(
            at=self._clock.now_ms(),
            request_id=self._request.request_id,
            attempt=self._request.attempt,
            content=answer.content,
            end_turn=answer.end_turn,
            usage=answer.usage,
            truncated=answer.truncated,
            refusal=answer.refusal,
            subjects=self._request.subjects(answer.content),
            output=output,
            output_problem=problem,
            context_full=answer.context_full,
            narrowed=narrowed,
        )

    def _error(
        self, failure: LlmFailure, retry_after_ms: int | None = None, failed: ports.ModelFailedError | None = None
    ) -> LlmError:
        request = self._request
        # The provider's text is not logged: it may quote the conversation, which must not appear in the log.
        fields = {"request": request.request_id, "attempt": request.attempt, "outcome": failure.kind.value}
        log.warning("an attempt at a model request failed", extra=fields)
        return LlmError(
            at=self._clock.now_ms(),
            request_id=request.request_id,
            attempt=request.attempt,
            error=failure,
            retry_after_ms=retry_after_ms,
            usage=failed.usage if failed else None,
        )


class ModelRequests:
    """Starts and aborts the model requests of one conversation. Only the conversation's thread may use it."""

    def __init__(self, services: Services, admission: Admission, owner: ActorRef[Any]) -> None:
        self.builder = RequestBuilder(services)
        self._services = services
        self._admission = admission
        self._owner = owner
        self._current: LlmRequest | None = None
        self._lock = threading.Lock()  # a waiting request is sent on the thread on which another request has ended
        self._runner: ActorRef[LlmRunner] | None = None
        self._stopped = False

    def start(
        self,
        effect: RequestLlm | RequestContinuation,
        record: ports.ConversationRecord,
        begin: Callable[[], ports.CancelToken],
    ) -> None:
        """Make an attempt on the runner's thread, once the principal and the server have a free slot.

        `begin` registers the attempt and returns its cancel token.
        """
        token, quotas = begin(), self._services.quotas
        history = self.builder.history_of(record)

        def build(model: ports.Model, refused: int) -> ports.ModelRequest:
            return self.builder.build(record, effect, history, token, model, refused=refused)

        request = self._current = LlmRequest(
            effect.request_id,
            effect.attempt,
            find=functools.partial(find_model, self._services, effect.model, record.principal, token),
            build=build,
            check_calls=functools.partial(_checked_calls, self._services, record),
            subjects=functools.partial(call_subjects, self._services, record),
            max_refusals=MAX_SUMMARY_REFUSALS if isinstance(effect, RequestContinuation) else 1,
            output_schema=record.state.ledger.output_schema,
            cancel=token,
            respond=functools.partial(respond, self._services),
            window=TextWindow(self._services.bus, self._services.clock, record.id, effect.request_id, effect.attempt),
            pace=ReadPace(
                self._services.clock, functools.partial(quotas.model_slots.pressure, record.principal), token
            ),
            on_end=functools.partial(self._on_end, record),
            unclaimed=functools.partial(quotas.spend_alone, record.principal),
            queued_at=self._services.clock.now_ms(),
        )
        token.on_cancel(request.window.shut)
        place = quotas.model_slots.acquire(record.principal, functools.partial(self._launch, request))
        if quotas.model_slots.waits(place):
            token.on_cancel(functools.partial(self._withdraw, request, place))

    def committed(self, record: ports.ConversationRecord, context: ConvContext, messages: Sequence[Message]) -> None:
        """Take over the messages that were just committed, and pass on text that waited for the commit."""
        self.builder.committed(record, messages)
        if self._current is not None:
            self._current.window.published(record, context)

    def _launch(self, request: LlmRequest) -> bool:
        """Send the runner an attempt whose turn has come; return whether the runner got it. Thread-safe."""
        request.waited_ms = max(0, self._services.clock.now_ms() - request.queued_at)
        if full := self._admission.acquire():
            self._refuse(request, resource_failure(full))
            return False
        try:
            self._send(request)
        except RuntimeError as error:  # the system cannot start another thread
            self._admission.release()
            self._refuse(request, resource_failure(exhausted_resource(error) or str(error)))
            return False
        return True

    def _send(self, request: LlmRequest) -> None:
        """Send an attempt to the runner; start one if necessary. Raises RuntimeError if no thread can be started."""
        with self._lock:
            if self._stopped:
                raise RuntimeError("the conversation has stopped")
            if self._runner is None or not tell(self._runner, request):
                self._runner = LlmRunner.start(self._owner, self._services.clock)
                self._runner.tell(request)

    def replace_runner(self, request: object) -> None:
        """Replace the runner if this cancelled attempt still occupies it. Its thread ends once the attempt returns."""
        if not isinstance(request, LlmRequest) or request.ended:
            return
        with self._lock:
            runner, self._runner = self._runner, None
        for envelope in cast("Mailbox", runner.actor_inbox).close() if runner is not None else ():
            try:
                self._send(envelope.message)
            except RuntimeError as error:
                envelope.message.on_end()
                self._refuse(envelope.message, resource_failure(exhausted_resource(error) or str(error)))

    def _withdraw(self, request: LlmRequest, place: SlotRequest) -> None:
        """Report that an attempt was cancelled while it waited for its turn. Thread-safe."""
        if self._services.quotas.model_slots.withdraw(place):
            request.ended = True
            aborted = LlmAborted(self._services.clock.now_ms(), request.request_id, request.attempt)
            tell(self._owner, EffectOutcome(aborted))

    def abort(self) -> None:
        request, self._current = self._current, None
        if request is None:
            return
        request.cancel.cancel()
        if not request.ended:
            self._services.timers.after(ABORT_MS, functools.partial(self._report_overdue, request))

    def _report_overdue(self, request: LlmRequest) -> None:
        if not request.ended:
            tell(self._owner, ModelRequestOverdue(request))

    def forget(self) -> None:
        """Drop the reference to the last request, because none is in flight."""
        self._current = None

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            runner, self._runner = self._runner, None
        if runner is not None:
            with suppress(ActorDeadError):
                runner.stop(block=False)

    def _on_end(self, record: ports.ConversationRecord) -> None:
        """Release the slots. Called on the runner's thread.

        A cancelled request may end after the conversation was dropped from the models' caches, and fill them again. The
        conversation is therefore dropped once more.
        """
        self._admission.release()
        self._services.quotas.model_slots.release(record.principal)
        if not self._owner.is_alive():
            self._services.models.forget(record.id)

    def _refuse(self, request: LlmRequest, failure: LlmFailure) -> None:
        request.ended = True
        event = LlmError(self._services.clock.now_ms(), request.request_id, request.attempt, failure)
        tell(self._owner, EffectOutcome(event))


def _checked_calls(
    services: Services,
    record: ports.ConversationRecord,
    content: tuple[Content, ...],
    offered: tuple[ports.ToolSpec, ...],
) -> tuple[Content, ...]:
    checked = checked_calls(content, offered, record.profile.client_tools)
    return with_refusals(services, record, checked)
