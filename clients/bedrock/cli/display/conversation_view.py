"""The current state of a conversation, computed from its events, and the status line that shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime

from bedrock import Event, SubAgentStatus, v1
from bedrock.cli.display.labels import counted, state_in_words
from bedrock.cli.text.safe_text import SafeText, for_terminal
from bedrock.cli.text.style import Paint, cells, cut, one_line
from bedrock.conversations import ConversationInfo
from bedrock.messages import Message
from bedrock.states import Approval, AwaitingSubAgentsDetail, ConversationState, LlmRequestingDetail


@dataclass(slots=True)
class ConversationView:
    """The latest known state of one conversation. `observe` must be called with every event, in order."""

    info: ConversationInfo = field(default_factory=lambda: ConversationInfo.from_proto(v1.Conversation()))
    """The conversation when it was last sent; its state may be older than `state`."""
    state: ConversationState = field(default_factory=lambda: ConversationState.from_proto(v1.ConversationState()))
    approvals: list[Approval] = field(default_factory=list)
    queue: list[Message] = field(default_factory=list)
    jobs: set[str] = field(default_factory=set)
    """The handles of the running background jobs."""
    deleted: bool = False
    _since: float = 0.0
    _tool: str = ""

    @property
    def busy(self) -> bool:
        return self.state.busy

    def observe(self, event: Event, now: float) -> None:
        """Apply an event; `now` is monotonic, to time the current tool."""
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
            case "deleted":
                self.deleted = True
            case _:
                pass

    def status(self, now: float, wall: datetime, width: int | None = None, *, keys: str = "") -> SafeText:
        """The status line: state, queue, jobs, context, mode, model.

        `now` is that of `observe`, `wall` counts down to the next attempt. Beyond `width` the last parts are omitted.
        `keys` is shown during a run.
        """
        parts = [self.activity(now, wall)]
        if self.queue:
            parts.append(f"{len(self.queue)} waiting")
        if self.jobs:
            parts.append(counted(len(self.jobs), "background job"))
        usage, model = self.info.context_usage, self.info.model.removeprefix("models/")
        if usage.usable_window_tokens:
            parts.append(f"context {100 * usage.used_tokens / usage.usable_window_tokens:.0f} %")
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
            waiting = " waits for an answer" if tools.questions else " waits for a client" if tools.deadline else ""
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
        """Add an open approval, or replace the one of the same name in its place; remove it if `asked` is None."""
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


# The minimum width, in columns, of a sub-agent's task, even if the terminal is too narrow for it.
LEAST_TASK = 12


@dataclass(slots=True)
class AgentView:
    """The latest known state of one sub-agent."""

    status: SubAgentStatus
    began: datetime | None
    """When it was announced; None if that was before this program looked."""
    ended: datetime | None = None
    end_printed: bool = False

    def figures(self, until: datetime) -> list[str]:
        """Return for how long the sub-agent has worked, as texts; [] if that is unknown."""
        return [f"{max(0.0, (until - self.began).total_seconds()):.0f} s"] if self.began else []


class AgentTree:
    """The tree of a conversation's sub-agents, computed from the events of the conversation."""

    def __init__(self) -> None:
        self.waiting = False
        self._agents: dict[int, AgentView] = {}

    def observe(self, event: Event) -> None:
        if event.state is not None and event.kind != "conversation_updated":
            waiting = self._waits(event, event.state)
            if waiting and not self.waiting:
                self._agents.clear()
            self.waiting = waiting
        began = None if event.kind == "snapshot" else event.time
        for status in event.sub_agents:
            agent = self._agents.setdefault(status.index, AgentView(replace(status, outcome=""), began))
            if status.outcome and not agent.status.outcome:
                agent.status, agent.ended = status, event.time

    def _waits(self, event: Event, state: ConversationState) -> bool:
        if state.kind == "cancelling":
            return self.waiting or bool(event.sub_agents)
        return state.kind == "awaiting_sub_agents"

    def endings(self, paint: Paint) -> Iterator[SafeText]:
        """Yield a line for each ended sub-agent whose end was not printed yet, and mark the end as printed."""
        for agent in self._in_order():
            if agent.status.outcome and not agent.end_printed:
                agent.end_printed = True
                yield _ending(agent, paint)

    def lines(self, paint: Paint, wall: datetime, width: int) -> list[SafeText]:
        """A line of at most `width` columns for each sub-agent; [] unless the parent waits for sub-agents."""
        if not self.waiting:
            return []
        agents = list(self._in_order())
        return [
            _painter(agent.status.outcome, paint)(_line(agent, "└" if agent is agents[-1] else "├", wall, width))
            for agent in agents
        ]

    def _in_order(self) -> Iterator[AgentView]:
        return (self._agents[index] for index in sorted(self._agents))


def _line(agent: AgentView, branch: str, wall: datetime, width: int) -> str:
    outcome = {"": "at work", "completed": "done"}.get(agent.status.outcome, "failed")
    details = " · ".join([outcome, *agent.figures(agent.ended or wall)])
    mark = _mark(agent.status.outcome)
    room = max(LEAST_TASK, width - cells(f"{branch} {mark}  · {details}"))
    return cut(f"{branch} {mark} {one_line(agent.status.task, room)} · {details}", width)


def _ending(agent: AgentView, paint: Paint) -> SafeText:
    status, figures = agent.status, agent.figures(agent.ended) if agent.ended else []
    why = "" if status.outcome == "completed" else f": {one_line(status.error_message, 120)}"
    about = " · ".join([one_line(status.task, 50), *figures])
    return _painter(status.outcome, paint)(f"  {_mark(status.outcome)} {about}{why}")


def _mark(outcome: str) -> str:
    return {"": "◦", "completed": "✓"}.get(outcome, "✗")


def _painter(outcome: str, paint: Paint) -> Callable[[str], SafeText]:
    return {"": paint.dim, "completed": paint.good}.get(outcome, paint.bad)
