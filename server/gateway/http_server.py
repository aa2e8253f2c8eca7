"""Runs the gateway as a process: one event loop with uvicorn in front and a gRPC client behind.

Requests from unknown web pages are refused, and connections that keep the gateway waiting are closed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
import sys
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

import grpc
import h11
import msgspec
import uvicorn
from bedrock import v1
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from actors.common.machine import max_open_files
from server.certificates import CertificateFiles
from server.gateway.console import Console, Links
from server.gateway.event_streams import LAST_EVENT
from server.gateway.http_api import IDEMPOTENCY, HttpApi
from server.gateway.json_responses import HttpError, error_response
from server.gateway.upstream import CERTIFICATE, PASSED_ON, TIMEOUT, Upstream

if TYPE_CHECKING:
    import socket


log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 60
STOP_SECONDS = 2
# Connections may use at most 1/CONNECTIONS_SHARE of the files that the process may open.
CONNECTIONS_SHARE = 2
HEADERS = [("X-Content-Type-Options", "nosniff")]
SANDBOX = (b"content-security-policy", b"default-src 'none'; sandbox")


class Gateway(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a gateway."""

    upstream: str
    upstream_tls: bool = False
    upstream_ca: bytes | None = None
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    secret: str = ""
    tls: CertificateFiles | None = None
    behind_proxy: bool = False
    new_thread: v1.Conversation | None = None
    """The template for the conversation of a new AG-UI thread; None if only other calls create conversations."""


def guarded(settings: Gateway, api: HttpApi, links: Links | None = None) -> ASGIApp:
    """Wrap the API with the console and the guards. `links` contains the console's sign-in links."""
    app: ASGIApp = api
    if settings.origins:
        app = CORSMiddleware(
            app,
            allow_origins=settings.origins,
            allow_methods=("GET", "POST", "PATCH", "DELETE"),
            allow_headers=(*PASSED_ON, TIMEOUT, IDEMPOTENCY, LAST_EVENT, "content-type"),
            expose_headers=("retry-after", "content-disposition"),
        )
    console = Console(app, api.check_token, links or Links())
    return _sandboxed(Guard(console, settings.hosts, settings.origins, behind_proxy=settings.behind_proxy))


def _sandboxed(app: ASGIApp) -> ASGIApp:
    """Add the sandbox header to responses, and ignore Range headers.

    A server may ignore Range headers; Starlette would answer a malformed one with an error in plain text.
    """

    async def sandboxed(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = [each for each in message.get("headers", []) if each[0] != b"accept-ranges"]
                message["headers"] = given if any(name == SANDBOX[0] for name, _ in given) else [*given, SANDBOX]
            await send(message)

        whole = [each for each in scope["headers"] if each[0] != b"range"]
        await app({**scope, "headers": whole}, receive, with_policy)

    return sandboxed


class _Server(uvicorn.Server):
    """Like uvicorn, stops on a signal, but ends streams with an error event first, and exits with status 0."""

    def __init__(self, config: uvicorn.Config, stopping: asyncio.Event) -> None:
        super().__init__(config)
        self._stopping = stopping

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.stop)
        yield

    def stop(self) -> None:
        """Stop accepting requests, and exit once the open ones have ended, or after a few seconds."""
        self.should_exit = True
        self._stopping.set()


