"""Validate a caller's choices: working directory, model, mode. Any thread; no provider is contacted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.context import Mode
from actors.core.errors import Reason, Rejected

if TYPE_CHECKING:
    from actors.ports import Model
    from actors.runtime.services import Services


def working_directory(services: Services, path: str) -> str:
    """Return the real path of a directory. Raises Rejected."""
    try:
        return services.workspace.check(path)
    except ValueError as error:
        raise Rejected(Reason.WORKING_DIRECTORY_INVALID, f"working_directory: {error}") from None


def offered_model(services: Services, name: str) -> Model:
    """Return a requested model. Raises Rejected unless a provider is known to serve it.

    Providers that list their models are queried earlier (`actors.runners.model_choice`).
    """
    if not services.models.offers(name):
        raise Rejected(Reason.MODEL_UNAVAILABLE, services.models.refusal(name).message)
    return served_model(services, name)


def served_model(services: Services, name: str) -> Model:
    """Return a conversation's model. Raises Rejected if no provider serves it now."""
    model = services.models.get(name)
    if model is None:
        raise Rejected(Reason.MODEL_UNAVAILABLE, services.models.refusal(name).message)
    return model


def initial_mode(services: Services, wanted: Mode | None, cwd: str) -> Mode:
    """Return the mode of a new conversation: `wanted`, or the narrowest that this machine enforces. Raises Rejected."""
    report = services.sandbox.report
    if wanted is None:
        return Mode.RESTRICTED if report.restriction_available else Mode.UNRESTRICTED
    if wanted is Mode.RESTRICTED and not report.restriction_available:
        raise mode_unavailable(services, wanted, cwd)
    check_workspace(services, wanted, cwd)
    return wanted


def check_workspace(services: Services, mode: Mode, cwd: str) -> None:
    """Raise Rejected if `mode` is the workspace mode and it cannot be enforced in this directory."""
    if mode is Mode.WORKSPACE and services.sandbox.workspace_refusal(cwd):
        raise mode_unavailable(services, mode, cwd)


def mode_unavailable(services: Services, mode: Mode, cwd: str) -> Rejected:
    """Return the refusal of a mode: this machine cannot enforce it there, or is configured not to offer it."""
    report = services.sandbox.report
    reason = services.sandbox.workspace_refusal(cwd) if mode is Mode.WORKSPACE else report.reason
    offered = report.restriction_available or not report.by_setting
    text = f"{mode.value} mode cannot be kept here" if offered else f"{mode.value} mode is not offered here"
    return Rejected(Reason.MODE_UNAVAILABLE, f"{text}: {reason}")
