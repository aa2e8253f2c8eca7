"""Side queries: small requests to a fast and cheap model, for titles and excerpts.

These requests are not part of a conversation: they have no tools and see no history.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from actors.core import tags
from actors.core.content import Text, Usage, text_of
from actors.core.errors import ErrorKind
from actors.core.events import UsageReported
from actors.core.history import ProviderView, Turn
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
from actors.runners.model_choice import respond
from actors.runtime.actor import tell

if TYPE_CHECKING:
    from collections.abc import Callable

    from pykka import ActorRef

    from actors.core.context import ConvContext
    from actors.core.effects import ExecuteTool
    from actors.runtime.admission import Admission
    from actors.runtime.services import Services

log = logging.getLogger(__name__)

TIMEOUT_MS = 30_000
"""The time limit of a side query, in milliseconds."""
MAX_BYTES = 192 * 1024
"""The maximum bytes of a side query's text and system prompt together."""
BYTES_PER_TOKEN = 3
"""The bytes per token that are assumed when a query is checked against the model's context window.

The number is low, so that the check is cautious.
"""


class SideQueryAnswer(Struct, frozen=True):
    """The answer to a side query."""

    text: str
    """The text of the answer; never empty."""
    usage: Usage | None


class SideQueryFailedError(SideQueryError):
    """A side query failed. The text says why, and `usage` contains the tokens that it used, if known."""

    def __init__(self, text: str, usage: Usage | None = None, *, busy: bool = False) -> None:
        super().__init__(text)
        self.usage = usage
        self.busy = busy
        """Whether the model or the server was at capacity, so that another attempt may succeed later."""


class SideQueries:
    """Makes side queries, with one attempt each. Keeps no state. Safe to call from any thread."""

    def __init__(self, services: Services, admission: Admission) -> None:
        self._services = services
        self._admission = admission

    def now(self) -> int:
        """Return the time in milliseconds since the epoch."""
        return self._services.clock.now_ms()

    def available(self, model: str) -> bool:
        """Return whether there is a small model for side queries of conversations that use this model."""
        return self._services.models.small(model) is not None

    def ask(self, conversation_id: str, model: str, query: SideQuery, cancel: CancelToken) -> SideQueryAnswer:
        """Make a side query for a conversation that uses this model. Blocks until the answer, at most TIMEOUT_MS.

        Raises SideQueryFailedError if there is no small model, the query is too long, the server is at capacity, or the
        request was cancelled, ran out of time or failed.
        """
        small = self._services.models.small(model)
        if small is None:
            raise SideQueryFailedError("there is no small model")
        size = len(query.system.encode()) + len(query.text.encode())
        if size > min(MAX_BYTES, small.info.usable_window * BYTES_PER_TOKEN):
            raise SideQueryFailedError("it is too long for the small model")
        if full := self._admission.acquire():
            raise SideQueryFailedError(full, busy=True)
        try:
            return _answered(self._in_time(small, _request(conversation_id, query), cancel))
        finally:
            self._admission.release()

    def _in_time(self, small: Model, request: ModelRequest, cancel: CancelToken) -> ModelAnswer:
        stop = CancelToken()  # a separate token, because the timeout must stop only the query, not the tool that asks
        cancel.on_cancel(stop.cancel)
        self._services.timers.after(TIMEOUT_MS, stop.cancel)
        try:
            return respond(self._services, small, request, _NoSink(), stop)
        except ModelAbortedError as aborted:
            why = "cancelled" if cancel.cancelled else "it took too long"
            raise SideQueryFailedError(why, aborted.usage) from None
        except ModelFailedError as failed:
            kind = failed.failure.kind
            # The provider's text is not logged: it may quote the conversation, which must not appear in the log.
            log.info("a small request failed", extra={"request": request.request_id, "outcome": kind.value})
            busy = kind is ErrorKind.RATE_LIMIT
            raise SideQueryFailedError(failed.failure.message, failed.usage, busy=busy) from None
        except Exception:
            log.exception("fault in a small request", extra={"request": request.request_id})
            raise SideQueryFailedError("Bedrock itself failed") from None
        finally:
            cancel.forget(stop.cancel)


def ask_for_tool(
    side_queries: SideQueries, effect: ExecuteTool, context: ConvContext, cancel: CancelToken, owner: ActorRef[Any]
) -> Callable[[SideQuery], str]:
    """Return the function with which a running tool makes side queries.

    After each query, the number of tokens that it used is sent to the actor `owner`.
    """

    def report(usage: Usage | None) -> None:
        if usage is not None:
            tell(owner, EffectOutcome(UsageReported(side_queries.now(), usage, aside=True)))

    def ask(query: SideQuery) -> str:
        try:
            answered = side_queries.ask(context.conversation_id, context.model_id, query, cancel)
        except SideQueryFailedError as failed:
            report(failed.usage)
            if failed.busy and effect.attempt < context.limits.max_attempts:
                raise ToolTransientError(f"The small model is busy: {failed}.", begun=True) from None
            raise
        report(answered.usage)
        return answered.text

    return ask


class _NoSink:
    """A ModelSink that ignores streamed text, because only the complete answer is used."""

    def started(self) -> None:
        """Ignore the beginning of the answer."""

    def text(self, text: str, *, reasoning: bool = False) -> None:
        """Ignore streamed text."""

    def flush(self) -> None:
        """Do nothing, because nothing is buffered."""


def _request(conversation_id: str, query: SideQuery) -> ModelRequest:
    """Return the model request. Models cache data by conversation id, so it gets an id that no conversation has."""
    identity = f"{conversation_id}:{query.purpose.value}"
    return ModelRequest(
        conversation_id=identity,
        request_id=identity,
        attempt=1,
        system=query.system,
        tools=(),
        view=ProviderView((Turn("user", (Text(tags.escape(query.text)),)),)),
        max_output=query.max_output,
        purpose=query.purpose,
    )


def _answered(answer: ModelAnswer) -> SideQueryAnswer:
    """Return the answer's text. Raises SideQueryFailedError if the text is empty or the model refused."""
    text = text_of(answer.content).strip()
    if answer.refusal or not text:
        raise SideQueryFailedError("the small model had no answer", answer.usage)
    return SideQueryAnswer(text, answer.usage)
