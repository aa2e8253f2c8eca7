"""Draws one conversation from its events, for every command that shows one, and reports a lost connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from datetime import UTC, datetime

from bedrock import AsyncConversation, Event
from bedrock.cli.display.conversation_view import ConversationView
from bedrock.cli.display.transcript import Fate, Transcript, fates_among
from bedrock.cli.text.output import Write
from bedrock.cli.text.safe_text import SafeText
from bedrock.cli.text.style import Paint, Width, one_line
from bedrock.errors import BedrockError, ServerNotRunning, ServerUnreachable

TRYING_AGAIN = "connection lost, trying again…"
CONNECTED_AGAIN = "connected again"
# Seconds between tests whether the connection is back.
RETRY_SECONDS = 1.0


def lost(error: BedrockError) -> str:
    """A line for the user that says that the connection is lost, and why."""
    return f"{TRYING_AGAIN} ({_cause(error)})"


def _cause(error: BedrockError) -> str:
    """Why a connection was lost, without the addresses and system calls that matter only when connecting."""
    if isinstance(error, ServerNotRunning) and not isinstance(error, ServerUnreachable):
        return "the server is not running"
    return one_line(error.message, 100) if error.reason else "the server does not answer"


class Outage:
    """Detects that a stream broke, and that the connection is back, even without an event. One event loop."""

    def __init__(self, conversation: Callable[[], AsyncConversation], say: Callable[[str], None]) -> None:
        """`say` prints a line for the user after each change."""
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
        if self._looking is not None:
            self.close()
            self._say(CONNECTED_AGAIN)

    def close(self) -> None:
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


class Drawing:
    """The display of one conversation: the printed events, and the changing lines below."""

    def __init__(
        self, paint: Paint, write: Write, *, live: bool = False, width: Width | None = None, hint: str = ""
    ) -> None:
        """`live` shows text as it streams in, and sub-agents as a tree; `width` returns the columns (None: no limit).

        `hint` tells how to see the omitted part of a long output.
        """
        self.view = ConversationView()
        self.transcript = Transcript(paint, write, live=live, width=width, hint=hint)
        self._paint = paint
        self._width: Width = width or (lambda: 100)
        self._asked: set[str] = set()

    def show(self, event: Event, fates: Iterable[Fate] = ()) -> None:
        """Print an event, and what is open for approval or for an answer: also if that was asked before the stream."""
        self.view.observe(event, time.monotonic())
        self.transcript.show(event, fates)
        for approval in self.view.approvals:
            if self._is_new(approval.name):
                self.transcript.ask(approval, self.view.info.working_directory)
        for question in self.view.state.questions:
            if self._is_new(question.name):
                self.transcript.ask_person(question)

    def show_progress(self, event: Event) -> None:
        """Print an event of a run, unless the command prints it itself: prompt, answer, error, open requests."""
        self.view.observe(event, time.monotonic())
        message = event.message if event.kind == "message_added" else None
        if message is None:
            is_printed = event.kind != "run_stopped"
        else:
            is_printed = message.role not in ("user", "error") and (message.role != "agent" or bool(message.tool_calls))
        if is_printed:
            self.transcript.show(event)

    def status(self, keys: str = "Esc cancels") -> SafeText:
        """The status line: what the conversation is doing, and its context, mode and model."""
        return self.view.status(time.monotonic(), _wall(), self._width(), keys=keys)

    def agent_lines(self) -> list[SafeText]:
        return self.transcript.agents.lines(self._paint, _wall(), self._width())

    def _is_new(self, name: str) -> bool:
        new = name not in self._asked
        self._asked.add(name)
        return new

    async def follow(
        self, events: AsyncIterator[Event], find: Callable[[str], AsyncConversation]
    ) -> AsyncIterator[Event]:
        """Show each event and then yield it. `find` returns a conversation by its name."""
        async for event in events:
            self.show(event, await _fates(event, find))
            yield event


async def _fates(event: Event, find: Callable[[str], AsyncConversation]) -> list[Fate]:
    """Return what to print with a snapshot's messages: the outcomes of queued messages, and the interrupted runs.

    The list is empty for other events, and if the server does not answer.
    """
    if (snapshot := event.snapshot) is None:
        return []
    now = snapshot.conversation
    try:
        settled = await fates_among(find(now.name), snapshot.messages, now.update_time)
        return [*settled, *snapshot.queue] if snapshot.messages else []
    except BedrockError:  # without this information, the messages are shown alone
        return []


def _wall() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 -- the countdown uses this machine's clock
