"""The gateway in this process, before a server of this file: what only its clients or its settings can bring about."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import logging
import shutil
import signal
import socket
import ssl
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
from bedrock import v1
from grpc_status import rpc_status

from server.app.serving import HttpGateway
from server.certificates import CertificateFiles
from server.contract import limits
from server.contract.errors import make
from server.gateway import console, event_streams, http_api, http_server
from server.gateway.http_server import Gateway, serve
from server.operating_system import bound
from server.settings.config import load
from server.settings.setting_values import Listen
from tests.support.certificates import make_authority, make_certificate
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    Test = Callable[["Upstream", int], Awaitable[None]]

TOKEN = "Authorization: Bearer t\r\n"
PIECE = "x" * 64 * 1024
ENDLESS = 4_000
"""Pieces of a stream: 256 MiB, which nobody reads to the end."""


LINES = [json.dumps(each, ensure_ascii=False) for each in ({"a": "\u2028\x85"}, {"b": PIECE * 3}, {"c": "ä" * 50_000})]
"""An export: line breaks that JSON does not escape, and lines that are longer than what is sent at once."""


class Upstream(v1.ConversationServiceServicer):
    """A server whose streams never end by themselves."""

    def __init__(self) -> None:
        self.sent = 0
        self.opened = self.closed = 0
        self.ended = asyncio.Event()
        self.metadata: dict[str, Any] = {}

    async def Subscribe(self, request: v1.SubscribeRequest, context: Any) -> AsyncIterator[v1.SubscribeResponse]:  # noqa: N802
        self.opened += 1
        self.metadata = dict(context.invocation_metadata())
        yield v1.SubscribeResponse(events=[v1.Event(snapshot=v1.Event.Snapshot())])
        try:
            for _ in range(ENDLESS if "large" in request.name else 0):
                yield v1.SubscribeResponse(events=[v1.Event(text_delta=v1.Event.TextDelta(text=PIECE))])
                self.sent += 1
            await asyncio.Event().wait()
        finally:
            self.closed += 1
            self.ended.set()

    async def WaitRequestCycle(self, request: v1.WaitRequestCycleRequest, context: Any) -> Any:  # noqa: N802
        self.opened += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.closed += 1
            self.ended.set()

    async def ExportConversation(  # noqa: N802
        self, request: v1.ExportConversationRequest, context: Any
    ) -> AsyncIterator[v1.ExportConversationResponse]:
        for line in LINES if "broken" not in request.name else ():
            yield v1.ExportConversationResponse(line=line)
        damaged = make(grpc.StatusCode.DATA_LOSS, "the rest is damaged", "DATA_LOSS")
        await context.abort_with_status(rpc_status.to_status(damaged))

    async def DownloadAttachment(  # noqa: N802
        self, request: v1.DownloadAttachmentRequest, context: Any
    ) -> AsyncIterator[v1.DownloadAttachmentResponse]:
        yield v1.DownloadAttachmentResponse(media_type="image/png", size_bytes=9, data=b"half")
        await context.abort(grpc.StatusCode.DATA_LOSS, "the rest is damaged")


class SilentCatalog(v1.CatalogServiceServicer):
    """Says of one token only that it is valid; for another, fails without a status of ours, as gRPC itself does."""

    async def GetQuotas(self, request: v1.GetQuotasRequest, context: Any) -> v1.GetQuotasResponse:  # noqa: N802
        if ("authorization", "Bearer known") in tuple(context.invocation_metadata()):
            return v1.GetQuotasResponse()
        if ("authorization", "Bearer refused") in tuple(context.invocation_metadata()):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "received metadata size exceeds hard limit")
        await asyncio.Event().wait()
        raise AssertionError


@asynccontextmanager
async def running(tmp_path: Path, **settings: Any) -> AsyncGenerator[tuple[Upstream, int]]:
    """An upstream that takes as many calls on a connection as ours does, and the port of a gateway before it."""
    upstream = Upstream()  # type: ignore[abstract]
    server = grpc.aio.server(options=[("grpc.max_concurrent_streams", limits.MAX_STREAMS_PER_CONNECTION)])
    v1.add_ConversationServiceServicer_to_server(upstream, server)
    v1.add_CatalogServiceServicer_to_server(SilentCatalog(), server)  # type: ignore[abstract]
    path = f"unix:{tmp_path}/s"
    server.add_secure_port(path, grpc.local_server_credentials(grpc.LocalConnectionType.UDS))
    await server.start()
    listening = bound(Listen("127.0.0.1", 0))
    port = listening.getsockname()[1]
    gateway = asyncio.create_task(serve(Gateway(upstream=path, **settings), listening, until_eof=False))
    try:
        yield upstream, port
    finally:
        await asyncio.sleep(0)
        signal.raise_signal(signal.SIGTERM)
        await gateway
        listening.close()
        await server.stop(None)


def run(test: Test, tmp_path: Path, **settings: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE), running(tmp_path, **settings) as (upstream, port):
            await ready(port)
            await test(upstream, port)

    asyncio.run(main())


async def ready(port: int) -> None:
    """Wait until the gateway accepts; its socket does before, and its handlers of signals are set by then."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=None)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    with suppress(ConnectionError):
        await reader.read()
    writer.close()


