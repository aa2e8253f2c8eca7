"""Messages from the runners and from other conversations to a conversation: what an effect has led to.

Each reports something that has happened. It may arrive twice or too late; the receiver ignores what it does not wait
for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from msgspec import Struct
from pykka import ActorRef

from actors.core.events import Event, LlmStreamChunk
from actors.core.states import AgentTask
from actors.core.tool_run import KillReceipt
from actors.ports import ConversationRecord


@dataclass(frozen=True)
class EffectOutcome:
    """The event that an effect has led to."""

    event: Event
    urgent: bool = False
    """Whether it goes into the urgent lane of the mailbox."""


class TextSource(Protocol):
    """Streamed text that waits to be taken."""

    def take(self) -> tuple[LlmStreamChunk, ...]:
        """Remove and return all that waits (conversation's thread)."""
        ...

    def put_back(self, chunks: tuple[LlmStreamChunk, ...]) -> None:
        """Undo the last `take`: another one follows without a further message (conversation's thread)."""
        ...


@dataclass(frozen=True)
class TextDeltaReady:
    """Streamed text waits in `source`. Text that arrives before it is taken sends no further message."""

    source: TextSource


class CreateSubAgent(Struct, frozen=True):
    """Create a sub-agent, in a conversation that does not exist yet, and start its task."""

    parent: ConversationRecord
    """The parent in the state in which it waits for this sub-agent."""
    task: AgentTask


@dataclass(frozen=True)
class SubAgentStopped:
    """To the parent: the actor of this sub-agent has stopped, and all of its tools before it."""

    agent_id: str


@dataclass(frozen=True)
class ToolRunnerStopped:
    """This tool runner has stopped, and all of its tools before it."""

    runner: ActorRef[Any]


@dataclass(frozen=True)
class JobExited:
    """A background job that was killed has exited, or its processes could not be confirmed dead in time."""

    receipt: KillReceipt
