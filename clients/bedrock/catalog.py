"""Classes for what a server reports: models, tools, directories, sandbox, limits, quotas, nodes and audit entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bedrock import v1
from bedrock._shared.values import (
    AuditDecision,
    AuditEntry,
    DirectoryEntry,
    DirectoryListing,
    Limits,
    McpHttp,
    McpStdio,
    McpToolLeftOut,
    Model,
    Node,
    Quota,
    Sandbox,
    Tool,
)
from bedrock._shared.wrapper import Value, Wrapper, new_message
from bedrock.types import (
    McpServerState,
    Mode,
)

__all__ = [
    "AuditDecision",
    "AuditEntry",
    "DirectoryEntry",
    "DirectoryListing",
    "Limits",
    "McpHttp",
    "McpServer",
    "McpStdio",
    "McpToolLeftOut",
    "Model",
    "Node",
    "Quota",
    "Sandbox",
    "ServerInfo",
    "Tool",
]


@dataclass(frozen=True, slots=True)
class McpServer(Value[v1.McpServer]):
    """A server that offers tools by the Model Context Protocol, set up by the operator or for one conversation."""

    name: str
    """The server's name. Agents see its tools as ``mcp__{name}__{tool}``, with a dot in `tool` as ``_x2e_``."""
    stdio: McpStdio | None = None
    """How to start the server, if it is a program."""
    http: McpHttp | None = None
    """How to reach the server, if it has a URL."""
    read_only_tools: tuple[str, ...] = ()
    """The tools that change nothing, by the MCP server's own names. Only these tools run in restricted mode."""
    state: McpServerState | Literal[""] = ""
    """The state of the connection. Set by the Bedrock server, like `error` and `tools`."""
    error: str = ""
    """Why the connection failed, or how to log in; empty in other states."""
    tools: tuple[str, ...] = ()
    """The resource names of the tools that the MCP server listed last."""
    tools_left_out: tuple[McpToolLeftOut, ...] = ()
    """The tools that the MCP server listed last, but that agents are not offered; at most 128."""

    def __post_init__(self) -> None:
        """Check the values and set `proto`. Raises TypeError if a value has a wrong type; the text names the field."""
        proto = new_message(v1.McpServer, name=self.name, read_only_tools=self.read_only_tools)
        if isinstance(self.stdio, McpStdio):
            proto.stdio.CopyFrom(self.stdio.proto)
        elif isinstance(self.http, McpHttp):
            proto.http.CopyFrom(self.http.proto)
        object.__setattr__(self, "proto", proto)


@dataclass(frozen=True, slots=True)
class ServerInfo(Wrapper[v1.GetServerInfoResponse]):
    """The version of a server, what its sandbox can do, and its limits."""

    version: str
    """The version of the server, as in semantic versioning."""
    sandbox: Sandbox
    """The capabilities of the sandbox on the server's machine."""
    limits: Limits
    """The limits that clients may run into."""
    default_model: str
    """The resource name of the default model of conversations; empty if there is none."""
    default_mode: Mode
    """The default mode of conversations."""
    sqlite_version: str
    """The version of the SQLite library that the server uses; empty if the server uses another database."""
    mcp_servers: tuple[McpServer, ...]
    """The MCP servers that the operator has set up."""
    ends_when_unused: bool
    """Whether the server ends by itself once no client is connected and no run is open; background jobs end with it."""
