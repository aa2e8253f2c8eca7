"""A catalogue of models that reports each attempt of a model request to telemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.errors import ErrorKind
from actors.ports import (
    CancelToken,
    Clock,
    Model,
    ModelAbortedError,
    ModelAnswer,
    ModelCatalog,
    ModelFailedError,
    ModelInfo,
    ModelRequest,
    ModelSink,
)
from actors.ports.telemetry import AttemptEnd, AttemptStart, Telemetry

if TYPE_CHECKING:
    from actors.core.errors import LlmFailure


class ObservedModels:
    """Wraps a ModelCatalog, and reports each attempt of a request to one of its models."""

    def __init__(self, models: ModelCatalog, telemetry: Telemetry, clock: Clock) -> None:
        self._models = models
        self._telemetry = telemetry
        self._clock = clock

    @property
    def default(self) -> str:
        return self._models.default

    def list(self) -> tuple[ModelInfo, ...]:
        return self._models.list()

    def get(self, name: str) -> Model | None:
        return self._observed(self._models.get(name))

    def offers(self, name: str) -> bool:
        return self._models.offers(name)

    def undecided(self, name: str) -> bool:
        return self._models.undecided(name)

    def learn(self, name: str, cancel: CancelToken) -> None:
        self._models.learn(name, cancel)

    def measure(self, name: str, cancel: CancelToken) -> None:
        self._models.measure(name, cancel)

    def refusal(self, name: str) -> LlmFailure:
        return self._models.refusal(name)

    def forget(self, conversation_id: str) -> None:
        self._models.forget(conversation_id)

    def small(self, name: str) -> Model | None:
        return self._observed(self._models.small(name))

    def _observed(self, model: Model | None) -> Model | None:
        return None if model is None else ObservedModel(model, self._telemetry, self._clock)


class ObservedModel:
    """Wraps a Model, and reports each attempt of a request."""

    def __init__(self, model: Model, telemetry: Telemetry, clock: Clock) -> None:
        self._model = model
        self._telemetry = telemetry
        self._clock = clock

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    def respond(self, request: ModelRequest, sink: ModelSink, cancel: CancelToken) -> ModelAnswer:
        info = self._model.info
        attempt = AttemptStart(
            conversation=request.conversation_id.partition(":")[0],  # side queries, e.g. for a title, append ":PURPOSE"
            request=request.request_id,
            attempt=request.attempt,
            model=info.name,
            provider=info.provider,
            purpose=request.purpose.value,
        )
        observed = _ObservedSink(sink, self._clock)
        began = self._clock.monotonic()
        self._telemetry.attempt_began(attempt)
        outcome, usage, answer = ErrorKind.UNKNOWN.value, None, None
        try:
            answer = self._model.respond(request, observed, cancel)
            outcome, usage = _outcome_of(answer), answer.usage
            return answer
        except ModelAbortedError as aborted:
            outcome, usage = "cancelled", aborted.usage
            raise
        except ModelFailedError as failed:
            outcome, usage = failed.failure.kind.value, failed.usage
            raise
        finally:
            seconds = self._clock.monotonic() - began
            first = None if observed.started_at is None else observed.started_at - began
            if first is None and answer is not None:
                first = seconds  # the whole answer came at once
            self._telemetry.attempt_ended(attempt, AttemptEnd(outcome, seconds, first, usage), request, answer)


class _ObservedSink:
    """Wraps a ModelSink, and records when the answer begins."""

    def __init__(self, sink: ModelSink, clock: Clock) -> None:
        self._sink = sink
        self._clock = clock
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


def _outcome_of(answer: ModelAnswer) -> str:
    if answer.refusal:
        return "refusal"
    return "truncated" if answer.truncated else "ok"
