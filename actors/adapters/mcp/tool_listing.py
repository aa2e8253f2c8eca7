"""Lists the tools of an MCP server, in the form in which they are offered to models.

Tools that providers do not accept are left out: they would make every request that offers them fail, in all
conversations.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import TYPE_CHECKING, Any

from actors.core.context import ToolGroup, ToolTraits
from actors.core.tags import escape
from actors.ports.models import ToolSpec
from actors.ports.schemas.json_schema import is_schema, parse_json

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import Tool

    from actors.adapters.mcp.server_settings import McpServer

log = logging.getLogger(__name__)

PREFIX = "mcp__"

MAX_TOOLS = 128
"""Maximum number of tools of one server; further tools are not offered."""

MAX_PAGES = 100
"""Maximum number of pages of the tool list that are requested from a server."""

DESCRIPTION_CHARACTERS = 4_096
"""Maximum characters of a tool's description; the rest is cut off."""

SCHEMA_BYTES = 64 << 10
"""Maximum size of an input schema in bytes; a tool with a larger schema is not offered."""

LIST_BYTES = 512 << 10
"""Maximum size in bytes of all schemas and descriptions of one server together, to leave room in a context window."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PROPERTY = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Matches the parameter names that providers accept."""
_REFERENCES = ("$ref", "$dynamicRef")


class _NotOfferedError(Exception):
    """A tool cannot be offered; the text contains the reason."""


def full_name(server: str, tool: str) -> str:
    """Return the name by which models call a tool: "mcp__SERVER__TOOL"."""
    return f"{PREFIX}{server}__{tool}"


def parted(name: str) -> tuple[str, str] | None:
    """Split the full name of an MCP tool into server and tool; return None for names of other tools.

    The split is unambiguous, because server names contain no underscore.
    """
    if not name.startswith(PREFIX):
        return None
    server, _, tool = name.removeprefix(PREFIX).partition("__")
    return (server, tool) if server and tool else None


async def tools_of(client: Client, server: McpServer) -> tuple[ToolSpec, ...]:
    """Ask a server for its tools, and return those that can be offered, in the server's order.

    Descriptions are the server's own text: they may be wrong or hostile, and their length is bounded. Raises the errors
    of the MCP library.
    """
    found: dict[str, ToolSpec] = {}
    left = LIST_BYTES
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor, cache_mode="bypass")
        for tool in page.tools:
            try:
                spec, size = _spec(server, tool)
                if spec.name in found:
                    raise _NotOfferedError("there is one of this name")
                if len(found) == MAX_TOOLS or size > left:
                    raise _NotOfferedError("the server has too many, or too large ones")
            except _NotOfferedError as why:
                log.warning("MCP server %s: its tool %.100r is not offered: %s", server.name, tool.name, why)
            else:
                found[spec.name] = spec
                left -= size
            await asyncio.sleep(0)  # lets other tasks run
        cursor = page.next_cursor
        if cursor is None or len(found) == MAX_TOOLS:
            break
    return tuple(found.values())


def _spec(server: McpServer, tool: Tool) -> tuple[ToolSpec, int]:
    """Return a tool's specification for models, and its size in bytes. Raises _NotOfferedError."""
    name = full_name(server.name, tool.name)
    if not _NAME.fullmatch(name) or not tool.name:
        raise _NotOfferedError("no tool can have this name")
    description = _cleaned(tool.description or tool.title or tool.name)[:DESCRIPTION_CHARACTERS]
    schema, size = _schema(tool.input_schema)
    traits = ToolTraits(name, ToolGroup.OTHER, writes=not server.changes_nothing(tool.name))
    return ToolSpec(description, schema, traits, essential=True), size + len(description.encode())


def _schema(given: Any) -> tuple[dict[str, Any], int]:
    """Return a tool's input schema for models, and its size in bytes. Raises _NotOfferedError."""
    try:
        text = json.dumps(given)
        if len(text) > SCHEMA_BYTES:
            raise _NotOfferedError(f"its schema has more than {SCHEMA_BYTES} bytes")
        schema = _cleaned(parse_json(text))
    except (ValueError, RecursionError) as error:
        raise _NotOfferedError(f"its schema cannot be sent: {error}") from None
    schema = {"type": "object", **schema}
    schema.pop("$schema", None)  # most schemas name an older draft, but are valid in the draft that providers accept
    if not is_schema(schema):
        raise _NotOfferedError("its schema is none of draft 2020-12")
    if any(not _PROPERTY.fullmatch(parameter) for parameter in schema.get("properties", ())):
        raise _NotOfferedError("a parameter has a name that providers do not take")
    if _refers_elsewhere(schema):
        raise _NotOfferedError("its schema refers to another one")
    return schema, len(text)


def _refers_elsewhere(value: Any) -> bool:
    """Return whether a schema (of bounded nesting) has a $ref to something outside of this schema."""
    if isinstance(value, dict):
        named = [value[key] for key in _REFERENCES if isinstance(value.get(key), str)]
        return any(not each.startswith("#") for each in named) or any(map(_refers_elsewhere, value.values()))
    return isinstance(value, list) and any(map(_refers_elsewhere, value))


def _cleaned(value: Any) -> Any:
    """Return a text, or a JSON value of bounded nesting, in a form that is safe to show to a model.

    NUL is replaced, and text that looks like a system notice is escaped.
    """
    if isinstance(value, str):
        return escape(value.replace("\0", "\ufffd"))
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(inner) for key, inner in value.items()}
    return [_cleaned(inner) for inner in value] if isinstance(value, list) else value
