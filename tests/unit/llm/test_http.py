"""The transport: what a request looks like, how failures of the network are told, and what is left behind: nothing."""

import fcntl
import gzip
import itertools
import socket
import ssl
import struct
import termios
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import certifi
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.adapters.llm.provider import Secret, Timeouts
from actors.adapters.llm.transport import http
from actors.adapters.llm.transport.connections import Exchange, TransportError, TransportTimeoutError
from actors.adapters.llm.transport.http import MAX_OVERHEAD_BYTES, READ_BYTES, Transport
from actors.common import machine
from actors.core.errors import ErrorKind
from actors.ports import CancelToken
from tests.support.certificates import openssl
from tests.support.model_requests import QUICK, model, provider
from tests.support.model_requests import failure as model_failure
from tests.support.scripted_server import STREAM_HEAD, Script, ScriptedServer, ServedConnection, answer, chunked, stream
from tests.unit.llm.test_abort import until

pytestmark = pytest.mark.usefixtures("no_leaked_fds")

PATIENT = Timeouts(connect=30, first_byte=30, idle=30)


def post(url: str, body: bytes = b"{}", **settings: Any) -> tuple[int, bytes]:
    transport = Transport(provider("openai-chat", url, **settings))
    with transport.post(url + "/v1/x", {"x-mark": "1"}, body, CancelToken()) as reply:
        return reply.status, reply.read_all()


def failure(url: str, **settings: Any) -> TransportError:
    with pytest.raises(TransportError) as raised:
        post(url, **settings)
    return raised.value


def test_a_large_body_arrives_whole() -> None:
    body = bytes(range(256)) * 12_000
    with ScriptedServer(answer(200, b"yes")) as server:
        transport = Transport(provider("openai-chat", server.url))
        with transport.post(server.url, {}, body, CancelToken()) as reply:
            assert reply.read_all() == b"yes"
    (received,) = server.received
    assert received.body == body


def test_a_request_and_its_answer() -> None:
    with ScriptedServer(answer(201, b"yes")) as server:
        assert post(server.url, b"body" * 100_000) == (201, b"yes")
    (received,) = server.received
    assert (received.path, received.body) == ("/v1/x", b"body" * 100_000)
    assert received.headers["x-mark"] == "1"
    assert received.headers["accept-encoding"] == "identity"


def test_pieces_come_as_they_are_sent_with_and_without_chunks() -> None:
    def closing(connection: ServedConnection) -> None:
        connection.read_request()
        connection.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nfirst")
        assert connection.sock.recv(1) == b""

    chunks = stream([b"first"], then=lambda connection: connection.wait_for_close())
    for script in (chunks, closing):
        with ScriptedServer(script) as server:
            transport = Transport(provider("anthropic", server.url))
            with transport.post(server.url, {}, b"{}", CancelToken()) as reply:
                assert reply.read() == b"first"


def test_nothing_of_the_environment_takes_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    with ScriptedServer(answer(200, b"yes")) as server:
        assert post(server.url) == (200, b"yes")
    assert "authorization" not in server.received[0].headers


def test_a_configured_proxy_is_used() -> None:
    with ScriptedServer(answer(200, b"by proxy")) as server:
        proxy = Secret(server.url.replace("http://", "http://me:pw@"))
        assert post("http://models.invalid", proxy=proxy) == (200, b"by proxy")
    assert server.received[0].path == "http://models.invalid/v1/x"
    assert server.received[0].headers["proxy-authorization"].startswith("Basic ")


def test_a_proxy_that_refuses() -> None:
    with ScriptedServer(answer(407, b"")) as proxy:
        told = failure("https://127.0.0.1:9", proxy=Secret(proxy.url))
    assert (told.kind, told.text) == (ErrorKind.NETWORK, "the proxy refused or closed the connection")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip"])
def test_a_compressed_answer_is_refused_since_none_was_asked_for(encoding: str) -> None:
    """A small body may become gigabytes."""
    body = gzip.compress(b"squeezed" * 1000)
    with ScriptedServer(answer(200, body, content_encoding=encoding), answer(200, b"{}")) as server:
        refused = model_failure(model("anthropic", server.url)).failure
        assert post(server.url) == (200, b"{}")
    assert (refused.kind, refused.retryable) == (ErrorKind.INVALID_REQUEST, False)
    assert "turn off compression in the server or proxy" in refused.message


def test_the_status_of_a_compressed_error_counts() -> None:
    with ScriptedServer(answer(503, gzip.compress(b"busy"), content_encoding="gzip")) as server:
        assert model_failure(model("anthropic", server.url)).failure.kind is ErrorKind.SERVER_ERROR


