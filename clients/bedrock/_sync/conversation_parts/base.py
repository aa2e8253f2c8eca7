# Generated from clients/bedrock/_async/conversation_parts/base.py by `make client-sync`; edit that file.
"""The base class of the parts of `Conversation`: the conversation's name and its connection to the server."""

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
    """A conversation on the server, identified by its name. The subclasses add the methods."""

    def __init__(self, transport: Transport, name: str, functions: Sequence[ToolFunction] = ()) -> None:
        """Create the object. Programs call `Client.conversation` or `Client.create` instead.

        `functions` answer calls of the conversation's client tools.
        """
        self.name = name
        """The resource name, ``conversations/{id or slug}``."""
        self._transport = transport
        self._stub = transport.conversations
        self._tools = ClientTools(transport, name, functions)

    def __repr__(self) -> str:
        return f"Conversation({self.name!r})"

    def get(self, *, timeout: float | None = None) -> ConversationInfo:
        """Return the conversation as it is now. Raises NotFound if it does not exist."""
        request = v1.GetConversationRequest(name=self.name)
        response = self._transport.call(self._stub.GetConversation, request, timeout)
        return ConversationInfo.from_proto(response.conversation)
