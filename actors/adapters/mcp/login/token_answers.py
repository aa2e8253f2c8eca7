"""Reads the answers of OAuth token endpoints into logins."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

    from actors.ports.mcp import McpLogin

RENEWED_AT = 0.8
"""The fraction of its lifetime after which an access token is renewed."""

MIN_SECONDS = 30
"""Shorter lifetimes, in seconds, are ignored: to avoid constant renewals, such a token is used until it is refused."""

MAX_SECONDS = 10 * 365 * 86_400

_TOKEN = re.compile(r"[\x21-\x7e]{1,16384}")


class TokenAnswerError(Exception):
    """A token endpoint's answer holds no usable token; the text says what is wrong, and shows nothing of the answer."""


class TokensInMemory:
    """Keeps the tokens of one connection in memory (mcp.client.auth.TokenStorage); data of the client is not kept."""

    def __init__(self) -> None:
        self._tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep nothing."""


def with_tokens(login: McpLogin, answer: OAuthToken) -> McpLogin:
    """Return a login with new tokens; fields that the answer leaves out keep their values. Raises TokenAnswerError."""
    if not _TOKEN.fullmatch(answer.access_token) or not _TOKEN.fullmatch(answer.refresh_token or "x"):
        raise TokenAnswerError("it answered a token that cannot be sent")
    now, renew_at, expires_at = int(time.time() * 1000), 0, 0
    if answer.expires_in is not None and answer.expires_in >= MIN_SECONDS:
        lifetime = min(answer.expires_in, MAX_SECONDS) * 1000
        renew_at, expires_at = now + int(lifetime * RENEWED_AT), now + lifetime
    return replace(
        login,
        access_token=answer.access_token,
        refresh_token=answer.refresh_token or login.refresh_token,
        renew_at=renew_at,
        expires_at=expires_at,
        scope=answer.scope or login.scope,
    )
