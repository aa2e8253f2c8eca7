"""What strangers can hold of a server before a token is looked at, and what callers can who do not go on."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
import pytest
from bedrock import v1
from grpc_health.v1 import health_pb2, health_pb2_grpc

from server.contract import limits
from server.services import grpc_server, interceptors
from tests.attacks.http2 import GOAWAY, Raw
from tests.integration.server.grpc_harness import AUTHORIZED, SECONDS, GrpcHarness, Refusal

if TYPE_CHECKING:
    Never: TypeAlias = Callable[[], Iterator[bytes]]

CATALOG = "/bedrock.v1.CatalogService/ListModels"
SUBSCRIBE = "/bedrock.v1.ConversationService/Subscribe"
HEALTH = "/grpc.health.v1.Health/Check"
LATE = "the request did not arrive in time"
MAX_CONCURRENT_STREAMS = 3
"""The number of this setting in HTTP/2."""


@pytest.fixture
def never() -> Iterator[Never]:
    """Makes requests that are begun, and do not come before the test is over."""
    over = threading.Event()

    def requests() -> Iterator[bytes]:
        over.wait(60)
        yield b""

    yield requests
    over.set()


def _answer(harness: GrpcHarness, method: str, request: Iterator[bytes], **options: Any) -> Any:
    call: Any = harness.channel.stream_stream(method, None, None)
    return next(call(request, timeout=SECONDS, **options))


def _refused(harness: GrpcHarness, method: str, request: Iterator[bytes], **options: Any) -> Any:
    with pytest.raises(grpc.RpcError) as failure:
        _answer(harness, method, request, **options)
    return failure.value


@pytest.mark.parametrize("method", [CATALOG, SUBSCRIBE])
def test_who_has_no_token_is_refused_before_the_request_is_read(
    harness: GrpcHarness, method: str, never: Never
) -> None:
    assert Refusal(_refused(harness, method, never())).code == "UNAUTHENTICATED"


@pytest.mark.parametrize("method", [CATALOG, SUBSCRIBE])
def test_a_request_that_does_not_come_is_not_waited_for(
    harness: GrpcHarness, monkeypatch: pytest.MonkeyPatch, method: str, never: Never
) -> None:
    monkeypatch.setattr(limits, "REQUEST_SECONDS", 0.05)
    refusal = Refusal(_refused(harness, method, never(), metadata=AUTHORIZED))
    assert (refusal.code, refusal.reason) == ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED")
    assert refusal.text == "the request did not arrive within 0.05 seconds; nothing was changed"
    monkeypatch.undo()
    assert harness.catalog.ListModels(v1.ListModelsRequest(), metadata=AUTHORIZED, timeout=SECONDS)


@pytest.mark.parametrize("method", [CATALOG, SUBSCRIBE])
def test_a_call_without_a_request_is_refused(harness: GrpcHarness, method: str) -> None:
    assert Refusal(_refused(harness, method, iter(()), metadata=AUTHORIZED)).code == "INVALID_ARGUMENT"


def test_health_waits_for_no_request_either(
    harness: GrpcHarness, monkeypatch: pytest.MonkeyPatch, never: Never
) -> None:
    monkeypatch.setattr(grpc_server, "REQUEST_SECONDS", 0.05)
    assert _refused(harness, HEALTH, never()).details() == LATE
    monkeypatch.undo()
    assert _refused(harness, HEALTH, iter(())).code() is grpc.StatusCode.INVALID_ARGUMENT
    assert _refused(harness, HEALTH, iter([b"\xff"])).code() is grpc.StatusCode.INVALID_ARGUMENT
    unknown = iter([health_pb2.HealthCheckRequest(service="nobody").SerializeToString()])
    assert _refused(harness, HEALTH, unknown).code() is grpc.StatusCode.NOT_FOUND


def test_requests_for_health_that_do_not_come_keep_nobody_out(
    open_harness: Callable[..., GrpcHarness], monkeypatch: pytest.MonkeyPatch, never: Never
) -> None:
    monkeypatch.setattr(grpc_server, "MAX_REQUESTS", 2)
    monkeypatch.setattr(grpc_server, "REQUEST_SECONDS", 600.0)
    harness = open_harness()
    call: Any = harness.channel.stream_unary(HEALTH, None, None)
    begun = [call.future(never(), timeout=60) for _ in range(3)]
    ended: SimpleQueue[Any] = SimpleQueue()
    for each in begun:
        each.add_done_callback(ended.put)
    assert ended.get(timeout=SECONDS).details() == LATE
    stub: Any = health_pb2_grpc.HealthStub(harness.channel)
    assert stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS).status == 1
    assert ended.get(timeout=SECONDS).details() == LATE, "one more has given way"
    for each in begun:
        each.cancel()


def test_the_oldest_watch_of_health_gives_way_and_the_others_go_on(
    open_harness: Callable[..., GrpcHarness], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_server, "MAX_WATCHES", 2)
    harness = open_harness()
    stub: Any = health_pb2_grpc.HealthStub(harness.channel)
    watches = []
    for service in ("", "bedrock.v1.CatalogService", "nobody"):
        watches.append(stub.Watch(health_pb2.HealthCheckRequest(service=service), timeout=SECONDS))
        assert next(watches[-1]).status == (3 if service == "nobody" else 1)
    with pytest.raises(grpc.RpcError) as ended:
        next(watches[0])
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
    harness.withdraw()
    assert next(watches[1]).status == health_pb2.HealthCheckResponse.NOT_SERVING


def test_a_watch_of_health_ends(harness: GrpcHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "WATCH_SECONDS", 0.05)
    stub: Any = health_pb2_grpc.HealthStub(harness.channel)
    with pytest.raises(grpc.RpcError) as ended:
        list(stub.Watch(health_pb2.HealthCheckRequest(), timeout=SECONDS))
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE


def _soon(option: str, value: int) -> tuple[tuple[str, int], ...]:
    assert option in dict(grpc_server.OPTIONS)
    return tuple({**dict(grpc_server.OPTIONS), option: value}.items())


def _closed(raw: Raw) -> bool:
    until = time.monotonic() + SECONDS
    while not raw.closed and time.monotonic() < until:
        raw.read(SECONDS)
    return raw.closed


def test_a_connection_that_says_nothing_is_closed(
    open_harness: Callable[..., GrpcHarness], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_server, "OPTIONS", _soon("grpc.server_handshake_timeout_ms", 100))
    raw = Raw(open_harness().address, greet=False)
    assert _closed(raw)
    raw.close()


def test_a_connection_that_calls_nothing_is_closed(
    open_harness: Callable[..., GrpcHarness], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_server, "IDLE", (("grpc.max_connection_idle_ms", 100),))
    raw = Raw(open_harness().address)
    assert _closed(raw)
    assert any(each.kind == GOAWAY for each in raw.seen), "it is told, so that no call of a client is lost"
    raw.close()


@pytest.mark.parametrize("reachable", [True, False])
def test_a_connection_carries_a_bounded_number_of_calls_where_strangers_are(
    open_harness: Callable[..., GrpcHarness], monkeypatch: pytest.MonkeyPatch, reachable: bool
) -> None:
    monkeypatch.setattr(grpc_server, "IDLE", (("grpc.max_connection_idle_ms", 100),))
    raw = Raw(open_harness(reachable=reachable).address)
    assert _closed(raw)
    assert raw.setting(MAX_CONCURRENT_STREAMS) == (limits.MAX_STREAMS_PER_CONNECTION if reachable else None)
    raw.close()


@pytest.mark.parametrize("method", ["GET", "OPTIONS", "POST"])
def test_a_page_in_a_browser_gets_nothing(harness: GrpcHarness, method: str) -> None:
    """Browsers speak HTTP/1.1 without TLS: no page reads anything here, whatever name its host resolves to."""
    host, _, port = harness.address.rpartition(":")
    with socket.create_connection((host, int(port)), SECONDS) as browser:
        head = f"{method} {HEALTH} HTTP/1.1\r\nHost: attacker.example:{port}\r\nOrigin: http://attacker.example\r\n"
        browser.sendall(head.encode() + b"Content-Type: text/plain\r\nContent-Length: 0\r\n\r\n")
        got = b""
        while part := browser.recv(65_536):
            got += part
    assert b"HTTP/1" not in got
    assert b"access-control" not in got.lower()


@pytest.mark.parametrize(
    ("told", "peer"),
    [
        ((("x-forwarded-for", "203.0.113.7, 192.0.2.1"),), "ipv4:192.0.2.1"),
        ((("x-forwarded-for", "203.0.113.7"), ("x-forwarded-for", "2001:db8::1")), "ipv6:2001:db8::1"),
        ((("x-forwarded-for", "fe80::1%eth0 level=error x"),), "ipv6:fe80::1"),
        ((("x-forwarded-for", "203.0.113.7, somebody"),), "ipv4:127.0.0.1:1"),
        ((("x-forwarded-for", ""),), "ipv4:127.0.0.1:1"),
        ((), "ipv4:127.0.0.1:1"),
    ],
)
def test_the_address_that_the_proxy_itself_sees_is_the_last_one(told: tuple[tuple[str, str], ...], peer: str) -> None:
    context: Any = SimpleNamespace(invocation_metadata=lambda: told, peer=lambda: "ipv4:127.0.0.1:1")
    assert interceptors.forwarded_peer_of(context) == peer
    assert interceptors.peer_of(context) == "ipv4:127.0.0.1:1", "nobody else is believed"
