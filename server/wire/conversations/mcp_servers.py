"""Converts MCP servers to API messages and back: the operator's, and those that clients add to a conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bedrock import v1

from actors.core.context import ChosenMcpServer
from actors.ports.mcp import McpServerStatus, McpState
from server.contract import resource_names as names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_STATES = {
    McpState.CONNECTING: v1.McpServer.STATE_CONNECTING,
    McpState.READY: v1.McpServer.STATE_READY,
    McpState.FAILED: v1.McpServer.STATE_FAILED,
    McpState.STOPPED: v1.McpServer.STATE_STOPPED,
    McpState.NEEDS_LOGIN: v1.McpServer.STATE_NEEDS_LOGIN,
}


def chosen(wanted: Iterable[v1.McpServer]) -> tuple[ChosenMcpServer, ...]:
    """Return the MCP servers that a request adds to a conversation."""
    return tuple(
        ChosenMcpServer(
            name=server.name,
            command=tuple(server.stdio.command),
            environment=dict(server.stdio.environment),
            url=server.http.url,
            headers=dict(server.http.headers),
            read_only=tuple(server.read_only_tools),
        )
        for server in wanted
    )


def mcp_server(status: McpServerStatus) -> v1.McpServer:
    """Return an MCP server with its state and tools as an API message, without its environment and headers."""
    server = v1.McpServer(
        name=status.name,
        state=_STATES[status.state],
        error=status.error,
        tools=[names.tool(spec.name) for spec in status.tools],
        tools_left_out=[v1.McpServer.ToolLeftOut(name=each.name, reason=each.reason) for each in status.left_out],
    )
    if status.url:
        server.http.url = status.url
    else:
        server.stdio.command.extend(status.command)
    return server


def servers_of(servers: Sequence[ChosenMcpServer], statuses: Iterable[McpServerStatus]) -> list[v1.McpServer]:
    """Return, as API messages, the MCP servers that clients added to a conversation.

    A server without a status counts as stopped.
    """
    known = {status.name: status for status in statuses}
    found: list[v1.McpServer] = []
    for each in servers:
        stopped = McpServerStatus(each.name, McpState.STOPPED, each.command, each.url)
        server = mcp_server(known.get(each.name, stopped))
        if each.environment:
            server.stdio.environment.update(each.environment)
        if each.headers:
            server.http.headers.update(each.headers)
        server.read_only_tools.extend(each.read_only)
        found.append(server)
    return found
