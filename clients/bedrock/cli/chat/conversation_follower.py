"""Follows the conversation of a chat: its events, and the connection to it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bedrock.cli.display.connection_state import TRYING_AGAIN, Outage
from bedrock.cli.display.follower import Onlooker
from bedrock.cli.display.tool_output import HOW_TO_SEE
from bedrock.cli.text.safe_text import SafeText
from bedrock.errors import BedrockError, ServerNotRunning

if TYPE_CHECKING:
    from collections.abc import Callable

    from bedrock import AsyncConversation, Event
    from bedrock.cli.text.line_wrap import Say
    from bedrock.cli.text.output import Write
    from bedrock.cli.text.style import Paint, Width

#: How many of the latest messages are shown when the chat enters a conversation.
RECENT_MESSAGES = 20


class ConversationFollower:
    """Shows one conversation at a time, and continues in another one on request. Use it only on one event loop."""

    def __init__(
        self,
        conversation: Callable[[str], AsyncConversation],
        paint: Paint,
        *,
        write: Write,
        say: Say,
        width: Width | None,
        refresh: Callable[[], None],
    ) -> None:
        """Prepare to follow conversations; `move_to` selects the first one.

        Args:
            conversation: Returns a conversation by its name.
            paint: How to colour lines.
            write: Prints a line.
            say: Prints a line, broken at words.
            width: Returns the maximum columns of a line; None for no limit.
            refresh: Called when the prompt, the status line or the tree of sub-agents may have changed.
        """
        self.outage = Outage(lambda: self.conversation, self._tell_outage)
        """Tracks whether the connection is lost. The client connects again by itself."""
        self._find = conversation
        self._paint = paint
        self._write = write
        self._say = say
        self._width = width
        self._refresh = refresh
        self._moved = asyncio.Event()
        self._server_ended = False
        """Whether the user was already told, during the present loss of the connection, that the server has ended."""

    def move_to(self, name: str) -> None:
        """Select the conversation to show; a running `follow` switches to it."""
        self.conversation = self._find(name)
        self.onlooker = Onlooker(
            self._find, self._paint, self._write, width=self._width, refresh=self._changed, hint=HOW_TO_SEE
        )
        self._moved.set()

    async def follow(self, observe: Callable[[Event], None]) -> None:
        """Show the events of the selected conversation, and call `observe` with each event, until the stream ends.

        When `move_to` selects another conversation, continue with that one. Raises BedrockError if the stream fails.
        """
        while self._moved.is_set():
            self._moved.clear()
            following = asyncio.create_task(self._show_events(observe))
            moved = asyncio.create_task(self._moved.wait())
            try:
                await asyncio.wait((following, moved), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (following, moved):
                    task.cancel()
                results = await asyncio.gather(following, moved, return_exceptions=True)
                self.outage.close()
            if isinstance(results[0], BedrockError) and not self._moved.is_set():
                raise results[0]

    def status(self) -> SafeText:
        """Return the status line of the conversation; while the connection is lost, a line that says so."""
        return SafeText(TRYING_AGAIN) if self.outage.lasts else self.onlooker.status()

    def disconnected(self, error: BedrockError, delay: float) -> None:
        """Record that the stream of events broke. If the server has ended, print how to continue the chat."""
        self._server_ended = self._server_ended and self.outage.lasts
        self.outage.begin(error, delay)
        if isinstance(error, ServerNotRunning) and not self._server_ended:
            self._server_ended = True
            self._tell_outage(f"the server has ended. To go on: Ctrl-D, then bedrock chat -r {self.onlooker.view.slug}")

    async def _show_events(self, observe: Callable[[Event], None]) -> None:
        async for event in self.onlooker.follow(self.conversation.events(recent_messages=RECENT_MESSAGES)):
            observe(event)

    def _changed(self) -> None:
        """Redraw after an event of the conversation or of a sub-agent; the event shows that the connection is back."""
        self.outage.end()
        self._refresh()

    def _tell_outage(self, text: str) -> None:
        self._say(self._paint.careful(f"· {text}"))
        self._refresh()
