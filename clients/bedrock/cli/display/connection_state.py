"""Detects the loss and the recovery of the connection to the server, and reports each change once."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from bedrock.cli.text.style import one_line
from bedrock.errors import BedrockError, ServerNotRunning, ServerUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from bedrock import AsyncConversation

TRYING_AGAIN = "connection lost, trying again…"
CONNECTED_AGAIN = "connected again"
#: Seconds between tests whether the connection is back.
RETRY_SECONDS = 1.0


def lost(error: BedrockError) -> str:
    """Return a line for the user that says that the connection is lost, and why."""
    return f"{TRYING_AGAIN} ({_cause(error)})"


def _cause(error: BedrockError) -> str:
    """Return why a connection was lost, without the addresses and system calls that matter only when connecting."""
    if isinstance(error, ServerNotRunning) and not isinstance(error, ServerUnreachable):
        return "the server is not running"
    return one_line(error.message, 100) if error.reason else "the server does not answer"


class Outage:
    """Detects that a stream of events broke, and that the connection is back, even if no new event arrives.

    Use it on one event loop.
    """

    def __init__(self, conversation: Callable[[], AsyncConversation], say: Callable[[str], None]) -> None:
        """Start in the connected state.

        Args:
            conversation: Returns the conversation that is followed.
            say: Prints a line for the user; called after each change.
        """
        self._conversation = conversation
        self._say = say
        self._looking: asyncio.Task[None] | None = None

    @property
    def lasts(self) -> bool:
        """Whether the connection is currently lost."""
        return self._looking is not None

    def begin(self, error: BedrockError, delay: float) -> None:
        """Record that the stream of events broke. Used as the client's `on_disconnect`."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
            self._say(lost(error))

    def end(self) -> None:
        """Record that an event has arrived: if the connection was lost, print that it is back."""
        if self._looking is not None:
            self.close()
            self._say(CONNECTED_AGAIN)

    def close(self) -> None:
        """Stop checking whether the connection is back, and print nothing."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()

    async def _look(self) -> None:
        """Open test streams until one starts: the resumed stream itself yields nothing before the next event."""
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            if await self._begins():
                self.end()
                return

    async def _begins(self) -> bool:
        try:
            async with aclosing(self._conversation().events(recent_messages=0, omit_deltas=True)) as events:
                return await anext(events, None) is not None
        except BedrockError:
            return False
