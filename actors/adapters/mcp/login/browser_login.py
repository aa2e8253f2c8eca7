"""Logs in at an MCP server in a browser: OAuth 2.1 with an authorization code and PKCE, by the official MCP library."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, OAuthFlowError, OAuthTokenError
from mcp.client.auth.utils import issuers_match
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import LATEST_PROTOCOL_VERSION
from pydantic import AnyUrl, ValidationError

from actors.adapters.mcp.bounded_bodies import bound_body, check_uncompressed
from actors.adapters.mcp.login.redirect_listener import (
    CLIENT_REFUSALS,
    ClientRefusedError,
    LoginError,
    Redirected,
    RedirectListener,
    redirected,
)
from actors.adapters.mcp.login.token_answers import TokenAnswerError, TokensInMemory, with_tokens
from actors.adapters.mcp.server_settings import Login, is_local, is_private
from actors.ports.machine.trust_store import client_tls
from actors.ports.mcp import McpLogin, McpRegistration

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.adapters.mcp.server_settings import McpServer

SECONDS = 300.0
"""How long the person may take in the browser, in seconds."""

ALL_SECONDS = 60.0
"""Time limit in seconds for all requests before the person logs in; the requests after that get the same time again."""

ANSWER_BYTES = 1 << 20
"""Maximum size of a response, in bytes."""

EARLY_SECONDS = 3600
"""An OAuth client registration that expires in less than this many seconds is not used for another login.

