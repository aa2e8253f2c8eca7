"""Additional facts that conversions need beside the value to convert."""

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


def _no_servers(_record: ConversationRecord) -> Sequence[McpServerStatus]:
    return ()


@dataclass(frozen=True)
class ConversionContext:
    """Facts about tools, models, jobs and MCP servers for conversions. Created once, when the server starts."""

    groups: Mapping[str, ToolGroup]
    """The group of each tool, by the tool's name."""
    usable_window: Callable[[str], int]
    """Returns the tokens that a conversation with this model can use. Any thread; must not block."""
    limits: Limits
    background_jobs: Callable[[str], Sequence[str]] = _no_jobs
    """Returns the handles of a conversation's running jobs. Any thread; must not block."""
    mcp_servers: Callable[[ConversationRecord], Sequence[McpServerStatus]] = _no_servers
    """Returns the states of a conversation's own MCP servers. Any thread; must not block."""

    def group_of(self, call: ToolUse) -> ToolGroup:
        """Return the group of the tool that is called."""
        return call.group or self.groups.get(call.name, ToolGroup.OTHER)
