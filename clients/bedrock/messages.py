"""Classes for messages, stored or queued, and for their content: text, images, tool calls, tool results and usage."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Literal

from bedrock import v1
from bedrock._shared.values import Attachment, ContentBlock, Image, ToolCall, ToolResult
from bedrock._shared.wrapper import Value, Wrapper
from bedrock.types import Delivery, ErrorKind, Fate, Role, SystemMessageKind

__all__ = ["Attachment", "ContentBlock", "Image", "Message", "QueuedMessage", "ToolCall", "ToolResult", "Usage"]


@dataclass(frozen=True, slots=True)
class Usage(Value[v1.Usage]):
    """The token usage and cost of one response of the model, or a sum of several.

    No token is counted in more than one of the fields.
    """

    input_tokens: int = 0
    """Input tokens that were neither read from a cache nor written to one."""
    output_tokens: int = 0
    """Tokens that the model wrote, reasoning included."""
    cache_read_tokens: int = 0
    """Input tokens that the provider read from its cache."""
    cache_write_tokens: int = 0
    """Input tokens that the provider wrote to its cache."""
    cost_micros: int = 0
    """The cost in millionths of a US dollar; zero while the price of the model is unknown."""

    def __add__(self, other: Usage) -> Usage:
        """Return the sum of two usages."""
        return Usage(*[getattr(self, each.name) + getattr(other, each.name) for each in fields(self) if each.init])

    @property
    def total_tokens(self) -> int:
        """The sum of all counts of tokens, input and output."""
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens


@dataclass(frozen=True, slots=True)
class Message(Wrapper[v1.Message]):
    """A stored message, or one that waits in the queue."""

    name: str
    """The resource name of the message."""
    sequence: int
    """The position of the message in the conversation, counted from 1. Zero while the message waits in the queue."""
    role: Role
    """Who wrote the message: "user", "agent", "tool", "system" or "error"."""
    delivery: Delivery | Literal[""]
    """How a user's message entered the conversation, e.g. "direct"; empty for messages that no user wrote."""
    content: tuple[ContentBlock, ...]
    """The content, in order."""
    usage: Usage | None
    """The usage of the response; None unless a model wrote the message and the provider reported it."""
    create_time: datetime
    """When the message was stored; while it is queued, when it was accepted."""
    request_cycle: str
    """The resource name of the message's run; empty for a message outside of a run, and for a queued follow-up."""
    llm_request_id: str
    """The request to the model that this message answers; empty unless a model wrote the message."""
    attempt: int
    """The attempt of that request that produced the message, counted from 1; zero unless a model wrote the message."""
    system_kind: SystemMessageKind | Literal[""]
    """Why the server wrote this message to the model; empty for all other messages."""
    error_kind: ErrorKind | Literal[""]
    """Why the run failed; empty unless the role is "error"."""
    meta: bool
    """Whether the message is meant for the model only, and need not be shown to people."""

    @property
    def text(self) -> str:
        """All text of the message; empty if there is none, as in tool results."""
        return "\n\n".join(block.text for block in self.content if block.text)

    @property
    def reasoning(self) -> str:
        """The reasoning that the model made visible; empty if there is none."""
        return "\n\n".join(block.reasoning for block in self.content if block.reasoning)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls in the message, in order."""
        return tuple(block.tool_call for block in self.content if block.tool_call is not None)

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """The tool results in the message."""
        return tuple(block.tool_result for block in self.content if block.tool_result is not None)

    @property
    def images(self) -> tuple[Image, ...]:
        """The images in the message, also those in tool results.

        `Conversation.attachment` reads an image by its name.
        """
        found: list[Image] = []
        for block in self.content:
            if block.image is not None:
                found.append(block.image)
            if block.tool_result is not None:
                found += block.tool_result.images
        return tuple(found)


@dataclass(frozen=True, slots=True)
class QueuedMessage(Wrapper[v1.QueuedMessage]):
    """A message that was queued, for the run in progress ("steer") or for the next run ("follow_up"), and its fate."""

    message: Message
    """The message. Its `delivery` is "steer" or "follow_up"."""
    fate: Fate
    """"queued" at first, then "delivered", "returned", "discarded" or "withdrawn"."""
    settle_time: datetime | None
    """When the message left the queue; None while it is queued."""
