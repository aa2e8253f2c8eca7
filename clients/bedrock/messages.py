"""Classes for messages, stored or queued, and for their content: text, images, tool calls, tool results and usage."""

from __future__ import annotations

from bedrock._shared.values import (
    Attachment,
    ContentBlock,
    Image,
    Message,
    QueuedMessage,
    ToolCall,
    ToolResult,
    Usage,
)

__all__ = [
    "Attachment",
    "ContentBlock",
    "Image",
    "Message",
    "QueuedMessage",
    "ToolCall",
    "ToolResult",
    "Usage",
]
