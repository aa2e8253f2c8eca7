"""Reads the table [authorizer] of the settings file, and imports the class that it names.

The settings are loaded before the package gRPC, so this module does not import gRPC.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from actors.ports.settings.settings_checks import check_keys

if TYPE_CHECKING:
    from server.auth.authorizer.authorizer_port import Authorizer

KEYS = ("class", "timeout_seconds", "options")
USUAL_SECONDS, MAX_SECONDS = 2.0, 30.0


class AuthorizerSettings(Struct, frozen=True):
    """The settings in the table [authorizer]."""

    name: str
    """The class, as `package.module:Class`."""
    seconds: float
    """The time limit of each call of a method, in seconds."""
    options: Mapping[str, Any]
    """The keyword arguments for the constructor of the class."""


def authorizer_settings(table: Mapping[str, Any]) -> AuthorizerSettings:
    """Read the table [authorizer]. Raises ValueError with a text such as "authorizer.class: why"."""
    check_keys("authorizer", table, KEYS)
    name, seconds, options = table.get("class"), table.get("timeout_seconds", USUAL_SECONDS), table.get("options", {})
    module, colon, attribute = name.partition(":") if isinstance(name, str) else ("", "", "")
    if not isinstance(name, str) or not (
        colon and attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))
    ):
        raise ValueError("authorizer.class: must be package.module:Class")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_SECONDS:
        raise ValueError(f"authorizer.timeout_seconds: must be more than 0, and at most {MAX_SECONDS:.0f}")
    if not isinstance(options, dict):
        raise ValueError("authorizer.options: must be a table, [authorizer.options]")
    return AuthorizerSettings(name, float(seconds), options)


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
