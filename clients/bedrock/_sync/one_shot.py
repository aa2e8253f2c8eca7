"""Defines `bedrock.ask`, which asks one question through a new client and closes the client afterwards."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from bedrock._sync.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


def _with_own_client(method: Callable[Concatenate[Client, P], T]) -> Callable[P, T]:
    """Return a function that makes a client, calls `method` with it and the given arguments, and closes the client."""

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with Client() as client:
            return method(client, *args, **kwargs)

    signature = inspect.signature(method)
    call.__name__ = call.__qualname__ = method.__name__
    call.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])  # type: ignore[attr-defined]
    call.__doc__ = inspect.getdoc(method)
    return call


ask = _with_own_client(Client.ask)
"""Ask a question as `Client.ask` does, with the same arguments, through a client that exists for this call only."""
