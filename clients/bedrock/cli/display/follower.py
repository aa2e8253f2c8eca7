"""Draws a conversation from its events, for all commands that show one, and reports a lost connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime

from bedrock import AsyncConversation, Event, v1
from bedrock.cli.display.labels import counted, state_in_words
from bedrock.cli.display.transcript import Fate, Transcript, fates_among
from bedrock.cli.text.output import Write
from bedrock.cli.text.safe_text import SafeText, for_terminal
from bedrock.cli.text.style import Paint, Width, cells, one_line
from bedrock.conversations import ConversationInfo
from bedrock.errors import BedrockError, ServerNotRunning, ServerUnreachable
from bedrock.messages import Message
from bedrock.states import Approval, AwaitingSubAgentsDetail, ConversationState, LlmRequestingDetail


@dataclass(slots=True)
class ConversationView:
    """The latest known state of one conversation. `observe` must be called with every event, in order."""

    info: ConversationInfo = field(default_factory=lambda: ConversationInfo.from_proto(v1.Conversation()))
    """The conversation as the server last sent it; its state may be older than the attribute `state`."""
    state: ConversationState = field(default_factory=lambda: ConversationState.from_proto(v1.ConversationState()))
    approvals: list[Approval] = field(default_factory=list)
    queue: list[Message] = field(default_factory=list)
    jobs: set[str] = field(default_factory=set)
    """The handles of the running background jobs."""
    _since: float = 0.0
    _tool: str = ""

    @property
    def busy(self) -> bool:
        return self.state.busy

    def observe(self, event: Event, now: float) -> None:
        """Apply an event; `now` is a monotonic time, for timing the current tool."""
        if event.conversation is not None:
            self.info = event.conversation
        if event.state is not None:
            self._state(event.state, now)
        match event.kind:
            case "snapshot" if event.snapshot:
                self.queue = [entry.message for entry in event.snapshot.queue]
                self.jobs = set(event.snapshot.conversation.background_jobs)
            case "background_job_changed" if event.background_job_changed:
                job = event.background_job_changed
                (self.jobs.add if job.status == "running" else self.jobs.discard)(job.handle)
            case "approval_changed" if event.approval_changed:
                self._question(event.approval_changed.approval.name, event.approval)
            case "queue_changed" if event.message is not None:
                self.queue = [message for message in self.queue if message.name != event.message.name]
                if event.fate == "queued":
                    self.queue.append(event.message)
            case _:
                pass

    def status(self, now: float, wall: datetime, width: int | None = None, *, keys: str = "") -> SafeText:
        """The status line: state, queue, jobs, context, mode, model.

        `now` is as for `observe`; `wall` is the time of day, for counting down to the next attempt. The last parts are
        omitted if the line would exceed `width`. `keys` is shown during a run.
        """
        parts = [self.activity(now, wall)]
        if self.queue:
            parts.append(f"{len(self.queue)} waiting")
        if self.jobs:
            parts.append(counted(len(self.jobs), "background job"))
        usage, model = self.info.context_usage, self.info.model.removeprefix("models/")
        if usage.usable_window_tokens:
            parts.append(f"context {100 * usage.used_tokens / usage.usable_window_tokens:.0f}%")
        parts += [for_terminal(part) for part in (self.info.mode, model, keys if self.busy else "") if part]
        while width is not None and len(parts) > 1 and cells(" · ".join(parts)) > width:
            parts.pop()
        line = " · ".join(parts)
        return one_line(line, width) if width is not None else for_terminal(line)

    def activity(self, now: float, wall: datetime) -> str:
        state = self.state
        if state.llm_requesting:
            return self._requesting(state.llm_requesting, wall)
        if tools := state.tool_executing:
            count = tools.completed_count + 1 + tools.remaining_count
            seconds = max(0.0, now - self._since)
            waiting = " waiting for an answer" if tools.questions else " waiting for a client" if tools.deadline else ""
            return f"{tools.current.tool} {tools.completed_count + 1}/{count}{waiting} {seconds:.0f} s"
        if state.awaiting_sub_agents:
            return _agents(state.awaiting_sub_agents)
        return state_in_words(state.kind) or "…"

    def _requesting(self, request: LlmRequestingDetail, wall: datetime) -> str:
        attempt = f" attempt {request.attempt}/{request.max_attempts}" if request.attempt > 1 else ""
        match request.phase:
            case "streaming":
                return f"answering{attempt}"
            case "backoff" if request.retry_time:
                return f"next{attempt} in {max(0.0, (request.retry_time - wall).total_seconds()):.0f} s"
            case _:
                return f"{state_in_words(self.state.kind)}{attempt}"

    def _question(self, name: str, asked: Approval | None) -> None:
        """Add an open approval, or replace in place the one with the same name; remove it if `asked` is None."""
        found = {approval.name: approval for approval in self.approvals}
        if asked is None:
            found.pop(name, None)
        else:
            found[name] = asked
        self.approvals = list(found.values())

    def _state(self, state: ConversationState, now: float) -> None:
        self.state = state
        running = state.tool_executing.current.tool_use_id if state.tool_executing else ""
        if running != self._tool:
            self._tool, self._since = running, now
        self.approvals = list(state.approvals)


def _agents(waiting: AwaitingSubAgentsDetail) -> str:
    done = f", {waiting.completed_count} done" if waiting.completed_count else ""
    return counted(waiting.completed_count + len(waiting.pending), "sub-agent") + done


TRYING_AGAIN = "connection lost, trying again…"
CONNECTED_AGAIN = "connected again"
# Seconds between checks of whether the connection is back.
RETRY_SECONDS = 1.0


def _cause(error: BedrockError) -> str:
    """Why a connection was lost, without the addresses and system calls that matter only when connecting."""
    if isinstance(error, ServerNotRunning) and not isinstance(error, ServerUnreachable):
        return "the server is not running"
    return one_line(error.message, 100) if error.reason else "the server does not answer"


class Outage:
    """Reports that a stream broke and, even without an event, that the connection is back. Use on one event loop."""

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
            self._say(f"{TRYING_AGAIN} ({_cause(error)})")

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
    """The display of one conversation: the printed events, and the changing lines below them."""

    def __init__(
        self, paint: Paint, write: Write, *, live: bool = False, width: Width | None = None, hint: str = ""
    ) -> None:
        """With `live`, show text as it streams in, and sub-agents as a tree.

        `width` returns the columns (None: no limit). `hint` tells how to see the omitted part of a long output.
        """
        self.view = ConversationView()
        self.transcript = Transcript(paint, write, live=live, width=width, hint=hint)
        self._paint = paint
        self._width: Width = width or (lambda: 100)
        self._asked: set[str] = set()

    def show(self, event: Event, fates: Sequence[Fate] = ()) -> None:
        """Print an event, and the open approvals and questions, even if they were asked before the stream began."""
        self.view.observe(event, time.monotonic())
        self.transcript.show(event, fates)
        for approval in self.view.approvals:
            if self._is_new(approval.name):
                self.transcript.ask(approval, self.view.info.working_directory)
        for question in self.view.state.questions:
            if self._is_new(question.name):
                self.transcript.ask_person(question)

    def show_progress(self, event: Event) -> None:
        """Print an event of a run, except for what the command prints itself: prompt, answer, error, open requests."""
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
