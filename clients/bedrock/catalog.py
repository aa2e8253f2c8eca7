"""Classes for what a server reports: models, tools, directories, sandbox, limits, quotas, nodes and audit entries."""

from __future__ import annotations

from bedrock._shared.values import (
    AuditDecision,
    AuditEntry,
    DirectoryEntry,
    DirectoryListing,
    Limits,
    McpHttp,
    McpServer,
    McpStdio,
    McpToolLeftOut,
    Model,
    Node,
    Quota,
    Sandbox,
    ServerInfo,
    Tool,
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
