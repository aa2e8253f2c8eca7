"""Reads a TOML file of MCP servers for one conversation, in the format of the server's settings."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

from bedrock import McpHttp, McpServer, McpStdio
from bedrock._shared.requests import read_file
from bedrock.cli.arguments import unreadable

if TYPE_CHECKING:
    from pathlib import Path

HINT = "--mcp-servers"
KEYS = ("name", "command", "environment", "url", "headers", "read_only")


def servers_in(path: Path) -> list[McpServer]:
    """Return the servers in the tables [[mcp_servers]] of a TOML file.

    Raises BadParameter, which names what is wrong.
    """
    try:
        tables = tomllib.loads(read_file(path).decode("utf-8-sig")).get("mcp_servers", [])
        if not isinstance(tables, list) or not tables:
            raise ValueError("has no tables [[mcp_servers]]")
        return [_server(table) for table in tables]
    except (OSError, ValueError, TypeError) as error:
        raise unreadable(str(path), error, HINT) from None


def _server(table: dict[str, Any]) -> McpServer:
    if unknown := table.keys() - set(KEYS):
        raise ValueError(f"{min(unknown)}: unknown key; there are: {', '.join(KEYS)}")
    if ("command" in table) == ("url" in table):
        raise ValueError(f"{table.get('name', '')}: give either command, for a program, or url")
    stdio = McpStdio(table["command"], table.get("environment", {})) if "command" in table else None
    http = McpHttp(table["url"], table.get("headers", {})) if "url" in table else None
    return McpServer(table.get("name", ""), stdio, http, table.get("read_only", ()))