async def opened(port: int, text: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text.encode())
    return reader, writer


async def head_of(reader: asyncio.StreamReader) -> str:
    return (await reader.readuntil(b"\r\n\r\n")).decode()


async def dribble(writer: asyncio.StreamWriter) -> None:
    """Go on with a body, as slowly as it takes to never end, until the connection is closed."""
    with suppress(ConnectionError):
        while not writer.is_closing():
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.05)


def get(path: str, more: str = "") -> str:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{TOKEN}{more}\r\n"


@pytest.mark.parametrize("begun", ["", "GET /v1/models HT", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET /v1/mod"])
def test_a_client_that_completes_no_head_is_cut_off(
    begun: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(http_server, "KEEP_ALIVE_SECONDS", 0.3)

    async def test(_: Upstream, port: int) -> None:
        reader, writer = await opened(port, begun)
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    run(test, tmp_path)


def test_a_client_that_completes_no_body_is_told_and_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(http_server, "HEAD_SECONDS", 0.3)

    async def test(_: Upstream, port: int) -> None:
        head = f"POST /v1/conversations HTTP/1.1\r\nHost: localhost\r\n{TOKEN}Content-Length: 9999\r\n\r\n{{"
        reader, writer = await opened(port, head)
        assert (await head_of(reader)).startswith("HTTP/1.1 408 ")
        await dribble(writer)
        with suppress(ConnectionError):
            await reader.read()

    run(test, tmp_path)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (TOKEN, 503),
        (f"{TOKEN}X-Server-Timeout: 0.1\r\n", 504),
        ("Authorization: Bearer refused\r\n", 429),
        (f"Authorization: Bearer {'x' * 20_000}\r\n", 400),
    ],
)
def test_nobody_sends_on_whom_the_server_cannot_be_asked_about(
    headers: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_api, "STRANGERS_SECONDS", 0.1)
    monkeypatch.setattr(http_api, "CHECK_SECONDS", 0.3)

    async def test(_: Upstream, port: int) -> None:
        head = f"POST /v1/conversations HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: 9999\r\n\r\n{{"
        reader, writer = await opened(port, head)
        assert (await head_of(reader)).startswith(f"HTTP/1.1 {status} ")
        writer.close()

    run(test, tmp_path)


def test_more_connections_than_files_allow_are_closed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "max_open_files", lambda: 6)

    async def test(_: Upstream, port: int) -> None:
        held = [await opened(port, "") for _ in range(3)]
        reader, writer = await opened(port, "")
        with suppress(ConnectionError):
            assert await reader.read() == b""
        for each in [writer, *(writer for _, writer in held)]:
            each.close()

    run(test, tmp_path)