def test_an_answer_that_says_that_it_is_not_compressed_is_read() -> None:
    with ScriptedServer(answer(200, b"yes", content_encoding="identity")) as server:
        assert post(server.url) == (200, b"yes")


def test_tls_is_verified(server_tls: ssl.SSLContext, certificate: Path) -> None:
    with ScriptedServer(answer(200, b"yes"), tls=server_tls) as server:
        assert post(server.url, ca_bundle=str(certificate)) == (200, b"yes")
        told = failure(server.url)
        assert told.kind is ErrorKind.INVALID_REQUEST, "another attempt would not change it"
        assert "certificate of 127.0.0.1 is not trusted" in told.text
        wrong_name = server.url.replace("127.0.0.1", "localhost")
        assert "not trusted" in failure(wrong_name, ca_bundle=str(certificate)).text
    assert len(server.received) == 1


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "the system"])
def test_the_authorities_of_the_system_and_of_the_environment_are_trusted_too(
    server_tls: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    for each in machine.VARIABLES:
        monkeypatch.delenv(each, raising=False)
    with ScriptedServer(answer(200, b"yes"), tls=server_tls) as server:
        assert "not trusted" in failure(server.url).text
        if variable == "the system":
            monkeypatch.setattr(machine, "SYSTEM_FILES", ("/nowhere", str(certificate)))
        elif variable == "SSL_CERT_DIR":
            openssl(tmp_path, f"x509 -in {certificate} -out own.pem")
            openssl(tmp_path, "rehash .")
            monkeypatch.setenv(variable, str(tmp_path))
        else:
            monkeypatch.setenv(variable, str(certificate))
        assert post(server.url) == (200, b"yes")
        certifi_too = ssl.create_default_context(cafile=certifi.where()).cert_store_stats()["x509_ca"]
        assert machine.client_tls().cert_store_stats()["x509_ca"] >= certifi_too


def test_authorities_that_cannot_be_read_are_named_and_the_others_trusted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "none.pem").write_text("no certificate")
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere.pem")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "none.pem"))
    assert machine.client_tls().cert_store_stats()["x509_ca"] > 0
    assert "authorities of SSL_CERT_FILE, so they are not trusted: /nowhere.pem" in caplog.text
    assert "cannot read the certificate authorities of REQUESTS_CA_BUNDLE" in caplog.text


def test_a_ca_bundle_that_is_none(tmp_path: Path) -> None:
    for content in (None, "no certificate"):
        bundle = tmp_path / "ca.pem"
        if content:
            bundle.write_text(content)
        assert failure("https://127.0.0.1:9", ca_bundle=str(bundle)).kind is ErrorKind.INVALID_REQUEST


def test_a_server_that_does_not_speak_tls() -> None:
    with ScriptedServer(lambda connection: connection.send(b"HTTP/1.1 400 Plain\r\n\r\n")) as server:
        told = failure(server.url.replace("http:", "https:"))
    assert told.kind is ErrorKind.NETWORK
    assert "TLS handshake with 127.0.0.1 failed" in told.text


def test_no_server_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    told = failure(f"http://127.0.0.1:{port}")
    assert (told.kind, told.text) == (ErrorKind.NETWORK, f"cannot connect to 127.0.0.1:{port}: Connection refused")


def test_a_name_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    told = failure("http://models.invalid")
    assert (told.kind, told.text) == (ErrorKind.NETWORK, "cannot resolve the host name models.invalid")


