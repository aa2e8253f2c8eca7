"""Lists a conversation's sub-agents, including those that have ended, as rows of a table or as lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bedrock.cli.display.labels import state_in_words
from bedrock.cli.text.safe_text import SafeText
from bedrock.cli.text.style import Paint, one_line
from bedrock.cli.text.tables import lasted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bedrock.cli.text.safe_text import SafeText
    from bedrock.conversations import ConversationInfo

COLUMNS = ("sub-agent", "state", "took", "tokens", "task")


def in_order(agents: Iterable[ConversationInfo]) -> list[ConversationInfo]:
    """Return sub-agents in the order in which they were started. Servers list them in another order."""
    return sorted(agents, key=lambda agent: (agent.create_time, len(agent.name), agent.name))


def rows(agents: Iterable[ConversationInfo]) -> Iterator[tuple[str, ...]]:
    """Yield a table row for each sub-agent. It begins with the id, because sub-agents have no short name (slug)."""
    for agent in in_order(agents):
        state = state_in_words(agent.state.kind)
        yield (_id(agent), state, _took(agent), f"{agent.total_usage.total_tokens:,}", agent.title)


def lines(agents: Sequence[ConversationInfo], paint: Paint) -> Iterator[SafeText]:
    """Yield a line for each sub-agent: its id, task, running time and tokens, and a mark of how it ended, if it did."""
    for agent in in_order(agents):
        figures = f"{_took(agent)} · {agent.total_usage.total_tokens:,} tokens"
        line = f"{_id(agent)}  {one_line(agent.title, 60)} · {figures}"
        match agent.state.kind:
            case "completed":
                yield paint.good(f"  ✓ {line}")
            case "failed":
                yield paint.bad(
                    f"  ✗ {line}: {one_line(agent.state.failure.message if agent.state.failure else '', 120)}"
                )
            case _:
                yield paint.dim(f"  ◦ {line}")


def _id(agent: ConversationInfo) -> str:
    return agent.name.removeprefix("conversations/")


def _took(agent: ConversationInfo) -> str:
    return lasted(agent.create_time, agent.update_time)
