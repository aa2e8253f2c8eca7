"""Sends the message of a run as soon as the run is awaited or iterated.

`bedrock._sync.sending` is written by hand instead of generated from this module, because the blocking client sends a
message at once.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, Literal, Self, TypeVar

from bedrock import v1
from bedrock._shared import requests
from bedrock._shared.run_progress import RunProgress
from bedrock.answers import Content, checked, checked_content
from bedrock.events import Event
from bedrock.messages import Message
from bedrock.streams import AsyncStream
from bedrock.types import Disposition

T = TypeVar("T")

Sent = v1.SendMessageResponse | v1.SpawnSubAgentsResponse


class AsyncSending(AsyncStream[Event]):
    """A stream of events that sends a message when it is first read. Awaiting the object only sends the message."""

    message: Message
    """The message as the server stored or queued it. Not set before the server accepted the message."""
    disposition: Disposition | Literal[""]
    """What the server did with the message: "direct", "steer_queued", "follow_up_queued" or "duplicate".

    "duplicate" means that the server had accepted this call before.
    """
    sub_agents: list[str]
    """The resource names of the sub-agents that `AsyncConversation.spawn` started, in the order of the tasks."""

    def __init__(self, events: AsyncGenerator[Event], sending: Awaitable[Sent]) -> None:
        super().__init__(events)
        self._sending: Awaitable[Sent] | None = sending
        self._progress = RunProgress("", "")
        self._revision = 0

    def __await__(self) -> Generator[Any, Any, Self]:
        return self._sent().__await__()

    async def __aenter__(self) -> Self:
        return await self._sent()

    async def _sent(self) -> Self:
        if self._sending is not None:
            sending, self._sending = self._sending, None
            response = await sending
            self.message = Message.from_proto(response.message)
            self.disposition = requests.disposition(response)
            self.sub_agents = requests.sub_agents(response)
            self._progress = RunProgress(response.message.name, response.run)
            self._revision = response.revision
        return self


class AsyncOpenedStream(AsyncStream[T]):
    """A stream whose ``async with`` waits for the first item, so that an error in the call is raised on entry."""

    async def __aenter__(self) -> Self:
        return await self.open()


def opened(items: AsyncGenerator[T]) -> AsyncStream[T]:
    """A stream whose ``async with`` raises the call's errors on entry, not within the block."""
    return AsyncOpenedStream(items)


async def decided(decision: bool | Awaitable[bool]) -> bool:
    """Await an asynchronous decision about a tool call. Raises TypeError if it is neither True nor False."""
    return checked(await decision if inspect.isawaitable(decision) else decision)


async def filled_in(content: Content | Awaitable[Content]) -> Content:
    """Await an asynchronous answer to a form. Raises TypeError if it is neither a mapping nor None."""
    return checked_content(await content if inspect.isawaitable(content) else content)


async def carried_out(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call a tool's function and return its result. A function that is not asynchronous runs in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    value = await asyncio.to_thread(function, **arguments)
    return await value if inspect.isawaitable(value) else value


def fitting(function: Callable[..., Any]) -> Callable[..., Any]:
    return function