def test_a_reader_that_does_not_read_holds_the_stream_back_and_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "STALL_SECONDS", 1.0)

    async def test(upstream: Upstream, port: int) -> None:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        await asyncio.to_thread(client.connect, ("127.0.0.1", port))
        client.sendall(get("/v1/conversations/large:subscribe").encode())
        await upstream.ended.wait()
        client.close()
        # The kernel's buffers of two connections hold a few MiB of it; the stream has 256.
        assert upstream.sent * len(PIECE) < 16 * 1024 * 1024

    run(test, tmp_path)


STREAM, WAIT = "/v1/conversations/a:subscribe", "/v1/conversations/a/requestCycles/b:wait"
H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"


@pytest.mark.parametrize(
    ("upgrade", "behind"),
    [("", ""), ("", "GET"), ("", get("/v1/models")), (H2C, "GET")],
    ids=["alone", "head begun", "pipelined", "upgrade"],
)
@pytest.mark.parametrize("path", [STREAM, WAIT], ids=["stream", "unary"])
def test_a_call_ends_with_the_connection_of_its_client(path: str, upgrade: str, behind: str, tmp_path: Path) -> None:
    async def test(upstream: Upstream, port: int) -> None:
        reader, writer = await opened(port, get(path, upgrade))
        if path == STREAM:
            await reader.readuntil(b"event: snapshot\n")
        while not upstream.opened:
            await asyncio.sleep(0.01)
        writer.write(behind.encode())
        writer.close()
        await upstream.ended.wait()

    run(test, tmp_path)


def test_pipelined_requests_are_answered_in_turn_and_not_kept_without_end(tmp_path: Path) -> None:
    async def test(upstream: Upstream, port: int) -> None:
        more = "Connection: close\r\n"
        reader, writer = await opened(port, get("/v1/none") + get("/openapi.json") + get("/v1/nothing", more))
        answered = (await reader.read()).decode()
        assert [each[:3] for each in answered.split("HTTP/1.1 ")[1:]] == ["404", "200", "404"]
        writer.close()
        reader, writer = await opened(port, get(STREAM))
        await head_of(reader)
        with suppress(ConnectionError):
            while True:
                writer.write(b"x" * 1024)
                await writer.drain()
        await upstream.ended.wait()
        writer.close()

    run(test, tmp_path)


@pytest.mark.parametrize("how", ["signs out", "signs in again", "others sign in"])
def test_the_calls_of_a_session_end_with_it(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "MAX_SESSIONS", 1)

    async def session(port: int, method: str, cookie: str) -> str:
        origin = f"Host: localhost:{port}\r\nOrigin: http://localhost:{port}\r\n"
        head = f"{method} /console/session HTTP/1.1\r\n{origin}{cookie}Connection: close\r\n"
        body = '{"token":"known"}' if method == "POST" else ""
        reader, writer = await opened(port, f"{head}Content-Length: {len(body)}\r\n\r\n{body}")
        answer = (await reader.read()).decode()
        writer.close()
        assert answer.startswith("HTTP/1.1 204 ")
        return f"Cookie: {answer.partition('set-cookie: ')[2].partition(';')[0]}\r\n"

    async def test(upstream: Upstream, port: int) -> None:
        cookie = await session(port, "POST", "")

        async def called(method: str, path: str, more: str, body: str = "") -> asyncio.StreamReader:
            before, origin = upstream.opened, f"Host: localhost:{port}\r\nOrigin: http://localhost:{port}\r\n"
            head = f"{method} {path} HTTP/1.1\r\n{origin}{more}Connection: close\r\nContent-Length: {len(body)}\r\n"
            reader, writer = await opened(port, f"{head}Content-Type: application/json\r\n\r\n{body}")
            writers.append(writer)
            while upstream.opened == before:
                await asyncio.sleep(0.01)
            return reader

        writers: list[asyncio.StreamWriter] = []
        with_token = await called("GET", STREAM, TOKEN + cookie)
        await with_token.readuntil(b"event: snapshot\n")
        stream, wait = await called("GET", STREAM, cookie), await called("GET", WAIT, cookie)
        await stream.readuntil(b"event: snapshot\n")
        many = '{"subscriptions":[{"name":"conversations/a"}]}'
        lines = await called("POST", "/v1/conversations:subscribe", f"{cookie}Accept: application/x-ndjson\r\n", many)
        await session(port, "DELETE" if how == "signs out" else "POST", "" if how.startswith("others") else cookie)
        ended = "the session has ended; sign in again"
        answers = [(await each.read()).decode() for each in (stream, wait, lines)]
        assert "event: error\ndata: " in answers[0]
        assert answers[1].startswith("HTTP/1.1 401 ")
        assert '{"name":"conversations/a","error":' in answers[2]
        assert all('"UNAUTHENTICATED"' in each and ended in each for each in answers)
        assert upstream.opened - upstream.closed == 1
        for writer in writers:
            writer.close()
        while upstream.opened > upstream.closed:
            await asyncio.sleep(0.01)
        assert "event: error" not in (await with_token.read()).decode()

    run(test, tmp_path)


