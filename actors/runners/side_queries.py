"""Small requests beside a conversation: to a quick and cheap model, without tools or history, never a turn of it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from actors.core import tags
from actors.core.content import Text, Usage, text_of
from actors.core.errors import ErrorKind
from actors.core.events import UsageReported
from actors.core.history import Turn
from actors.messages.outcomes import EffectOutcome
from actors.ports import (
    CancelToken,
    Model,
    ModelAbortedError,
    ModelAnswer,
    ModelFailedError,
    ModelRequest,
    SideQuery,
    SideQueryError,
    ToolTransientError,
)
from actors.runtime.actor import tell

if TYPE_CHECKING:
    from collections.abc import Callable

    from pykka import ActorRef

    from actors.core.context import ConvContext
    from actors.core.effects import ExecuteTool
    from actors.runtime.admission import Admission
    from actors.runtime.services import Services

log = logging.getLogger(__name__)

ASIDE_MS = 30_000
"""What an aside may take."""
MAX_BYTES = 192 * 1024
"""Of an aside's words."""
BYTES_PER_TOKEN = 3
"""Assumed, to judge whether it fits: code has more."""


class Answered(Struct, frozen=True):
    """The answer to an aside."""

    text: str
    """Not empty."""
    usage: Usage | None


class Unanswered(SideQueryError):
    """There is no answer, and what that has cost."""

    def __init__(self, text: str, usage: Usage | None = None, *, busy: bool = False) -> None:
        super().__init__(text)
        self.usage = usage
        self.busy = busy
        """There may be one later."""


class Asides:
    """Asks them, one attempt each. Any thread; keeps nothing."""

    def __init__(self, services: Services, admission: Admission) -> None:
        self._services = services
        self._admission = admission

    def now(self) -> int:
        """Milliseconds since the epoch."""
        return self._services.clock.now_ms()

    def available(self, model: str) -> bool:
        """Whether there is somebody to ask beside a conversation with this model."""
        return self._services.models.small(model) is not None

    def ask(self, conversation_id: str, model: str, aside: SideQuery, cancel: CancelToken) -> Answered:
        """Ask beside a conversation with this model, and wait for the answer, ASIDE_MS at most.

        Raises Unanswered: nobody to ask, too long, cancelled, out of time, or failed.
        """
        small = self._services.models.small(model)
        if small is None:
            raise Unanswered("there is no small model")
        size = len(aside.system.encode()) + len(aside.text.encode())
        if size > min(MAX_BYTES, small.info.usable_window * BYTES_PER_TOKEN):
            raise Unanswered("it is too long for the small model")
        if full := self._admission.enter():
            raise Unanswered(full, busy=True)
        try:
            return _answered(self._in_time(small, _request(conversation_id, aside), cancel))
        finally:
            self._admission.leave()

    def _in_time(self, small: Model, request: ModelRequest, cancel: CancelToken) -> ModelAnswer:
        stop = CancelToken()
        cancel.on_cancel(stop.cancel)
        self._services.timers.after(ASIDE_MS, stop.cancel)
        try:
            return small.respond(request, _Unheard(), stop)
        except ModelAbortedError as aborted:
            why = "cancelled" if cancel.cancelled else "it took too long"
            raise Unanswered(why, aborted.usage) from None
        except ModelFailedError as failed:
            kind = failed.failure.kind
            # The provider's words may repeat what was said.
            log.info("small request of %s: %s", request.conversation_id, kind.value)
            busy = kind is ErrorKind.RATE_LIMIT
            raise Unanswered(failed.failure.message, failed.usage, busy=busy) from None
        except Exception:
            log.exception("fault in a small request of %s", request.conversation_id)
            raise Unanswered("Bedrock itself failed") from None
        finally:
            cancel.forget(stop.cancel)


def for_tool(
    asides: Asides, effect: ExecuteTool, context: ConvContext, cancel: CancelToken, owner: ActorRef[Any]
) -> Callable[[SideQuery], str]:
    """What a running tool asks asides with; `owner`, its conversation, is told what each has cost."""

    def spent(usage: Usage | None) -> None:
        if usage is not None:
            tell(owner, EffectOutcome(UsageReported(asides.now(), usage, aside=True)))

    def ask(aside: SideQuery) -> str:
        try:
            answered = asides.ask(context.conversation_id, context.model_id, aside, cancel)
        except Unanswered as failed:
            spent(failed.usage)
            if failed.busy and effect.attempt < context.limits.max_attempts:
                raise ToolTransientError(f"The small model is busy: {failed}.", begun=True) from None
            raise
        spent(answered.usage)
        return answered.text

    return ask


class _Unheard:
    """Port ModelSink: nobody listens while the answer arrives."""

    def started(self) -> None:
        """Nobody waits for it."""

    def text(self, text: str, *, reasoning: bool = False) -> None:
        """Nobody reads it."""


def _request(conversation_id: str, aside: SideQuery) -> ModelRequest:
    """Under an id of its own, lest it take the place of the conversation's turns in caches."""
    identity = f"{conversation_id}:{aside.purpose.value}"
    return ModelRequest(
        conversation_id=identity,
        request_id=identity,
        attempt=1,
        system=aside.system,
        tools=(),
        turns=(Turn("user", (Text(tags.escape(aside.text)),)),),
        max_output=aside.max_output,
        purpose=aside.purpose,
    )


def _answered(answer: ModelAnswer) -> Answered:
    """Raises Unanswered if it says nothing, or refuses."""
    text = text_of(answer.content).strip()
    if answer.refusal or not text:
        raise Unanswered("the small model had no answer", answer.usage)
    return Answered(text, answer.usage)
