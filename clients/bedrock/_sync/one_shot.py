"""`bedrock.ask`: one question, with a client of its own."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from bedrock._sync.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


def _with_own_client(method: Callable[Concatenate[Client, P], T]) -> Callable[P, T]:
    """Return a function that calls a method of a new client, which it closes then."""

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with Client() as client:
            return method(client, *args, **kwargs)

    signature = inspect.signature(method)
    call.__name__ = call.__qualname__ = method.__name__
    call.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])  # type: ignore[attr-defined]
    call.__doc__ = inspect.getdoc(method)
    return call


ask = _with_own_client(Client.ask)
"""Ask the server that the environment names, or that of this machine; with the arguments of `Client.ask`."""
