"""Finds the models that a command names, and makes requests to them.

If a model is unknown, providers are asked which models they have before the actor gets the command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.errors import ErrorKind, LlmFailure
from actors.messages.commands import (
    ConversationCommand,
    CreateConversationCommand,
    CreatingCommand,
    SpawnSubAgentsCommand,
    UpdateConversationCommand,
)
from actors.ports import (
    CancelToken,
    Clock,
    Model,
    ModelAbortedError,
    ModelAnswer,
    ModelFailedError,
    ModelRequest,
    ModelSink,
)
from actors.ports.telemetry import AttemptEnd, AttemptStart
from actors.runtime import validation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.runtime.services import Services


def undecided(services: Services, request: CreatingCommand | ConversationCommand) -> bool:
    """Return whether providers must be asked for their models before this command can be checked. Never blocks."""
    return any(name and services.models.undecided(name) for name in _named(services, request))


def learn_for(services: Services, request: CreatingCommand | ConversationCommand, cancel: CancelToken) -> None:
    """Ask providers which models they have: those providers that may serve a model named in the command. Blocks."""
    learn(services, _named(services, request), cancel)


def learn(services: Services, names: Iterable[str], cancel: CancelToken) -> None:
    """Ask those providers that may serve one of these models which models they have. Blocks.

    "" and models whose provider is known are skipped.
    """
    for name in names:
        if name and services.models.undecided(name):
            services.models.learn(name, cancel)


def find(services: Services, name: str, principal: str, cancel: CancelToken) -> Model:
    """Return the model of a conversation, and learn its limits, asking providers if necessary. Blocks.

    The principal's permission for the model is checked again, because it may have changed since the model was chosen.
    Raises ModelFailedError.
    """
    if not services.permissions(principal).allows_model(name):
        text = f"This principal may not use the model {name}: give the conversation another one."
        raise ModelFailedError(LlmFailure(ErrorKind.INVALID_REQUEST, text))
    model = services.models.get(name)
    if model is None:
        services.models.learn(name, cancel)
        model = services.models.get(name)
    if model is None:
        raise ModelFailedError(validation.model_refusal(services, name, principal))
    services.models.measure(name, cancel)
    return model


def respond(
    services: Services, model: Model, request: ModelRequest, sink: ModelSink, cancel: CancelToken
) -> ModelAnswer:
    """Make one attempt of a model request, and report it to telemetry. Raises what `Model.respond` raises."""
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
    except ModelAbortedError as aborted:
        outcome, usage = "cancelled", aborted.usage
        raise
    except ModelFailedError as failed:
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

    def __init__(self, sink: ModelSink, clock: Clock) -> None:
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


def _named(services: Services, request: CreatingCommand | ConversationCommand) -> tuple[str, ...]:
    match request:
        case CreateConversationCommand(model=model):
            return (model or services.models.default,)
        case UpdateConversationCommand(model=str() as model):
            return (model,)
        case SpawnSubAgentsCommand(tasks=tasks):
            return tuple(task.model for task in tasks)
        case _:
            return ()