def test_many_streams_do_not_wait_for_one_another(tmp_path: Path) -> None:
    """More than one connection to the server may carry."""

    async def test(upstream: Upstream, port: int) -> None:
        wanted = limits.MAX_STREAMS_PER_CONNECTION + 50
        clients = [await opened(port, get("/v1/conversations/a:subscribe")) for _ in range(wanted)]
        for reader, _ in clients:
            assert "200" in await head_of(reader)
        assert upstream.opened == wanted
        for _, writer in clients:
            writer.close()

    run(test, tmp_path)


def test_an_export_that_fails_has_its_lines_and_one_about_the_error(tmp_path: Path) -> None:
    async def export(port: int, name: str) -> tuple[str, bytes]:
        reader, writer = await opened(port, get(f"/v1/conversations/{name}:export", "Connection: close\r\n"))
        head, body = await head_of(reader), b""
        while "chunked" in head and (size := int(await reader.readline(), 16)):
            body += (await reader.readexactly(size + 2))[:-2]
        writer.close()
        return head, body

    async def test(_: Upstream, port: int) -> None:
        head, body = await export(port, "whole")
        assert head.startswith("HTTP/1.1 200 ")
        *lines, error = map(json.loads, body.decode().splitlines())
        assert lines == list(map(json.loads, LINES))
        assert (error["error"]["status"], error["error"]["message"]) == ("DATA_LOSS", "the rest is damaged")
        head, _body = await export(port, "broken")
        assert head.startswith("HTTP/1.1 500 ")

    run(test, tmp_path)


def test_a_download_that_fails_is_cut_off_without_a_traceback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(_: Upstream, port: int) -> None:
        reader, writer = await opened(port, get("/v1/conversations/a/attachments/b:download"))
        answer = (await reader.read()).decode()
        assert "content-length: 9" in answer
        assert answer.endswith("\r\n\r\nhalf")
        writer.close()

    run(test, tmp_path)
    assert not [each for each in caplog.records if each.exc_info]


def test_silence_is_filled_with_comments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "COMMENT_SECONDS", 0.1)

    async def test(_: Upstream, port: int) -> None:
        reader, writer = await opened(port, get("/v1/conversations/a:subscribe"))
        await reader.readuntil(b"event: snapshot\n")
        await reader.readuntil(b"\n\r\n2\r\n:\n\r\n2\r\n:\n")
        writer.close()

    run(test, tmp_path)


@pytest.mark.parametrize("behind_proxy", [False, True])
def test_the_server_hears_of_the_client_and_its_call(tmp_path: Path, behind_proxy: bool) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

    async def test(upstream: Upstream, port: int) -> None:
        more = f"X-Forwarded-For: 203.0.113.9, 192.0.2.7\r\ntraceparent: {trace}\r\nCookie: secret\r\n"
        reader, writer = await opened(port, get("/v1/conversations/a:subscribe", more))
        await head_of(reader)
        writer.close()
        told = {name: value for name, value in upstream.metadata.items() if name != "user-agent"}
        peer = "192.0.2.7" if behind_proxy else "127.0.0.1"
        assert told == {"authorization": "Bearer t", "traceparent": trace, "x-forwarded-for": peer}

    run(test, tmp_path, behind_proxy=behind_proxy)


