"""Runs the gateway as a process: one event loop with uvicorn in front and a gRPC client behind."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import uvicorn
from bedrock import v1
from starlette.middleware.cors import CORSMiddleware

from actors.ports.machine import max_open_files
from server.gateway.console import Console, Links
from server.gateway.event_streams import LAST_EVENT
from server.gateway.guard import MAX_HEAD_BYTES, Guard, GuardedConnection
from server.gateway.transcoder import IDEMPOTENCY, Transcoder
from server.gateway.upstream import PASSED_ON, TIMEOUT, Upstream
from server.process.certificates import CertificateFiles

if TYPE_CHECKING:
    import socket
    from collections.abc import Generator

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 60
STOP_SECONDS = 2
CONNECTIONS_SHARE = 2
"""Connections may use at most one in this number of the files that the process may open."""
HEADERS = [("X-Content-Type-Options", "nosniff")]
SANDBOX = (b"content-security-policy", b"default-src 'none'; sandbox")
"""What every response but the console says to browsers, so that no content of a conversation is ever run as a page."""


class Gateway(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway needs to know."""

    upstream: str
    upstream_tls: bool = False
    upstream_ca: bytes | None = None
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    secret: str = ""
    """What the server knows this gateway by, over its Unix socket; "" if clients' certificates stand for nobody."""
    tls: CertificateFiles | None = None
    behind_proxy: bool = False
    new_thread: v1.Conversation | None = None
    """The conversation that a new thread of AG-UI becomes; None if threads are created by other calls only."""


def application(settings: Gateway, transcoder: Transcoder, links: Links | None = None) -> ASGIApp:
    """Return the ASGI application. `links` are those that a browser can sign in with at its start."""
    app: ASGIApp = transcoder
    if settings.origins:
        app = CORSMiddleware(
            app,
            allow_origins=settings.origins,
            allow_methods=("GET", "POST", "PATCH", "DELETE"),
            allow_headers=(*PASSED_ON, TIMEOUT, IDEMPOTENCY, LAST_EVENT, "content-type"),
            expose_headers=("retry-after", "content-disposition"),
        )
    console = Console(app, transcoder.check_token, links or Links())
    return _sandboxed(Guard(console, settings.hosts, settings.origins, behind_proxy=settings.behind_proxy))


def _sandboxed(app: ASGIApp) -> ASGIApp:
    async def sandboxed(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", []))
                message["headers"] = given if any(name == SANDBOX[0] for name, _ in given) else [*given, SANDBOX]
            await send(message)

        await app(scope, receive, with_policy)

    return sandboxed


class _Server(uvicorn.Server):
    """Stops at a signal as uvicorn does, but ends streams with a word, and then with 0 instead of by the signal."""

    def __init__(self, config: uvicorn.Config, stopping: asyncio.Event) -> None:
        super().__init__(config)
        self._stopping = stopping

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.stop)
        yield

    def stop(self) -> None:
        """Stop accepting requests, and end once those that are open have, after some seconds in any case."""
        self.should_exit = True
        self._stopping.set()


async def serve(settings: Gateway, listening: socket.socket, *, until_eof: bool, links: Links | None = None) -> None:
    """Serve until a signal, or with `until_eof` until standard input ends."""
    upstream = Upstream(settings.upstream, settings.upstream_ca, tls=settings.upstream_tls, secret=settings.secret)
    transcoder = Transcoder(upstream, settings.new_thread)
    connection = type("Connection", (GuardedConnection,), {"max_connections": max_open_files() // CONNECTIONS_SHARE})
    config = uvicorn.Config(
        application(settings, transcoder, links),
        http=connection,
        loop="asyncio",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        headers=HEADERS,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
        ssl_context_factory=(lambda *_: tls.context()) if (tls := settings.tls) else None,
    )
    server = _Server(config, transcoder.stopping)
    if until_eof:
        _stop_at_eof(server)
    try:
        await server.serve(sockets=[listening])
    finally:
        await upstream.close()


def _stop_at_eof(server: _Server) -> None:
    loop = asyncio.get_running_loop()

    def readable() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            server.stop()

    loop.add_reader(0, readable)
