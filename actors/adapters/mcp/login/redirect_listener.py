"""The HTTP listener on this machine to which the browser is redirected at the end of an OAuth login."""

from __future__ import annotations

import asyncio
import hmac
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct

if TYPE_CHECKING:
    from typing import Self

PATH = "/callback"

SECONDS = 10.0
"""Time limit in seconds for one request of a browser."""

LINE_BYTES = 16 << 10

_DONE = "You are logged in. You can close this page."
_REFUSED = "The login was refused. The terminal says why."
_UNKNOWN = "This is not the answer to the login that is under way."


class LoginError(Exception):
    """The login failed; the text contains the reason."""


class ClientRefusedError(LoginError):
    """The authorization server does not know the OAuth client, or no longer accepts its registration."""


CLIENT_REFUSALS = frozenset({"invalid_client", "invalid_scope", "unauthorized_client"})
"""The OAuth error codes that mean that the client was refused."""


class Redirected(Struct, frozen=True):
    """The parameters with which the authorization server has redirected the browser."""

    code: str
    state: str
    issuer: str | None

    def __repr__(self) -> str:
        return "Redirected(***)"


def redirected(address: str, state: str) -> Redirected:
    """Return the parameters in the URL to which a browser was redirected at the end of the login with this `state`.

    Raises LoginError if the login was refused, LookupError if the URL is not that of this login.
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
        raise refusal(f"the authorization server refused it: {why[:300]}")
    if not given.get("code"):
        raise LookupError
    return Redirected(given["code"], given["state"], given.get("iss"))


class RedirectListener:
    """Listens on 127.0.0.1 within `async with` for the browser's redirect at the end of a login."""

    def __init__(self, port: int = 0, *, rather: int = 0) -> None:
        """Choose the port: `port` unless that is 0, else `rather` if it is free, else any free port.

        `async with` raises OSError if `port` is in use.
        """
        self._port = port
        self._rather = rather
        self._server: asyncio.Server | None = None
        self._state = ""
        self._answer: asyncio.Future[Redirected] = asyncio.get_running_loop().create_future()

    @property
    def address(self) -> str:
        """The redirect URL, to which the browser is sent after the login."""
        return f"http://127.0.0.1:{self._port}{PATH}"

    def expect(self, state: str) -> None:
        """Accept a redirect with this `state` from now on. Before this call, no redirect is accepted."""
        self._state = state

    async def answer(self, seconds: float) -> Redirected:
        """Wait at most `seconds` for the redirect, and return its parameters.

        Raises LoginError if the login was refused, or if no redirect came in time.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self._answer
        except TimeoutError:
            raise LoginError(f"nobody has logged in within {seconds:g} s") from None

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
            self._answer.exception()  # avoids asyncio's warning if nobody waited for the answer

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                status, text = self._take(head.split(b"\r\n", 1)[0].decode("ascii"))
                body = f"<!doctype html><meta charset=utf-8><title>Bedrock</title><p>{text}</p>".encode()
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
                    "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        writer.close()

    def _take(self, line: str) -> tuple[str, str]:
        """Handle the first line of an HTTP request; return the status and the text of the response."""
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
