"""A connection that a server keeps open carries the next request; one that may not be used again never does."""

import gc
import os
import select
import ssl
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.adapters.llm.catalog import Catalog
from actors.adapters.llm.provider import Secret
from actors.adapters.llm.transport import http
from actors.adapters.llm.transport.connections import TransportError
from actors.adapters.llm.transport.http import Transport, _Connection
from actors.core.errors import ErrorKind
from actors.ports import CancelToken
from tests.support.model_requests import ask, provider
from tests.support.scripted_server import (
    KEPT_STREAM_HEAD,
    Script,
    ScriptedServer,
    ServedConnection,
    answer,
    chunked,
    in_turn,
    kept,
    tunnelling,
)
from tests.unit.llm.test_abort import ANSWER, until

pytestmark = pytest.mark.usefixtures("no_leaked_fds")


@contextmanager
def transport_to(server: ScriptedServer, **settings: Any) -> Generator[Transport]:
    with closing(Transport(provider("openai-chat", server.url, **settings))) as transport:
        yield transport


def post(transport: Transport, server: ScriptedServer, body: bytes = b"{}", cancel: CancelToken | None = None) -> bytes:
    with transport.post(server.url + "/v1", {}, body, cancel or CancelToken()) as reply:
        return reply.read_all()


def idle(transport: Transport) -> list[_Connection]:
    managers = (transport._adapter.poolmanager, *transport._adapter.proxy_manager.values())
    pools = [pool for manager in managers for pool in map(manager.pools.get, manager.pools.keys()) if pool is not None]
    return [each for pool in pools if pool.pool for each in pool.pool.queue if each and each.sock]


def until_closed(transport: Transport) -> None:
    """Wait until the server's end of the only idle connection has arrived."""
    (connection,) = idle(transport)
    assert until(lambda: bool(select.select([connection.sock], b"", [], 0)[0]))


def streamed(connection: ServedConnection) -> None:
    """A chunked answer whose end comes with it."""
    connection.read_request()
    connection.send(KEPT_STREAM_HEAD + chunked(b"one") + chunked(b"two") + b"0\r\n\r\n")


def bodiless(connection: ServedConnection) -> None:
    connection.read_request()
    connection.send(b"HTTP/1.1 204 No Content\r\n\r\n")


