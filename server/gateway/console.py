"""Serves the console, a web page, and signs browsers in: a token is exchanged for a cookie that pages cannot read.

Sessions are kept in this process's memory and end with the process. A call with a session's cookie is forwarded with
the session's token.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request, cookie_parser
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.contract.errors import MalformedRequestError
from server.gateway.http_api import body_of
from server.gateway.json_requests import decoded
from server.gateway.json_responses import JSON, HttpError, encoded, error_response
from server.gateway.upstream import SESSION, BrowserSession

_INSTALLED = Path(__file__).with_name("page")
# The page's files: next to this module in a wheel, in their source directory in a checkout.
PAGE = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[2] / "clients" / "console"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types worker"
)
HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-cache",  # a page would not work with another version's modules
}
LINK_SECONDS = 60.0
# The maximum number of links and of sessions; the oldest ones with the same token are dropped first.
MAX_LINKS, MAX_SESSIONS = 100, 1_000
MAX_BODY_BYTES = 16 * 1024
BODY_SECONDS = 10.0
SAFE = frozenset({"GET", "HEAD"})


class Links:
    """One-time sign-in links. Each works in one browser, within a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens: dict[str, tuple[str, float]] = {}

    def make(self, token: str, code: str = "") -> str:
        code = code or secrets.token_urlsafe(24)
        _make_room(self._tokens, MAX_LINKS, (each for each, (owner, _) in self._tokens.items() if owner == token))
        self._tokens[code] = token, self._clock() + LINK_SECONDS
        return code

    def redeem(self, code: str) -> str:
        """Use up a link, and return its token; "" if it is already used up or unknown."""
        token, until = self._tokens.pop(code, ("", 0.0))
        return token if self._clock() < until else ""


def _make_room(kept: dict[str, Any], most: int, ours: Iterator[str]) -> Any:
    """If `most` entries are kept, remove and return the oldest of `ours` or, without any, the oldest of all."""
    return kept.pop(next(ours, next(iter(kept)))) if len(kept) >= most else None


