"""Converts the responses of OAuth token endpoints to logins."""

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
"""Access tokens with a shorter lifetime are not renewed before they expire, which would happen constantly.

Instead they are used until the server refuses them.
"""

MAX_SECONDS = 10 * 365 * 86_400

_TOKEN = re.compile(r"[\x21-\x7e]{1,16384}")


class TokenAnswerError(Exception):
    """A token endpoint's response has no usable token; the text explains what is wrong, without quoting it."""


class TokensInMemory:
    """Keeps the tokens of one connection in memory (implements mcp.client.auth.TokenStorage).

    The data of the OAuth client is not kept.
    """

    def __init__(self) -> None:
        self._tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Do nothing: the data of the OAuth client is not kept."""


def with_tokens(login: McpLogin, answer: OAuthToken) -> McpLogin:
    """Return a login with the tokens of `answer`.

    If `answer` has no refresh token or no scope, that of `login` is kept. Raises TokenAnswerError if a token cannot be
    sent in a header.
    """
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
