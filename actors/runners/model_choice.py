"""Resolves the models that a command names: providers are asked for them before a conversation gets the command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.messages.commands import (
    ConversationCommand,
    CreateConversationCommand,
    CreatingCommand,
    SpawnSubAgentsCommand,
    UpdateConversationCommand,
)
from actors.ports import CancelToken, Model, ModelFailedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.runtime.services import Services


def undecided(services: Services, request: CreatingCommand | ConversationCommand) -> bool:
    """Return whether providers have to be asked before this command can be checked. Never blocks."""
    return any(name and services.models.undecided(name) for name in _named(services, request))


def learn_for(services: Services, request: CreatingCommand | ConversationCommand, cancel: CancelToken) -> None:
    """Ask the providers that may serve the models that a command names. Blocks."""
    learn(services, _named(services, request), cancel)


def learn(services: Services, names: Iterable[str], cancel: CancelToken) -> None:
    """Ask the providers that may serve these models, except "" and known models. Blocks."""
    for name in names:
        if name and services.models.undecided(name):
            services.models.learn(name, cancel)


def find(services: Services, name: str, cancel: CancelToken) -> Model:
    """Return the model of a conversation, asking providers if necessary (runner's thread). Raises ModelFailedError."""
    model = services.models.get(name)
    if model is None:
        services.models.learn(name, cancel)
        model = services.models.get(name)
    if model is None:
        raise ModelFailedError(services.models.refusal(name))
    return model


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
