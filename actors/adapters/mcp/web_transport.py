"""The transport of MCP over HTTP: streamable HTTP with headers, or OAuth by client credentials."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import httpx2
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.streamable_http import streamable_http_client

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AsyncExitStack

    from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

    from actors.adapters.mcp.server_settings import McpServer

for _name in ("httpx2", "httpcore2", "mcp"):
    logging.getLogger(_name).setLevel(logging.WARNING)  # they log every request, and what servers send


class _TokensInMemory:
    """Keeps the access token of one connection (mcp.client.auth.TokenStorage); the next connection asks for another."""

    def __init__(self) -> None:
        self._tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep nothing: the credentials are the operator's."""


async def http_transport(server: McpServer, stack: AsyncExitStack, on_refusal: Callable[[int], None]) -> Any:
    """Return the transport to a server's URL; `stack` closes its connections.

    `on_refusal` is called with the status of each answer that is an error: the library's own errors do not name it.
    """

    async def look(response: httpx2.Response) -> None:
        if response.status_code >= 400:
            on_refusal(response.status_code)

    auth = None
    if server.oauth is not None:
        auth = ClientCredentialsOAuthProvider(
            server.url,
            _TokensInMemory(),
            server.oauth.client_id,
            server.oauth.client_secret,
            scope=server.oauth.scope or None,
            issuer=server.oauth.issuer,
        )
    timeout = httpx2.Timeout(server.connect_seconds, read=max(server.connect_seconds, server.call_seconds))
    client = httpx2.AsyncClient(
        headers=dict(server.headers), timeout=timeout, auth=auth, event_hooks={"response": [look]}
    )
    return streamable_http_client(server.url, http_client=await stack.enter_async_context(client))