class SignIn(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a sign-in request: a token or a link."""

    token: str = ""
    link: str = ""


class Console:
    """An ASGI middleware that serves the page, signs browsers in, and authenticates calls by cookie.

    `known` raises AioRpcError if the server does not know the caller of a request.
    """

    def __init__(self, app: ASGIApp, known: Callable[[Request], Awaitable[None]], links: Links) -> None:
        self._app = app
        self._known = known
        self._links = links
        self._sessions: dict[str, BrowserSession] = {}
        self._page = GZipMiddleware(StaticFiles(directory=PAGE, follow_symlink=False, check_dir=False))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or pass it on, with the token of its session if it has one."""
        path = scope["path"]
        try:
            if path == "/" or path.startswith("/console/"):
                await self._served(path.removeprefix("/console/").strip("/"), scope, receive, send)
            else:
                await self._app(self._with_token(scope), receive, send)
        except (HttpError, MalformedRequestError, grpc.aio.AioRpcError) as error:
            await error_response(error)(scope, receive, send)
        except ClientDisconnect:
            return

    async def _served(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        http = Request(scope, receive)
        match path, http.method:
            case "session", "POST":
                response = await self._sign_in(http)
            case "session", "DELETE":
                _end(self._sessions.pop(_cookie(http), None))
                response = Response(status_code=204, headers={"Set-Cookie": _set(http, "", "Max-Age=0; ")})
            case "links", "POST":
                await self._known(http)
                code = self._links.make(_bearer(http))
                told = {"link": code, "seconds": int(LINK_SECONDS)}
                response = Response(encoded(told) + b"\n", 200, {"Cache-Control": "no-store"}, JSON)
            case "session" | "links", _:
                allowed = "POST, DELETE" if path == "session" else "POST"
                text = f"{http.method} is not allowed at this path; allowed: {allowed}"
                raise HttpError(405, text, grpc.StatusCode.UNIMPLEMENTED, {"Allow": allowed})
            case _:
                await self._file(path, scope, receive, send)
                return
        await response(scope, receive, send)

    async def _file(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                ours = [each for each in message["headers"] if each[0] not in HEADERS]
                message["headers"] = [*ours, *HEADERS.items()]
            await send(message)

        try:
            await self._page({**scope, "path": f"/{path or 'index.html'}", "root_path": ""}, receive, with_headers)
        except (HTTPException, ValueError) as error:  # ValueError: the name contains a null byte
            if isinstance(error, HTTPException) and error.status_code == 405:
                allowed = {"Allow": "GET, HEAD"}
                raise HttpError(405, "only GET and HEAD", grpc.StatusCode.UNIMPLEMENTED, allowed) from None
            raise HttpError(404, "file not found", grpc.StatusCode.NOT_FOUND) from None

    async def _sign_in(self, http: Request) -> Response:
        """The response, with the cookie of a new session if the token or the link is valid."""
        _check_origin(http.scope, http)
        try:
            given = msgspec.convert(decoded(await body_of(http, MAX_BODY_BYTES, BODY_SECONDS)), SignIn)
        except msgspec.MsgspecError:
            raise HttpError(400, "the body must be a JSON object with a token or a link") from None
        token = self._links.redeem(given.link) if given.link else given.token.strip()
        if not token:
            text = "This link has been used or has expired. Run `bedrock console` for a new one."
            raise HttpError(401, text if given.link else "token: is required", grpc.StatusCode.UNAUTHENTICATED)
        if not (token.isascii() and token.isprintable()):
            raise HttpError(401, "token: contains invalid characters", grpc.StatusCode.UNAUTHENTICATED)
        await self._known(Request(_authorized(http.scope, token)))
        _end(self._sessions.pop(_cookie(http), None))
        ours = (each for each, session in self._sessions.items() if session.token == token)
        _end(_make_room(self._sessions, MAX_SESSIONS, ours))
        cookie = secrets.token_urlsafe(32)
        self._sessions[cookie] = BrowserSession(token)
        return Response(status_code=204, headers={"Set-Cookie": _set(http, cookie)})

    def _with_token(self, scope: Scope) -> Scope:
        """The request, with its session's token. Raises HttpError if it comes from a page other than the console."""
        http = Request(scope)
        if "authorization" in http.headers or (session := self._sessions.get(_cookie(http))) is None:
            return scope
        if http.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
            raise _foreign()
        if http.method not in SAFE:
            _check_origin(scope, http)
        scope["state"][SESSION] = session
        return _authorized(scope, session.token)


def _end(session: BrowserSession | None) -> None:
    if session is not None:
        session.end(HttpError(401, "the session has ended; sign in again", grpc.StatusCode.UNAUTHENTICATED))


def _authorized(scope: Scope, token: str) -> Scope:
    headers = [each for each in scope["headers"] if each[0] not in (b"authorization", b"cookie")]
    return {**scope, "headers": [*headers, (b"authorization", f"Bearer {token}".encode())]}


def _check_origin(scope: Scope, http: Request) -> None:
    """Raise HttpError unless the request comes from a page of this origin."""
    host, origin = http.headers.get("host", "").lower(), http.headers.get("origin", "").lower()
    if origin not in {f"{scheme}://{host}" for scheme in _schemes(scope)}:
        raise _foreign()


def _schemes(scope: Scope) -> set[str]:
    """The schemes that a page of this origin can have; behind a TLS proxy, this process sees only http."""
    return {scope["scheme"], "https"}


def _foreign() -> HttpError:
    text = "pages from other origins cannot use the console's session; send the token in the Authorization header"
    return HttpError(403, text, grpc.StatusCode.PERMISSION_DENIED)


def _bearer(http: Request) -> str:
    return http.headers.get("authorization", "").partition(" ")[2].strip()


def _name(http: Request) -> str:
    """The name of the cookie. It includes the port: browsers keep cookies by host, and each gateway has its own."""
    port = http.headers.get("host", "").rpartition(":")[2]
    return f"{'__Host-' if _secure(http) else ''}bedrock{f'-{port}' if port.isdecimal() else ''}"


def _secure(http: Request) -> bool:
    return http.scope["scheme"] == "https" or http.headers.get("origin", "").startswith("https://")


def _cookie(http: Request) -> str:
    # Python's own parser stops at the first cookie that it does not understand, and any program on this machine may set
    # one.
    found, name = cookie_parser(http.headers.get("cookie", "")), _name(http)
    return next((found[each] for each in (f"__Host-{name}", name) if each in found), "")


def _set(http: Request, value: str, more: str = "") -> str:
    return f"{_name(http)}={value}; {more}Path=/; HttpOnly; SameSite=Strict{'; Secure' if _secure(http) else ''}"
