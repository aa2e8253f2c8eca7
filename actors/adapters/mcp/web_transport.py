"""The transport of MCP over HTTP (streamable HTTP), with headers, a login, or OAuth by client credentials."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.streamable_http import streamable_http_client

from actors.adapters.mcp.bounded_bodies import bound_body, check_uncompressed, mark_forgotten_session, mend_body
from actors.adapters.mcp.login.kept_logins import LoginUnavailableError
from actors.adapters.mcp.login.token_answers import TokensInMemory
from actors.adapters.mcp.pipes import LINE_BYTES
from actors.ports.machine.trust_store import client_tls
from actors.ports.settings.settings_checks import is_nearby

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from contextlib import AsyncExitStack

    from actors.adapters.mcp.login.kept_logins import KeptLogins
    from actors.adapters.mcp.server_settings import McpServer

for _name in ("httpx2", "httpcore2", "mcp"):
    logging.getLogger(_name).setLevel(logging.WARNING)  # at INFO they log every request and what servers send


class _LoginAuth(httpx2.Auth):
    """Sends the access token of the operator's login with each request, and a newer token if that one is refused."""

    def __init__(
        self, name: str, logins: KeptLogins, on_refusal: Callable[[str], None], on_needs_login: Callable[[], None]
    ) -> None:
        self._name = name
        self._logins = logins
        self._on_refusal = on_refusal
        self._on_needs_login = on_needs_login

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Send the request by yielding it; if the response is 401, send it once more with another token, if any.

        If the server has refused every token, or there is no token, one of the callbacks is called. If no token could
        be obtained at the moment, this is `on_refusal` with the reason; otherwise it is `on_needs_login`.
        """
        token, trouble = await self._asked(self._logins.token(self._name))
        for _ in range(2):
            if token:
                request.headers["Authorization"] = f"Bearer {token}"
            response = yield request
            if response.status_code != httpx2.codes.UNAUTHORIZED:
                return
            if token:
                token, trouble = await self._asked(self._logins.another(self._name, token))
            if not token:
                break
        if trouble:
            self._on_refusal(trouble)
        else:
            self._on_needs_login()

    @staticmethod
    async def _asked(asking: Awaitable[str]) -> tuple[str, str]:
        """Await an access token; return it ("" without a login) and "". If none is available now, return "" and why."""
        try:
            return await asking, ""
        except LoginUnavailableError as error:
            return "", str(error)


async def http_transport(
    server: McpServer,
    stack: AsyncExitStack,
    logins: KeptLogins | None,
    on_refusal: Callable[[str], None],
    on_needs_login: Callable[[], None],
) -> Any:
    """Return the transport to a server's URL; closing `stack` closes its connections.

    `on_refusal` is called with a reason that the library's errors do not contain: the HTTP status of an error response,
    that a response is compressed, or why no access token is available now. `on_needs_login` is called if the server
    requires that a person logs in.
    """

    async def look(response: httpx2.Response) -> None:
        if response.status_code >= 400:
            on_refusal(f"HTTP {response.status_code}")
        try:
            check_uncompressed(response)
        except httpx2.DecodingError as error:
            on_refusal(str(error))
            raise
        events = response.headers.get("content-type", "").startswith("text/event-stream")
        own = response.request.url == httpx2.URL(server.url)
        if not events or response.is_error or not own:
            bound_body(response, LINE_BYTES)
        if own:
            mend_body(response, events=events)
        if response.request.method == "POST" and "mcp-session-id" in response.request.headers:
            mark_forgotten_session(response)

    auth: httpx2.Auth | None = None
    if server.oauth is not None:
        auth = ClientCredentialsOAuthProvider(
            server.url,
            TokensInMemory(),
            server.oauth.client_id,
            server.oauth.client_secret,
            scope=server.oauth.scope or None,
            issuer=server.oauth.issuer,
        )
    elif server.login is not None and logins is not None:
        auth = _LoginAuth(server.name, logins, on_refusal, on_needs_login)
    silence = max(server.connect_seconds, server.call_seconds) + server.question_seconds
    timeout = httpx2.Timeout(server.connect_seconds, read=silence)
    client = httpx2.AsyncClient(
        headers={"Accept-Encoding": "identity", **server.headers},
        timeout=timeout,
        auth=auth,
        verify=client_tls(),
        trust_env=not is_nearby(urlsplit(server.url).hostname or ""),  # the environment may have a proxy
        event_hooks={"response": [look]},
    )
    http_client = await stack.enter_async_context(client)
    return streamable_http_client(server.url, http_client=http_client, max_sse_event_size=LINE_BYTES)