def hinted(connection: ServedConnection) -> None:
    """An answer after what may precede it."""
    connection.read_request()
    connection.send(b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")
    connection.send(KEPT_STREAM_HEAD + chunked(b"onetwo") + b"0\r\n\r\n")


@pytest.mark.parametrize("first", [kept(b"onetwo"), streamed, bodiless, hinted])
def test_the_next_request_uses_the_same_connection(first: Script) -> None:
    with ScriptedServer(in_turn(first, kept(b"next"), kept(b"last"))) as server, transport_to(server) as transport:
        assert post(transport, server, b"a" * 100_000) in (b"onetwo", b"")
        assert post(transport, server) == b"next"
        assert post(transport, server) == b"last"
        assert (server.accepted, len(server.received)) == (1, 3)


def test_over_tls_through_a_proxy_and_through_a_tunnel(server_tls: ssl.SSLContext, certificate: Path) -> None:
    script = in_turn(kept(b"one"), streamed)
    with (
        ScriptedServer(script, tls=server_tls) as server,
        transport_to(server, ca_bundle=str(certificate)) as transport,
    ):
        assert [post(transport, server) for _ in range(2)] == [b"one", b"onetwo"]
        assert server.accepted == 1
    with ScriptedServer(script) as proxy, transport_to(proxy, proxy=Secret(proxy.url)) as transport:
        assert [post(transport, proxy) for _ in range(2)] == [b"one", b"onetwo"]
        assert proxy.accepted == 1
    with ScriptedServer(tunnelling(server_tls, script)) as proxy:
        settings = {"proxy": Secret(proxy.url), "ca_bundle": str(certificate)}
        with closing(Transport(provider("openai-chat", "https://127.0.0.1:9", **settings))) as transport:
            for expected in (b"one", b"onetwo"):
                with transport.post("https://127.0.0.1:9/v1", {}, b"{}", CancelToken()) as reply:
                    assert reply.read_all() == expected
        assert proxy.accepted == 1


def refused(transport: Transport, server: ScriptedServer) -> None:
    """Read an error and raise, as the provider's client does."""
    with transport.post(server.url, {}, b"", CancelToken()) as reply:
        assert (reply.status, reply.read_all()) == (429, b"slow down")
        raise ZeroDivisionError


def test_an_error_whose_body_was_read_keeps_the_connection() -> None:
    with (
        ScriptedServer(in_turn(answer(429, b"slow down", connection="keep-alive"), kept(b"yes"))) as server,
        transport_to(server) as transport,
    ):
        with pytest.raises(ZeroDivisionError):
            refused(transport, server)
        assert post(transport, server) == b"yes"
        assert server.accepted == 1


def _http_1_0(connection: ServedConnection) -> None:
    connection.read_request()
    connection.send(b"HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\nyes")
    connection.wait_for_close()


def _switched(connection: ServedConnection) -> None:
    connection.read_request()
    connection.send(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
    connection.wait_for_close()


def test_a_connection_that_changes_its_protocol_is_closed() -> None:
    with ScriptedServer(_switched) as server, transport_to(server) as transport:
        assert (post(transport, server), idle(transport)) == (b"", [])


def _surplus(connection: ServedConnection) -> None:
    kept(b"yes")(connection)
    connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")
    connection.wait_for_close()


def _surplus_at_once(connection: ServedConnection) -> None:
    connection.read_request()
    connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nyesHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")
    connection.wait_for_close()


@pytest.mark.parametrize(
    "script",
    [
        in_turn(answer(200, b"yes", connection="close")),
        in_turn(kept(b"yes", keep_alive="timeout=1, max=100")),
        _http_1_0,
        _surplus,
        _surplus_at_once,
    ],
)
def test_a_connection_that_the_server_will_not_keep_is_closed(script: Script) -> None:
    with ScriptedServer(script, kept(b"next")) as server, transport_to(server) as transport:
        assert post(transport, server) == b"yes"
        for connection in idle(transport):
            assert until(lambda: connection.idle_until < time.monotonic() or not connection.is_connected)  # noqa: B023
        assert post(transport, server) == b"next"
        assert server.accepted == 2


def test_an_unread_part_of_an_answer_closes_the_connection() -> None:
    def chatty(connection: ServedConnection) -> None:
        connection.read_request()
        connection.send(KEPT_STREAM_HEAD + chunked(b"one"))
        connection.reached.wait(60)
        connection.send(chunked(b"two") + b"0\r\n\r\n")
        connection.wait_for_close()

    with ScriptedServer(chatty, kept(b"next")) as server, transport_to(server) as transport:
        with transport.post(server.url, {}, b"", CancelToken()) as reply:
            assert reply.read() == b"one"
        server.reached.set()
        until_closed(transport)
        assert post(transport, server) == b"next"
        assert server.accepted == 2


def test_an_answer_whose_end_comes_late_keeps_the_connection() -> None:
    def late(connection: ServedConnection) -> None:
        connection.read_request()
        connection.send(KEPT_STREAM_HEAD + chunked(b"one"))
        connection.reached.wait(60)
        connection.send(b"0\r\n\r\n")

    with ScriptedServer(in_turn(late, kept(b"next"))) as server, transport_to(server) as transport:
        with transport.post(server.url, {}, b"", CancelToken()) as reply:
            assert reply.read() == b"one"
        (connection,) = idle(transport)
        assert not connection.is_connected
        server.reached.set()
        assert until(lambda: connection.is_connected)
        assert post(transport, server) == b"next"
        assert server.accepted == 1


def test_a_failed_answer_closes_the_connection_even_if_the_caller_ignores_the_failure() -> None:
    def cut(connection: ServedConnection) -> None:
        connection.read_request()
        connection.send(KEPT_STREAM_HEAD + chunked(b"one") + b"zz\r\n")
        connection.wait_for_close()

    with ScriptedServer(cut, kept(b"next")) as server, transport_to(server) as transport:
        with transport.post(server.url, {}, b"", CancelToken()) as reply, pytest.raises(TransportError):
            list(iter(reply.read, b""))
        assert idle(transport) == []
        assert post(transport, server) == b"next"


class Late(CancelToken):
    """A token whose callbacks a cancel has taken, and runs only after the request has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Callable[[], None]] = []

    def forget(self, callback: Callable[[], None]) -> bool:
        self.taken.append(callback)
        return False


def test_a_cancel_that_comes_too_late_does_not_shut_down_the_connection_of_the_next_request() -> None:
    cancel = Late()

    def second(connection: ServedConnection) -> None:
        connection.read_request()
        for callback in cancel.taken:
            callback()
        connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nnext")

    with ScriptedServer(in_turn(kept(b"yes"), second)) as server, transport_to(server) as transport:
        assert post(transport, server, cancel=cancel) == b"yes"
        assert post(transport, server) == b"next"
        assert (server.accepted, len(cancel.taken)) == (1, 1)


# --- a server that closes an idle connection --------------------------------------------------------------------------


def test_a_connection_that_the_server_has_closed_is_not_used() -> None:
    with ScriptedServer(kept(b"yes")) as server, transport_to(server) as transport:
        for _ in range(3):
            assert post(transport, server) == b"yes"
            until_closed(transport)
        assert (server.accepted, len(server.received)) == (3, 3)


@pytest.mark.parametrize("size", [2, 5_000_000])
def test_a_request_sent_while_the_server_closes_is_sent_again(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's kernel has acknowledged nothing of it, so that no program can have read it."""
    with ScriptedServer(kept(b"yes")) as server, transport_to(server) as transport:
        assert post(transport, server) == b"yes"
        until_closed(transport)
        monkeypatch.setattr(_Connection, "is_connected", True)
        assert post(transport, server, b"x" * size) == b"yes"
        assert (server.accepted, [len(each.body) for each in server.received]) == (2, [2, size])


def test_it_is_sent_again_on_a_new_connection_although_others_are_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """What closed one of them may have closed all."""
    together = threading.Barrier(2)

    def meeting(connection: ServedConnection) -> None:
        connection.read_request()
        together.wait(60)
        connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    with ScriptedServer(meeting, meeting, kept(b"yes")) as server, transport_to(server) as transport:
        threads = [threading.Thread(target=post, args=(transport, server)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for connection in idle(transport):
            assert until(lambda: bool(select.select([connection.sock], b"", [], 0)[0]))  # noqa: B023
        monkeypatch.setattr(_Connection, "is_connected", True)
        assert post(transport, server) == b"yes"
        assert (server.accepted, len(idle(transport))) == (3, 2)


def test_so_it_is_over_tls(server_tls: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        ScriptedServer(kept(b"yes"), tls=server_tls) as server,
        transport_to(server, ca_bundle=str(certificate)) as transport,
    ):
        assert post(transport, server) == b"yes"
        until_closed(transport)
        monkeypatch.setattr(_Connection, "is_connected", True)
        assert post(transport, server) == b"yes"
        assert (server.accepted, len(server.received)) == (2, 2)


def _read_and_close(connection: ServedConnection) -> None:
    connection.read_request()
    connection.sock.close()


def _read_and_reset(connection: ServedConnection) -> None:
    connection.read_request()
    connection.reset()


@pytest.mark.parametrize("end", [_read_and_close, _read_and_reset])
def test_a_request_that_may_have_been_read_is_never_sent_again(end: Script) -> None:
    def script(connection: ServedConnection) -> None:
        kept(b"yes")(connection)
        end(connection)

    with ScriptedServer(script) as server, transport_to(server) as transport:
        assert post(transport, server) == b"yes"
        with pytest.raises(TransportError, match="closed before a response arrived") as raised:
            post(transport, server)
        assert raised.value.kind is ErrorKind.NETWORK
        assert (server.accepted, len(server.received)) == (1, 2)


def test_a_cancelled_request_is_never_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(kept(b"yes")) as server, transport_to(server) as transport:
        assert post(transport, server) == b"yes"
        until_closed(transport)
        monkeypatch.setattr(_Connection, "is_connected", True)
        cancel = CancelToken()
        cancel.cancel()
        with pytest.raises(TransportError):
            post(transport, server, cancel=cancel)
        assert len(server.received) == 1


# --- the pool ---------------------------------------------------------------------------------------------------------


def test_a_connection_that_was_idle_for_too_long_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "IDLE_SECONDS", 0.0)
    with ScriptedServer(in_turn(kept(b"one"))) as server, transport_to(server) as transport:
        assert [post(transport, server) for _ in range(2)] == [b"one", b"one"]
        assert server.accepted == 2


@pytest.mark.parametrize(("limit", "value"), [("MAX_IDLE", 2), ("max_open_files", lambda: 47)])
def test_only_so_many_are_kept_and_the_last_one_is_used_first(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: object
) -> None:
    monkeypatch.setattr(http, limit, value)
    together = threading.Barrier(3)

    def meeting(connection: ServedConnection) -> None:
        connection.read_request()
        together.wait(60)
        kept_body = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
        connection.send(kept_body)

    with ScriptedServer(in_turn(meeting, kept(b"again"))) as server, transport_to(server) as transport:
        threads = [threading.Thread(target=post, args=(transport, server)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        first, last = idle(transport)
        assert post(transport, server) == b"again"
        assert idle(transport) == [first, last]
        assert last.idle_until > first.idle_until
        assert server.accepted == 3


def test_closing_the_pool_closes_idle_connections_and_those_that_end_later() -> None:
    with ScriptedServer(in_turn(kept(b"one"), kept(b"two"))) as server, transport_to(server) as transport:
        assert post(transport, server) == b"one"
        with transport.post(server.url, {}, b"", CancelToken()) as reply:
            transport.close()
            assert reply.read_all() == b"two"
        assert idle(transport) == []


def test_a_dropped_pool_closes_its_connections() -> None:
    ended = threading.Event()

    def script(connection: ServedConnection) -> None:
        in_turn(kept(b"one"))(connection)
        ended.set()

    with ScriptedServer(script) as server:
        transport = Transport(provider("openai-chat", server.url))
        assert post(transport, server) == b"one"
        del transport
        gc.collect()
        assert ended.wait(60)


def test_programs_that_are_started_inherit_no_connection() -> None:
    with ScriptedServer(in_turn(kept(b"one"))) as server, transport_to(server) as transport:
        assert post(transport, server) == b"one"
        (connection,) = idle(transport)
        assert not os.get_inheritable(connection.sock.fileno())


def test_a_catalog_closes_the_connections_of_its_providers() -> None:
    ended = threading.Event()

    def script(connection: ServedConnection) -> None:
        in_turn(kept(ANSWER))(connection)
        ended.set()

    with ScriptedServer(script) as server:
        catalog = Catalog([provider("anthropic", server.url)])
        found = catalog.get("claude-sonnet-4-5")
        assert found is not None
        ask(found)
        catalog.close()
        assert ended.wait(60)