def test_pages_of_allowed_origins_may_call(tmp_path: Path) -> None:
    async def test(_: Upstream, port: int) -> None:
        asks = (
            "Access-Control-Request-Method: PATCH\r\nAccess-Control-Request-Headers: authorization, last-event-id\r\n"
        )
        for origin, status, allowed in (("https://a.example", 200, True), ("https://b.example", 403, False)):
            head = f"OPTIONS /v1/models HTTP/1.1\r\nHost: c.example\r\nOrigin: {origin}\r\n{asks}\r\n"
            reader, writer = await opened(port, head)
            answer = await head_of(reader)
            assert answer.startswith(f"HTTP/1.1 {status} ")
            assert (f"access-control-allow-origin: {origin}" in answer) == allowed
            writer.close()

    run(test, tmp_path, hosts=("c.example",), origins=("https://a.example",))


def test_a_server_that_cannot_be_reached_is_unavailable_and_not_named(tmp_path: Path) -> None:
    async def test(_: Upstream, port: int) -> None:
        reader, writer = await opened(port, get("/v1/models", "Connection: close\r\n"))
        answer = (await reader.read()).decode()
        writer.close()
        assert answer.startswith("HTTP/1.1 501 ")  # the upstream of this file has no catalogue

    run(test, tmp_path)

    async def away() -> str:
        listening = bound(Listen("127.0.0.1", 0))
        settings = Gateway(upstream=f"unix:{tmp_path}/none")
        gateway = asyncio.create_task(serve(settings, listening, until_eof=False))
        port = listening.getsockname()[1]
        await ready(port)
        reader, writer = await opened(port, get("/v1/models", "Connection: close\r\n"))
        answer = (await reader.read()).decode()
        writer.close()
        signal.raise_signal(signal.SIGTERM)
        await gateway
        listening.close()
        return answer

    head, _, body = asyncio.run(asyncio.wait_for(away(), PATIENCE)).partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 503 ")
    assert json.loads(body)["error"]["message"] == "the server cannot be reached; try again later"


def test_a_gateway_that_fails_to_start_is_started_again_and_callers_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, attempts = asyncio.create_subprocess_exec, itertools.count()

    async def start(*command: str, **options: Any) -> Any:
        match next(attempts):
            case 0:
                raise OSError(errno.EAGAIN, "no process is left")
            case 1:
                return await real(sys.executable, "-c", "raise SystemExit(3)", **options)
            case _:
                return await real(*command, **options)

    async def main() -> bytes:
        upstream = Listen(path=f"{tmp_path}/none")
        gateway = HttpGateway(load({"data_dir": str(tmp_path)}), Listen("127.0.0.1", 0), upstream, "secret")
        try:
            reader, writer = await opened(
                int(gateway.url.rpartition(":")[2]), get("/v1/models", "Connection: close\r\n")
            )
            answer = await reader.read()
            writer.close()
            return answer
        finally:
            await gateway.close()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    assert asyncio.run(asyncio.wait_for(main(), PATIENCE)).startswith(b"HTTP/1.1 503 ")
    assert [record.getMessage() for record in caplog.records if record.name.endswith("serving")] == [
        "the HTTP gateway cannot be started (no process is left); retrying in 0.1 s",
        "the HTTP gateway exited with code 3; restarting it in 0.2 s (streams then resume)",
    ]


