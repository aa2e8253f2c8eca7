"""Messages from runners and other conversations to a conversation: the results of effects.

Each reports something that has happened. It may arrive twice or too late; the receiver ignores messages that it does
not wait for.
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
from actors.ports.store.audit import CommandOrigin


@dataclass(frozen=True)
class EffectOutcome:
    """An event that reports the result of an effect."""

    event: Event
    urgent: bool = False
    """Whether it is handled before all normal messages of the mailbox."""
    origin: CommandOrigin | None = None
    """Who asked for it: only for a cancel that the store could not take."""


class TextSource(Protocol):
    """A buffer of streamed text."""

    def take(self) -> tuple[LlmStreamChunk, ...]:
        """Remove and return all buffered text (conversation's thread)."""
        ...

    def put_back(self, chunks: tuple[LlmStreamChunk, ...]) -> None:
        """Undo the last `take`; the caller will call it again without a further message (conversation's thread)."""
        ...


@dataclass(frozen=True)
class TextDeltaReady:
    """`source` has new streamed text. Until that is taken, further text sends no more messages."""

    source: TextSource


class CreateSubAgent(Struct, frozen=True):
    """Create a sub-agent, in a conversation that does not exist yet, and start its task."""

    parent: ConversationRecord
    """The record of the parent, in the state in which it waits for this sub-agent."""
    task: AgentTask


class Wake(Struct, frozen=True):
    """To a conversation that this server has taken over: load it, which ends a run that was left there, and rest."""


@dataclass(frozen=True)
class SubAgentStopped:
    """To the parent: the actor of this sub-agent has stopped, after all of its tools have ended."""

    agent_id: str


@dataclass(frozen=True)
class ToolRunnerStopped:
    """This tool runner has stopped, after all of its tools have ended."""

    runner: ActorRef[Any]


@dataclass(frozen=True)
class JobExited:
    """A background job that was killed has exited, or its processes could not be confirmed dead in time."""

    receipt: KillReceipt
