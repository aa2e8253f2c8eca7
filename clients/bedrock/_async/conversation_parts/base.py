"""The base class of the parts of `AsyncConversation`: the conversation's name and its connection to the server."""

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
    """A conversation on the server, identified by its name. The subclasses add the methods."""

    def __init__(self, transport: AsyncTransport, name: str, functions: Sequence[ToolFunction] = ()) -> None:
        """Create the object. Programs call `AsyncClient.conversation` or `AsyncClient.create` instead.

        `functions` answer calls of the conversation's client tools.
        """
        self.name = name
        """The resource name, ``conversations/{id or slug}``."""
        self._transport = transport
        self._stub = transport.conversations
        self._tools = AsyncClientTools(transport, name, functions)

    def __repr__(self) -> str:
        return f"AsyncConversation({self.name!r})"

    async def get(self, *, timeout: float | None = None) -> ConversationInfo:
        """Return the conversation as it is now. Raises NotFound if it does not exist."""
        request = v1.GetConversationRequest(name=self.name)
        response = await self._transport.call(self._stub.GetConversation, request, timeout)
        return ConversationInfo.from_proto(response.conversation)