def test_the_next_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(answer(200, b"yes")) as server:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            dead = listener.getsockname()
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in (dead, ("127.0.0.1", server.port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        assert post(f"http://fake.invalid:{server.port}") == (200, b"yes")


def _silent(connection: ServedConnection) -> None:
    connection.read_request()
    connection.wait_for_close()


def _hang_up(connection: ServedConnection) -> None:
    connection.read_request()


def _reset(connection: ServedConnection) -> None:
    connection.read_request()
    connection.reset()


def _short_body(connection: ServedConnection) -> None:
    connection.read_request()
    connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort")


def _cut_chunk(connection: ServedConnection) -> None:
    connection.read_request()
    connection.send(STREAM_HEAD + b"ff\r\nshort")


def _reset_inside(connection: ServedConnection) -> None:
    connection.read_request()
    connection.send(STREAM_HEAD + chunked(b"short"))
    connection.reset()


def _stall(connection: ServedConnection) -> None:
    stream([b"data"], then=lambda connection: connection.wait_for_close())(connection)


@pytest.mark.parametrize(
    ("script", "timeouts", "text"),
    [
        (_silent, replace(PATIENT, first_byte=0.2), "the server did not respond within 0.2 s"),
        (_hang_up, PATIENT, "closed before a response arrived"),
        (_reset, PATIENT, "closed before a response arrived"),
        (lambda connection: connection.send(b"SSH-2.0-nonsense\r\n\r\n"), PATIENT, "response is not HTTP"),
        (_short_body, PATIENT, "broke in the middle"),
        (_cut_chunk, PATIENT, "broke in the middle"),
        (_reset_inside, PATIENT, "broke in the middle"),
        (_stall, replace(PATIENT, idle=0.2), "no data received for 0.2 s"),
    ],
)
def test_breaks_and_stalls(
    script: Script, timeouts: Timeouts, text: str, server_tls: ssl.SSLContext, certificate: Path
) -> None:
    with ScriptedServer(script) as server:
        told = failure(server.url, timeouts=timeouts)
    assert told.kind is ErrorKind.NETWORK
    assert text in told.text
    with ScriptedServer(script, tls=server_tls) as server:
        # Where a TLS connection broke may show sooner or later, so the text differs.
        told = failure(server.url, timeouts=timeouts, ca_bundle=str(certificate))
    assert told.kind is ErrorKind.NETWORK


def test_a_tls_handshake_that_stalls(certificate: Path) -> None:
    with ScriptedServer(lambda connection: connection.wait_for_close()) as server:
        url = server.url.replace("http:", "https:")
        told = failure(url, timeouts=Timeouts(connect=0.2), ca_bundle=str(certificate))
    assert told.kind is ErrorKind.NETWORK


def test_an_answer_that_dribbles_for_ever_meets_the_time_limit() -> None:
    def dribble(connection: ServedConnection) -> None:
        while True:
            connection.send(chunked(b"."))

    with ScriptedServer(stream([], then=dribble)) as server:
        told = failure(server.url, timeouts=Timeouts(total=0.3))
    _assert_overdue(told)


def test_the_time_limit_of_the_whole_answer_is_reported_as_such_even_if_nothing_arrives_near_its_end() -> None:
    limits = Timeouts(connect=5, first_byte=5, idle=5, total=0.3)
    with ScriptedServer(_stall) as server:
        _assert_overdue(failure(server.url, timeouts=limits))


def _assert_overdue(told: TransportError) -> None:
    text = "the answer was not complete within the total timeout of 0.3 s"
    assert (told.kind, told.text) == (ErrorKind.NETWORK, text)


def _dribbling_headers(connection: ServedConnection) -> None:
    connection.read_request()
    connection.send(b"HTTP/1.1 200 OK\r\nx-long: ")
    for _ in range(500):
        connection.send(b".")
        connection.reached.wait(0.01)


def _continuing(connection: ServedConnection) -> None:
    connection.read_request()
    for _ in range(500):
        connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        connection.reached.wait(0.01)


@pytest.mark.parametrize("script", [_dribbling_headers, _continuing])
def test_headers_that_dribble_meet_the_time_limit(
    script: Script, server_tls: ssl.SSLContext, certificate: Path
) -> None:
    limits = Timeouts(connect=5, first_byte=0.3, idle=5)
    for tls in (None, server_tls):
        with ScriptedServer(script, tls=tls) as server:
            told = failure(server.url, timeouts=limits, ca_bundle=str(certificate))
        assert (told.kind, told.text) == (ErrorKind.NETWORK, "the server did not respond within 0.3 s")


def test_a_proxy_whose_headers_dribble_meets_the_time_limit_of_connecting() -> None:
    with ScriptedServer(_dribbling_headers) as proxy:
        limits = Timeouts(connect=0.3, first_byte=30)
        assert failure("https://127.0.0.1:9", proxy=Secret(proxy.url), timeouts=limits).kind is ErrorKind.NETWORK


def test_the_limit_of_the_headers_is_not_one_of_the_body() -> None:
    def slow(connection: ServedConnection) -> None:
        connection.read_request()
        connection.send(b"HTTP/1.1 100 Continue\r\n\r\n" + STREAM_HEAD)
        for _ in range(4):
            connection.reached.wait(1)
            connection.send(chunked(b"."))
        connection.send(b"0\r\n\r\n")

    with ScriptedServer(slow) as server:
        assert post(server.url, timeouts=replace(PATIENT, first_byte=3)) == (200, b"....")


def test_an_answer_that_is_too_long_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_ANSWER_BYTES", 1 << 20)

    def flood(connection: ServedConnection) -> None:
        while True:
            connection.send(chunked(b"x" * 65536))

    with ScriptedServer(stream([], then=flood)) as server:
        transport = Transport(provider("anthropic", server.url))
        with transport.post(server.url, {}, b"{}", CancelToken()) as reply, pytest.raises(TransportError) as raised:
            list(iter(reply.read, b""))
    assert raised.value.kind is ErrorKind.RESPONSE_TOO_LARGE


@pytest.mark.parametrize("name", ["x-key", "x y", "x:", "", "x\r\n", "ü"])
@pytest.mark.parametrize("key", ["hunter22\r\nx-evil: 1", "hunter22\n", "hunter22\0", "hunter22\u2603"])
def test_a_header_that_cannot_be_sent_is_reported_without_its_value(name: str, key: str) -> None:
    value = key if name == "x-key" else "hunter22"
    with ScriptedServer(answer(200, b"")) as server:
        posting = Transport(provider("anthropic", server.url)).post(server.url, {name: value}, b"", CancelToken())
        with pytest.raises(TransportError) as raised:
            posting.__enter__()
    assert raised.value.kind is ErrorKind.INVALID_REQUEST
    assert "hunter22" not in str(raised.value)


@pytest.mark.parametrize("path", ["//", "http://a b/", "http://a:99999/", "http:///x", "http://[::1/"])
def test_a_url_that_cannot_be_sent(path: str) -> None:
    posting = Transport(provider("anthropic", "http://127.0.0.1:9")).post(path, {}, b"", CancelToken())
    with pytest.raises(TransportError, match="characters that cannot be sent"):
        posting.__enter__()


def test_a_request_has_a_length_and_a_host_of_its_own() -> None:
    headers = {"content-length": "9", "transfer-encoding": "chunked", "Accept-Encoding": "br"}
    with ScriptedServer(answer(200, b"yes"), answer(200, b"yes")) as server:
        transport = Transport(provider("anthropic", server.url))
        with transport.post(server.url + "/ü x?a=%20", headers, b"{}", CancelToken()) as reply:
            reply.read_all()
        with transport.send("GET", server.url, {"host": "b"}, b"", CancelToken(), timeouts=PATIENT) as reply:
            reply.read_all()
    first, second = server.received
    assert (first.path, first.headers["host"]) == ("/%C3%BC%20x?a=%20", f"127.0.0.1:{server.port}")
    assert (first.headers["content-length"], first.headers["accept-encoding"]) == ("2", "identity")
    assert "transfer-encoding" not in first.headers
    assert second.headers["host"] == "b"
    assert "content-length" not in second.headers


def test_the_token_keeps_nothing_of_a_finished_request(monkeypatch: pytest.MonkeyPatch) -> None:
    token = CancelToken()
    kept: list[Callable[[], None]] = []
    monkeypatch.setattr(token, "on_cancel", kept.append)
    monkeypatch.setattr(token, "forget", kept.remove)
    with ScriptedServer(answer(200, b"yes")) as server:
        with Transport(provider("anthropic", server.url)).post(server.url, {}, b"{}", token) as reply:
            assert reply.read_all() == b"yes"
            assert len(kept) == 1
        assert kept == []


def test_a_large_body_has_the_time_that_an_answer_has() -> None:
    def slow_reader(connection: ServedConnection) -> None:
        connection.reached.wait(0.5)
        answer(200, b"yes")(connection)

    with ScriptedServer(slow_reader) as server:
        timeouts = Timeouts(connect=0.2, first_byte=QUICK.first_byte)
        assert post(server.url, b"x" * (32 << 20), timeouts=timeouts) == (200, b"yes")


# --- what arrives -----------------------------------------------------------------------------------------------------


def said(data: bytes) -> Script:
    """Read a request, send these bytes, and end the connection."""

    def play(connection: ServedConnection) -> None:
        connection.read_request()
        connection.send(data)

    return play


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200\r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\ncontent-length: 3\n\nabc",
        b"HTTP/1.1 200 OK\r\nx: a\r\n b\r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3  \r\nabc\r\n0\r\nx-a: trailer\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n000;z\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nupgrade: h2c\r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP/1.1 100 Go\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
    ],
)
def test_what_other_clients_accept_is_accepted(data: bytes) -> None:
    with ScriptedServer(said(data)) as server:
        assert post(server.url) == (200, b"abc")


