"""New tokens for a login, from its authorization server."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import httpx2
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl, ValidationError

from actors.adapters.mcp.login.token_answers import TokenAnswerError, TokensInMemory, with_tokens

if TYPE_CHECKING:
    from actors.ports.mcp import McpLogin

SECONDS = 30.0
"""Time limit of a request."""

_REFUSALS = frozenset({400, 401, 403})

for _name in ("httpx2", "httpcore2", "mcp"):
    logging.getLogger(_name).setLevel(logging.WARNING)  # they log every request, and what servers send


class RenewalRefusedError(Exception):
    """The authorization server wants the person to log in again."""


class RenewalFailedError(Exception):
    """There are no new tokens now; the text says why. It can be tried again."""


async def renewed(login: McpLogin) -> McpLogin:
    """Return a login with new tokens. Raises RenewalRefusedError or RenewalFailedError."""
    context = OAuthContext(
        login.url, OAuthClientMetadata(redirect_uris=[AnyUrl(login.url)]), TokensInMemory(), None, None
    )
    context.client_info = OAuthClientInformationFull(
        client_id=login.client_id,
        client_secret=login.client_secret or None,
        token_endpoint_auth_method=login.client_authentication,
    )
    form = {"grant_type": "refresh_token", "refresh_token": login.refresh_token, "client_id": login.client_id}
    form, headers = context.prepare_token_auth({**form, "resource": login.resource}, {"Accept": "application/json"})
    try:
        async with httpx2.AsyncClient(timeout=SECONDS) as client:
            answer = await client.post(login.token_endpoint, data=form, headers=headers)
        if answer.status_code in _REFUSALS:
            raise RenewalRefusedError
        if answer.status_code != httpx2.codes.OK:
            raise RenewalFailedError(f"its authorization server answered HTTP {answer.status_code}")
        return with_tokens(login, OAuthToken.model_validate_json(answer.content))
    except (ValidationError, TokenAnswerError):
        raise RenewalFailedError("its authorization server answered no token") from None
    except (httpx2.HTTPError, OSError) as error:
        raise RenewalFailedError(f"its authorization server cannot be reached: {type(error).__name__}") from None
