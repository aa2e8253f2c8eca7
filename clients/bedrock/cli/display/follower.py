"""Follows a conversation live: prints its messages and approval requests, and tracks its sub-agents."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from bedrock.cli.display.conversation_view import ConversationView
from bedrock.cli.display.transcript import Transcript
from bedrock.cli.display.undelivered import Fate, fates_of_snapshot
from bedrock.errors import BedrockError, NotFound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from bedrock import AsyncConversation, Event
    from bedrock.cli.text.output import Write
    from bedrock.cli.text.safe_text import SafeText
    from bedrock.cli.text.style import Paint, Width

RESULTS = "sub_agent_results"

#: The longest wait in seconds for the last events of sub-agents, when their parent conversation continues.
SETTLE_SECONDS = 1.0
#: Seconds until a sub-agent that was announced but does not exist yet is looked up again.
LOOKUP_SECONDS = 0.05


class Onlooker:
    """Shows one conversation and follows its sub-agents. Use it only on one event loop."""

    def __init__(
        self,
        agent: Callable[[str], AsyncConversation],
        paint: Paint,
        write: Write,
        *,
        live: bool = True,
        width: Width | None = None,
        refresh: Callable[[], None] = lambda: None,
        hint: str = "",
    ) -> None:
        """Prepare to show a conversation. No call is made before `follow`.

        Args:
            agent: Returns a conversation by its name: this one, or one of its sub-agents.
            paint: How to colour lines.
            write: Prints a line.
            live: Whether to show text as it streams in, and sub-agents as a tree.
            width: Returns the maximum columns of a line; None for no limit.
            refresh: Called after each event, because the status line or the tree of sub-agents may have changed.
            hint: The text that tells the user how to see the omitted part of a long output.
        """
        self.view = ConversationView()
        self.transcript = Transcript(paint, write, live=live, width=width, hint=hint)
        self.refresh = refresh
        self._agent = agent
        self._paint = paint
        self._width: Width = width or (lambda: 100)
        self._asked: set[str] = set()
        self._followed: list[asyncio.Task[None]] = []

    async def follow(self, events: AsyncIterator[Event]) -> AsyncIterator[Event]:
        """Show each event and then yield it. After the last one, stop following the sub-agents."""
        try:
            async for event in events:
                if self._followed and _goes_on(event):
                    await self._settled()
                self._show(event, await self._fates(event))
                self._follow_agents()
                yield event
        finally:
            await self._leave()

    def status(self) -> SafeText:
        """Return the status line: what the conversation is doing, and its context, mode and model."""
        return self.view.status(time.monotonic(), _wall(), self._width(), keys="Esc cancels")

    def agent_lines(self) -> list[SafeText]:
        """Return the lines of the tree of sub-agents; [] unless the run waits for sub-agents."""
        return self.transcript.agents.lines(self._paint, time.monotonic(), _wall(), self._width())

    async def _fates(self, event: Event) -> list[Fate]:
        """Return what to print with a snapshot's messages: the outcomes of queued messages, and the interrupted runs.

        The list is empty for other events, and if the server does not answer.
        """
        if (snapshot := event.snapshot) is None:
            return []
        try:
            return await fates_of_snapshot(self._agent(snapshot.conversation.name), snapshot)
        except BedrockError:  # without this information, the messages are shown alone
            return []

    def _show(self, event: Event, fates: list[Fate]) -> None:
        self.view.observe(event, time.monotonic())
        self.transcript.show(event, fates)
        for approval in self.view.approvals:  # including approvals that were open before this stream began
            if approval.name not in self._asked:
                self._asked.add(approval.name)
                self.transcript.ask(approval, self.view.working_directory)
        for question in self.view.state.questions:
            if question.name not in self._asked:
                self._asked.add(question.name)
                self.transcript.ask_person(question)
        self.refresh()

    def _follow_agents(self) -> None:
        for name in self.transcript.agents.follow():
            self._followed.append(asyncio.create_task(self._follow_agent(name)))

    async def _follow_agent(self, name: str) -> None:
        """Follow one sub-agent to its end.

        Its conversation may not exist yet when the parent announces the sub-agent.
        """
        tree = self.transcript.agents
        try:
            while not tree.seen_to_the_end(name):
                try:
                    await self._read(name)
                except NotFound:
                    if name not in tree.at_work:  # the sub-agent never started
                        return
                await asyncio.sleep(LOOKUP_SECONDS)
        except BedrockError:  # the tree then shows only what the parent's events report
            pass
        finally:
            tree.unfollow(name)
            self.transcript.print_agent_ends()

    async def _read(self, name: str) -> None:
        """Apply the events of a sub-agent until it has ended, or until nothing more will happen without a user."""
        events = self._agent(name).events(recent_messages=0, omit_deltas=True, until_settled=True)
        async with aclosing(events):
            async for event in events:
                self.transcript.agents.observe_agent(name, event, time.monotonic())
                self.transcript.print_agent_ends()
                self.refresh()

    async def _settled(self) -> None:
        """Wait briefly for the ends of all sub-agents, so that they are printed before the parent's next events."""
        await asyncio.wait(self._followed, timeout=SETTLE_SECONDS)
        await self._leave()

    async def _leave(self) -> None:
        tasks, self._followed = self._followed, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _goes_on(event: Event) -> bool:
    """Return whether an event shows that the conversation no longer waits for its sub-agents."""
    message = event.message if event.kind == "message_added" else None
    results = message is not None and (message.role == "tool" or message.system_kind == RESULTS)
    return results or event.kind in ("run_stopped", "deleted")


def _wall() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 -- the countdown uses this machine's clock
