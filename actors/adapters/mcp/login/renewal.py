"""Renews and revokes the tokens of a login at its authorization server."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import httpx2
from mcp.client.auth import OAuthTokenError
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl, ValidationError

from actors.adapters.mcp.login.token_answers import TokenAnswerError, TokensInMemory, with_tokens
from actors.ports.machine.trust_store import client_tls

if TYPE_CHECKING:
    from actors.ports.mcp import McpLogin

SECONDS = 30.0
"""Time limit in seconds for a request and its whole response."""

ANSWER_BYTES = 1 << 20
"""Maximum size of a response, in bytes."""

_REFUSALS = frozenset({400, 401, 403})

for _name in ("httpx2", "httpcore2", "mcp"):
    logging.getLogger(_name).setLevel(logging.WARNING)  # at INFO they log every request and what servers send


class RenewalRefusedError(Exception):
    """The authorization server refuses to renew the tokens: a person has to log in again."""


class RenewalFailedError(Exception):
    """The tokens could not be renewed now; the text contains the reason. A later attempt may succeed."""


async def renewed(login: McpLogin) -> McpLogin:
    """Return a login with new tokens. Raises RenewalRefusedError or RenewalFailedError."""
    form = {"grant_type": "refresh_token", "refresh_token": login.refresh_token, "resource": login.resource}
    try:
        async with asyncio.timeout(SECONDS):
            status, body = await _answer(login, login.token_endpoint, form)
        if status in _REFUSALS:
            raise RenewalRefusedError
        if status != httpx2.codes.OK:
            raise RenewalFailedError(f"its authorization server answered HTTP {status}")
        return with_tokens(login, OAuthToken.model_validate_json(body))
    except (OAuthTokenError, ValidationError, TokenAnswerError):
        raise RenewalFailedError("its authorization server answered no token") from None
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        raise RenewalFailedError(f"its authorization server cannot be reached: {type(error).__name__}") from None


async def revoked(login: McpLogin) -> bool:
    """Ask the authorization server to make the tokens of a login invalid; return whether it confirmed that."""
    if not login.revocation_endpoint:
        return False
    hint = "refresh_token" if login.refresh_token else "access_token"
    form = {"token": login.refresh_token or login.access_token, "token_type_hint": hint}
    try:
        async with asyncio.timeout(SECONDS):
            status, _ = await _answer(login, login.revocation_endpoint, form)
    except (OAuthTokenError, RenewalFailedError, httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError):
        return False  # ValueError: the stored login has an unusable URL
    return status == httpx2.codes.OK


async def _answer(login: McpLogin, url: str, form: dict[str, str]) -> tuple[int, bytes]:
    """Send a form as the OAuth client of the login; return the status and the body of the response.

    Raises RenewalFailedError if the response is too large, and the errors of the HTTP and MCP libraries.
    """
    metadata = OAuthClientMetadata(redirect_uris=[AnyUrl(login.url)])
    context = OAuthContext(login.url, metadata, TokensInMemory(), None, None)
    context.client_info = OAuthClientInformationFull(
        client_id=login.client_id,
        client_secret=login.client_secret or None,
        token_endpoint_auth_method=login.client_authentication,
    )
    form, headers = context.prepare_token_auth({**form, "client_id": login.client_id}, {"Accept": "application/json"})
    body = b""
    async with (
        httpx2.AsyncClient(timeout=None, verify=client_tls()) as client,
        client.stream("POST", url, data=form, headers=headers) as answer,
    ):
        async for part in answer.aiter_bytes():
            body += part
            if len(body) > ANSWER_BYTES:
                raise RenewalFailedError("its authorization server answered too much")
    return answer.status_code, body
