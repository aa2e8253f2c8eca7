"""A chat, apart from how it looks: what a person types, what it does, and what is known meanwhile."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from bedrock import AsyncClient, v1
from bedrock._requests import image
from bedrock.cli.onlooker import Onlooker
from bedrock.cli.paint import Paint, one_line
from bedrock.cli.queueing import queue_lines
from bedrock.errors import BedrockError
from bedrock.messages import Approval

T = TypeVar("T")

HELP = """\
Enter          send; while the agent works, what you say goes into the run (steer)
Tab            queue: starts a run of its own when this one has ended (follow-up)
Esc, Ctrl-C    cancel what is under way, and drop what is queued
Ctrl-C again   leave; the run goes on
/queue TEXT    the same as Tab
/queue         show what waits
/image PATH    show an image file with what you say next
/cancel        the same as Esc
/kill          the same, and end the background jobs too
/withdraw      take back what was queued last
/mode MODE     restricted or unrestricted
/model MODEL   go on with another model
/continue      go on in a new conversation when the context is used up
/quit          leave"""

#: How many messages are shown of a conversation that is gone on with.
RECENT_MESSAGES = 20

_YES = re.compile(r"y(es)?", re.IGNORECASE)
_ALWAYS = re.compile(r"a(lways)?", re.IGNORECASE)
_NO = re.compile(r"no?(?:[,:.]?\s+(?P<note>.*))?", re.IGNORECASE | re.DOTALL)


class ChatSession:
    """One conversation and the person at it. Lives on one event loop."""

    def __init__(
        self,
        client: AsyncClient,
        name: str,
        paint: Paint,
        write: Callable[[str], None],
        *,
        width: int | None = None,
        refresh: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare; nothing is called yet.

        Args:
            client: Whose connection to use.
            name: What to chat in.
            paint: How to colour lines.
            write: Prints a line.
            width: Where to break lines as they stream in.
            refresh: Called when the prompt or the status line may have changed.
        """
        self._onlooker = Onlooker(client.conversation, paint, write, width=width, refresh=self._changed)
        self.view = self._onlooker.view
        self.transcript = self._onlooker.transcript
        self.agent_lines = self._onlooker.agent_lines
        self.over = asyncio.Event()
        """Set when there is nothing to stay for: the person leaves, or the conversation is gone."""
        self.refresh = refresh
        self._conversation = client.conversation(name)
        self._paint = paint
        self._write = write
        self._entered: asyncio.Queue[str] = asyncio.Queue()
        self._disconnected = False
        self._armed = False
        self._was_busy = False
        self._pictures: list[v1.Image] = []
        """To be sent with what is said next."""

    @property
    def question(self) -> Approval | None:
        """What is asked now."""
        return self.view.approvals[0] if self.view.approvals else None

    def status(self) -> str:
        """The status line."""
        if self._disconnected:
            return "connection lost, trying again…"
        return self._onlooker.status()

    def disconnected(self, error: BedrockError, delay: float) -> None:
        """Take note that the stream of events was cut; it comes back by itself."""
        if not self._disconnected:
            self._disconnected = True
            self._write(self._paint.careful(f"· connection lost: {one_line(error.message, 100)}"))
            self.refresh()

    async def follow(self) -> None:
        """Show what happens, until there is nothing more to come."""
        try:
            async for _ in self._onlooker.follow(self._conversation.events(recent_messages=RECENT_MESSAGES)):
                pass
        except BedrockError as error:
            self._complain(error)
        self.over.set()

    async def work(self) -> None:
        """Do what is entered, one after the other, for ever."""
        while True:
            await self._do(await self._entered.get())

    def enter(self, text: str) -> None:
        """Take a line that a person typed."""
        if text.strip():
            self._armed = False
            self._entered.put_nowait(text)

    def interrupt(self) -> bool:
        """Ctrl-C: the first one cancels, the second one leaves; True if it leaves."""
        if self._armed:
            self.over.set()
            return True
        self._armed = True
        if not self.view.busy:
            self._write(self._paint.dim("(Ctrl-C again to leave)"))
        return False

    async def cancel(self) -> None:
        """Stop what is under way, and drop what is queued."""
        await self._cancel(kill_jobs=False)

    async def _cancel(self, *, kill_jobs: bool) -> None:
        call = self._conversation.cancel(discard_queued=True, kill_jobs=kill_jobs, reason="chat")
        receipt = await self._attempt(call)
        if receipt is None:
            return
        if receipt.no_op:
            self._write(self._paint.dim("· there is nothing to cancel"))
        if receipt.ended_jobs:
            self._write(self._paint.dim(f"· background jobs ended: {', '.join(receipt.ended_jobs)}"))
        self._still_running(receipt.surviving_jobs, "in the background")

    async def _set_mode(self, mode: str) -> None:
        """The change itself is told by its event."""
        answer = await self._attempt(self._conversation.set_mode(mode))
        if answer is not None:
            self._still_running(answer.surviving_jobs, "with the rights that they were started with")

    def _still_running(self, jobs: Sequence[str], how: str) -> None:
        if jobs:
            self._write(self._paint.dim(f"· still running {how}: {', '.join(jobs)} (/kill ends them)"))

    def _changed(self) -> None:
        """Something has happened, here or in a sub-agent."""
        self._disconnected = False
        if self.view.busy and not self._was_busy:
            self._armed = False
        self._was_busy = self.view.busy
        self.refresh()

    async def _do(self, text: str) -> None:
        if text.startswith("/"):
            await self._command(text)
        elif (asked := self.question) is not None and (answer := self._answer(asked, text)) is not None:
            await self._attempt(answer)
        else:
            await self._send(text, "steer")  # at rest a steer starts a run, so no race with the end of one

    def _answer(self, asked: Approval, text: str) -> Awaitable[object] | None:
        """What a reply to a question means; None if it is no reply but a message."""
        text = text.strip()
        if _YES.fullmatch(text):
            return self._conversation.approve(asked)
        if _ALWAYS.fullmatch(text):
            return self._conversation.approve(asked, always=True)
        if found := _NO.fullmatch(text):
            return self._conversation.deny(asked, found["note"] or "")
        return None

    async def _send(self, text: str, delivery: str) -> None:
        try:
            await self._conversation.send(text, delivery=delivery, images=self._pictures)
            self._pictures = []
        except BedrockError as error:
            self._write(self._paint.bad(f"✗ not sent: “{one_line(text, 60)}” (↑ brings it back)"))
            self._complain(error)

    async def _command(self, text: str) -> None:
        name, _, argument = text[1:].partition(" ")
        argument = argument.strip()
        match name:
            case "help" | "?":
                self._write(HELP)
            case "quit" | "exit" | "q":
                self.over.set()
            case "image" if argument:
                await self._add_picture(argument)
            case "cancel":
                await self.cancel()
            case "kill":
                await self._cancel(kill_jobs=True)
            case "queue":
                await self._queue(argument)
            case "withdraw" if self.view.queue:
                await self._attempt(self._conversation.withdraw(self.view.queue[-1]))
            case "mode" if argument in ("restricted", "unrestricted"):
                await self._set_mode(argument)
            case "model" if argument:
                await self._attempt(self._conversation.update(model=argument))
            case "continue":
                await self._continue()
            case _:
                self._write(self._paint.careful(f"· cannot do “{one_line(text, 60)}”; /help says what can be done"))

    async def _queue(self, text: str) -> None:
        """Send it as a follow-up; without a text, show what waits."""
        if text:
            await self._send(text, "follow_up")
            return
        for line in await self._attempt(queue_lines(self._conversation)) or ():
            self._write(self._paint.dim(line))

    async def _add_picture(self, path: str) -> None:
        try:
            self._pictures.append(await asyncio.to_thread(image, Path(path).expanduser()))
        except (OSError, ValueError) as error:
            self._write(self._paint.bad(f"✗ {one_line(path, 60)}: {getattr(error, 'strerror', None) or error}"))
        else:
            count = len(self._pictures)
            what = "an image" if count == 1 else f"{count} images"
            self._write(self._paint.dim(f"· {what} to go with what you say next"))

    async def _continue(self) -> None:
        successor = await self._attempt(self._conversation.continue_())
        if successor is not None:
            slug = (await successor.get()).slug
            self._write(f"goes on in {slug}: leave, then `bedrock chat -r {slug}`")

    async def _attempt(self, call: Awaitable[T]) -> T | None:
        try:
            return await call
        except BedrockError as error:
            self._complain(error)
            return None

    def _complain(self, error: BedrockError) -> None:
        self._write(self._paint.bad(f"✗ {error.message}"))
        if error.hint:
            self._write(self._paint.dim(f"  {error.hint}"))
