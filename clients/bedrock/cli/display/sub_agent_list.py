"""The sub-agents that a conversation has had, as they are listed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bedrock import v1
from bedrock._shared.enum_names import enum_name
from bedrock.cli.display.conversation_view import tokens_of
from bedrock.cli.text.style import Paint, one_line
from bedrock.cli.text.tables import lasted
from bedrock.messages import moment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bedrock.cli.text.safe_text import SafeText

COLUMNS = ("sub-agent", "state", "took", "tokens", "task")


def in_order(agents: Iterable[v1.Conversation]) -> list[v1.Conversation]:
    """The order in which they were started; servers list the latest changed first."""
    return sorted(agents, key=lambda agent: (agent.create_time.ToNanoseconds(), len(agent.name), agent.name))


def rows(agents: Iterable[v1.Conversation]) -> Iterator[tuple[str, ...]]:
    """A row of the table for each. They have no slugs: their ids say whose they are."""
    for agent in in_order(agents):
        state = enum_name(v1.StateKind, agent.state.kind).replace("_", " ")
        yield (_id(agent), state, _took(agent), f"{tokens_of(agent.total_usage):,}", agent.title)


def lines(agents: Sequence[v1.Conversation], paint: Paint) -> Iterator[SafeText]:
    """What became of each, for people."""
    for agent in in_order(agents):
        figures = f"{_took(agent)} · {tokens_of(agent.total_usage):,} tokens"
        line = f"{_id(agent)}  {one_line(agent.title, 60)} · {figures}"
        match agent.state.kind:
            case v1.STATE_KIND_COMPLETED:
                yield paint.good(f"  ✓ {line}")
            case v1.STATE_KIND_FAILED:
                yield paint.bad(f"  ✗ {line}: {one_line(agent.state.failed.error.message, 120)}")
            case _:
                yield paint.dim(f"  ◦ {line}")


def _id(agent: v1.Conversation) -> str:
    return agent.name.removeprefix("conversations/")


def _took(agent: v1.Conversation) -> str:
    return lasted(moment(agent.create_time), moment(agent.update_time))
