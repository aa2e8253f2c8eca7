"""OAuth logins to MCP servers with the official MCP library: logs in through a browser, renews and revokes tokens."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, OAuthFlowError, OAuthTokenError
from mcp.client.auth.oauth2 import OAuthContext
from mcp.client.auth.utils import issuers_match
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import LATEST_PROTOCOL_VERSION
from msgspec import Struct
from msgspec.structs import replace
from pydantic import AnyUrl, ValidationError

from actors.adapters.mcp.server_settings import Login, McpServer, is_local, is_private
from actors.adapters.mcp.transports import TokensInMemory, bound_body, check_uncompressed
from actors.common.machine import client_tls
from actors.ports.tools import McpLogin, McpRegistration

PATH = "/callback"

REQUEST_SECONDS = 10.0

LINE_BYTES = 16 << 10

_DONE = "You are logged in. You can close this page."
_REFUSED = "The login was refused. See the terminal for the reason."
_UNKNOWN = "This page does not belong to the login in progress."


class LoginError(Exception):
    """The login failed; the message says why."""


class ClientRefusedError(LoginError):
    """The authorization server does not know the OAuth client, or no longer accepts its registration."""


CLIENT_REFUSALS = frozenset({"invalid_client", "invalid_scope", "unauthorized_client"})


class Redirected(Struct, frozen=True):
    """The parameters that the authorization server added to the browser's redirect."""

    code: str
    state: str
    issuer: str | None

    def __repr__(self) -> str:
        return "Redirected(***)"


def redirected(address: str, state: str) -> Redirected:
    """The parameters of a redirect URL that ends the login with this `state`.

    Raises LoginError, or LookupError for any other URL.
    """
    try:
        asked = parse_qs(urlsplit(address.strip()).query, keep_blank_values=True, max_num_fields=32)
    except ValueError:
        raise LookupError from None
    given = {key: values[0] for key, values in asked.items() if len(values) == 1}
    if not hmac.compare_digest(given.get("state", "").encode(), state.encode()):
        raise LookupError
    if "error" in given:
        why = f"{given['error']}: {given['error_description']}" if "error_description" in given else given["error"]
        refusal = ClientRefusedError if given["error"] in CLIENT_REFUSALS else LoginError
        raise refusal(f"the authorization server refused the login: {why[:300]}")
    if not given.get("code"):
        raise LookupError
    return Redirected(given["code"], given["state"], given.get("iss"))


class RedirectListener:
    """Listens on 127.0.0.1 within `async with` for the browser's redirect at the end of a login."""

    def __init__(self, port: int = 0, *, rather: int = 0) -> None:
        """Choose a port: `port` if that is not 0; otherwise `rather` if it is free; otherwise any free port.

        `async with` raises OSError if `port` is in use.
        """
        self._port = port
        self._rather = rather
        self._server: asyncio.Server | None = None
        self._state = ""
        self._answer: asyncio.Future[Redirected] = asyncio.get_running_loop().create_future()

    @property
    def address(self) -> str:
        """The URL to which the browser is redirected after the login."""
        return f"http://127.0.0.1:{self._port}{PATH}"

    def expect(self, state: str) -> None:
        """Accept a redirect with this `state` from now on. Before this call, no redirect is accepted."""
        self._state = state

    async def answer(self, seconds: float) -> Redirected:
        """The redirect's parameters. Raises LoginError if the login was refused, or none came within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                return await self._answer
        except TimeoutError:
            raise LoginError(f"the login was not completed within {seconds:g} s") from None

    async def __aenter__(self) -> Self:
        if self._rather and not self._port:
            with suppress(OSError):  # another program may use this port
                self._server = await self._listen(self._rather)
        self._server = self._server or await self._listen(self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def _listen(self, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", port, limit=LINE_BYTES)

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        if self._answer.done() and not self._answer.cancelled():
            self._answer.exception()  # avoids asyncio's warning if no task waited for the answer

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                status, text = self._respond(head.split(b"\r\n", 1)[0].decode("ascii"))
                body = f"<!doctype html><meta charset=utf-8><title>Bedrock</title><p>{text}</p>".encode()
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
                    "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        writer.close()

    def _respond(self, line: str) -> tuple[str, str]:
        method, _, rest = line.partition(" ")
        target = rest.partition(" ")[0]
        if method != "GET" or target.partition("?")[0] != PATH:
            return "404 Not Found", _UNKNOWN
        if not self._state or self._answer.done():
            return "400 Bad Request", _UNKNOWN
        try:
            self._answer.set_result(redirected(target, self._state))
        except LookupError:
            return "400 Bad Request", _UNKNOWN
        except LoginError as error:
            self._answer.set_exception(error)
            return "200 OK", _REFUSED
        return "200 OK", _DONE


# An access token is renewed after this fraction of its lifetime.
RENEWED_AT = 0.8

# Minimum lifetime in seconds of tokens that are renewed before they expire. Tokens with a shorter lifetime would be
# renewed constantly, so they are used until the server refuses them.
MIN_SECONDS = 30

MAX_SECONDS = 10 * 365 * 86_400

_TOKEN = re.compile(r"[\x21-\x7e]{1,16384}")


class TokenAnswerError(Exception):
    """A token endpoint's response has no usable token; the message says what is wrong without quoting the response."""