Renewing the tokens of a login needs a registration that is still valid.
"""

_METHOD = "S256"


class LoggedIn(NamedTuple):
    """The result of a login."""

    login: McpLogin
    registration: McpRegistration | None
    """The OAuth client that was registered for this login or an earlier one; None if the settings name a client."""


async def log_in(
    server: McpServer,
    show: Callable[[str], object],
    *,
    paste: Callable[[], str] | None = None,
    port: int = 0,
    seconds: float = SECONDS,
    known: McpRegistration | None = None,
) -> LoggedIn:
    """Log in at an MCP server whose setting `login` is not None, and return the tokens.

    `show` is called with the URL that the person has to open in a browser. After the login the browser is redirected to
    `port` of this machine (0 means any free port); with `paste`, the person instead copies the URL of this redirect,
    and `paste` returns it. `seconds` is the time limit for the person. `known` is an earlier registration as an OAuth
    client, which is used if it was made for this server and this redirect URL. Raises LoginError, or ClientRefusedError
    if the authorization server refuses the client.
    """
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # the library would also log the errors that it raises
    limit = asyncio.timeout(ALL_SECONDS)
    rather = (urlsplit(known.redirect_uri).port or 0) if known else 0
    try:
        async with limit, RedirectListener(port, rather=rather) as listener:
            provider = _Provider(server, listener, show, paste, _Waiting(seconds, limit), known=known)
            hooks: Any = {"request": [provider.check], "response": [_bound]}
            tls = client_tls()
            async with httpx2.AsyncClient(auth=provider, timeout=None, verify=tls, event_hooks=hooks) as client:
                # Without a login, the server responds to any request with status 401 and where to log in. A ping is
                # sent because it changes nothing at the server.
                answer = await client.post(
                    server.url,
                    json={"jsonrpc": "2.0", "id": 1, "method": "ping"},
                    headers={
                        **server.headers,
                        "Accept": "application/json, text/event-stream",
                        MCP_PROTOCOL_VERSION_HEADER: LATEST_PROTOCOL_VERSION,
                    },
                )
            return LoggedIn(provider.login(answer.status_code), provider.registration())
    except (OAuthFlowError, ValidationError, TokenAnswerError) as error:
        text = " ".join(str(error).split())[:500]
        unknown = isinstance(error, OAuthTokenError) and any(f'"{refusal}"' in text for refusal in CLIENT_REFUSALS)
        raise (ClientRefusedError if unknown else LoginError)(text) from None
    except TimeoutError:
        raise LoginError(f"the server, or the one for logins, did not answer within {ALL_SECONDS:g} s") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise LoginError(f"a request failed: {error or type(error).__name__}") from None
    except OSError as error:
        raise LoginError(f"cannot listen for the browser: {error.strerror}") from None


async def _bound(response: httpx2.Response) -> None:
    """Limit the size of a response before it is read. Called for every response."""
    check_uncompressed(response)
    bound_body(response, ANSWER_BYTES)


class _Waiting:
    """A context manager that suspends the time limit of requests while a person logs in; afterwards it starts again.

    `seconds` is how long the person may take; it is not enforced here.
    """

    def __init__(self, seconds: float, limit: asyncio.Timeout) -> None:
        self.seconds = seconds
        self._limit = limit

    def __enter__(self) -> None:
        self._limit.reschedule(None)

    def __exit__(self, *_: object) -> None:
        self._limit.reschedule(asyncio.get_running_loop().time() + ALL_SECONDS)


class _Provider(OAuthClientProvider):
    """The OAuth flow of the MCP library for one login, with checks that the library leaves to its callers."""

    def __init__(
        self,
        server: McpServer,
        listener: RedirectListener,
        show: Callable[[str], object],
        paste: Callable[[], str] | None,
        waiting: _Waiting,
        *,
        known: McpRegistration | None,
    ) -> None:
        self._server = server
        self._settings = server.login or Login()
        self._listener = listener
        self._show = show
        self._paste = paste
        self._waiting = waiting
        self._known = known
        self._state = ""
        metadata = OAuthClientMetadata(
            redirect_uris=[AnyUrl(listener.address)],
            client_name="Bedrock",
            token_endpoint_auth_method="none",  # noqa: S106 -- a public client has no secret
        )
        super().__init__(server.url, metadata, TokensInMemory(), self._lead, self._led)

    async def check(self, request: httpx2.Request) -> None:
        """Raise LoginError for a request that others could read, or that a remote server wants sent to this machine.

        Called for every request.
        """
        self._check_endpoint(str(request.url))

    def _is_safe(self, url: str) -> bool:
        return is_private(url) and (is_local(self._server.url) or not is_local(url))

    def _check_endpoint(self, url: str) -> None:
        if not self._is_safe(url):
            shown = urlsplit(url)._replace(query="", fragment="").geturl()
            raise LoginError(f"{shown}: must be an https URL of another machine than this one")

    async def _initialize(self) -> None:
        """Choose the OAuth client: that of the settings, or else one that an earlier login has registered.

        The library calls this method at the beginning of the login. If no client is chosen, it registers a new one.
        """
        if self._settings.client_id:
            self.context.client_info = OAuthClientInformationFull(
                client_id=self._settings.client_id,
                client_secret=self._settings.client_secret or None,
                token_endpoint_auth_method="client_secret_basic" if self._settings.client_secret else "none",
                issuer=self._settings.issuer or None,
            )
        elif (known := self._known) is not None and self._is_for_this(known):
            self.context.client_info = OAuthClientInformationFull.model_validate(
                {
                    "client_id": known.client_id,
                    "client_secret": known.client_secret or None,
                    "token_endpoint_auth_method": known.client_authentication,
                    "client_secret_expires_at": known.expires_at,
                    "issuer": known.issuer,
                }
            )
        self._initialized = True

    def _is_for_this(self, known: McpRegistration) -> bool:
        """Return whether an earlier client registration can be used for this login.

        The library itself checks that the registration was made at this authorization server.
        """
        lasts = not known.expires_at or known.expires_at > time.time() + EARLY_SECONDS
        return lasts and (known.url, known.redirect_uri) == (self._server.url, self._listener.address)

    def _select_authorization_server(self, advertised: list[str]) -> str:
        wanted = self._settings.issuer
        if not wanted:
            return advertised[0]
        for each in advertised:
            if issuers_match(each, wanted):
                return each
        raise LoginError(f"the server names another authorization server than {wanted}: {advertised[0]}")

    async def _perform_authorization_code_grant(self) -> tuple[str, str]:
        """Check the authorization server's URLs, then let the library send the person there. Raises LoginError."""
        metadata, client = self.context.oauth_metadata, self.context.client_info
        if metadata is None or client is None:
            raise LoginError("the server does not say where to log in")
        if self._settings.issuer and not issuers_match(str(metadata.issuer), self._settings.issuer):
            raise LoginError(f"its authorization server is {metadata.issuer}, and not {self._settings.issuer}")
        if self._settings.client_id and client.client_id != self._settings.client_id:
            raise LoginError(f"the client_id of the settings is not for its authorization server, {metadata.issuer}")
        if _METHOD not in (metadata.code_challenge_methods_supported or ()):
            raise LoginError(f"its authorization server does not offer PKCE with {_METHOD}, which a login needs")
        for endpoint in (metadata.authorization_endpoint, metadata.token_endpoint):
            self._check_endpoint(str(endpoint))
        if self._settings.scope:
            self.context.client_metadata.scope = self._settings.scope
        return await super()._perform_authorization_code_grant()

    async def _lead(self, address: str) -> None:
        """Show the person the URL at which to log in. Called by the library."""
        metadata = self.context.oauth_metadata
        endpoint = str(metadata.authorization_endpoint) if metadata else ""
        if urlsplit(endpoint).query:  # the library would append its own parameters to this query with a second "?"
            address = f"{endpoint}&{address.removeprefix(f'{endpoint}?')}"
        self._state = parse_qs(urlsplit(address).query)["state"][-1]
        self._listener.expect(self._state)
        self._show(address)

    async def _led(self) -> AuthorizationCodeResult:
        """Return the parameters with which the authorization server has redirected the browser.

        Called by the library.
        """
        with self._waiting:
            found = self._pasted(self._paste()) if self._paste else await self._listener.answer(self._waiting.seconds)
        return AuthorizationCodeResult(code=found.code, state=found.state, iss=found.issuer)

    def _pasted(self, address: str) -> Redirected:
        try:
            return redirected(address, self._state)
        except LookupError:
            begins = f"{self._listener.address}?"
            raise LoginError(f"this is not the address that this login leads to: that begins with {begins}") from None

    def login(self, status: int) -> McpLogin:
        """Return the finished login. `status` is the HTTP status of the server's response to the ping.

        Raises LoginError if the server asked for no login, or refuses this one.
        """
        context = self.context
        if context.current_tokens is None or context.client_info is None or context.oauth_metadata is None:
            raise LoginError(f"the server asks for no login: it answered HTTP {status}")
        if status in {401, 403}:
            raise LoginError(f"the server refuses this login: it answered HTTP {status}")
        revocation = str(context.oauth_metadata.revocation_endpoint or "")
        empty = McpLogin(
            id=secrets.token_hex(8),
            url=self._server.url,
            resource=context.get_resource_url(),
            token_endpoint=str(context.oauth_metadata.token_endpoint),
            revocation_endpoint=revocation if self._is_safe(revocation) else "",
            issuer=str(context.oauth_metadata.issuer),
            client_id=context.client_info.client_id,
            client_secret=context.client_info.client_secret or "",
            client_authentication=context.client_info.token_endpoint_auth_method or "none",
            access_token="",
        )
        return with_tokens(empty, context.current_tokens)

    def registration(self) -> McpRegistration | None:
        """Return the OAuth client that was registered; None if the settings name it, or its issuer is unknown."""
        client = self.context.client_info
        if client is None or self._settings.client_id or not client.issuer:
            return None
        return McpRegistration(
            url=self._server.url,
            redirect_uri=self._listener.address,
            issuer=client.issuer,
            client_id=client.client_id,
            client_secret=client.client_secret or "",
            client_authentication=client.token_endpoint_auth_method or "none",
            expires_at=client.client_secret_expires_at or 0,
        )
