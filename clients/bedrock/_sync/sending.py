"""When a message is sent: at once.

Not generated: on an event loop a message is sent when its run is awaited or iterated.
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
    """The stream of the events of a message that was sent."""

    def __init__(self, events: Generator[Event], response: Sent) -> None:
        super().__init__(events)
        self.message = Message.from_proto(response.message)
        """The message as it was stored or queued."""
        self.disposition = requests.disposition(response)
        """"direct", "steer_queued", "follow_up_queued" or, if the call had been accepted before, "duplicate"."""
        self.sub_agents = requests.sub_agents(response)
        """The resource names of the sub-agents that `Conversation.spawn` started, in the order of the tasks."""
        self._progress = RunProgress(response.message.name, response.run)
        self._revision = response.revision

    def _sent(self) -> Self:
        return self


def opened(items: Generator[T]) -> Stream[T]:
    """Return a stream whose first item is there, so that what is wrong with the call is raised now."""
    return Stream(items).open()


def decided(decision: bool) -> bool:
    """Return what a function decided."""
    return checked(decision)


def filled_in(content: Content) -> Content:
    """Return what a function filled into a form."""
    return checked_content(content)


def carried_out(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Return what a tool's function returns."""
    return function(**arguments)


def fitting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a tool's function. Raises TypeError if it is a coroutine function."""
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"{function.__name__} is a coroutine function, which only the client for event loops can call")
    return function
