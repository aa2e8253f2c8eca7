"""MCP transports: over a program's stdin and stdout (one JSON-RPC message per line), and over HTTP.

Responses over HTTP are limited in size, and corrected where the MCP library cannot parse them.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import httpx2
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from actors.adapters.mcp.bounded_messages import FORGOTTEN_SESSION, MENDED_BYTES, error_of, mended
from actors.adapters.mcp.server_settings import McpServer
from actors.common.machine import client_tls
from actors.common.settings_checks import is_nearby
from actors.ports.tools import LoginUnavailableError

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.shared.auth import OAuthClientInformationFull, OAuthToken


def check_uncompressed(response: httpx2.Response) -> None:
    """Raise httpx2.DecodingError if a response is compressed, because its uncompressed size could not be limited."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.DecodingError("it compresses its responses, which was not requested")


def bound_body(response: httpx2.Response, most: int) -> None:
    """Make any attempt to read more than `most` bytes of a response fail with httpx2.ReadError.

    Call this before the body is read.
    """
    _change_body(response, partial(_bounded, most=most))


def mark_forgotten_session(response: httpx2.Response) -> None:
    """Report FORGOTTEN_SESSION if a server does not know the session. Call this before the body is read.

    Servers report this with status 404 and any body, or with 400 and a message. They have then not carried out the
    request.
    """
    if response.status_code in {httpx2.codes.NOT_FOUND, httpx2.codes.BAD_REQUEST}:
        _change_body(response, partial(_marked, surely=response.status_code == httpx2.codes.NOT_FOUND))
        response.headers["content-type"] = "application/json"


def _change_body(response: httpx2.Response, change: Callable[[httpx2.AsyncByteStream], AsyncIterator[bytes]]) -> None:
    body: Any = response.stream
    response.stream = _ChangedBody(body, change(body))


class _ChangedBody(httpx2.AsyncByteStream):
    def __init__(self, body: httpx2.AsyncByteStream, changed: AsyncIterator[bytes]) -> None:
        self._body = body
        self._changed = changed

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._changed

    async def aclose(self) -> None:
        await self._body.aclose()


async def _bounded(body: httpx2.AsyncByteStream, most: int) -> AsyncGenerator[bytes]:
    size = 0
    async for part in body:
        size += len(part)
        if size > most:
            raise httpx2.ReadError("a message is too large")
        yield part


async def _marked(body: httpx2.AsyncByteStream, *, surely: bool) -> AsyncGenerator[bytes]:
    text = b"".join([part async for part in body])
    yield _NO_SUCH_SESSION if surely or b"session" in text.lower() else text


_NO_SUCH_SESSION = (
    b'{"jsonrpc": "2.0", "id": null, "error": {"code": %d, "message": "it does not know the session"}}'
    % FORGOTTEN_SESSION
)


async def _mended(body: httpx2.AsyncByteStream, *, events: bool) -> AsyncGenerator[bytes]:
    """The body, in which messages that the MCP library cannot parse are corrected (see `mended`)."""
    waiting = b""
    async for part in body:
        waiting += part
        whole = max(waiting.rfind(b"\r"), waiting.rfind(b"\n")) + 1 if events else 0
        if len(waiting) > MENDED_BYTES:
            yield waiting
            waiting = b""
        elif whole:
            yield b"".join(map(_mended_event, waiting[:whole].splitlines(keepends=True)))
            waiting = waiting[whole:]
    if waiting:
        yield waiting if events else _readable(waiting)


def _mended_event(line: bytes) -> bytes:
    field, colon, rest = line.partition(b":")
    data = rest.rstrip(b"\r\n")
    return field + colon + _readable(data) + rest[len(data) :] if field == b"data" else line


def _readable(text: bytes) -> bytes:
    with suppress(ValueError):
        try:
            jsonrpc_message_adapter.validate_json(text, by_name=False)
        except ValueError:
            return mended(text)
    return text


CHUNK = 1 << 16

# How many bytes at either end of an unreadable response are searched for its id.
ID_WITHIN = 256

_ID = re.compile(rb'"id"\s*:\s*([0-9]{1,15}|"[^"\\\x00-\x1f]{1,64}")')

# Maximum size of a message in bytes. A server that sends a larger one is disconnected.
LINE_BYTES = 32 << 20


@asynccontextmanager
async def pipe_transport(
    stdin: int, stdout: int, ended: anyio.Event
) -> AsyncGenerator[
    tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
]:
    """Yield the streams of messages from and to a program. They use non-blocking pipes, which the caller must close.

    `ended` is set once the program can no longer be reached.
    """
    arriving, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent, leaving = anyio.create_memory_object_stream[SessionMessage](0)
    async with arriving, received, sent, leaving, anyio.create_task_group() as tasks:

        async def read() -> None:
            async with arriving:
                await _read(stdout, arriving)
            ended.set()

        async def write() -> None:
            try:
                await _write(stdin, leaving)
            except OSError:  # the program no longer reads, so it would not respond to a request
                await arriving.aclose()
                ended.set()

        tasks.start_soon(read)
        tasks.start_soon(write)
        try:
            yield received, sent
        finally:
            tasks.cancel_scope.cancel()


