"""The current state of a conversation, computed from its events, and the status line that shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from bedrock import Event, SubAgentStatus, v1
from bedrock.cli.display.labels import counted, state_in_words
from bedrock.cli.text.output import lasted
from bedrock.cli.text.safe_text import SafeText, for_terminal
from bedrock.cli.text.style import Paint, cells, cut, one_line
from bedrock.conversations import ConversationInfo
from bedrock.messages import Message
from bedrock.states import Approval, AwaitingSubAgentsDetail, ConversationState, LlmRequestingDetail

_WORDS = {
    "": "…",
    "idle": "idle",
    "llm_requesting": "thinking",
    "awaiting_tool_approval": "waits for you",
    "awaiting_continuation": "summarizing",
}


@dataclass(slots=True)
class ConversationView:
    """The latest known state of one conversation. `observe` must be called with every event, in order."""

    slug: str = ""
    working_directory: str = ""
    model: str = ""
    mode: str = ""
    used: int = 0
    """Tokens in the context at present."""
    window: int = 0
    """Maximum tokens of the context; zero if unknown."""
    tokens: int = 0
    """The tokens, input and output, of all requests to the model so far."""
    auto_continue: bool = False
    """Whether the server creates the successor as soon as the context is used up."""
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
        """Whether there is a run that can be cancelled."""
        return self.state.busy

    def observe(self, event: Event, now: float) -> None:
        """Apply an event.

        Args:
            event: The event.
            now: Monotonic seconds, to measure how long the current tool has been running.
        """
        if event.conversation is not None:
            self.know(event.conversation)
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
        """Return the status line: state, queue, background jobs, context, mode, model.

        Args:
            now: The time, by the same clock as in `observe`.
            wall: Wall-clock time, to count down to the next attempt of a model request.
            width: Maximum columns; the last parts are omitted first.
            keys: Text about keys, which is shown during a run.
        """
        parts = [self.activity(now, wall)]
        if self.queue:
            parts.append(f"{len(self.queue)} waiting")
        if self.jobs:
            parts.append(counted(len(self.jobs), "background job"))
        if self.window:
            parts.append(f"context {100 * self.used / self.window:.0f} %")
        parts += [for_terminal(part) for part in (self.mode, self.model, keys if self.busy else "") if part]
        while width is not None and len(parts) > 1 and cells(" · ".join(parts)) > width:
            parts.pop()
        line = " · ".join(parts)
        return one_line(line, width) if width is not None else for_terminal(line)

    def activity(self, now: float, wall: datetime) -> str:
        """Return the current activity in a few words; the arguments are those of `status`."""
        state = self.state
        if state.llm_requesting:
            return self._requesting(state.llm_requesting, _WORDS.get(state.kind, "thinking"), wall)
        if tools := state.tool_executing:
            count = tools.completed_count + 1 + tools.remaining_count
            seconds = max(0.0, now - self._since)
            waiting = " waits for you" if tools.questions else " waits for a client" if tools.deadline else ""
            return f"{tools.current.tool} {tools.completed_count + 1}/{count}{waiting} {seconds:.0f} s"
        if state.awaiting_sub_agents:
            return _agents(state.awaiting_sub_agents)
        return _WORDS.get(state.kind) or state_in_words(state.kind)

    def _requesting(self, request: LlmRequestingDetail, word: str, wall: datetime) -> str:
        attempt = f" attempt {request.attempt}/{request.max_attempts}" if request.attempt > 1 else ""
        match request.phase:
            case "streaming":
                return f"answering{attempt}"
            case "backoff" if request.retry_time:
                seconds = max(0.0, (request.retry_time - wall).total_seconds())
                return f"next{attempt} in {seconds:.0f} s"
            case _:
                return f"{word}{attempt}"

    def know(self, conversation: ConversationInfo) -> None:
        """Copy the current fields of a conversation, except its state, into this view."""
        self.slug = conversation.slug
        self.working_directory = conversation.working_directory
        self.model = conversation.model.removeprefix("models/")
        self.mode = conversation.mode
        self.auto_continue = conversation.auto_continue
        self.used = conversation.context_usage.used_tokens
        self.window = conversation.context_usage.usable_window_tokens
        self.tokens = conversation.total_usage.total_tokens

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


#: The minimum width, in columns, of a sub-agent's task, even if the terminal is too narrow for it.
LEAST_TASK = 12


@dataclass(slots=True)
class AgentView:
    """The latest known state of one sub-agent."""

    status: SubAgentStatus
    view: ConversationView = field(default_factory=ConversationView)
    began: datetime | None = None
    ended: datetime | None = None
    followed: bool = False
    """Whether the program receives the events of the sub-agent's own conversation, too. If so, it waits for them before
    it prints the end of the sub-agent, because they have more details than the parent's events."""
    seen_to_the_end: bool = False
    end_printed: bool = False
    """Whether the end of the sub-agent has been printed."""

    def observe(self, event: Event, now: float) -> None:
        """Update this view with an event of the sub-agent's own conversation. `now` is in monotonic seconds."""
        self.view.observe(event, now)
        if event.conversation is not None:
            self.began = event.conversation.create_time
        outcome = "" if event.state is None else event.state.kind
        if event.state is not None and (outcome == "completed" or outcome == "failed"):  # noqa: PLR1714 -- narrows type
            self.seen_to_the_end = True
            self.ended = event.state.enter_time
            self._end(outcome, event.state)

    def _end(self, outcome: Literal["completed", "failed"], state: ConversationState) -> None:
        """Record how the sub-agent ended, unless its parent's report has been recorded already."""
        if not self.status.outcome:
            self.status = replace(
                self.status,
                outcome=outcome,
                result=_result(state),
                error_kind=state.failure.kind if state.failure else "",
                error_message=state.failure.message if state.failure else "",
            )

    def reported(self, status: SubAgentStatus, at: datetime) -> None:
        """Record the end of the sub-agent that its parent reported, unless the end is already known.

        `at` is when the parent reported the end.
        """
        if not self.status.outcome:
            self.status, self.ended = status, self.ended or at

    @property
    def end_to_print(self) -> bool:
        """Whether to print the end of the sub-agent now: it was not printed yet, and no further details will arrive."""
        return bool(self.status.outcome) and not self.end_printed and (self.seen_to_the_end or not self.followed)

    def figures(self, until: datetime) -> list[str]:
        """Return the sub-agent's running time and the tokens it has used, as texts. What is unknown is left out."""
        seconds = [max(0.0, (until - self.began).total_seconds())] if self.began else []
        tokens = [self.view.tokens] if self.view.tokens else []
        return [*(f"{taken:.0f} s" for taken in seconds), *(f"{used:,} tokens" for used in tokens)]


