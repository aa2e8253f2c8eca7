"""A chat session without its presentation: handles input, calls the server, and tracks the conversation."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, TypeVar

from bedrock.cli.chat.slash_commands import message_of, run_command
from bedrock.cli.display.approval_prompt import Asked, Offer
from bedrock.cli.display.connection_state import TRYING_AGAIN, Outage
from bedrock.cli.display.follower import Onlooker
from bedrock.cli.display.labels import AGAIN_SPAWNED, UNRECORDED
from bedrock.cli.display.tool_output import HOW_TO_SEE
from bedrock.cli.error_hints import what_happened, what_to_do
from bedrock.cli.text.line_wrap import folding
from bedrock.cli.text.safe_text import SafeText
from bedrock.cli.text.style import Paint, Width, one_line
from bedrock.errors import BedrockError, ServerNotRunning
from bedrock.states import Approval

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from bedrock import AsyncClient, AsyncConversation, v1
    from bedrock.cli.display.conversation_view import ConversationView
    from bedrock.cli.display.transcript import Transcript
    from bedrock.cli.text.output import Write
    from bedrock.conversations import ConversationInfo
    from bedrock.types import Delivery, StateKind

T = TypeVar("T")

#: How many messages are shown of a resumed conversation.
RECENT_MESSAGES = 20

_YES = re.compile(r"y(es)?", re.IGNORECASE)
_ALWAYS = re.compile(r"a(lways)?", re.IGNORECASE)
_NO = re.compile(r"no?(?:[,:.]?\s+(?P<note>.*))?", re.IGNORECASE | re.DOTALL)


class ChatSession:
    """A user in one conversation at a time. Bound to one event loop."""

    def __init__(
        self,
        client: AsyncClient,
        name: str,
        paint: Paint,
        write: Write,
        *,
        width: Width | None = None,
        refresh: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare; nothing is called yet.

        Args:
            client: The client; its connection is used.
            name: The conversation.
            paint: How to colour lines.
            write: Prints a line.
            width: Where to break lines as they stream in.
            refresh: Called when the prompt or the status line may have changed.
        """
        self.clear_screen: Callable[[], None] = lambda: None
        """Clears the screen; set by the prompt."""
        self.write = write
        """Prints a line; replaced by the prompt."""
        self.over = asyncio.Event()
        """Set when the chat ends: the user exits, or the conversation was deleted."""
        self.paint = paint
        self.say = folding(self._print, width)
        self.refresh = refresh
        self.images: list[v1.Image] = []
        """Images to be sent with the next message."""
        self.models: list[str] = []
        """Conversations that can be resumed, as far as known."""
        self._client = client
        self._width = width
        self._entered: asyncio.Queue[tuple[str, Asked | None]] = asyncio.Queue()
        self._moved = asyncio.Event()
        self._recount = asyncio.Event()
        self.outage = Outage(lambda: self.conversation, self._tell_outage)
        """Tracks a lost connection, which is re-established automatically."""
        self._server_ended = False
        """Whether the hint was printed for the present outage."""
        self._armed = False
        self._was_busy = False
        self.move_to(name)

    @property
    def view(self) -> ConversationView:
        """The known state of the conversation."""
        return self._onlooker.view

    @property
    def transcript(self) -> Transcript:
        """The printed transcript, and the text that is streaming in."""
        return self._onlooker.transcript

    @property
    def question(self) -> Asked | None:
        """The current question."""
        return self._offer or (self.view.approvals[0] if self.view.approvals else None)

    @property
    def open_questions(self) -> int:
        """The number of open questions."""
        return len(self.view.approvals) + (self._offer is not None)

    def agent_lines(self) -> list[SafeText]:
        """Return the tree of sub-agents; empty unless the run waits for them."""
        return self._onlooker.agent_lines()

    def status(self) -> SafeText:
        """Return the status line."""
        if self.outage.lasts:
            return SafeText(TRYING_AGAIN)
        return self._onlooker.status()

    def disconnected(self, error: BedrockError, delay: float) -> None:
        """Record that the event stream was cut, and print how to continue if its server has ended."""
        self._server_ended = self._server_ended and self.outage.lasts
        self.outage.begin(error, delay)
        if isinstance(error, ServerNotRunning) and not self._server_ended:
            self._server_ended = True
            back = AGAIN_SPAWNED.replace("{}", self.view.slug)
            self._tell_outage(
                f"the server has ended, perhaps with the chat that started it. To go on: Ctrl-D, then {back}"
            )

    def move_to(self, name: str) -> None:
        """Continue in another conversation."""
        self.conversation: AsyncConversation = self._client.conversation(name)
        self._onlooker = Onlooker(
            self._client.conversation,
            self.paint,
            self._print,
            width=self._width,
            refresh=self._changed,
            hint=HOW_TO_SEE,
        )
        self._offer: Offer | None = None
        self._compacting = False
        self._moved.set()

    async def follow(self) -> None:
        """Show events until the stream ends."""
        while self._moved.is_set():
            self._moved.clear()
            following = asyncio.create_task(self._show_events())
            moved = asyncio.create_task(self._moved.wait())
            counting = asyncio.create_task(self._count_jobs())
            try:
                await asyncio.wait((following, moved), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (following, moved, counting):
                    task.cancel()
                await asyncio.gather(following, moved, counting, return_exceptions=True)
                self.outage.close()
        self.over.set()

    async def _show_events(self) -> None:
        try:
            async for event in self._onlooker.follow(self.conversation.events(recent_messages=RECENT_MESSAGES)):
                if event.kind == "run_stopped":
                    self.recount_jobs()
                if event.kind == "state_changed" and self._compacting:
                    self._follow_summary(self.view.state.kind)
        except BedrockError as error:
            self.complain(error)

    def _follow_summary(self, kind: StateKind | Literal[""]) -> None:
        """Continue in the successor once the summary is complete; stay if it was cancelled."""
        if kind == "context_exhausted":
            self.enter("/continue")
        if kind != "awaiting_continuation":
            self._compacting = False
            self.transcript.goes_on = kind == "context_exhausted"

    async def _count_jobs(self) -> None:
        """Read the number of background jobs after each run, and on request: no event reports it."""
        while await self._recount.wait():
            self._recount.clear()
            with suppress(BedrockError):
                self.view.jobs = len((await self.conversation.get()).background_jobs)
                self.refresh()

    async def work(self) -> None:
        """Process entered lines one after the other, until cancelled."""
        while True:
            await self._do(*await self._entered.get())

    async def learn_models(self) -> None:
        """Query the models for completion of their names; without an answer there is no completion."""
        try:
            self.models = [model.name.removeprefix("models/") for model in await self._client.models()]
        except BedrockError:
            self.models = []

    def enter(self, text: str, asked: Asked | None = None) -> None:
        """Handle a line that the user entered.

        Args:
            text: The message, command or reply.
            asked: The question that the person saw when typing; another one may be open when the reply is processed.
        """
        if text.strip():
            self._armed = False
            self._entered.put_nowait((text, asked))

    def offer(self, offer: Offer) -> None:
        """Ask the user a question of the client itself; it comes before the agent's approval requests."""
        self._offer = offer
        self.say(self.paint.careful(f"? {offer.text}"))
        self.refresh()

    async def compact(self) -> None:
        """Request a summary of the conversation, and continue in its successor when it is complete."""
        self._compacting = self.transcript.goes_on = True
        if await self.attempt(self.conversation.trigger_continuation()) is None:
            self._compacting = self.transcript.goes_on = False

    async def create_alike(self) -> ConversationInfo:
        """Create a conversation with the settings of this one, but with the server's default mode."""
        now = await self.conversation.get()
        model = now.model.removeprefix("models/") or None
        policy = now.approval_policy or None
        made = await self._client.create(now.working_directory, model=model, approval_policy=policy)
        return await made.get()

    def show_output(self, number: int = 1) -> None:
        """Print the whole output of the latest tool call (1), or an earlier one (2, …)."""
        lines = self.transcript.output(number)
        for line in lines or [self.paint.dim("· no tool has printed anything here yet")]:
            self.say(line)

    def recount_jobs(self) -> None:
        """Request an update of the number of background jobs."""
        self._recount.set()

    def interrupt(self) -> bool:
        """Handle Ctrl-C: the first one cancels, the second one exits; return whether to exit."""
        if self._armed:
            self.over.set()
            return True
        self._armed = True
        if not self.view.busy:
            self.say(self.paint.dim("(Ctrl-C again to exit)"))
        return False

    async def cancel(self, *, kill_jobs: bool = False) -> None:
        """Cancel the run and discard the queue; with `kill_jobs`, end background jobs too."""
        call = self.conversation.cancel(discard_queued=True, kill_jobs=kill_jobs, reason="chat")
        receipt = await self.attempt(call)
        if receipt is None:
            return
        if receipt.no_op:
            self.say(self.paint.dim("· there is nothing to cancel"))
        if receipt.unrecorded:
            self.say(self.paint.careful(f"· {UNRECORDED}"))
        self.view.jobs = len(receipt.surviving_jobs)
        if receipt.ended_jobs:
            self.say(self.paint.dim(f"· background jobs ended: {', '.join(receipt.ended_jobs)}"))
        self.still_running(receipt.surviving_jobs, "in the background")

    def still_running(self, jobs: Sequence[str], how: str) -> None:
        """Print which background jobs continue, if any."""
        if jobs:
            self.say(self.paint.dim(f"· still running {how}: {', '.join(jobs)} (/kill ends them)"))

    async def send(self, text: str, delivery: Delivery) -> None:
        """Send a message with the attached images."""
        try:
            await self.conversation.send(text, delivery=delivery, images=self.images)
            self.images = []
        except BedrockError as error:
            self.say(self.paint.bad(f"✗ not sent: “{one_line(text, 60)}” (↑ brings it back)"))
            self.complain(error)

    async def attempt(self, call: Awaitable[T]) -> T | None:
        """Return the result of a call; print why it was refused, and return None."""
        try:
            return await call
        except BedrockError as error:
            self.complain(error)
            return None

    def complain(self, error: BedrockError) -> None:
        """Print an error, and what to do."""
        self.say(self.paint.bad(f"✗ {what_happened(error)}"))
        if hint := what_to_do(error, in_chat=True):
            self.say(self.paint.dim(f"  {hint}"))

    def _changed(self) -> None:
        """Update the chat after an event of the conversation or of a sub-agent."""
        self.outage.end()
        if self.view.busy and not self._was_busy:
            self._armed = False
        self._was_busy = self.view.busy
        self.refresh()

    def _tell_outage(self, text: str) -> None:
        self.say(self.paint.careful(f"· {text}"))
        self.refresh()

    def _print(self, line: SafeText) -> None:
        self.write(line)

    async def _do(self, text: str, asked: Asked | None) -> None:
        message = message_of(text)
        if message is None:
            await run_command(self, text)
        elif isinstance(asked, Offer) and is_answer(text) and not _ALWAYS.fullmatch(text.strip()):
            await self._answer_offer(asked, text.strip())
        elif isinstance(asked, Approval) and is_answer(text):
            await self._answer(asked, text.strip())
        else:
            await self.send(message, "steer")  # a steer starts a run if idle, so there is no race with the end of one
            if asked is not None and (asked is self._offer or asked in self.view.approvals):
                self.say(self.paint.careful("· that was a message; the question is still open: y or n"))

    async def _answer(self, asked: Approval, text: str) -> None:
        """Answer the question that the user saw."""
        if asked not in self.view.approvals:
            self.say(self.paint.careful(f"· “{one_line(text, 20)}” comes too late: the question is not open any more"))
        elif found := _NO.fullmatch(text):
            await self.attempt(self.conversation.deny(asked, found["note"] or ""))
        else:
            await self.attempt(self.conversation.approve(asked, always=_ALWAYS.fullmatch(text) is not None))

    async def _answer_offer(self, asked: Offer, text: str) -> None:
        """Perform the offered action if the answer is yes."""
        if asked is self._offer:
            self._offer = None
            self.refresh()
            if not _NO.fullmatch(text):
                await asked.accept()


def is_answer(text: str) -> bool:
    """Return whether a text is a reply to a question, and not a message."""
    return any(pattern.fullmatch(text.strip()) for pattern in (_YES, _ALWAYS, _NO))