async def _read(stdout: int, arriving: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
    waiting = bytearray()
    while chunk := await _chunk(stdout):
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            message = _message(bytes(waiting + line))
            waiting.clear()
            if message is None:
                if line.startswith(b"{"):
                    await anyio.lowlevel.checkpoint()
                continue
            try:
                await arriving.send(message)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return
        waiting += rest
        if len(waiting) > LINE_BYTES:
            if refusal := _answer_error(
                bytes(waiting[:ID_WITHIN]), f"its response is larger than {LINE_BYTES >> 20} MiB"
            ):
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await arriving.send(refusal)
            return


async def _chunk(stdout: int) -> bytes:
    """The program's next output; b"" at the end. Lets other tasks run first, even if the program writes constantly."""
    await anyio.lowlevel.checkpoint()
    while True:
        try:
            return os.read(stdout, CHUNK)
        except BlockingIOError:
            await anyio.wait_readable(stdout)
        except OSError:
            return b""


def _message(line: bytes) -> SessionMessage | None:
    """Parse a line. Returns an error for an unreadable response; None for other text, such as some programs print."""
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except (ValueError, RecursionError):
        with suppress(ValueError):
            return SessionMessage(jsonrpc_message_adapter.validate_json(mended(line), by_name=False))
        return _unreadable(line)


def _unreadable(line: bytes) -> SessionMessage | None:
    """An error to replace an unreadable response, so that the call it answers ends; None for any other line.

    The call's id is looked for near the beginning and the end of the line.
    """
    return _answer_error(line[:ID_WITHIN] + b"\n" + line[-ID_WITHIN:], "its response is not valid JSON-RPC")


def _answer_error(ends: bytes, why: str) -> SessionMessage | None:
    """An error with the id found in `ends`, the beginning and end of a response; None if there is no id."""
    found = _ID.search(ends)
    if found is None or b'"method"' in ends or not (b'"result"' in ends or b'"error"' in ends):
        return None
    unreadable: SessionMessage = error_of(json.loads(found[1]), why)
    return unreadable


async def _write(stdin: int, leaving: MemoryObjectReceiveStream[SessionMessage]) -> None:
    async for each in leaving:
        data = memoryview(each.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
        while data:
            try:
                data = data[os.write(stdin, data) :]
            except BlockingIOError:
                await anyio.wait_writable(stdin)


for _name in ("httpx2", "httpcore2", "mcp"):
    logging.getLogger(_name).setLevel(logging.WARNING)  # at INFO, they log all requests and what servers send


class TokensInMemory:
    """Keeps one connection's tokens in memory (mcp.client.auth.TokenStorage), but no data about the OAuth client."""

    def __init__(self) -> None:
        self._tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None: ...


class AccessTokens(Protocol):
    """Provides the access tokens from the operator's logins, by server name."""

    async def token(self, name: str) -> str:
        """The access token for a server; "" if there is no login. Raises LoginUnavailableError."""
        ...

    async def another(self, name: str, refused: str) -> str:
        """A token other than `refused`; "" if the operator has to log in again. Raises LoginUnavailableError."""
        ...


class _LoginAuth(httpx2.Auth):
    """Sends the access token from the operator's login with each request; if it is refused, sends another one."""

    def __init__(
        self, name: str, logins: AccessTokens, on_refusal: Callable[[str], None], on_needs_login: Callable[[], None]
    ) -> None:
        self._name = name
        self._logins = logins
        self._on_refusal = on_refusal
        self._on_needs_login = on_needs_login

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Send the request; after a 401, send it once more with another token.

        If no token is accepted, or none is left, calls `on_needs_login`; if no token could be obtained for now, calls
        `on_refusal` instead.
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
        try:
            return await asking, ""
        except LoginUnavailableError as error:
            return "", str(error)


async def http_transport(
    server: McpServer,
    stack: AsyncExitStack,
    logins: AccessTokens | None,
    on_refusal: Callable[[str], None],
    on_needs_login: Callable[[], None],
) -> Any:
    """The transport to a server's URL; closing `stack` closes its connections.

    `on_refusal` gets a reason that the library's errors do not contain: a status, compression, or why there is no token
    at present. `on_needs_login` is called if the operator has to log in.
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
            _change_body(response, partial(_mended, events=events))
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
        trust_env=not is_nearby(urlsplit(server.url).hostname or ""),  # the environment may name a proxy
        event_hooks={"response": [look]},
    )
    http_client = await stack.enter_async_context(client)
    return streamable_http_client(server.url, http_client=http_client, max_sse_event_size=LINE_BYTES)