def _result(state: ConversationState) -> str:
    """Return the result that a sub-agent submitted or, if it failed, the last text it wrote; "" if there is none."""
    if state.completed:
        return state.completed.result
    return state.failed.partial_result if state.failed else ""


class AgentTree:
    """The tree of a conversation's sub-agents, computed from the events of the conversation and of the sub-agents."""

    def __init__(self) -> None:
        self.waiting = False
        """Whether the parent waits for its sub-agents."""
        self._agents: dict[int, AgentView] = {}

    def observe(self, event: Event) -> None:
        """Update the tree with an event of the parent's conversation."""
        if event.state is not None and event.kind != "conversation_updated":
            waiting = self._waits(event, event.state)
            if waiting and not self.waiting:
                self._agents.clear()
            self.waiting = waiting
        for status in event.sub_agents:
            agent = self._agents.setdefault(status.index, AgentView(replace(status, outcome="")))
            if status.outcome:
                agent.reported(status, event.time)

    def _waits(self, event: Event, state: ConversationState) -> bool:
        if state.kind == "cancelling":
            return self.waiting or bool(event.sub_agents)
        return state.kind == "awaiting_sub_agents"

    def observe_agent(self, name: str, event: Event, now: float) -> None:
        """Update the tree with an event of one sub-agent's own conversation. `now` is in monotonic seconds."""
        for agent in self._named(name):
            agent.observe(event, now)

    @property
    def at_work(self) -> list[str]:
        """The names of the sub-agents that have not ended, as far as known."""
        return [agent.status.name for agent in self._in_order() if not agent.status.outcome]

    def follow(self) -> list[str]:
        """Mark the running sub-agents as followed, and return the names of those that were not followed before.

        The caller must subscribe to the events of the sub-agents that are returned.
        """
        found = [
            agent for agent in self._in_order() if self.waiting and not agent.status.outcome and not agent.followed
        ]
        for agent in found:
            agent.followed = True
        return [agent.status.name for agent in found]

    def unfollow(self, name: str) -> None:
        """Mark a sub-agent as no longer followed: only its parent's events will tell how it ends."""
        for agent in self._named(name):
            agent.followed = False

    def seen_to_the_end(self, name: str) -> bool:
        return any(agent.seen_to_the_end for agent in self._named(name))

    def endings(self, paint: Paint) -> Iterator[SafeText]:
        """Yield a line for each ended sub-agent whose end was not printed yet, and mark the end as printed."""
        for agent in self._in_order():
            if agent.end_to_print:
                agent.end_printed = True
                yield _ending(agent, paint)

    def running(self, paint: Paint) -> Iterator[SafeText]:
        """Yield a line for each running sub-agent, for a user who opens the conversation while sub-agents run."""
        for agent in self._in_order() if self.waiting else ():
            if not agent.status.outcome:
                task = one_line(agent.status.task, 100)
                yield paint.dim(f"· sub-agent {agent.status.index + 1} of {len(self._agents)} at work: {task}")

    def lines(self, paint: Paint, now: float, wall: datetime, width: int) -> list[SafeText]:
        """Return a line of at most `width` columns for each sub-agent; [] unless the parent waits for sub-agents."""
        if not self.waiting:
            return []
        agents = list(self._in_order())
        return [
            _painter(agent.status.outcome, paint)(_line(agent, "└" if agent is agents[-1] else "├", now, wall, width))
            for agent in agents
        ]

    def _named(self, name: str) -> list[AgentView]:
        return [agent for agent in self._agents.values() if agent.status.name == name]

    def _in_order(self) -> Iterator[AgentView]:
        return (self._agents[index] for index in sorted(self._agents))


