"""Finds the models that a command names, builds the requests to them from the history, and sends the requests.

If a model is unknown, providers are asked which models they have before the actor gets the command.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from actors import ports
from actors.core.content import Image, Message
from actors.core.context import Generation
from actors.core.effects import RequestContinuation, RequestLlm
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.history import provider_view
from actors.core.history.provider_view import GrowingView, ImageBudget, ProviderView, summary_view, within_limits
from actors.core.history.result_budget import UNLIMITED, Room
from actors.ports.models import fixed_tokens
from actors.ports.telemetry import AttemptEnd, AttemptStart
from actors.runtime.offered_tools import for_model, output_form, supported
from actors.runtime.services import Services, model_refusal


def learn_models(services: Services, names: Iterable[str], cancel: ports.CancelToken) -> None:
    """Ask providers about these models, except "" and models whose provider is known. Blocks."""
    for name in names:
        if name and services.models.undecided(name):
            services.models.learn(name, cancel)


def find_model(services: Services, name: str, principal: str, cancel: ports.CancelToken) -> ports.Model:
    """Find the model and its limits, by asking providers if necessary. Blocks. Raises ModelFailedError.

    The principal's permission is checked again: it may have changed since the model was chosen.
    """
    if not services.permissions(principal).allows_model(name):
        text = f"This principal is not allowed to use model {name}; choose another model."
        raise ports.ModelFailedError(LlmFailure(ErrorKind.INVALID_REQUEST, text))
    model = services.models.get(name)
    if model is None:
        services.models.learn(name, cancel)
        model = services.models.get(name)
    if model is None:
        raise ports.ModelFailedError(model_refusal(services, name, principal))
    services.models.measure(name, cancel)
    return model


def respond(
    services: Services,
    model: ports.Model,
    request: ports.ModelRequest,
    sink: ports.ModelSink,
    cancel: ports.CancelToken,
) -> ports.ModelAnswer:
    """Make one attempt at a model request, and report it to telemetry. Raises like `Model.respond`."""
    attempt = AttemptStart(
        conversation=request.conversation_id.partition(":")[0],  # side queries, e.g. for a title, append ":PURPOSE"
        request=request.request_id,
        attempt=request.attempt,
        model=model.info.name,
        provider=model.info.provider,
        purpose=request.purpose.value,
    )
    timed = _TimedSink(sink, services.clock)
    began = services.clock.monotonic()
    services.telemetry.attempt_began(attempt)
    outcome, usage, answer = ErrorKind.UNKNOWN.value, None, None
    try:
        answer = model.respond(request, timed, cancel)
        outcome = "refusal" if answer.refusal else "truncated" if answer.truncated else "ok"
        usage = answer.usage
        return answer
    except ports.ModelAbortedError as aborted:
        outcome, usage = "cancelled", aborted.usage
        raise
    except ports.ModelFailedError as failed:
        outcome, usage = failed.failure.kind.value, failed.usage
        raise
    finally:
        seconds = services.clock.monotonic() - began
        first = None if timed.started_at is None else timed.started_at - began
        if first is None and answer is not None:
            first = seconds  # the whole answer came at once
        services.telemetry.attempt_ended(attempt, AttemptEnd(outcome, seconds, first, usage), request, answer)


class _TimedSink:
    """Wraps a ModelSink, and records when the answer begins."""

    def __init__(self, sink: ports.ModelSink, clock: ports.Clock) -> None:
        self._sink, self._clock = sink, clock
        self.flush = sink.flush
        self.started_at: float | None = None

    def started(self) -> None:
        if self.started_at is None:
            self.started_at = self._clock.monotonic()
        self._sink.started()

    def text(self, text: str, *, reasoning: bool = False) -> None:
        if self.started_at is None:
            self.started_at = self._clock.monotonic()
        self._sink.text(text, reasoning=reasoning)


# How many messages are read from the store at a time.
PAGE = 1_000


class HistoryCache:
    """The messages of one conversation in memory: added when they are committed, or read from the store once.

    Thread-safe.
    """

    def __init__(self, store: ports.ConversationReader, conversation_id: str) -> None:
        self._store = store
        self._conversation_id = conversation_id
        # Held while messages are read or added: a cancelled request may still be reading when the next one begins.
        self._lock = threading.Lock()
        self._messages: list[Message] = []
        self._views = _Views()

    def extend(self, messages: Sequence[Message]) -> None:
        """Add committed messages. Any that do not directly follow the cached ones are ignored, and are read later."""
        with self._lock:
            for message in messages:
                if message.sequence == len(self._messages) + 1:
                    self._messages.append(message)

    def read(self, sequence: int) -> None:
        with self._lock:
            while len(self._messages) < sequence:
                after = len(self._messages)
                page = self._store.messages(self._conversation_id, after=after, limit=PAGE)
                if not page:
                    raise ports.StoreDamagedError(
                        f"message {after + 1} of conversation {self._conversation_id} is missing"
                    )
                self._messages.extend(page)

    def through(self, sequence: int) -> tuple[Message, ...]:
        """Every message up to number `sequence`, in order. Raises StoreError, including if a message is missing."""
        self.read(sequence)
        return tuple(self._messages[:sequence])

    def view(self, sequence: int, model: ports.ModelInfo, room: Room, size_of: Callable[[Image], int]) -> ProviderView:
        """The turns of a request up to message `sequence`.

        Raises StoreError, or the exceptions of `size_of`, which returns the bytes of an image.
        """
        self.read(sequence)
        return self._views.of(self._messages, sequence, model, room, size_of)


class _Views:
    """Builds each request's turns by adding new messages to those of the previous request. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # a cancelled request may still build its turns when the next one begins
        self._for = ("", "", UNLIMITED)
        self._view = GrowingView()
        self._budget = ImageBudget()

    def of(
        self,
        messages: Sequence[Message],
        sequence: int,
        model: ports.ModelInfo,
        room: Room,
        size_of: Callable[[Image], int],
    ) -> ProviderView:
        """The turns built from the messages up to number `sequence`. Raises like `size_of`."""
        with self._lock:
            view = self._unlimited(messages, sequence, model, room)
            return self._budget.apply(view, size_of) if model.images else view

    def _unlimited(
        self, messages: Sequence[Message], sequence: int, model: ports.ModelInfo, room: Room
    ) -> ProviderView:
        if (model.protocol, model.name, room) != self._for:
            self._for = model.protocol, model.name, room
            self._view = GrowingView(*self._for)
        if sequence < self._view.sequence:  # a cancelled request: `_view` was already extended for the next one
            turns = provider_view(messages, sequence, protocol=model.protocol, model=model.name, room=room)
            return ProviderView(turns)
        for message in messages[self._view.sequence : sequence]:
            self._view.add(message)
        return self._view.view()