def with_tokens(login: McpLogin, answer: OAuthToken) -> McpLogin:
    """`login` with the tokens in `answer`; keeps the refresh token and the scope if `answer` has none.

    Raises TokenAnswerError if a token cannot be sent in a header.
    """
    if not _TOKEN.fullmatch(answer.access_token) or not _TOKEN.fullmatch(answer.refresh_token or "x"):
        raise TokenAnswerError("it returned a token with invalid characters")
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


SECONDS = 300.0

# Time limit in seconds for all requests before the user logs in; the requests after that have the same limit again.
ALL_SECONDS = 60.0

ANSWER_BYTES = 1 << 20

# Seconds for which a known registration must still be valid to be used for another login, because it is also needed to
# renew tokens.
EARLY_SECONDS = 3600

_METHOD = "S256"


class LoggedIn(NamedTuple):
    """The result of a login."""

    login: McpLogin
    registration: McpRegistration | None
    """The OAuth client that was registered for this or an earlier login; None if the settings name a client."""


async def log_in(
    server: McpServer,
    show: Callable[[str], object],
    *,
    paste: Callable[[], str] | None = None,
    port: int = 0,
    seconds: float = SECONDS,
    known: McpRegistration | None = None,
) -> LoggedIn:
    """Log in to an MCP server that has `login` settings, and return the tokens.

    `show` gets the URL for the user to open. The browser is then redirected to `port` on this machine (0 for any port);
    with `paste`, the user copies the redirect URL instead. `seconds` is the user's time limit. `known` is an earlier
    registration, which is used again if it fits. Raises LoginError or ClientRefusedError.
    """
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # the library would also log the errors that it raises
    limit = asyncio.timeout(ALL_SECONDS)
    rather = (urlsplit(known.redirect_uri).port or 0) if known else 0
    try:
        async with limit, RedirectListener(port, rather=rather) as listener:
            provider = _Provider(server, listener, show, paste, _Waiting(seconds, limit), known=known)
            hooks: Any = {"request": [provider.check], **_BOUNDED}
            tls = client_tls()
            async with httpx2.AsyncClient(auth=provider, timeout=None, verify=tls, event_hooks=hooks) as client:
                # Without a login, the server responds to any request with status 401 and where to log in. A ping is
                # used because it changes nothing on the server.
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
        raise LoginError(f"the server or its authorization server did not respond within {ALL_SECONDS:g} s") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise LoginError(f"a login request failed: {error or type(error).__name__}") from None
    except OSError as error:
        raise LoginError(f"cannot listen for the browser's redirect: {error.strerror}") from None


async def _bound(response: httpx2.Response) -> None:
    check_uncompressed(response)
    bound_body(response, ANSWER_BYTES)


_BOUNDED: Any = {"response": [_bound]}


class _Waiting:
    """Suspends the time limit for requests while the user logs in, which the caller limits to `seconds`."""

    def __init__(self, seconds: float, limit: asyncio.Timeout) -> None:
        self.seconds = seconds
        self._limit = limit

    def __enter__(self) -> None:
        self._limit.reschedule(None)

    def __exit__(self, *_: object) -> None:
        self._limit.reschedule(asyncio.get_running_loop().time() + ALL_SECONDS)


