"""What each part of a conversation's methods needs: its name and how to call the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bedrock import v1
from bedrock._async.client_tools import AsyncClientTools
from bedrock.conversations import ConversationInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bedrock._async.transport import AsyncTransport
    from bedrock._shared.client_tools.functions import ToolFunction

__all__ = ["AsyncConversationBase"]


class AsyncConversationBase:
    """A conversation on the server, by name; its methods are in the classes that inherit from this."""

    def __init__(self, transport: AsyncTransport, name: str, functions: Sequence[ToolFunction] = ()) -> None:
        """Use `AsyncClient.conversation` or `AsyncClient.create`, whose tools `functions` are for."""
        self.name = name
        """The resource name, ``conversations/{id or slug}``."""
        self._transport = transport
        self._stub = transport.conversations
        self._tools = AsyncClientTools(transport, name, functions)

    def __repr__(self) -> str:
        return f"AsyncConversation({self.name!r})"

    async def get(self, *, timeout: float | None = None) -> ConversationInfo:
        """Read the conversation."""
        request = v1.GetConversationRequest(name=self.name)
        response = await self._transport.call(self._stub.GetConversation, request, timeout)
        return ConversationInfo.from_proto(response.conversation)
