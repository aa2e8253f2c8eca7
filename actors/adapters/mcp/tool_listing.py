"""The tools of an MCP server, as models are offered them."""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING, Any

from actors.core.context import ToolGroup, ToolTraits
from actors.ports.models import ToolSpec

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import Tool

    from actors.adapters.mcp.server_settings import McpServer

log = logging.getLogger(__name__)

PREFIX = "mcp__"

MAX_TOOLS = 128
"""Maximum number of tools of one server; further ones are not offered."""

MAX_PAGES = 100
"""Maximum number of pages that a server is asked for."""

DESCRIPTION_CHARACTERS = 4_096
"""Maximum characters of a description; the rest is cut off."""

SCHEMA_BYTES = 64 << 10
"""Maximum size of an input schema; a tool with a larger one is not offered."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def full_name(server: str, tool: str) -> str:
    """Return the name that models call a tool by."""
    return f"{PREFIX}{server}__{tool}"


def parted(name: str) -> tuple[str, str] | None:
    """Return server and tool of a full name; None for other names. Names of servers contain no underscore."""
    if not name.startswith(PREFIX):
        return None
    server, _, tool = name.removeprefix(PREFIX).partition("__")
    return (server, tool) if server and tool else None


async def tools_of(client: Client, server: McpServer) -> tuple[ToolSpec, ...]:
    """Ask a server for its tools, and return those that can be offered, in its order. Raises what the library raises.

    A description is the server's own words: it may be wrong or hostile, and is bounded.
    """
    found: dict[str, ToolSpec] = {}
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor, cache_mode="bypass")
        for tool in page.tools:
            spec = _spec(server, tool)
            if spec is not None and len(found) < MAX_TOOLS:
                found.setdefault(spec.name, spec)
            else:
                log.warning("MCP server %s: its tool %.100r is not offered", server.name, tool.name)
        cursor = page.next_cursor
        if cursor is None or len(found) == MAX_TOOLS:
            break
    return tuple(found.values())


def _spec(server: McpServer, tool: Tool) -> ToolSpec | None:
    """Return a tool as models see it; None if its name or its schema is not one that can be offered."""
    name = full_name(server.name, tool.name)
    schema: Any = tool.input_schema
    if not _NAME.fullmatch(name) or not isinstance(schema, dict):
        return None
    try:
        size = len(json.dumps(schema))
    except (ValueError, RecursionError):
        return None
    if size > SCHEMA_BYTES:
        return None
    description = (tool.description or tool.title or tool.name)[:DESCRIPTION_CHARACTERS]
    traits = ToolTraits(name, ToolGroup.OTHER, writes=not server.changes_nothing(tool.name))
    return ToolSpec(description, {"type": "object", **schema}, traits, essential=True)
