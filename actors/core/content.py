"""What messages are made of: blocks of content, tool results, and the stored message itself."""

from __future__ import annotations

import hashlib
import itertools
import re
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Collection

_CALL_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
"""What every provider takes as the id of a tool call, should the conversation change its model."""
_NOT_IN_CALL_ID = re.compile(r"[^A-Za-z0-9_-]")


class Text(Struct, frozen=True, tag="text"):
    """Text, said by anybody."""

    text: str


class Reasoning(Struct, frozen=True, tag="reasoning"):
    """The model's reasoning."""

    text: str
    """What people may read; empty when the provider hides it."""
    protocol: str = ""
    """The wire protocol that can read `raw`; other protocols leave the block out."""
    model: str = ""
    """The model that wrote it; another model never sees it."""
    raw: str = ""
    """The provider's own block as JSON text, echoed to it byte for byte."""


class ToolUse(Struct, frozen=True, tag="tool_use"):
    """A tool call of the model."""

    id: str
    """Unique in the conversation; see `distinct_calls`."""
    name: str
    input: str
    """The raw JSON text as the model wrote it; may be invalid JSON, then the call gets an error result."""


class Image(Struct, frozen=True, tag="image"):
    """A reference to a stored image."""

    attachment: str
    """Content hash under which the store keeps the original."""
    media_type: str
    width: int
    height: int


class ToolOutcome(StrEnum):
    """How a call ended, for clients; nobody matches on texts (C5)."""

    OK = "ok"
    ERROR = "error"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    DENIED = "denied"


class ToolSuccess(Struct, frozen=True, tag="tool_success"):
    """The tool did what it was asked."""

    tool_use_id: str
    output: str
    images: tuple[Image, ...] = ()
    display: str = ""
    """JSON text for people's eyes: a diff, a table; empty if the output says it all."""
    duration_ms: int = 0
    outcome: ToolOutcome = ToolOutcome.OK


class ToolError(Struct, frozen=True, tag="tool_error"):
    """The tool failed, was refused, or was not run; the model is told why."""

    tool_use_id: str
    output: str
    outcome: ToolOutcome = ToolOutcome.ERROR
    duration_ms: int = 0
    display: str = ""


class ToolCancelled(Struct, frozen=True, tag="tool_cancelled"):
    """Synthetic result of a call that a cancel or a restart cut off or skipped."""

    tool_use_id: str
    output: str
    outcome: ToolOutcome = ToolOutcome.CANCELLED


class SubAgentComplete(Struct, frozen=True, tag="sub_agent_complete"):
    """The result of submit_result or submit_error in a sub-agent, and of spawn_sub_agent in its parent."""

    tool_use_id: str
    output: str
    success: bool = True
    outcome: ToolOutcome = ToolOutcome.OK


ToolResult: TypeAlias = ToolSuccess | ToolError | ToolCancelled | SubAgentComplete
Content: TypeAlias = Text | Reasoning | ToolUse | Image | ToolSuccess | ToolError | ToolCancelled | SubAgentComplete


class MessageType(StrEnum):
    """Who speaks; the database's CHECK has the same five."""

    USER = "user"
    AGENT = "agent"
    TOOL = "tool"
    SYSTEM = "system"
    """Bedrock to the agent."""
    ERROR = "error"
    """Bedrock to people: why a run failed; never sent to the model."""


class Delivery(StrEnum):
    """How a user message wants to be taken while the agent works (decision 7 in docs/semantics.md)."""

    REJECT = "reject"
    STEER = "steer"
    FOLLOW_UP = "follow_up"


class SystemKind(StrEnum):
    """Why Bedrock wrote a system message."""

    NONE = ""
    MODE_RESTRICTED = "mode_restricted"
    MODE_UNRESTRICTED = "mode_unrestricted"
    ROUND_CAP = "round_cap"
    BUDGET = "budget"
    NUDGE = "nudge"
    GRACE = "grace"
    CONTINUE = "continue"
    SUMMARY = "summary"
    SUMMARY_FALLBACK = "summary_fallback"
    SUB_AGENT_RESULTS = "sub_agent_results"
    INTERRUPTED = "interrupted"


class Usage(Struct, frozen=True, gc=False):
    """Tokens of one response, or a sum of them; input excludes what the cache read or wrote."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_micros: int = 0
    """Micro-dollars where the model's prices are known, else 0."""

    @property
    def context_tokens(self) -> int:
        """Everything that fills the model's window after this response."""
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.cost_micros + other.cost_micros,
        )


class Message(Struct, frozen=True, omit_defaults=True):
    """A stored message. Never rewritten, never deleted but with its conversation (I28)."""

    id: str
    sequence: int
    """From 1, gap-free per conversation."""
    type: MessageType
    content: tuple[Content, ...]
    created_at: int
    """Milliseconds since the epoch, UTC."""
    run: str = ""
    """The request cycle it belongs to; empty outside of one."""
    delivery: str = ""
    """Of user messages: "direct", "steer" or "follow_up"."""
    request_id: str = ""
    """Of agent messages: the request that brought it, whose deltas it closes."""
    attempt: int = 0
    through_sequence: int = 0
    """Of agent messages: the last message the request contained; later ones that were stored before this
    answer are placed after it and its tool results in the provider's view (C48)."""
    usage: Usage | None = None
    kind: SystemKind = SystemKind.NONE
    meta: bool = False
    """Written for the model only; people need not see it."""
    error_kind: str = ""


def text_of(content: tuple[Content, ...]) -> str:
    """All plain text of a message, joined; "" if it has none."""
    return "".join(block.text for block in content if isinstance(block, Text))


def distinct_calls(
    content: tuple[Content, ...], request_id: str, taken: Collection[str] = frozenset()
) -> tuple[Content, ...]:
    """Return the content with a new id for every call whose id is not usable or was used before in it or in `taken`.

    A call that is taken for another one would run twice, or never. Calling it again on its result changes nothing.
    """
    seen = set(taken)
    blocks: list[Content] = []
    for index, block in enumerate(content):
        if isinstance(block, ToolUse):
            identity, numbers = block.id, itertools.count(index)
            while identity in seen or not _CALL_ID.fullmatch(identity):
                identity = call_id(request_id, next(numbers))
            seen.add(identity)
            block = block if identity == block.id else ToolUse(identity, block.name, block.input)  # noqa: PLW2901
        blocks.append(block)
    return tuple(blocks)


def call_id(request_id: str, index: int) -> str:
    """Return a tool-call id that every provider accepts, the same for the same arguments."""
    text = _NOT_IN_CALL_ID.sub("-", f"{request_id}-{index}")
    return text if len(text) <= 40 else "call-" + hashlib.sha256(f"{request_id}-{index}".encode()).hexdigest()[:32]


def tool_uses(content: tuple[Content, ...]) -> tuple[ToolUse, ...]:
    """The tool calls of a message in request order."""
    return tuple(block for block in content if isinstance(block, ToolUse))