CHUNKS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * MAX_OVERHEAD_BYTES,
        b"HTTP/1.1 100 Continue\r\n\r\n" * (MAX_OVERHEAD_BYTES // 20),
        CHUNKS + b"0\r\n" + b"x: aaaaaaaa\r\n" * (MAX_OVERHEAD_BYTES // 10),
        CHUNKS + b"3;" + b"a" * MAX_OVERHEAD_BYTES,
        CHUNKS + b"zz\r\n",
    ],
)
def test_what_is_not_a_response_is_refused(data: bytes) -> None:
    def play(connection: ServedConnection) -> None:
        said(data)(connection)
        connection.wait_for_close()

    with ScriptedServer(play) as server:
        told = failure(server.url, timeouts=PATIENT)
    assert told.kind is ErrorKind.NETWORK
    assert told.text.startswith(("the server's response is not HTTP", "the connection broke"))


def test_content_before_a_malformed_chunk_is_read_first() -> None:
    with (
        ScriptedServer(said(CHUNKS + b"3\r\nabc\r\nzz\r\n")) as server,
        Transport(provider("anthropic", server.url)).post(server.url, {}, b"", CancelToken()) as reply,
    ):
        assert reply.read() == b"abc"
        with pytest.raises(TransportError, match="broke in the middle"):
            reply.read()


