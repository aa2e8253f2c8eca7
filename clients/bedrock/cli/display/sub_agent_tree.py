"""The tree of sub-agents that run together: the activity and the outcome of each, as lines for the terminal."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from bedrock import Event, SubAgentStatus
from bedrock.cli.display.conversation_view import ConversationView
from bedrock.cli.text.style import Paint, cells, cut, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bedrock.cli.text.safe_text import SafeText
    from bedrock.states import ConversationState

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
        """Return whether the parent waits for sub-agents in this state, including while it cancels them."""
        if state.kind == "cancelling":
            return self.waiting or bool(event.sub_agents)
        return state.kind == "awaiting_sub_agents"

    def observe_agent(self, name: str, event: Event, now: float) -> None:
        """Update the tree with an event of one sub-agent's own conversation. `now` is in monotonic seconds."""
        for agent in self._agents.values():
            if agent.status.name == name:
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
        for agent in self._agents.values():
            if agent.status.name == name:
                agent.followed = False

    def seen_to_the_end(self, name: str) -> bool:
        """Return whether the sub-agent's own conversation has shown how the sub-agent ended."""
        return any(agent.seen_to_the_end for agent in self._agents.values() if agent.status.name == name)

    def endings(self, paint: Paint) -> Iterator[SafeText]:
        """Yield a line for each ended sub-agent whose end was not printed yet, and mark the end as printed."""
        for agent in self._in_order():
            if agent.end_to_print:
                agent.end_printed = True
                yield _ending(agent, paint)

    def roll(self, paint: Paint) -> Iterator[SafeText]:
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
            _painter(agent, paint)(_line(agent, "└" if agent is agents[-1] else "├", now, wall, width))
            for agent in agents
        ]

    def _in_order(self) -> Iterator[AgentView]:
        return (self._agents[index] for index in sorted(self._agents))


def _line(agent: AgentView, branch: str, now: float, wall: datetime, width: int) -> str:
    outcome = {"": agent.view.activity(now, wall), "completed": "done"}.get(agent.status.outcome, "failed")
    details = " · ".join([outcome, *agent.figures(agent.ended or wall)])
    mark = {"": "◦", "completed": "✓"}.get(agent.status.outcome, "✗")
    room = max(LEAST_TASK, width - cells(f"{branch} {mark}  · {details}"))
    return cut(f"{branch} {mark} {one_line(agent.status.task, room)} · {details}", width)


def _ending(agent: AgentView, paint: Paint) -> SafeText:
    done = agent.status.outcome == "completed"
    figures = agent.figures(agent.ended) if agent.ended else []
    line = " · ".join([f"  {'✓' if done else '✗'} {one_line(agent.status.task, 50)}", *figures])
    return _painter(agent, paint)(line if done else f"{line}: {one_line(agent.status.error_message, 120)}")


def _painter(agent: AgentView, paint: Paint) -> Callable[[str], SafeText]:
    return {"": paint.dim, "completed": paint.good}.get(agent.status.outcome, paint.bad)
