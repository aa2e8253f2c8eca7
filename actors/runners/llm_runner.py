"""One abortable model request: an actor that asks once, reports every outcome, and ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actors.core.content import Text, Usage
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.events import LlmAborted, LlmError, LlmOutcome, LlmResponse, LlmStreamChunk, LlmStreamStarted
from actors.messages.outcomes import EffectOutcome, TextDeltaReady
from actors.ports import (
    CancelToken,
    Clock,
    ImagesUnavailableError,
    Model,
    ModelAbortedError,
    ModelAnswer,
    ModelFailedError,
    ModelRequest,
    StoreError,
)
from actors.ports.resources import exhausted_resource, resource_failure
from actors.runtime.actor import Actor, tell

if TYPE_CHECKING:
    from pykka import ActorRef

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LlmRequest:
    """One attempt, ready to be made."""

    request_id: str
    attempt: int
    find: Callable[[], Model]
    """Looks up the model, which may have to be asked for; called on the runner's thread. Raises ModelFailedError."""
    build: Callable[[Model], ModelRequest]
    """Reads the history, likewise. Raises StoreError or ImagesUnavailableError."""
    cancel: CancelToken


class StreamedText:
    """Text between the model's thread and the conversation's: at most one message waits, the rest is appended."""

    def __init__(self, request_id: str, attempt: int, clock: Clock) -> None:
        self._request_id, self._attempt, self._clock = request_id, attempt, clock
        self._lock = threading.Lock()
        self._waiting: list[tuple[bool, str]] = []

    def put(self, text: str, *, reasoning: bool) -> bool:
        """Add text; True if the conversation has to be told."""
        with self._lock:
            self._waiting.append((reasoning, text))
            return len(self._waiting) == 1

    def take(self) -> tuple[LlmStreamChunk, ...]:
        """Everything that waits, adjacent text of a kind joined (conversation's thread)."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        joined: list[tuple[bool, list[str]]] = []
        for reasoning, text in waiting:
            if joined and joined[-1][0] == reasoning:
                joined[-1][1].append(text)
            else:
                joined.append((reasoning, [text]))
        now = self._clock.now_ms()
        return tuple(
            LlmStreamChunk(now, self._request_id, self._attempt, Text("".join(parts)), reasoning)
            for reasoning, parts in joined
        )


class LlmRunner(Actor):
    """Makes one request on its own thread. Nobody waits for it: late outcomes are ignored by identity."""

    def __init__(self, request: LlmRequest, reply_to: ActorRef[Any], clock: Clock, ended: Callable[[], None]) -> None:
        super().__init__()
        self._request = request
        self._reply_to = reply_to
        self._clock = clock
        self._ended = ended
        self._text = StreamedText(request.request_id, request.attempt, clock)
        self._streaming = False

    def on_start(self) -> None:
        """Make the request as soon as the thread runs, then end."""
        try:
            self._report(self._outcome())
        finally:
            self._ended()
            self.terminate()

    def started(self) -> None:
        """Port ModelSink: the answer's stream has begun."""
        if not self._streaming:
            self._streaming = True
            self._report(LlmStreamStarted(self._clock.now_ms(), self._request.request_id, self._request.attempt))

    def text(self, text: str, *, reasoning: bool = False) -> None:
        """Port ModelSink: the next piece of text. The start always comes first: it is journalled, text is not."""
        if not text:
            return
        self.started()
        if self._text.put(text, reasoning=reasoning):
            tell(self._reply_to, TextDeltaReady(self._text))

    def _report(self, event: LlmOutcome) -> None:
        if not self._request.cancel.cancelled:
            tell(self._reply_to, EffectOutcome(event))
        elif not isinstance(event, LlmStreamStarted):
            usage = event.usage if isinstance(event, (LlmResponse, LlmError, LlmAborted)) else None
            tell(self._reply_to, EffectOutcome(self._aborted(usage)))

    def _outcome(self) -> LlmOutcome:
        request = self._request
        if request.cancel.cancelled:
            return self._aborted()
        try:
            model = request.find()
            answer = model.respond(request.build(model), self, request.cancel)
        except ModelAbortedError as aborted:
            return self._aborted(aborted.usage)
        except ModelFailedError as failed:
            return self._error(failed.failure, failed.retry_after_ms, failed)
        except StoreError as failed:
            if text := exhausted_resource(failed):
                return self._error(resource_failure(text))
            text = "The stored history could not be read: the server's log tells why."
            return self._error(LlmFailure(ErrorKind.SERVER_ERROR, text))
        except ImagesUnavailableError as unavailable:
            if request.cancel.cancelled:
                return self._aborted()
            return self._error(LlmFailure(ErrorKind.SERVER_ERROR, f"An image could not be prepared: {unavailable}."))
        except BaseException as fault:
            if text := exhausted_resource(fault):
                return self._error(resource_failure(text))
            log.exception("fault in a model request of %s", request.request_id)
            text = "Bedrock itself failed while asking the model. Send a message to go on; the server's log tells more."
            return self._error(LlmFailure(ErrorKind.UNKNOWN, text))
        return self._response(answer)

    def _aborted(self, usage: Usage | None = None) -> LlmAborted:
        return LlmAborted(self._clock.now_ms(), self._request.request_id, self._request.attempt, usage)

    def _response(self, answer: ModelAnswer) -> LlmResponse:
        return LlmResponse(
            at=self._clock.now_ms(),
            request_id=self._request.request_id,
            attempt=self._request.attempt,
            content=answer.content,
            end_turn=answer.end_turn,
            usage=answer.usage,
            truncated=answer.truncated,
            refusal=answer.refusal,
        )

    def _error(
        self, failure: LlmFailure, retry_after_ms: int | None = None, failed: ModelFailedError | None = None
    ) -> LlmError:
        request = self._request
        # The provider's words are for the conversation: they may repeat what was said in it.
        log.warning("model request %s, attempt %d: %s", request.request_id, request.attempt, failure.kind.value)
        return LlmError(
            at=self._clock.now_ms(),
            request_id=request.request_id,
            attempt=request.attempt,
            error=failure,
            retry_after_ms=retry_after_ms,
            usage=failed.usage if failed else None,
        )