async def serve(settings: Gateway, listening: socket.socket, *, until_eof: bool, links: Links | None = None) -> None:
    """Serve until a signal, or with `until_eof` until standard input ends."""
    upstream = Upstream(settings.upstream, settings.upstream_ca, tls=settings.upstream_tls, secret=settings.secret)
    api, links = HttpApi(upstream, settings.new_thread), links or Links()
    connection = type("Connection", (GuardedConnection,), {"max_connections": max_open_files() // CONNECTIONS_SHARE})
    config = uvicorn.Config(
        guarded(settings, api, links),
        http=connection,
        loop="asyncio",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",  # uvicorn warns about each malformed request: strangers could fill the log
        access_log=False,
        proxy_headers=False,
        server_header=False,
        headers=HEADERS,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
        ssl_context_factory=(lambda *_: tls.context()) if (tls := settings.tls) else None,
    )
    server = _Server(config, api.stopping)
    if until_eof:
        _read_stdin(server, links)
    try:
        await server.serve(sockets=[listening])
    finally:
        await upstream.close()


def _read_stdin(server: _Server, links: Links) -> None:
    """Add the link (a code and a token) that arrives on standard input; stop when standard input ends."""
    loop = asyncio.get_running_loop()

    def readable() -> None:
        if not (told := os.read(0, 4096)):
            loop.remove_reader(0)
            server.stop()
        elif len(words := told.decode(errors="replace").split()) == 2:
            links.make(words[1], words[0])

    loop.add_reader(0, readable)


# Maximum seconds for receiving a complete request head, or the rest of a refused body.
HEAD_SECONDS = 10.0
MAX_HEAD_BYTES = 32 * 1024
# Headers that would be ambiguous if repeated.
SINGLE = (
    b"host", b"authorization", b"content-length", b"content-type", b"content-encoding", b"idempotency-key",
    b"last-event-id", b"origin", b"traceparent", b"x-server-timeout",
)  # fmt: skip
# Seconds after which a client that reads nothing is disconnected, as the server does.
STALL_SECONDS = 60.0


class Guard:
    """An ASGI application that checks Host and Origin before it calls another application.

    A hostile page can make its own host name resolve to this machine (DNS rebinding), but cannot take over an IP
    address. Host may therefore contain any address, but only names that are allowed explicitly. `origins` are the
    origins of pages that may call, in addition to the gateway's own. With `behind_proxy`, the last address in
    X-Forwarded-For is the client's.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str], origins: Collection[str], *, behind_proxy: bool) -> None:
        self._app = app
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        self._origins = frozenset(origins)
        self._behind_proxy = behind_proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (refusal := self._refusal(scope)) is not None:
            await error_response(refusal)(scope, receive, send)
            return
        address = _last(scope["headers"], b"x-forwarded-for") if self._behind_proxy else ""
        if _is_address(address):
            scope["client"] = (address, 0)
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> HttpError | None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if sum(map(len, chain(*headers)), len(scope["raw_path"]) + len(scope["query_string"])) > MAX_HEAD_BYTES:
            return _too_long()
        names = [name for name, _ in headers]
        if twice := next((name for name in SINGLE if names.count(name) > 1), None):
            return HttpError(400, f"the {twice.decode().title()} header is given more than once")
        hosts = [value.decode("latin-1").lower() for name, value in headers if name == b"host"]
        if not hosts:
            return HttpError(400, "a request must have exactly one Host header")
        if {b"content-length", b"transfer-encoding"} <= set(names):
            text = "Content-Length and Transfer-Encoding are mutually exclusive"
            return HttpError(400, text, headers={"Connection": "close"})
        if not self._known(hosts[0]):
            return _forbidden(f"{hosts[0]!r} is not an allowed host; add it to allow_hosts in [http]")
        origin = _last(headers, b"origin")
        if origin and origin not in self._origins and origin.partition("://")[2].lower() != hosts[0]:
            return _forbidden(
                f"pages from {origin!r} may not call this server; add the origin to allow_origins in [http]"
            )
        return None

    def _known(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        return _is_address(name) or name in self._hosts


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _too_long() -> HttpError:
    return HttpError(431, f"the request head is larger than {MAX_HEAD_BYTES} bytes")


def _forbidden(text: str) -> HttpError:
    return HttpError(403, text, grpc.StatusCode.PERMISSION_DENIED)


def _last(headers: list[tuple[bytes, bytes]], name: bytes) -> str:
    """The last value of a header, or the last element if that is a list; "" if there is none."""
    found = [value for key, value in headers if key == name]
    return found[-1].decode("latin-1").rpartition(",")[2].strip() if found else ""


class GuardedConnection(H11Protocol):
    """A connection that is closed if its client does not complete a request, or does not read the response.

    Once this process has `max_connections`, further ones are closed at once.
    """

    max_connections = 1_000
    _silence: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and (shown := tls.getpeercert(binary_form=True)):
            self.app_state = {**self.app_state, CERTIFICATE: shown}
        if len(self.connections) > self.max_connections:
            transport.abort()
        else:
            self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Process the received bytes, and wait for the rest of a request head."""
        super().data_received(data)
        if self.flow.read_paused and not self.cycle.more_body:  # because of data after a request that is being answered
            if len(self.conn.trailing_data[0]) > MAX_HEAD_BYTES:
                self.transport.abort()
            self.flow.resume_reading()  # otherwise the end of the connection would go unseen
        begun = self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]
        if not (begun or self._unread()):
            self._stop_waiting()
        elif self._silence is None:
            self._wait_for_head()

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not an HTTP request; uvicorn calls this while it handles h11's error."""
        found = sys.exception()
        hint = found.error_status_hint if isinstance(found, h11.RemoteProtocolError) else 400
        refusal = error_response(_too_long() if hint == 431 else HttpError(400, msg))
        head = h11.Response(status_code=refusal.status_code, headers=[*refusal.raw_headers, (b"connection", b"close")])
        with suppress(h11.LocalProtocolError):  # a response has begun; cut it off
            for event in (head, h11.Data(data=bytes(refusal.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def on_response_complete(self) -> None:
        """Wait a while for the rest of a body that was answered early, so that its sender reads the answer."""
        super().on_response_complete()
        if self._silence is None and self._unread():
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall is None:
            self._stall = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        super().resume_writing()

    def _unread(self) -> bool:
        return self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY

    def _wait_for_head(self) -> None:
        self._silence = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None
