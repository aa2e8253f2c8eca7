"""Every `timeout` means the same: seconds, zero or more; what is longer than years has no end."""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from bedrock import AsyncClient, Client
from bedrock.errors import DeadlineExceeded

from tests.support.fake_server import NAME, FakeBedrock, says

ENDLESS = [math.inf, 1e300, 9.3e9, 10**400]
WRONG = [(math.nan, ValueError), (-1, ValueError), (-math.inf, ValueError), ("5", TypeError), (True, TypeError)]
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "models": lambda client, timeout: client.models(timeout=timeout),
    "list": lambda client, timeout: client.conversations(timeout=timeout),
    "cancel": lambda client, timeout: client.conversation(NAME).cancel(timeout=timeout),
    "messages": lambda client, timeout: client.conversation(NAME).messages(timeout=timeout),
    "export": lambda client, timeout: client.conversation(NAME).export(timeout=timeout),
    "ask": lambda client, timeout: client.conversation(NAME).ask("Hello.", timeout=timeout),
    "events": lambda client, timeout: client.conversation(NAME).events(timeout=timeout),
    "send": lambda client, timeout: client.conversation(NAME).send("Hello.", timeout=timeout),
}

STATELESS = ["models", "list", "cancel", "messages", "export", "events"]
"""The calls that leave no run behind, which would be in the way of the next one."""


def call(client: Client, name: str, timeout: object) -> None:
    """Make a call; of a series take the first."""
    result = CALLS[name](client, timeout)
    if hasattr(result, "__next__") or hasattr(result, "__iter__"):
        next(iter(result), None)


async def call_on_a_loop(address: str, name: str, timeout: object) -> None:
    """Make a call of the other client; of a series take the first."""
    async with AsyncClient(address) as client:
        result = CALLS[name](client, timeout)
        if not hasattr(result, "__aiter__"):
            result = await result
        if hasattr(result, "__aiter__"):
            async for _ in result:
                break


@pytest.mark.parametrize("name", [*STATELESS, "ask"])
def test_an_endless_timeout_is_none(client: Client, address: str, fake: FakeBedrock, name: str) -> None:
    for timeout in ENDLESS:
        fake.answers.append(says("Hi."))
        call(client, name, timeout)
        fake.answers.append(says("Hi."))
        asyncio.run(call_on_a_loop(address, name, timeout))


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_timeout_is_refused_before_anything_is_sent(
    client: Client, address: str, fake: FakeBedrock, name: str
) -> None:
    for timeout, error in WRONG:
        with pytest.raises(error, match="timeout"):
            call(client, name, timeout)
        with pytest.raises(error, match="timeout"):
            asyncio.run(call_on_a_loop(address, name, timeout))
    assert not fake.requests


@pytest.mark.parametrize("name", STATELESS)
def test_no_time_at_all_is_allowed(client: Client, address: str, name: str) -> None:
    with suppress(DeadlineExceeded):  # unless the answer was there at once
        call(client, name, 0)
    with suppress(DeadlineExceeded):
        asyncio.run(call_on_a_loop(address, name, 0))


@pytest.mark.parametrize("make", [Client, AsyncClient])
def test_a_client_takes_the_same(make: Callable[..., object], address: str) -> None:
    for timeout, error in [*WRONG, (None, TypeError)]:
        with pytest.raises(error, match="timeout"):
            make(address, timeout=timeout)
    with Client(address, timeout=math.inf) as client:
        assert client.models()
