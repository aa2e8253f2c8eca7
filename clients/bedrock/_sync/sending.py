"""Sends the message of a run at once.

This module is written by hand instead of generated from `bedrock._async.sending`, because the other client sends a
message only when its run is awaited or iterated.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Self, TypeVar

from bedrock import v1
from bedrock._shared import requests
from bedrock._shared.run_progress import RunProgress
from bedrock.answers import checked, checked_content
from bedrock.events import Event
from bedrock.messages import Message
from bedrock.streams import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from bedrock.answers import Content

T = TypeVar("T")

Sent = v1.SendMessageResponse | v1.SpawnSubAgentsResponse


class Sending(Stream[Event]):
    """The stream of the events that follow a message, which was sent before this object was created."""

    def __init__(self, events: Generator[Event], response: Sent) -> None:
        super().__init__(events)
        self.message = Message.from_proto(response.message)
        """The message as the server stored or queued it."""
        self.disposition = requests.disposition(response)
        """What the server did with the message: "direct", "steer_queued", "follow_up_queued" or "duplicate".

        "duplicate" means that the server had accepted this call before.
        """
        self.sub_agents = requests.sub_agents(response)
        """The resource names of the sub-agents that `Conversation.spawn` started, in the order of the tasks."""
        self._progress = RunProgress(response.message.name, response.run)
        self._revision = response.revision

    def _sent(self) -> Self:
        return self


def opened(items: Generator[T]) -> Stream[T]:
    """Read the first item of a stream and return the stream, so that errors in the call are raised now."""
    return Stream(items).open()


def decided(decision: bool) -> bool:
    """Return the decision about a tool call. Raises TypeError if it is neither True nor False."""
    return checked(decision)


def filled_in(content: Content) -> Content:
    """Return the content of a question's form. Raises TypeError if it is neither a mapping nor None."""
    return checked_content(content)


def carried_out(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call a tool's function and return its result."""
    return function(**arguments)


def fitting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a tool's function unchanged. Raises TypeError if the function is a coroutine function."""
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"{function.__name__} is a coroutine function, which only the client for event loops can call")
    return function
