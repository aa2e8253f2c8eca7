# Generated from clients/bedrock/_async/conversation_parts/base.py by `make client-sync`; edit that file.
"""What each part of a conversation's methods needs: its name and how to call the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bedrock import v1
from bedrock._sync.client_tools import ClientTools
from bedrock.conversations import ConversationInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bedrock._shared.client_tools.functions import ToolFunction
    from bedrock._sync.transport import Transport

__all__ = ["ConversationBase"]


class ConversationBase:
    """A conversation on the server, by name; its methods are in the classes that inherit from this."""

    def __init__(self, transport: Transport, name: str, functions: Sequence[ToolFunction] = ()) -> None:
        """Use `Client.conversation` or `Client.create`, whose tools `functions` are for."""
        self.name = name
        """The resource name, ``conversations/{id or slug}``."""
        self._transport = transport
        self._stub = transport.conversations
        self._tools = ClientTools(transport, name, functions)

    def __repr__(self) -> str:
        return f"Conversation({self.name!r})"

    def get(self, *, timeout: float | None = None) -> ConversationInfo:
        """Read the conversation."""
        request = v1.GetConversationRequest(name=self.name)
        response = self._transport.call(self._stub.GetConversation, request, timeout)
        return ConversationInfo.from_proto(response.conversation)
