"""The messages of a conversation and their content: text, images, tool calls and tool results.

These structs cannot form reference cycles, so the garbage collector need not track them (`gc=False`). This saves time
in long histories.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Container, Iterable, Iterator
from enum import StrEnum
from typing import TypeAlias, TypeGuard

from msgspec import Struct
from msgspec.structs import replace

from actors.core.context import ToolGroup

# The end of the year 9999, in milliseconds since the epoch: the latest time that a protobuf Timestamp can hold.
LATEST_MS = 253_402_300_799_999
# Matches call ids that every provider accepts, so that a conversation can switch to another provider's model.
_CALL_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_NOT_IN_CALL_ID = re.compile(r"[^A-Za-z0-9_-]")


class Text(Struct, frozen=True, gc=False, tag="text"):
    text: str


class Reasoning(Struct, frozen=True, gc=False, tag="reasoning"):
    text: str
    """The reasoning as readable text; "" if the provider hides it."""
    protocol: str = ""
    """The wire protocol of `raw`; requests in other protocols omit the block."""
    model: str = ""
    """The model that wrote the reasoning; requests to other models omit this block."""
    raw: str = ""
    """The block as the provider sent it, as JSON text; later requests contain it unchanged."""
    provider: str = ""
    """The provider that sent `raw`; requests to other providers omit it. "" in messages from version 0.2."""


class ToolUse(Struct, frozen=True, gc=False, omit_defaults=True, tag="tool_use"):
    id: str
    """Unique in the conversation: `distinct_calls` replaces ids that were used before."""
    name: str
    input: str
    """The arguments as JSON text, as the model wrote them; if invalid, the call gets an error result."""
    bad_input: str = ""
    """Why no client is asked to run this call of a client tool: the input does not match the schema. Otherwise ""."""
    group: ToolGroup | None = None
    """The tool's group at the time of the call, for tools that clients declared. None for built-in and MCP tools."""
    own: Reasoning | None = None
    """Data that the provider sent with the call and needs back, such as a signature, in `own.raw`; None if absent."""
    corrected: str = ""
    """How the model's name and input for this call were corrected, as text for its result; "" if they were not."""


class Image(Struct, frozen=True, gc=False, tag="image"):
    attachment: str
    """The hash of the original image, by which the store finds it."""
    media_type: str
    width: int
    height: int


class ToolOutcome(StrEnum):
    OK = "ok"
    ERROR = "error"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    DENIED = "denied"
    TIMED_OUT = "timed_out"
    """No client answered before the time limit; only for tools that clients run."""


class ToolSuccess(Struct, frozen=True, gc=False, tag="tool_success"):
    tool_use_id: str
    output: str
    images: tuple[Image, ...] = ()
    display: str = ""
    """JSON data that clients can display, such as a diff or a table; "" if the output is enough."""
    duration_ms: int = 0
    outcome: ToolOutcome = ToolOutcome.OK


class ToolError(Struct, frozen=True, gc=False, tag="tool_error"):
    tool_use_id: str
    output: str
    outcome: ToolOutcome = ToolOutcome.ERROR
    duration_ms: int = 0
    display: str = ""


class ToolCancelled(Struct, frozen=True, gc=False, tag="tool_cancelled"):
    """The result that the server writes for a tool call stopped or prevented by a cancel or a server restart."""

    tool_use_id: str
    output: str
    outcome: ToolOutcome = ToolOutcome.CANCELLED


class SubAgentComplete(Struct, frozen=True, gc=False, tag="sub_agent_complete"):
    """The result of a submit_result or submit_error call (in a sub-agent) or a spawn_sub_agent call (in its parent)."""

    tool_use_id: str
    output: str
    success: bool = True
    outcome: ToolOutcome = ToolOutcome.OK


ToolResult: TypeAlias = ToolSuccess | ToolError | ToolCancelled | SubAgentComplete
Content: TypeAlias = Text | Reasoning | ToolUse | Image | ToolSuccess | ToolError | ToolCancelled | SubAgentComplete


class MessageType(StrEnum):
    """The author of a message. The database has a CHECK constraint with these five values."""

    USER = "user"
    AGENT = "agent"
    TOOL = "tool"
    SYSTEM = "system"
    """A message from Bedrock to the agent."""
    ERROR = "error"
    """A message from Bedrock to users that says why a run failed; never sent to the model."""


class Delivery(StrEnum):
    """What happens to a message sent during a run: it is refused, joins the run (STEER), or begins a later one."""

    REJECT = "reject"
    STEER = "steer"
    FOLLOW_UP = "follow_up"


class SystemKind(StrEnum):
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
    MODE_WORKSPACE = "mode_workspace"
    MCP_RESTARTED = "mcp_restarted"
    FORKED = "forked"
    OUTPUT_NUDGE = "output_nudge"
    JOBS_ENDED = "jobs_ended"