class RequestBuilder:
    """Builds the model requests of one conversation."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._history: HistoryCache | None = None

    def read_history(self, record: ports.ConversationRecord) -> None:
        """Read all messages now, so that a run begins only if they are readable. Raises StoreError."""
        self.history_of(record).read(record.state.ledger.seq)

    def committed(self, record: ports.ConversationRecord, messages: Sequence[Message]) -> None:
        """Add committed messages, to save reading them from the store. Call only on the conversation's thread."""
        self.history_of(record).extend(messages)

    def history_of(self, record: ports.ConversationRecord) -> HistoryCache:
        """The conversation's message cache; the first call creates it. Call only on the conversation's thread."""
        if self._history is None:
            self._history = HistoryCache(self._services.store, record.id)
        return self._history

    def build(
        self,
        record: ports.ConversationRecord,
        effect: RequestLlm | RequestContinuation,
        history: HistoryCache,
        cancel: ports.CancelToken,
        model: ports.Model,
        *,
        refused: int,
    ) -> ports.ModelRequest:
        """Build the request for `effect`, shorter the more often it was `refused`. Call on the runner's thread.

        Raises StoreError or ImagesUnavailableError.
        """
        images = self._services.images
        tools: tuple[ports.ToolSpec, ...] = ()
        generation, output = Generation(), None

        def size_of(image: Image) -> int:
            return images.view_bytes(record.id, image, cancel)

        ledger, through = record.state.ledger, effect.through_sequence

        def room(narrowed: int) -> Room:
            fixed = fixed_tokens(record.system_prompt, tools)
            return Room(model.info.usable_window, fixed, images=model.info.images, narrowed=narrowed)

        if isinstance(effect, RequestContinuation):
            turns = summary_view(
                history.through(through),
                through,
                effect.rejected,
                room=room(ledger.narrowed),
                used=ledger.used_tokens,
                halved=refused,
            )
            view = ProviderView(within_limits(turns, size_of) if model.info.images else turns)
        else:
            tools = for_model(model.info, self._services.offered(record), ledger.run_mode)
            generation = supported(_generation(record), model.info)
            if schema := ledger.output_schema:
                output, submitting = output_form(schema, model.info)
                tools = (*tools, *submitting)
            view = history.view(through, model.info, room(through if refused else ledger.narrowed), size_of)
        return ports.ModelRequest(
            conversation_id=record.id,
            request_id=effect.request_id,
            attempt=effect.attempt,
            system=record.system_prompt,
            tools=tools,
            view=view,
            view_of=lambda image: images.view(record.id, image, cancel),
            max_output=generation.max_output_tokens,
            generation=generation,
            output=output,
            counted_tokens=ledger.used_tokens,
            cache_key=record.profile.cache_key,
        )


def _generation(record: ports.ConversationRecord) -> Generation:
    """The run's generation settings; settings that the run does not have are taken from the conversation."""
    own, usual = record.state.ledger.generation, record.profile.generation
    return own.over(usual) if own else usual
