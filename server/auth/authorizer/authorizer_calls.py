"""Imports the operator's authorizer, and calls it on threads, with a time limit.

If the authorizer fails, the client's call is refused.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar, cast

from actors.ports.machine import run_in_thread
from server.auth.authorizer.authorizer_port import Authorizer, Decision, Identity, Peer
from server.auth.principals import Role
from server.contract.errors import AuthorizerUnavailableError
from server.settings.config import AuthorizerSettings


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
        raise ValueError(f"authorizer.class: {settings.name} is not a class")
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
        raise ValueError(f"authorizer.options: {settings.name} cannot be created: {type(error).__name__}") from error
    _check_methods(settings, made)
    return made


def _check_methods(settings: AuthorizerSettings, found: object) -> None:
    """Raise ValueError with the text "authorizer.class: why" if an object or class lacks a method of an authorizer."""
    for method in ("authenticate", "authorize"):
        if not callable(getattr(found, method, None)):
            raise ValueError(f"authorizer.class: {settings.name} has no method {method}")


log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_CALLS = 16
"""How many calls of one authorizer method may run at the same time. A call that never returns is counted for ever.

`authenticate` and `authorize` are counted apart: strangers cause calls of `authenticate`, and must not keep known
callers from being authorized.
"""
MAX_REASON_CHARS = 500
LOG_SECONDS = 10.0
"""Minimum seconds between two log lines about one type of exception, because strangers can cause many exceptions."""


class AuthorizerCalls:
    """Calls the authorizer. May be created on any thread, but must be used in one event loop.

    `seconds` is the time limit of each call. The methods raise AuthorizerUnavailableError if the authorizer fails.
    """

    def __init__(self, authorizer: Authorizer, seconds: float) -> None:
        self._authorizer = authorizer
        self._seconds = seconds
        self._logged: dict[type[Exception], float] = {}
        """The monotonic time of the last log line about each type of exception."""
        self._for_strangers, self._for_callers = asyncio.Semaphore(MAX_CALLS), asyncio.Semaphore(MAX_CALLS)

    async def identity(self, metadata: Iterable[tuple[str, str | bytes]], peer: Peer) -> Identity | None:
        """Return the identity of the caller with this metadata and peer; None if the authorizer refuses the caller."""
        said: dict[str, str] = {}
        for name, value in metadata:
            if isinstance(value, str):
                said.setdefault(name, value)
        question = functools.partial(self._authorizer.authenticate, said, peer)
        found: Any = await self._ask(question, self._for_strangers)
        if found is None or (isinstance(found, Identity) and _is_sound(found)):
            return found
        raise self._failed(TypeError("authenticate must return an Identity, or None"))

    async def refusal(self, principal: str, role: Role, method: str, resource: str) -> str | None:
        """Return why the authorizer forbids a call, as text for the caller; None if it allows the call."""
        question = functools.partial(self._authorizer.authorize, principal, role, method, resource)
        found: Any = await self._ask(question, self._for_callers)
        if not isinstance(found, Decision) or not isinstance(found.reason, str):
            raise self._failed(TypeError("authorize must return a Decision"))
        if found.allowed is True:
            return None
        shown = "".join(each if each.isprintable() else " " for each in found.reason[:MAX_REASON_CHARS])
        return shown or "the authorizer of this server does not allow that"

    async def _ask(self, question: Callable[[], T], free: asyncio.Semaphore) -> T:
        """Run `question` on a thread, and return its result. The time limit includes the wait for the semaphore `free`.

        Raises:
            AuthorizerUnavailableError: `question` raised an exception or took too long.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def done(result: T | None, error: Exception | None) -> None:
            free.release()
            if answer.done():  # the caller no longer waits
                return
            if error is None:
                answer.set_result(result)  # type: ignore[arg-type]
            else:
                answer.set_exception(error)

        def ask() -> None:
            result: T | None = None
            failure: Exception | None = None
            try:
                result = question()
            except StopIteration as error:  # a future does not accept a StopIteration
                failure = RuntimeError(f"it has raised {type(error).__name__}")
            except Exception as error:  # noqa: BLE001 -- the authorizer's code may raise anything
                failure = error
            except BaseException as error:  # noqa: BLE001 -- such as SystemExit, which must not end this server
                failure = RuntimeError(f"it has raised {type(error).__name__}")
            with suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(done, result, failure)

        try:
            async with asyncio.timeout(self._seconds):
                await free.acquire()
                try:
                    run_in_thread(ask, "bedrock-authorizer")
                except RuntimeError:
                    free.release()
                    raise
                return await answer
        except Exception as error:  # noqa: BLE001 -- the authorizer raised something, or took too long
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> AuthorizerUnavailableError:
        now, kind = time.monotonic(), type(error)
        if now - self._logged.get(kind, float("-inf")) < LOG_SECONDS:
            return AuthorizerUnavailableError()
        self._logged[kind] = now
        log.error("the authorizer failed: %s", type(error).__name__, exc_info=error)
        return AuthorizerUnavailableError()


def _is_sound(identity: Identity) -> bool:
    """Return whether the attributes have the declared types. No type checker has checked the operator's class."""
    principal: Any = identity.principal
    role: Any = identity.role
    ends: Any = identity.expires_at
    return isinstance(principal, str) and isinstance(role, Role | None) and isinstance(ends, int | float)
