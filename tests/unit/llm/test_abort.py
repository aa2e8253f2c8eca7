"""A cancel ends a request in every phase, shows as a cancel, and leaves no descriptor behind."""

import itertools
import os
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.adapters.llm.provider import Secret, Timeouts
from actors.adapters.llm.transport.connections import Exchange
from actors.core.content import Text
from actors.ports import CancelToken, Model, ModelAbortedError, ModelAnswer, ModelFailedError
from tests.support.model_requests import RequestThread, ask, close_models, model
from tests.support.scripted_server import (
    STREAM_HEAD,
    Script,
    ScriptedServer,
    ServedConnection,
    chunked,
    in_turn,
    kept,
    named,
    plain,
    stream,
    tunnelling,
)

pytestmark = pytest.mark.usefixtures("no_leaked_fds")

# Cancels of each test of many; a long search for faults sets more.
ABORTS = int(os.environ.get("BEDROCK_ABORTS", "100"))

# So long that only a cancel can end a request in time.
PATIENT = Timeouts(connect=120, first_byte=120, idle=120)

# A stream's beginning per protocol; its last event can be repeated for ever.
BEGINNINGS: dict[str, list[bytes]] = {
    "anthropic": named(
        {"type": "message_start", "message": {"usage": {"input_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "word "}},
    ),
    "openai-chat": plain({"choices": [{"index": 0, "delta": {"content": "word "}}]}),
    "openai-responses": named(
        {"type": "response.created", "response": {}},
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "id": "m"}},
        {"type": "response.output_text.delta", "output_index": 0, "item_id": "m", "delta": "word "},
    ),
}
PROTOCOLS = pytest.mark.parametrize("protocol", BEGINNINGS)


def _before_headers(connection: ServedConnection) -> None:
    connection.read_request()
    connection.reached.set()
    connection.wait_for_close()


def _inside_headers(connection: ServedConnection) -> None:
    connection.read_request()
    connection.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event")
    connection.reached.set()
    connection.wait_for_close()


def _stalled(text: list[bytes]) -> Script:
    def wait(connection: ServedConnection) -> None:
        connection.reached.set()
        connection.wait_for_close()

    return stream(text, then=wait)


def _streaming(text: list[bytes]) -> Script:
    pause = threading.Event()

    def dribble(connection: ServedConnection) -> None:
        connection.reached.set()
        while not pause.wait(0.005):
            connection.send(chunked(text[-1]))

    return stream(text, then=dribble)


def _flooding(text: list[bytes]) -> Script:
    flood = chunked(text[-1]) * 1000

    def play(connection: ServedConnection) -> None:
        connection.read_request()
        connection.send(STREAM_HEAD + b"".join(map(chunked, text)))
        connection.reached.set()
        while True:
            connection.send(flood)

    return play


def phases(protocol: str) -> dict[str, Script]:
    """What a provider does from the request on, by the phase that a cancel meets."""
    text = BEGINNINGS[protocol]
    return {
        "before_headers": _before_headers,
        "inside_headers": _inside_headers,
        "stalled": _stalled(text),
        "streaming": _streaming(text),
        "flooding": _flooding(text),
    }


PHASES = phases("anthropic")


@PROTOCOLS
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_a_cancel_ends_a_request_that_has_been_sent(
    protocol: str, phase: str, secure: bool, server_tls: ssl.SSLContext, certificate: Path
) -> None:
    with ScriptedServer(phases(protocol)[phase], tls=server_tls if secure else None) as server:
        asking = RequestThread(model(protocol, server.url, timeouts=PATIENT, ca_bundle=str(certificate)))
        assert server.reached.wait(60)
        if phase not in {"before_headers", "inside_headers"}:
            assert asking.sink.heard.wait(60)
        assert asking.cancelled(), asking.outcome


ANSWER = b'{"content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn"}'

# How a request gets to its server.
ROUTES = ("plain", "TLS", "proxy", "tunnel")


@contextmanager
def served(
    route: str, script: Script, tls: ssl.SSLContext, certificate: Path
) -> Generator[tuple[ScriptedServer, Model]]:
    """A server that is reached by `route` and plays `script`, and a model there."""
    played = tunnelling(tls, script) if route == "tunnel" else script
    with ScriptedServer(played, tls=tls if route == "TLS" else None) as server:
        proxy = Secret(server.url if route in ("proxy", "tunnel") else "")
        url = {"proxy": "http://models.invalid", "tunnel": "https://127.0.0.1:9"}.get(route, server.url)
        yield server, model("anthropic", url, timeouts=PATIENT, ca_bundle=str(certificate), proxy=proxy)
        close_models()


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("route", ROUTES)
def test_a_cancel_ends_a_request_on_a_connection_that_was_kept(
    phase: str, route: str, server_tls: ssl.SSLContext, certificate: Path
) -> None:
    """And the next request has a connection of its own, since the aborted one is closed."""
    script = in_turn(kept(ANSWER), kept(ANSWER), PHASES[phase])
    with served(route, script, server_tls, certificate) as (server, asked):
        assert ask(asked) == ask(asked)
        asking = RequestThread(asked)
        assert server.reached.wait(60)
        assert asking.cancelled(), asking.outcome
        assert server.accepted == 1
        assert ask(asked).content == (Text("hi"),)
        assert server.accepted == 2


def test_a_cancel_ends_the_wait_for_a_proxys_answer(server_tls: ssl.SSLContext, certificate: Path) -> None:
    with ScriptedServer(_before_headers) as proxy:
        asking = RequestThread(model("anthropic", "https://127.0.0.1:9", timeouts=PATIENT, proxy=Secret(proxy.url)))
        assert proxy.reached.wait(60)
        assert asking.cancelled(), asking.outcome


def test_a_cancel_ends_a_tls_handshake_through_a_proxy(certificate: Path) -> None:
    def play(connection: ServedConnection) -> None:
        connection.read_request()
        connection.send(b"HTTP/1.1 200 Connected\r\n\r\n")
        handshaking(connection)

    with ScriptedServer(play) as proxy:
        asking = RequestThread(model("anthropic", "https://127.0.0.1:9", timeouts=PATIENT, proxy=Secret(proxy.url)))
        assert proxy.reached.wait(60)
        assert asking.cancelled(), asking.outcome


def test_a_cancel_ends_a_connect_to_a_proxy() -> None:
    with ExitStack() as stack:
        port, waiting = full_backlog(stack)
        proxy = Secret(f"http://127.0.0.1:{port}")
        asking = RequestThread(model("anthropic", "https://models.invalid", timeouts=PATIENT, proxy=proxy))
        assert until(lambda: connecting_to(port) > waiting)
        assert asking.cancelled(), asking.outcome


@pytest.mark.parametrize("route", ROUTES)
def test_many_cancels_on_kept_connections(route: str, server_tls: ssl.SSLContext, certificate: Path) -> None:
    """Every second request is aborted, on a connection that carried another: none hangs, none spoils the next one."""
    phases = [PHASES[name] for name in ("before_headers", "inside_headers", "stalled", "flooding")]
    played = itertools.count()

    def script(connection: ServedConnection) -> None:
        kept(ANSWER)(connection)
        phases[next(played) % len(phases)](connection)

    with served(route, script, server_tls, certificate) as (server, asked):
        for _ in range(ABORTS // len(ROUTES)):
            assert ask(asked).content == (Text("hi"),)
            server.reached.clear()
            asking = RequestThread(asked)
            assert server.reached.wait(60)
            assert asking.cancelled(), asking.outcome
        assert server.accepted == ABORTS // len(ROUTES)


def test_cancels_that_race_with_the_end_of_the_answer() -> None:
    """Either the answer counts or the cancel; the connection is used again only if it cannot be shut down any more."""

    def script(connection: ServedConnection) -> None:
        while True:
            kept(ANSWER)(connection)

    with ScriptedServer(script) as server:
        asked = model("anthropic", server.url, timeouts=PATIENT)
        outcomes = Counter[type]()
        for _ in range(ABORTS):
            before = len(server.received)
            asking = RequestThread(asked)
            while len(server.received) == before and asking.is_alive():
                pass  # the answer is on its way: the cancel meets it anywhere
            asking.cancel.cancel()
            asking.join(60)
            assert not asking.is_alive()
            outcomes[type(asking.outcome)] += 1
            assert ask(asked).content == (Text("hi"),)
        assert outcomes.keys() <= {ModelAnswer, ModelAbortedError}
        assert server.accepted <= 1 + outcomes[ModelAbortedError]


def handshaking(connection: ServedConnection) -> None:
    """A server that does not answer to the first bytes of a TLS handshake."""
    assert connection.sock.recv(1)
    connection.reached.set()
    connection.wait_for_close()


@PROTOCOLS
def test_a_cancel_ends_a_tls_handshake(protocol: str, certificate: Path) -> None:
    with ScriptedServer(handshaking) as server:
        url = server.url.replace("http:", "https:")
        asking = RequestThread(model(protocol, url, timeouts=PATIENT, ca_bundle=str(certificate)))
        assert server.reached.wait(60)
        assert asking.cancelled(), asking.outcome


@PROTOCOLS
def test_a_cancel_ends_a_connect_that_is_not_accepted(protocol: str) -> None:
    with ExitStack() as stack:
        port, waiting = full_backlog(stack)
        asking = RequestThread(model(protocol, f"http://127.0.0.1:{port}", timeouts=PATIENT))
        assert until(lambda: connecting_to(port) > waiting)
        assert asking.cancelled(), asking.outcome


@pytest.mark.parametrize("step", ["resolve", "publish", "connect"])
def test_a_cancel_between_two_steps_of_connecting_is_not_lost(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The moments in which there is no socket to shut yet, or one that is not connecting."""
    with ExitStack() as stack:
        port, _ = full_backlog(stack)
        cancel = CancelToken()
        if step != "connect":
            # Linux happens to remember a shutdown that came before the connect; nobody promises that.
            monkeypatch.setattr(Exchange, "_shutdown", lambda _: None)
        _after(monkeypatch, step, cancel.cancel)
        asking = RequestThread(model("anthropic", f"http://127.0.0.1:{port}", timeouts=PATIENT), cancel)
        asking.join(60)
        assert cancel.cancelled
        assert isinstance(asking.outcome, ModelAbortedError), asking.outcome


def test_a_cancel_before_the_request_sends_nothing() -> None:
    with ScriptedServer(_before_headers) as server:
        cancel = CancelToken()
        cancel.cancel()
        asking = RequestThread(model("anthropic", server.url, timeouts=PATIENT), cancel)
        assert asking.cancelled()
        assert not server.received


def test_a_cancel_wins_over_an_answer_and_over_an_error_that_came_at_the_same_time() -> None:
    for status in (200, 500):
        cancel = CancelToken()

        def play(connection: ServedConnection, status: int = status, cancel: CancelToken = cancel) -> None:
            connection.read_request()
            body = b'{"content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn"}'
            head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            connection.send(head.encode() + body[:-1])
            cancel.cancel()
            connection.send(body[-1:])

        with ScriptedServer(play) as server:
            asking = RequestThread(model("anthropic", server.url), cancel)
            asking.join(60)
            assert isinstance(asking.outcome, ModelAbortedError), asking.outcome


def test_cancelling_after_the_end_does_nothing() -> None:
    with ScriptedServer(stream(named({"type": "error", "error": {}}))) as server:
        asking = RequestThread(model("anthropic", server.url))
        asking.join(60)
        outcome = asking.outcome
        asking.cancel.cancel()
        assert isinstance(outcome, ModelFailedError)


def _after(monkeypatch: pytest.MonkeyPatch, step: str, action: Callable[[], None]) -> None:
    """Run `action` right after a step of connecting."""
    owners: dict[str, tuple[Any, str]] = {
        "resolve": (socket, "getaddrinfo"),
        "publish": (Exchange, "publish"),
        "connect": (socket.socket, "connect"),
    }
    owner, name = owners[step]
    original = getattr(owner, name)

    def stepped(*arguments: Any, **options: Any) -> Any:
        try:
            return original(*arguments, **options)
        finally:
            action()

    monkeypatch.setattr(owner, name, stepped)


def full_backlog(stack: ExitStack) -> tuple[int, int]:
    """A port where the kernel drops further connections, and how many wait for it already."""
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
    address = listener.getsockname()
    for _ in range(3):
        sock = stack.enter_context(socket.socket())
        sock.setblocking(False)
        sock.connect_ex(address)
    assert until(lambda: connecting_to(address[1]) > 0)
    return address[1], connecting_to(address[1])


def connecting_to(port: int) -> int:
    """How many sockets of this machine are in SYN_SENT towards `port`."""
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table][1:]
    return sum(row[3] == "02" and row[2].endswith(f":{port:04X}") for row in rows)


def until(condition: Callable[[], bool]) -> bool:
    pause = threading.Event()
    for _ in range(1000):
        if condition():
            return True
        pause.wait(0.005)
    return False