def waiting_in(sock: socket.socket) -> int:
    """How many bytes have arrived in the kernel."""
    count: int = struct.unpack("i", fcntl.ioctl(sock, termios.FIONREAD, bytes(4)))[0]
    return count


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("end", ["chunked", "close"])
def test_one_read_returns_all_that_has_arrived(
    secure: bool, end: str, server_tls: ssl.SSLContext, certificate: Path
) -> None:
    """A provider sends each piece of text by itself; a pause after each piece would make the answer late."""
    pieces = [b"piece %d " % number for number in range(50)]
    framing = 50 * (len(b"9\r\n\r\n") * (end == "chunked") + 22 * secure)
    begun = threading.Event()

    def play(connection: ServedConnection) -> None:
        connection.read_request()
        connection.send(STREAM_HEAD if end == "chunked" else b"HTTP/1.1 200 OK\r\n\r\n")
        begun.wait(60)
        for piece in pieces:
            connection.send(chunked(piece) if end == "chunked" else piece)
        connection.wait_for_close()

    with ScriptedServer(play, tls=server_tls if secure else None) as server:
        transport = Transport(provider("anthropic", server.url, ca_bundle=str(certificate)))
        with transport.post(server.url, {}, b"", CancelToken()) as reply:
            begun.set()
            assert until(lambda: waiting_in(reply._response.fp.raw._sock) >= sum(map(len, pieces)) + framing)
            assert reply.read() == b"".join(pieces)


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=5), st.lists(st.integers(0, 200), max_size=8))
def test_in_any_segments_chunks_are_read_as_they_arrive_and_whole(contents: list[bytes], cuts: list[int]) -> None:
    data = b"".join([*map(chunked, contents), b"0\r\nx: y\r\n\r\n"])
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    ours, theirs = socket.socketpair()
    with ours, theirs:
        exchange = Exchange(PATIENT, fresh=False)
        exchange.begin(30, "late")
        theirs.sendall(CHUNKS)
        ours.setblocking(False)
        response = http._Response(exchange, ours, method="POST")
        response.begin()
        read = []
        for begin, end in itertools.pairwise(edges):
            theirs.sendall(data[begin:end])
            exchange.idle = 0
            with suppress(TransportTimeoutError):
                while pieces := response.pieces():
                    read += pieces
        assert (b"".join(read), response.ended, response.settle()) == (b"".join(contents), True, True)


class Waits(CancelToken):
    """A token whose waits take no time, but are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False


@pytest.mark.parametrize(
    ("content", "lines"),
    [(chunked(b": ping\n\n" * 1000), 2001), (chunked(b"x") * 1000, 1000), (chunked(b"data: {}\n\n") * 1000, 3000)],
    ids=["comments", "bytes", "events"],
)
def test_a_stream_of_tiny_things_is_read_at_a_pace(content: bytes, lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast it arrives, so that it takes no core; a burst is read at once."""
    token = Waits()
    monkeypatch.setattr(http, "time", SimpleNamespace(monotonic=lambda: token.now))
    with ScriptedServer(stream([], then=said_times(content, 100))) as server:
        transport = Transport(provider("anthropic", server.url, timeouts=PATIENT))
        with transport.post(server.url, {}, b"", token) as reply:
            assert reply.read()
            assert token.now == 1000.0
            reply.read_all()
    expected = 100 * lines * http.LINE_COST - http.BURST_SECONDS
    assert token.now - 1000 >= expected - 2 * READ_BYTES * http.LINE_COST


def said_times(content: bytes, times: int) -> Script:
    def play(connection: ServedConnection) -> None:
        for _ in range(times):
            connection.send(content)
        connection.send(b"0\r\n\r\n")

    return play