def _line(agent: AgentView, branch: str, now: float, wall: datetime, width: int) -> str:
    outcome = {"": agent.view.activity(now, wall), "completed": "done"}.get(agent.status.outcome, "failed")
    details = " · ".join([outcome, *agent.figures(agent.ended or wall)])
    mark = _mark(agent.status.outcome)
    room = max(LEAST_TASK, width - cells(f"{branch} {mark}  · {details}"))
    return cut(f"{branch} {mark} {one_line(agent.status.task, room)} · {details}", width)


def _ending(agent: AgentView, paint: Paint) -> SafeText:
    figures = agent.figures(agent.ended) if agent.ended else []
    return _result_line(
        agent.status.outcome, one_line(agent.status.task, 50), figures, agent.status.error_message, paint
    )


def _result_line(outcome: str, about: str, figures: Iterable[str], error: str, paint: Paint) -> SafeText:
    why = "" if outcome in ("completed", "") else f": {one_line(error, 120)}"
    return _painter(outcome, paint)(f"  {_mark(outcome)} {' · '.join([about, *figures])}{why}")


def _mark(outcome: str) -> str:
    return {"": "◦", "completed": "✓"}.get(outcome, "✗")


def _painter(outcome: str, paint: Paint) -> Callable[[str], SafeText]:
    return {"": paint.dim, "completed": paint.good}.get(outcome, paint.bad)


def in_order(agents: Iterable[ConversationInfo]) -> list[ConversationInfo]:
    """Return sub-agents in the order in which they were started. Servers list them in another order."""
    return sorted(agents, key=lambda agent: (agent.create_time, len(agent.name), agent.name))


def lines(agents: Sequence[ConversationInfo], paint: Paint) -> Iterator[SafeText]:
    """Yield a line for each sub-agent: its id, task, running time and tokens, and a mark of how it ended, if it did."""
    for agent in in_order(agents):
        outcome = agent.state.kind if agent.state.kind in ("completed", "failed") else ""
        error = agent.state.failure.message if agent.state.failure else ""
        figures = [_took(agent), f"{agent.total_usage.total_tokens:,} tokens"]
        yield _result_line(outcome, f"{_id(agent)}  {one_line(agent.title, 60)}", figures, error, paint)


def _id(agent: ConversationInfo) -> str:
    return agent.name.removeprefix("conversations/")


def _took(agent: ConversationInfo) -> str:
    return lasted(agent.create_time, agent.update_time)


COLUMNS: dict[str, Callable[[ConversationInfo], str]] = {
    "sub-agent": _id,
    "state": lambda agent: state_in_words(agent.state.kind),
    "took": _took,
    "tokens": lambda agent: f"{agent.total_usage.total_tokens:,}",
    "task": lambda agent: agent.title,
}
"""The columns of a list of sub-agents. It begins with the id, because sub-agents have no short name (slug)."""
