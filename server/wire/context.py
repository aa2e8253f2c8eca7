"""Facts about tools, models, background jobs and MCP servers that conversions of stored values need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from actors.core.context import Limits, ToolGroup
from actors.ports import ConversationRecord
from actors.ports.mcp import McpServerStatus

if TYPE_CHECKING:
    from actors.core.content import ToolUse


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