class Usage(Struct, frozen=True, gc=False):
    """The tokens of one or more responses; `input_tokens` excludes those read from or written to a provider's cache."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_micros: int = 0
    """Cost in micro-dollars if the model's prices are known, else 0."""

    @property
    def context_tokens(self) -> int:
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.cost_micros + other.cost_micros,
        )


class Message(Struct, frozen=True, gc=False, omit_defaults=True):
    """A stored message. It is never changed, and deleted only with its conversation."""

    id: str
    sequence: int
    """The number of the message in its conversation, counted from 1 without gaps."""
    type: MessageType
    content: tuple[Content, ...]
    created_at: int
    run: str = ""
    """The id of the run (the work on one user message) that this message belongs to; "" if it belongs to none."""
    delivery: str = ""
    """For user messages: how the message reached the agent ("direct", "steer" or "follow_up"); "" for other types."""
    request_id: str = ""
    attempt: int = 0
    through_sequence: int = 0
    """For agent messages: the number of the last message in the request that this message answers. Messages stored
    while the model was answering have higher numbers; later requests contain them after the answer and its results."""
    usage: Usage | None = None
    kind: SystemKind = SystemKind.NONE
    meta: bool = False
    """Whether the message was written only for the model, so that clients need not show it."""
    error_kind: str = ""


def text_of(content: tuple[Content, ...]) -> str:
    return "".join(block.text for block in content if isinstance(block, Text))


def images_of(content: Iterable[Content]) -> Iterator[Image]:
    for block in content:
        if isinstance(block, Image):
            yield block
        elif isinstance(block, ToolSuccess):
            yield from block.images


def has_image(content: Iterable[Content]) -> bool:
    return next(images_of(content), None) is not None


def is_tool_result(block: Content) -> TypeGuard[ToolResult]:
    return isinstance(block, (ToolSuccess, ToolError, ToolCancelled, SubAgentComplete))


def distinct_calls(content: tuple[Content, ...], request_id: str, *taken: Container[str]) -> tuple[Content, ...]:
    """Replace unusable, repeated or taken call ids: if two calls shared an id, one could run twice or never."""
    seen = set[str]()
    blocks: list[Content] = []
    for index, block in enumerate(content):
        if isinstance(block, ToolUse):
            identity, numbers = block.id, itertools.count(index)
            while any(identity in ids for ids in (seen, *taken)) or not _CALL_ID.fullmatch(identity):
                identity = call_id(request_id, next(numbers))
            seen.add(identity)
            block = block if identity == block.id else replace(block, id=identity)  # noqa: PLW2901
        blocks.append(block)
    return tuple(blocks)


def call_id(request_id: str, index: int) -> str:
    """A tool-call id that every provider accepts; equal arguments give equal ids."""
    text = _NOT_IN_CALL_ID.sub("-", f"{request_id}-{index}")
    return text if len(text) <= 40 else "call-" + hashlib.sha256(f"{request_id}-{index}".encode()).hexdigest()[:32]


def tool_uses(content: tuple[Content, ...]) -> tuple[ToolUse, ...]:
    return tuple(block for block in content if isinstance(block, ToolUse))


# --- estimates of tokens ----------------------------------------------------------------------

# A typical number of bytes of UTF-8 per token, for English text and code with the tokenizers of current models.
BYTES_PER_TOKEN = 4
# The tokens of the largest image that is sent to models (1,568 pixels on the longer side).
IMAGE_TOKENS = 1_600
_PROSE = bytes(byte for byte in range(128) if chr(byte).isalpha() or chr(byte).isspace())


def utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def tokens_of(size: int) -> int:
    return -(-size // BYTES_PER_TOKEN)


def content_tokens(content: Iterable[Content], *, images: bool = True) -> int:
    """Estimate how many tokens the content takes; `images` says whether its images are sent."""
    blocks = tuple(content)
    size = sum(utf8_size(text) for block in blocks for text in _texts(block))
    return tokens_of(size) + (IMAGE_TOKENS * sum(1 for _ in images_of(blocks)) if images else 0)


def most_tokens(text: str) -> int:
    """A high estimate of the tokens in a program's output, which may have few bytes per token.

    For any text, the estimate is at least half the number that byte-level tokenizers count; many of these count each
    digit, for example, as a token.
    """
    data = text.encode("utf-8", "replace")
    rest = len(data.translate(None, _PROSE))
    return rest + -(-(len(data) - rest) // 3)


def _texts(block: Content) -> Iterator[str]:
    match block:
        case Text(text=text):
            yield text
        case Reasoning(text=text, raw=raw):
            yield raw or text
        case ToolUse(name=name, input=arguments):
            yield name
            yield arguments
        case Image():
            return
        case _:
            yield block.output
