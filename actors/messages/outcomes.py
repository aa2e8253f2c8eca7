"""Messages to a conversation that report the results of effects (the work that its state machine requests).

They come from runners, which perform the effects, and from other conversations.

A message may arrive twice or too late; the conversation ignores messages that it does not wait for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from actors.core.events import Event, LlmStreamChunk
from actors.core.states import AgentTask
from actors.core.tool_run import KillReceipt
from actors.ports import ConversationRecord
from actors.ports.store.audit import CommandOrigin


@dataclass(frozen=True)
class EffectOutcome:
    """An event for the state machine that reports the result of an effect (work that the state machine requested)."""

    event: Event
    urgent: bool = False
    """Whether the mailbox delivers this message before all normal messages."""
    origin: CommandOrigin | None = None
    """Who requested the event; set only for a cancel that the store could not save at first."""


class TextSource(Protocol):
    """A buffer of streamed text, which the conversation's actor empties."""

    def drain(self) -> tuple[LlmStreamChunk, ...]:
        """Remove and return all buffered text. Only the conversation's thread may call this."""
        ...

    def restore(self, chunks: tuple[LlmStreamChunk, ...]) -> None:
        """Undo the last `drain`; the caller will call `drain` again without waiting for a TextDeltaReady.

        Only the conversation's thread may call this.
        """
        ...


@dataclass(frozen=True)
class TextDeltaReady:
    """Message to the conversation: `source` has new streamed text. It is sent again only after `drain`."""

    source: TextSource


class CreateSubAgent(Struct, frozen=True):
    """Create a sub-agent's conversation and start its task."""

    parent: ConversationRecord
    """The record of the parent conversation, whose state already lists this sub-agent as one to wait for."""
    task: AgentTask


class Wake(Struct, frozen=True):
    """Message to a conversation that this server took over: load it, end the interrupted run, and become idle."""


@dataclass(frozen=True)
class SubAgentStopped:
    """Message to the parent: the actor of this sub-agent has stopped, after all of the sub-agent's tools have ended."""

    agent_id: str


@dataclass(frozen=True)
class ToolsEnded:
    """Message to the conversation: all tool calls up to this one have ended, and none of their processes is left."""

    call: object
    """The message with which the conversation sent the last call to its tool runner."""


@dataclass(frozen=True)
class ModelRequestOverdue:
    """Timer message to the conversation: the thread of a cancelled model request is still not back."""

    request: object


@dataclass(frozen=True)
class JobExited:
    """A killed background job has exited, or its processes could not be confirmed dead in time."""

    receipt: KillReceipt
