"""Checks the choices in a conversation's profile: built-in tools, client tools, MCP servers. Actor's thread only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from actors.core.context import NOT_OFFERED, unoffered
from actors.core.errors import Reason, Rejected
from actors.core.steps.runs import SUBMIT_OUTPUT
from actors.messages.refusals import InvalidFieldError
from actors.ports.mcp import McpNotAllowedError, McpServerInvalidError
from actors.ports.schemas.json_schema import InvalidSchemaError
from actors.runtime.offered_tools import compiled

if TYPE_CHECKING:
    from actors.core.context import ChosenMcpServer, ClientTool, Mode, Profile
    from actors.runtime.services import Services

MAX_SCHEMA_BYTES = 16 * 1024
"""The maximum number of bytes of a client tool's input schema, as JSON text in UTF-8."""
MAX_TOOLS_BYTES = 512 * 1024
"""The maximum number of bytes of all client tools of a conversation together, as JSON."""
MCP_PREFIX = "mcp__"
"""The prefix of the names of MCP tools."""


def checked(services: Services, wanted: Profile) -> Profile:
    """Check the profile that a new conversation should get; return it with its tools in the order the model sees.

    Raises InvalidFieldError or Rejected (MCP_NOT_ALLOWED).
    """
    checked_client_tools(services, wanted.client_tools)
    check_mcp_servers(services, wanted.mcp_servers)
    if wanted.tools is None:
        return wanted
    known = [spec.name for spec in services.toolbox.specs(sub_agent=False)]
    if unknown := [name for name in wanted.tools if name not in known]:
        raise InvalidFieldError("tools", f"there is no tool {unknown[0]!r}; there are: {', '.join(known)}")
    return replace(wanted, tools=tuple(name for name in known if name in wanted.tools))


def checked_client_tools(services: Services, tools: tuple[ClientTool, ...]) -> tuple[ClientTool, ...]:
    """Check the tools that clients run, and return them.

    Raises InvalidFieldError about the first one that is invalid.
    """
    ours = {spec.name for sub_agent in (False, True) for spec in services.toolbox.specs(sub_agent=sub_agent)}
    ours.add(SUBMIT_OUTPUT)
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if text := _name_fault(tool.name, ours, seen):
            raise InvalidFieldError(f"client_tools[{index}].name", text)
        if text := _schema_fault(tool.input_schema):
            raise InvalidFieldError(f"client_tools[{index}].input_schema", text)
        seen.add(tool.name)
    if len(msgspec.json.encode(tools)) > MAX_TOOLS_BYTES:
        raise InvalidFieldError("client_tools", f"must have at most {MAX_TOOLS_BYTES} bytes together")
    return tools


def check_offered(tools: tuple[ClientTool, ...], mode: Mode) -> None:
    """Raise Rejected (TOOL_NOT_OFFERED) if the mode does not offer all of these tools to the agent."""
    if names := unoffered(tools, mode):
        raise Rejected(Reason.TOOL_NOT_OFFERED, f"{', '.join(names)} would not be offered: {NOT_OFFERED}")


def check_mcp_servers(services: Services, chosen: tuple[ChosenMcpServer, ...]) -> None:
    """Check the MCP servers that a client configures. Raises InvalidFieldError or Rejected (MCP_NOT_ALLOWED)."""
    if not chosen:
        return
    try:
        services.mcp.check(chosen)
    except McpNotAllowedError as error:
        raise Rejected(Reason.MCP_NOT_ALLOWED, str(error)) from None
    except McpServerInvalidError as error:
        raise InvalidFieldError(f"mcp_servers[{error.position}].{error.field}", str(error)) from None


def _name_fault(name: str, ours: set[str], seen: set[str]) -> str:
    if name in ours:
        return f"{name!r} is a tool of this server: choose another name"
    if name.startswith(MCP_PREFIX):
        return f"names that begin with {MCP_PREFIX} are those of tools of MCP servers: choose another one"
    return f"{name!r} is there twice" if name in seen else ""


def _schema_fault(schema: str) -> str:
    if len(schema.encode()) > MAX_SCHEMA_BYTES:
        return f"must have at most {MAX_SCHEMA_BYTES} bytes as JSON"
    if msgspec.json.decode(schema, type=dict).get("type") != "object":
        return 'must be of type object: {"type": "object", "properties": …}'
    try:
        compiled(schema)
    except InvalidSchemaError as error:
        return f"is no JSON Schema that can be used: {error}"
    return ""