def test_a_renewed_certificate_is_shown_to_new_connections(tmp_path: Path) -> None:
    make_authority(tmp_path, "ours")
    for name in ("first", "second"):
        make_certificate(tmp_path, name, "IP:127.0.0.1", "ours")
    certificate, key = tmp_path / "shown.pem", tmp_path / "shown.key"

    def show(name: str) -> None:
        shutil.copyfile(tmp_path / f"{name}.key", key)
        shutil.copyfile(tmp_path / f"{name}.pem", certificate)

    async def shown(port: int) -> str:
        context = ssl.create_default_context(cafile=tmp_path / "ours.pem")
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return ssl.DER_cert_to_PEM_cert(found)

    async def test(_: Upstream, port: int) -> None:
        before = await shown(port)
        show("second")
        after = await shown(port)
        assert after != before
        certificate.write_text("no certificate")
        assert await shown(port) == after

    show("first")
    run(test, tmp_path, tls=CertificateFiles(certificate, key))


def test_without_a_certificate_of_the_authority_nobody_is_served(tmp_path: Path) -> None:
    for authority in ("ours", "others"):
        make_authority(tmp_path, authority)
        make_certificate(tmp_path, f"client-of-{authority}", "DNS:ada.example.org", authority)
    make_certificate(tmp_path, "shown", "IP:127.0.0.1", "ours")

    async def served(port: int, shown: str) -> bool:
        context = ssl.create_default_context(cafile=tmp_path / "ours.pem")
        if shown:
            context.load_cert_chain(tmp_path / f"{shown}.pem", tmp_path / f"{shown}.key")
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(get("/v1/models").encode())
            found = await reader.read(4)
        except (ssl.SSLError, ConnectionError):
            return False
        assert not writer.get_extra_info("ssl_object").session.has_ticket
        writer.close()
        return found == b"HTTP"

    async def test(_: Upstream, port: int) -> None:
        for shown in ("", "client-of-others", "client-of-ours"):
            assert await served(port, shown) == (shown == "client-of-ours")

    files = CertificateFiles(tmp_path / "shown.pem", tmp_path / "shown.key", tmp_path / "ours.pem")
    run(test, tmp_path, tls=files)


@pytest.mark.parametrize("upgrade", ["h2c", "websocket", "TLS/1.0, HTTP/1.1", "\t"])
def test_an_upgrade_is_not_taken_and_not_logged(upgrade: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(_: Upstream, port: int) -> None:
        more = f"Upgrade: {upgrade}\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        reader, writer = await opened(port, get("/v1/none", f"Connection: Upgrade, close\r\n{more}"))
        assert (await reader.read()).startswith(b"HTTP/1.1 404 ")
        writer.close()

    run(test, tmp_path)
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


CHUNKED = f"POST /v1/conversations HTTP/1.1\r\nHost: localhost\r\n{TOKEN}Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + "a" * 40,
        "GET /v1 HTTP/1.1\r\n folded: yes\r\nHost: localhost\r\n\r\n",
        "GET /\x7f HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "G\xe4T / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\xb2\r\n\r\n",
        f"{CHUNKED}zz\r\n",
        f"{CHUNKED}1\r\nabc\r\n",
        "\r\n\r\n\0\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused_in_our_words_or_cut_off(
    sent: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(_: Upstream, port: int) -> None:
        reader, writer = await opened(port, "")
        writer.write(sent.encode("latin-1"))
        writer.write_eof()
        with suppress(ConnectionError):
            if answer := await reader.read():
                status, body = answer.decode().rpartition("HTTP/1.1 ")[2].split(" ", 1)
                error = json.loads(body.partition("\r\n\r\n")[2])["error"]
                assert (status, error["status"]) == ("400", "INVALID_ARGUMENT")
                assert error["message"] == "Invalid HTTP request received."
        writer.close()

    run(test, tmp_path)
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_call_that_still_waits_when_the_gateway_stops_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(upstream: Upstream, port: int) -> None:
        reader, writer = await opened(port, get(WAIT))
        while not upstream.opened:
            await asyncio.sleep(0.01)
        signal.raise_signal(signal.SIGTERM)
        answer = (await reader.read()).decode()
        assert answer.startswith("HTTP/1.1 503 ")
        assert "the gateway is stopping" in answer
        writer.close()

    run(test, tmp_path)
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]