class _Provider(OAuthClientProvider):
    """The MCP library's OAuth flow for one login, with the checks that the library leaves to its users."""

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
        super().__init__(server.url, metadata, TokensInMemory(), self._show_address, self._redirected)

    async def check(self, request: httpx2.Request) -> None:
        """Raise LoginError for a request that others could read, or that a remote server directs to this machine."""
        self._check_endpoint(str(request.url))

    def _is_safe(self, url: str) -> bool:
        return is_private(url) and (is_local(self._server.url) or not is_local(url))

    def _check_endpoint(self, url: str) -> None:
        if not self._is_safe(url):
            shown = urlsplit(url)._replace(query="", fragment="").geturl()
            raise LoginError(f"{shown} must be an https URL that is not on this machine")

    async def _initialize(self) -> None:
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
        lasts = not known.expires_at or known.expires_at > time.time() + EARLY_SECONDS
        return lasts and (known.url, known.redirect_uri) == (self._server.url, self._listener.address)

    def _select_authorization_server(self, advertised: list[str]) -> str:
        wanted = self._settings.issuer
        if not wanted:
            return advertised[0]
        for each in advertised:
            if issuers_match(each, wanted):
                return each
        raise LoginError(f"the server names {advertised[0]} as its authorization server, not {wanted}")

    async def _perform_authorization_code_grant(self) -> tuple[str, str]:
        """Check the authorization server's URLs, then let the library send the user to log in. Raises LoginError."""
        metadata, client = self.context.oauth_metadata, self.context.client_info
        if metadata is None or client is None:
            raise LoginError("the server does not say where to log in")
        if self._settings.issuer and not issuers_match(str(metadata.issuer), self._settings.issuer):
            raise LoginError(f"its authorization server is {metadata.issuer}, not {self._settings.issuer}")
        if self._settings.client_id and client.client_id != self._settings.client_id:
            raise LoginError(f"the client_id in the settings is not for the authorization server {metadata.issuer}")
        if _METHOD not in (metadata.code_challenge_methods_supported or ()):
            raise LoginError(f"its authorization server does not support PKCE with {_METHOD}, which a login requires")
        for endpoint in (metadata.authorization_endpoint, metadata.token_endpoint):
            self._check_endpoint(str(endpoint))
        if self._settings.scope:
            self.context.client_metadata.scope = self._settings.scope
        return await super()._perform_authorization_code_grant()

    async def _show_address(self, address: str) -> None:
        metadata = self.context.oauth_metadata
        endpoint = str(metadata.authorization_endpoint) if metadata else ""
        if urlsplit(endpoint).query:  # the library would append its own parameters to this query with a second "?"
            address = f"{endpoint}&{address.removeprefix(f'{endpoint}?')}"
        self._state = parse_qs(urlsplit(address).query)["state"][-1]
        self._listener.expect(self._state)
        self._show(address)

    async def _redirected(self) -> AuthorizationCodeResult:
        with self._waiting:
            found = self._pasted(self._paste()) if self._paste else await self._listener.answer(self._waiting.seconds)
        return AuthorizationCodeResult(code=found.code, state=found.state, iss=found.issuer)

    def _pasted(self, address: str) -> Redirected:
        try:
            return redirected(address, self._state)
        except LookupError:
            begins = f"{self._listener.address}?"
            raise LoginError(f"the URL does not belong to this login; expected one that begins with {begins}") from None

    def login(self, status: int) -> McpLogin:
        """The finished login.

        Raises LoginError if the server did not ask for a login (`status` is its response to the ping), or refuses this
        login.
        """
        context = self.context
        if context.current_tokens is None or context.client_info is None or context.oauth_metadata is None:
            raise LoginError(f"the server does not require a login (HTTP {status})")
        if status in {401, 403}:
            raise LoginError(f"the server refused this login (HTTP {status})")
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
        """The registered OAuth client; None if the settings name the client, or if its issuer is unknown."""
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


RENEW_SECONDS = 30.0

_REFUSALS = frozenset({400, 401, 403})


class RenewalRefusedError(Exception):
    """The authorization server refuses to renew the tokens; the user has to log in again."""


class RenewalFailedError(Exception):
    """The tokens could not be renewed now; the message says why. A later attempt may succeed."""


async def renewed(login: McpLogin) -> McpLogin:
    """Renew a login's tokens. Raises RenewalRefusedError or RenewalFailedError."""
    form = {"grant_type": "refresh_token", "refresh_token": login.refresh_token, "resource": login.resource}
    try:
        async with asyncio.timeout(RENEW_SECONDS):
            status, body = await _post(login, login.token_endpoint, form)
        if status in _REFUSALS:
            raise RenewalRefusedError
        if status != httpx2.codes.OK:
            raise RenewalFailedError(f"its authorization server responded with HTTP {status}")
        return with_tokens(login, OAuthToken.model_validate_json(body))
    except (OAuthTokenError, ValidationError, TokenAnswerError):
        raise RenewalFailedError("its authorization server returned no token") from None
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        why = str(error) or type(error).__name__
        raise RenewalFailedError(f"a request to its authorization server failed: {why}") from None


async def revoked(login: McpLogin) -> bool:
    """Ask the authorization server to revoke a login's tokens; return whether the server confirmed it."""
    if not login.revocation_endpoint:
        return False
    hint = "refresh_token" if login.refresh_token else "access_token"
    form = {"token": login.refresh_token or login.access_token, "token_type_hint": hint}
    try:
        async with asyncio.timeout(RENEW_SECONDS):
            status, _ = await _post(login, login.revocation_endpoint, form)
    except (OAuthTokenError, httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError):
        return False  # ValueError: the stored login has an unusable URL
    return status == httpx2.codes.OK


async def _post(login: McpLogin, url: str, form: dict[str, str]) -> tuple[int, bytes]:
    """Send a form as the login's OAuth client; return the response's status and body.

    Raises the libraries' errors, also for responses that are too large or compressed.
    """
    metadata = OAuthClientMetadata(redirect_uris=[AnyUrl(login.url)])
    context = OAuthContext(login.url, metadata, TokensInMemory(), None, None)
    context.client_info = OAuthClientInformationFull(
        client_id=login.client_id,
        client_secret=login.client_secret or None,
        token_endpoint_auth_method=login.client_authentication,
    )
    form, headers = context.prepare_token_auth({**form, "client_id": login.client_id}, {"Accept": "application/json"})
    headers["Accept-Encoding"] = "identity"
    async with httpx2.AsyncClient(timeout=None, verify=client_tls(), event_hooks=_BOUNDED) as client:
        answer = await client.post(url, data=form, headers=headers)
    return answer.status_code, answer.content
