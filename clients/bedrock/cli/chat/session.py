"""The session of a chat: follows the conversation's events, and carries out what the user enters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from bedrock import AsyncClient, Event, v1
from bedrock.catalog import Model
from bedrock.cli.display.follower import TRYING_AGAIN, ConversationView, Drawing, Outage
from bedrock.cli.display.labels import cancel_lines
from bedrock.cli.display.questions import Asked, QuestionForm, Reply, made_rule, no_reply, parse_reply, rule_line
from bedrock.cli.display.transcript import HOW_TO_SEE, Transcript
from bedrock.cli.exit_codes import what_happened, what_to_do
from bedrock.cli.text.output import Write, folding
from bedrock.cli.text.safe_text import SafeText
from bedrock.cli.text.style import Paint, Width, one_line
from bedrock.conversations import ConversationInfo
from bedrock.errors import BedrockError, ImageInvalid, ServerNotRunning
from bedrock.states import Approval
from bedrock.types import Delivery

# How many of the latest messages are shown when the chat enters a conversation.
RECENT_MESSAGES = 20


T = TypeVar("T")


class ChatSession:
    """The session of one user, in one conversation at a time. Use it only on one event loop."""

    def __init__(
        self,
        client: AsyncClient,
        name: str,
        paint: Paint,
        write: Write,
        run_command: Callable[[ChatSession, str], Awaitable[None]],
        *,
        width: Width | None = None,
        refresh: Callable[[], None] = lambda: None,
    ) -> None:
        """Set up the session.

        `run_command` runs a slash command; `width` returns the columns of a line (None: no limit). `refresh` is called
        when the prompt or the status line may have changed. The server is not called before `follow`.
        """
        self.write = write
        """Prints a line. The prompt replaces this function."""
        self.paint = paint
        self.say = folding(self._print, width)
        self.refresh = refresh
        self.outage = Outage(lambda: self.conversation, self._tell_outage)
        """Tracks whether the connection is lost. The client reconnects by itself."""
        self._width = width
        self._moved = asyncio.Event()
        self._server_ended = False
        """Whether the user was already told, during the current loss of the connection, that the server has ended."""
        self.clear_screen: Callable[[], None] = lambda: None
        """Clears the screen. The prompt sets this function."""
        self.over = asyncio.Event()
        self.images: list[v1.Image] = []
        self.model_names: list[str] = []
        """Names of models, for completion in commands; empty until they are known."""
        self._client = client
        self._run_command = run_command
        self._entered: asyncio.Queue[tuple[str, Asked | None]] = asyncio.Queue()
        self._filling: QuestionForm | None = None
        """The form of the tools' first open question, with the answers so far; None if no question is open."""
        self._armed = False
        self._was_busy = False
        self.move_to(name)

    @property
    def view(self) -> ConversationView:
        return self.drawing.view

    @property
    def transcript(self) -> Transcript:
        return self.drawing.transcript

    @property
    def question(self) -> Asked | None:
        """The question from the agent or a tool that the user is asked now; None if there is no open question."""
        return self.view.approvals[0] if self.view.approvals else self._form()

    @property
    def open_questions(self) -> int:
        """The number of open questions."""
        return len(self.view.approvals) + len(self.view.state.questions)

    def _form(self) -> QuestionForm | None:
        """The form of the tools' first open question, with the answers so far; None if no question is open."""
        asked = next(iter(self.view.state.questions), None)
        if asked is None:
            self._filling = None
        elif self._filling is None or self._filling.question.name != asked.name:
            self._filling = QuestionForm(asked)
        return self._filling

    def move_to(self, name: str) -> None:
        """Continue in another conversation; a running `follow` switches to it."""
        self.conversation = self._client.conversation(name)
        self.drawing = Drawing(self.paint, self._print, live=True, width=self._width, hint=HOW_TO_SEE)
        self._moved.set()
        self._filling = None
        self._compacting = False
        self._moving = False

    async def follow(self) -> None:
        """Show the events until the stream ends; then print its error, if any, and end the chat."""
        try:
            while self._moved.is_set():
                self._moved.clear()
                following = asyncio.create_task(self._show_events())
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
        except BedrockError as error:
            self.complain(error)
        self.over.set()

    def agent_lines(self) -> list[SafeText]:
        return self.drawing.agent_lines()

    def status(self) -> SafeText:
        return SafeText(TRYING_AGAIN) if self.outage.lasts else self.drawing.status()

    def disconnected(self, error: BedrockError, delay: float) -> None:
        """Record that the stream of events broke. If the server has ended, print how to continue the chat."""
        self._server_ended = self._server_ended and self.outage.lasts
        self.outage.begin(error, delay)
        if isinstance(error, ServerNotRunning) and not self._server_ended:
            self._server_ended = True
            self._tell_outage(f"the server has stopped; exit, then run bedrock chat -r {self.drawing.view.info.slug}")

    async def _show_events(self) -> None:
        events = self.conversation.events(recent_messages=RECENT_MESSAGES)
        async for event in self.drawing.follow(events, self._client.conversation):
            self._changed()
            self._observe(event)

    def _tell_outage(self, text: str) -> None:
        self.say(self.paint.careful(f"· {text}"))
        self.refresh()

    def _print(self, line: SafeText) -> None:
        self.write(line)

    @property
    def _goes_on(self) -> bool:
        """Whether the chat continues in the successor conversation once the summary is written."""
        return self._compacting or self.view.info.auto_continue

    def _observe(self, event: Event) -> None:
        """Continue in the successor conversation when the context is used up, if the chat goes on there."""
        if event.kind != "state_changed":
            return
        if self.view.state.kind == "context_exhausted":
            if self._goes_on and not self._moving:
                self._moving = True
                self.enter("/continue")
        elif not self.view.busy:
            self._compacting = False
        self.transcript.goes_on = self._goes_on

    async def go_on(self) -> None:
        """Continue in the successor of a conversation whose context is used up."""
        successor = await self.attempt(self.conversation.continue_())
        now = None if successor is None else await self.attempt(successor.get())
        self._moving = False
        if now is not None:
            self.say(self.paint.good(f"· this chat continues in {now.slug}"))
            self.move_to(now.name)

    async def work(self) -> None:
        """Process entered lines one at a time, until cancelled."""
        while True:
            await self._do(*await self._entered.get())

    async def learn_models(self) -> None:
        """Read the names of the models from the server, for completion in commands; keep none if that fails."""
        try:
            self.model_names = [model.name.removeprefix("models/") for model in await self._client.models()]
        except BedrockError:
            self.model_names = []

    def enter(self, text: str, asked: Asked | None = None) -> None:
        """Handle an entered line. `asked` is the question that the user saw; by now, another one may be open."""
        if not _is_utf8(text):
            self._tell_unsent(text)
            self.say(self.paint.dim("  It is not valid UTF-8: set your terminal to UTF-8."))
        elif text.strip() or isinstance(asked, QuestionForm):
            self._armed = False
            self._entered.put_nowait((text, asked))

    async def compact(self) -> None:
        """Request a summary, and continue in the successor conversation when the summary is complete."""
        self._compacting = self.transcript.goes_on = True
        if await self.attempt(self.conversation.trigger_continuation()) is None:
            self._compacting = self.transcript.goes_on = False

    async def create_alike(self) -> ConversationInfo:
        """Create a conversation with the directory, model, mode and other settings of this one."""
        now = await self.conversation.get()
        made = await self._client.create(
            now.working_directory, model=now.model.removeprefix("models/") or None, mode=now.mode,
            approval_policy=now.approval_policy or None, instructions=now.instructions,
            tools=None if now.tools is None else now.tools.tools, generation=now.generation,
            mcp_servers=now.mcp_servers, auto_continue=now.auto_continue,
        )  # fmt: skip
        return await made.get()

    def show_output(self, number: int = 1) -> None:
        lines = self.transcript.output(number)
        none = "· no tool output yet" if number == 1 else "· no tool output that far back"
        for line in lines or [self.paint.dim(none)]:
            self.say(line)

    def interrupt(self) -> bool:
        """Handle Ctrl-C. The second one in a row ends the chat and returns True; the first one returns False."""
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
        self.view.jobs.difference_update(receipt.ended_jobs)
        if receipt.ended_jobs:
            self.say(self.paint.dim(f"· background jobs ended: {', '.join(receipt.ended_jobs)}"))
        for line in cancel_lines(receipt, "/kill", jobs=kill_jobs):
            self.say(self.paint.dim(f"· {line}"))

    async def send(self, text: str, delivery: Delivery) -> None:
        """Send a message with the attached images. If these are refused, they are no longer attached."""
        try:
            await self.conversation.send(text, delivery=delivery, images=self.images)
        except BedrockError as error:
            self._tell_unsent(text)
            self.complain(error)
            if not isinstance(error, ImageInvalid):
                return
            self.say(self.paint.dim("· no images are attached"))
        self.images = []

    def _tell_unsent(self, text: str) -> None:
        self.say(self.paint.bad(f"✗ not sent: “{one_line(text, 60)}” (↑ brings it back)"))

    async def models(self) -> Sequence[Model]:
        return await self._client.models()

    async def model(self) -> Model | None:
        """The model of the conversation; None if the server does not list it, or does not answer."""
        with suppress(BedrockError):
            return await self._client.model((await self.conversation.get()).model)
        return None

    async def attempt(self, call: Awaitable[T]) -> T | None:
        """The result of a call to the server. If the call fails, print why and return None."""
        try:
            return await call
        except BedrockError as error:
            self.complain(error)
            return None

    def complain(self, error: BedrockError) -> None:
        self.say(self.paint.bad(f"✗ {what_happened(error)}"))
        if hint := what_to_do(error, in_chat=True):
            self.say(self.paint.dim(f"  {hint}"))

    def _changed(self) -> None:
        """Handle an event. At the start of a run, forget an earlier Ctrl-C: exiting takes two presses."""
        if self.view.busy and not self._was_busy:
            self._armed = False
        self._was_busy = self.view.busy
        self.outage.end()  # the event shows that the connection is back
        self.refresh()

    async def _do(self, text: str, asked: Asked | None) -> None:
        message, reply = message_of(text), parse_reply(text, asked)
        if message is None:
            await self._run_command(self, text)
        elif isinstance(asked, QuestionForm):
            await self._fill_in(asked, message)
        elif asked is not None and reply:
            await self._answer(asked, reply, text)
        elif asked is not None:
            self.say(self.paint.careful(f"· {no_reply(asked)}"))
        else:
            await self.send(message, "steer")  # a steer also works if the run has just ended: it starts a new one

    async def _answer(self, asked: Approval, reply: Reply, text: str) -> None:
        """Send the user's reply to the approval request that was shown, unless the request is no longer open."""
        if asked not in self.view.approvals:
            late = one_line(text.strip(), 20)
            self.say(self.paint.careful(f"· “{late}” came too late: the question is closed"))
        elif reply.approve:
            self._tell_rule(reply, await self.attempt(self.conversation.approve(asked, rule=reply.rule)))
        elif not reply.workspace or await self.attempt(self.conversation.set_mode("workspace")) is not None:
            self._tell_rule(reply, await self.attempt(self.conversation.deny(asked, reply.note, rule=reply.rule)))

    def _tell_rule(self, reply: Reply, now: ConversationInfo | None) -> None:
        made = made_rule(now.approval_rules, reply.rule) if now and reply.rule else None
        if made is not None:
            self.say(self.paint.dim("· " + rule_line(made, "/approvals {}")))

    async def decline(self) -> None:
        """Refuse to answer the tools' first open question; if no question is open, say so."""
        if (form := self._form()) is None:
            self.say(self.paint.dim("· no question is open"))
        else:
            await self.attempt(self.conversation.decline_question(form.question))
            self.refresh()

    async def _fill_in(self, form: QuestionForm, text: str) -> None:
        """Fill in the next field of the form that the user saw. Send the form when all fields are filled in."""
        if form is not self._form():
            late = f"“{one_line(text.strip(), 20)}” " if text.strip() else "that "
            self.say(self.paint.careful(f"· {late}came too late: the question is closed"))
            return
        if problem := form.enter(text):
            self.say(self.paint.careful(f"· {problem}"))
        elif (
            form.complete
            and await self.attempt(self.conversation.answer_question(form.question, form.content or None)) is None
        ):
            form.begin_again()
        self.refresh()


def _is_utf8(text: str) -> bool:
    """Whether the terminal sent valid UTF-8; invalid bytes appear as lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def message_of(text: str) -> str | None:
    """The message in typed text; None for a command.

    Text that begins with a path is a message. So is text that begins with //, without its first slash. Spaces before a
    slash are ignored, except in multi-line text, which may be indented code.
    """
    begin = text if "\n" in text.strip() else text.lstrip()
    if not begin.startswith("/"):
        return text
    if begin.startswith("//"):
        return begin[1:]
    return text if "/" in begin.split(maxsplit=1)[0][1:] else None
