"""Validates a caller's choices of working directory, model and mode.

Safe to call from any thread; no provider is contacted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core.context import Mode
from actors.core.errors import LlmFailure, Reason, Rejected

if TYPE_CHECKING:
    from actors.ports import Model
    from actors.runtime.services import Services


def working_directory(services: Services, path: str, principal: str) -> str:
    """Return the real path of a directory in which the principal may work. Raises Rejected for any other directory."""
    try:
        return services.workspace.check(path, services.permissions(principal).roots)
    except ValueError as error:
        raise Rejected(Reason.WORKING_DIRECTORY_INVALID, f"working_directory: {error}") from None


def offered_model(services: Services, name: str, principal: str) -> Model:
    """Return a requested model. Raises Rejected unless the principal may use the model and a provider serves it.

    If a provider lists its models itself, the caller must have read that list (see `actors.runners.model_choice`).
    """
    if not services.permissions(principal).allows_model(name):
        raise Rejected(Reason.MODEL_UNAVAILABLE, f"this principal may not use the model {name}")
    if not services.models.offers(name):
        raise Rejected(Reason.MODEL_UNAVAILABLE, model_refusal(services, name, principal).message)
    return served_model(services, name)


def model_refusal(services: Services, name: str, principal: str) -> LlmFailure:
    """Return why no provider serves a model. For a principal limited to some models, the text lists no models."""
    failure = services.models.refusal(name)
    if services.permissions(principal).models is None:
        return failure
    return replace(failure, message=f"the model {name!r} is not available; ListModels names those that are")


def served_model(services: Services, name: str) -> Model:
    """Return the model of a conversation. Raises Rejected if no provider serves it now."""
    model = services.models.get(name)
    if model is None:
        raise Rejected(Reason.MODEL_UNAVAILABLE, services.models.refusal(name).message)
    return model


def check_images(services: Services, model: str) -> None:
    """Raise Rejected (IMAGE_INVALID) if it is known that a conversation's model takes no images."""
    if not services.takes_images(model):
        text = (
            f"the model {model} takes no images: send the message without them, or choose another model. If it does "
            f'take them, set images = true in [models."{model}"] of the server\'s settings, and restart the server'
        )
        raise Rejected(Reason.IMAGE_INVALID, text)


def check_images_in(services: Services, conversation_id: str) -> None:
    """Do the same for a stored conversation, if it exists. Blocks. Raises Rejected or StoreError."""
    record = services.store.load(conversation_id)
    if record is not None:
        check_images(services, record.model)


def initial_mode(services: Services, wanted: Mode | None, cwd: str, principal: str) -> Mode:
    """Return the mode of a new conversation: `wanted` or, if that is None, the default mode.

    The default is restricted, or unrestricted if the sandbox cannot enforce restricted. Raises Rejected if
    conversations of the principal cannot have this mode in this directory.
    """
    narrowest = Mode.RESTRICTED if services.sandbox.report.restriction_available else Mode.UNRESTRICTED
    mode = wanted or narrowest
    check_mode(services, mode, cwd, principal)
    return mode


def check_mode(services: Services, mode: Mode, cwd: str, principal: str) -> None:
    """Raise Rejected if conversations of the principal cannot have this mode in this directory."""
    reason = services.sandbox_of(principal).mode_refusal(mode, cwd)
    if reason:
        report = services.sandbox.report
        offered = report.restriction_available or not report.by_setting
        text = f"{mode.value} mode cannot be kept here" if offered else f"{mode.value} mode is not offered here"
        is_about_cwd = report.workspace_available and reason == services.sandbox.mode_refusal(Mode.WORKSPACE, cwd)
        raise Rejected(Reason.MODE_UNAVAILABLE, f"{text}: {reason}", "directory" if is_about_cwd else "")
