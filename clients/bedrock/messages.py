"""Classes for messages, stored or queued, and for their content: text, images, tool calls, tool results and usage."""

# ruff: noqa: I001, PLC0414 -- one statement exports what is generated in another module

from bedrock._shared.values import (
    Attachment as Attachment, ContentBlock as ContentBlock, Image as Image, Message as Message,
    QueuedMessage as QueuedMessage, ToolCall as ToolCall, ToolResult as ToolResult, Usage as Usage,
)  # fmt: skip
