"""A cancel ends a request in every phase, shows as a cancel, and leaves no descriptor behind."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from actors.adapters.llm.provider import Timeouts
from actors.adapters.llm.transport import connections
from actors.adapters.llm.transport.connections import AbortHandle
from actors.ports import CancelToken, ModelAbortedError, ModelFailedError
from tests.unit.llm.model_requests import RequestThread, model
from tests.unit.llm.scripted_server import (
    STREAM_HEAD,
    Connection,
    Script,
    ScriptedServer,
    chunked,
    named,
    plain,
    stream,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("no_leaked_fds")

#: So long that only a cancel can end a request in time.
PATIENT = Timeouts(connect=120, first_byte=120, idle=120)

#: A stream's beginning per protocol; its last event can be repeated for ever.
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


def _before_headers(connection: Connection) -> None:
    connection.read_request()
    connection.reached.set()
    connection.wait_for_close()


def _inside_headers(connection: Connection) -> None:
    connection.read_request()
    connection.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event")
    connection.reached.set()
    connection.wait_for_close()


def _stalled(text: list[bytes]) -> Script:
    def wait(connection: Connection) -> None:
        connection.reached.set()
        connection.wait_for_close()

    return stream(text, then=wait)


def _streaming(text: list[bytes]) -> Script:
    pause = threading.Event()

    def dribble(connection: Connection) -> None:
        connection.reached.set()
        while not pause.wait(0.005):
            connection.send(chunked(text[-1]))

    return stream(text, then=dribble)


def _flooding(text: list[bytes]) -> Script:
    flood = chunked(text[-1]) * 1000

    def play(connection: Connection) -> None:
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
        assert server.reached.wait(10)
        if phase not in {"before_headers", "inside_headers"}:
            assert asking.sink.heard.wait(10)
        assert asking.cancelled(), asking.outcome


def handshaking(connection: Connection) -> None:
    """A server that does not answer to the first bytes of a TLS handshake."""
    assert connection.sock.recv(1)
    connection.reached.set()
    connection.wait_for_close()


@PROTOCOLS
def test_a_cancel_ends_a_tls_handshake(protocol: str, certificate: Path) -> None:
    with ScriptedServer(handshaking) as server:
        url = server.url.replace("http:", "https:")
        asking = RequestThread(model(protocol, url, timeouts=PATIENT, ca_bundle=str(certificate)))
        assert server.reached.wait(10)
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
            monkeypatch.setattr(AbortHandle, "_shutdown", lambda _: None)
        _after(monkeypatch, step, cancel.cancel)
        asking = RequestThread(model("anthropic", f"http://127.0.0.1:{port}", timeouts=PATIENT), cancel)
        asking.join(10)
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

        def play(connection: Connection, status: int = status, cancel: CancelToken = cancel) -> None:
            connection.read_request()
            body = b'{"content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn"}'
            head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            connection.send(head.encode() + body[:-1])
            cancel.cancel()
            connection.send(body[-1:])

        with ScriptedServer(play) as server:
            asking = RequestThread(model("anthropic", server.url), cancel)
            asking.join(10)
            assert isinstance(asking.outcome, ModelAbortedError), asking.outcome


def test_cancelling_after_the_end_does_nothing() -> None:
    with ScriptedServer(stream(named({"type": "error", "error": {}}))) as server:
        asking = RequestThread(model("anthropic", server.url))
        asking.join(10)
        outcome = asking.outcome
        asking.cancel.cancel()
        assert isinstance(outcome, ModelFailedError)


def _after(monkeypatch: pytest.MonkeyPatch, step: str, action: Callable[[], None]) -> None:
    """Run `action` right after a step of connecting."""
    owners: dict[str, tuple[Any, str]] = {
        "resolve": (socket, "getaddrinfo"),
        "publish": (AbortHandle, "publish"),
        "connect": (connections, "_begin_connect"),
    }
    owner, name = owners[step]
    original = getattr(owner, name)

    def stepped(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        action()
        return result

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


def test_a_cancelled_stream_tells_what_was_counted_by_then() -> None:
    with ScriptedServer(phases("anthropic")["stalled"]) as server:
        asking = RequestThread(model("anthropic", server.url, timeouts=PATIENT))
        assert asking.sink.heard.wait(10)
        assert asking.cancelled()
    assert isinstance(asking.outcome, ModelAbortedError)
    assert asking.outcome.usage is not None
    assert asking.outcome.usage.input_tokens == 1


def test_a_request_that_was_cancelled_before_any_count_tells_nothing() -> None:
    with ScriptedServer(phases("anthropic")["before_headers"]) as server:
        asking = RequestThread(model("anthropic", server.url, timeouts=PATIENT))
        assert server.reached.wait(10)
        assert asking.cancelled()
    assert isinstance(asking.outcome, ModelAbortedError)
    assert asking.outcome.usage is None
