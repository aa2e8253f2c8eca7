"""The table [authorizer] of the settings file; imports the class that it names.

The settings are loaded before the package gRPC, so this module does not import gRPC.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Annotated, Any, cast

from msgspec import Meta, Struct, field

from server.auth.authorizer.authorizer_port import Authorizer


class AuthorizerSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings in the table [authorizer]."""

    name: Annotated[
        str,
        Meta(pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*$", description="must be package.module:Class"),
    ] = field(name="class")
    """The class, as `package.module:Class`."""
    seconds: Annotated[float, Meta(gt=0, le=30, description="must be more than 0, and at most 30")] = field(
        name="timeout_seconds", default=2.0
    )
    """The time limit of each call of a method, in seconds."""
    options: dict[str, Any] = {}
    """The keyword arguments for the constructor of the class."""


def authorizer_class(settings: AuthorizerSettings) -> Callable[..., Authorizer]:
    """Import the authorizer's class. Raises ValueError ("authorizer.class: why") if it is missing or lacks a method."""
    module, _, attribute = settings.name.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        why = f"there is no module {error.name}" if error.name else type(error).__name__
        raise ValueError(f"authorizer.class: {settings.name} cannot be imported: {why}") from error
    except Exception as error:
        raise ValueError(f"authorizer.class: {settings.name} cannot be imported: {type(error).__name__}") from error
    if not callable(found):
        raise ValueError(f"authorizer.class: {settings.name} is no class")
    if isinstance(found, type):
        _check_methods(settings, found)
    return cast("Callable[..., Authorizer]", found)


def made_authorizer(settings: AuthorizerSettings) -> Authorizer:
    """Create the authorizer.

    Raises:
        ValueError: The class cannot be imported, or its constructor fails. The error does not contain the text of the
            constructor's exception, which may contain secrets.
    """
    kind = authorizer_class(settings)
    try:
        made = kind(**settings.options)
    except Exception as error:
        raise ValueError(f"authorizer.options: {settings.name} cannot be made: {type(error).__name__}") from error
    _check_methods(settings, made)
    return made


def _check_methods(settings: AuthorizerSettings, found: object) -> None:
    """Raise ValueError with the text "authorizer.class: why" if an object or class lacks a method of an authorizer."""
    for method in ("authenticate", "authorize"):
        if not callable(getattr(found, method, None)):
            raise ValueError(f"authorizer.class: {settings.name} has no method {method}")
