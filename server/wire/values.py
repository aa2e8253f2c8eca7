"""Converts small values to API messages: times, JSON objects, usage, budgets, errors; and the facts for conversions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from bedrock import v1
from google.protobuf import json_format
from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from actors.core.content import ToolUse, Usage
from actors.core.context import Budget, Limits, ToolGroup
from actors.core.errors import ErrorKind, LlmFailure
from actors.ports import ConversationRecord
from actors.ports.json_schema import is_too_deep
from actors.ports.mcp import McpServerStatus
from server.wire.enums import ERROR_KIND


def _no_jobs(_conversation_id: str) -> Sequence[str]:
    return ()


def _known(_model: str) -> bool:
    return False


def _nothing_fixed(_record: ConversationRecord) -> int:
    return 0


def _no_servers(_record: ConversationRecord) -> Sequence[McpServerStatus]:
    return ()


@dataclass(frozen=True)
class ConversionContext:
    """Facts about tools, models, background jobs and MCP servers for conversions to API messages.

    Created once, at the start.
    """

    groups: Mapping[str, ToolGroup]
    """The group of each built-in tool (such as READ or WRITE), by the tool's name."""
    usable_window: Callable[[str], int]
    """Returns how many tokens of history the named model accepts. Safe to call from any thread; must not block."""
    limits: Limits
    background_jobs: Callable[[str], Sequence[str]] = _no_jobs
    """Returns the handles of a conversation's running background jobs. Safe to call from any thread; must not block."""
    mcp_servers: Callable[[ConversationRecord], Sequence[McpServerStatus]] = _no_servers
    """Returns the states of the MCP servers that clients added to a conversation.

    Safe to call from any thread; must not block.
    """

    fixed_tokens: Callable[[ConversationRecord], int] = _nothing_fixed
    """Estimates the tokens of a conversation's system prompt and tools. Safe to call from any thread; must not block.
    """

    window_assumed: Callable[[str], bool] = _known
    """Returns whether the named model's context window is assumed. Safe to call from any thread; must not block."""

    def group_of(self, call: ToolUse) -> ToolGroup:
        """Return the group (such as READ or WRITE) of the tool that a call is for; OTHER if the tool is unknown."""
        return call.group or self.groups.get(call.name, ToolGroup.OTHER)


MAX_DEPTH = 24
"""How many levels deep a JSON object may be nested to be sent as a protobuf Struct.

Readers of protobuf accept 100 nested messages, and a level of JSON takes up to three messages.
"""


def timestamp(milliseconds: int) -> Timestamp | None:
    """Return milliseconds since 1970 as a protobuf timestamp; None for 0, which means "not set"."""
    if not milliseconds:
        return None
    return Timestamp(seconds=milliseconds // 1000, nanos=milliseconds % 1000 * 1_000_000)


def duration(milliseconds: int) -> Duration:
    """Return milliseconds as a protobuf duration."""
    return Duration(seconds=milliseconds // 1000, nanos=milliseconds % 1000 * 1_000_000)


def struct(text: str) -> Struct | None:
    """Return a JSON text as a protobuf Struct; None if it is not a JSON object, or a Struct cannot represent it."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return struct_of(value) if isinstance(value, dict) else None


def plain(struct: Struct) -> dict[str, Any]:
    """Return a protobuf Struct as a dict. Whole numbers become int, although a Struct stores only doubles."""
    return {key: _plain(value) for key, value in struct.fields.items()}


def _plain(value: Value) -> Any:
    match value.WhichOneof("kind"):
        case "struct_value":
            return plain(value.struct_value)
        case "list_value":
            return [_plain(item) for item in value.list_value.values]
        case "number_value":
            number = value.number_value
            return int(number) if number.is_integer() else number
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case _:
            return None


def struct_of(value: dict[str, Any]) -> Struct | None:
    """Return a JSON object as a protobuf Struct; None if a Struct cannot represent it, or it is nested too deeply."""
    if is_too_deep(value, MAX_DEPTH):
        return None
    result = Struct()
    try:
        result.update(value)
    except (ValueError, OverflowError):  # a number too large for a double, or a lone surrogate
        return None
    return result


def usage(value: Usage | None) -> v1.Usage | None:
    """Return token counts and cost as an API message; None for None."""
    if value is None:
        return None
    return v1.Usage(
        input_tokens=value.input_tokens,
        output_tokens=value.output_tokens,
        cache_read_tokens=value.cache_read_tokens,
        cache_write_tokens=value.cache_write_tokens,
        cost_micros=value.cost_micros,
    )


def budget(value: Budget) -> v1.Budget | None:
    """Return a budget as an API message; None if the budget has no limits."""
    if value == Budget():
        return None
    return v1.Budget(
        run_tokens=value.run_tokens,
        conversation_tokens=value.conversation_tokens,
        conversation_cost_micros=value.conversation_cost_micros,
    )


def run_error(kind: ErrorKind | str, message: str) -> v1.RunError:
    """Return an error of a run as an API message."""
    return v1.RunError(kind=ERROR_KIND.get(ErrorKind(kind), v1.ERROR_KIND_UNKNOWN), message=message)


def failure(value: LlmFailure | None) -> v1.RunError | None:
    """Return the error of a failed model request as an API message; None for None."""
    return None if value is None else run_error(value.kind, value.message)


def json_value(text: str) -> Value:
    """Return a JSON text as a protobuf Value. Raises json_format.ParseError if the text is not JSON."""
    return json_format.Parse(text, Value())
