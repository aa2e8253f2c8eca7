"""Classes for what a server reports: models, tools, directories, sandbox, limits, quotas, nodes and audit entries."""

# ruff: noqa: I001, PLC0414 -- one statement exports what is generated in another module

from bedrock._shared.values import (
    AuditDecision as AuditDecision, AuditEntry as AuditEntry, DirectoryEntry as DirectoryEntry,
    DirectoryListing as DirectoryListing, Limits as Limits, McpHttp as McpHttp, McpServer as McpServer,
    McpStdio as McpStdio, McpToolLeftOut as McpToolLeftOut, Model as Model, Node as Node, Quota as Quota,
    Sandbox as Sandbox, ServerInfo as ServerInfo, Tool as Tool,
)  # fmt: skip
