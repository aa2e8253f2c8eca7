"""MCP servers with a URL: streamable HTTP, headers, OAuth by client credentials."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from actors.adapters.mcp.server_settings import McpServer, OAuth
from actors.adapters.mcp.servers import NEW_SESSION
from actors.core.context import Mode
from actors.ports import CancelToken
from actors.ports.tools import McpState
from tests.integration.mcp.conftest import Hub
from tests.integration.mcp.web import TOKEN, WebServer
from tests.support.patience import eventually


@pytest.fixture
def web() -> Iterator[WebServer]:
    with WebServer() as server:
        yield server


def test_tools_of_a_url_are_called_with_its_headers(hub: Callable[..., Hub], web: WebServer) -> None:
    made = hub(McpServer(name="t", url=web.url, headers={"Authorization": f"Bearer {TOKEN}"}))
    made.all.start()
    names = [tool.name for tool in made.settled().tools]
    assert names == ["mcp__t__add", "mcp__t__greet", "mcp__t__welcome", "mcp__t__wait", "mcp__t__grow"]
    assert made.call("add", {"a": 2, "b": 3}).text == "5"
    wrong = made.call("add", {"a": "x"})
    assert wrong.is_error
    assert made.call("add", {"a": 2, "b": 5}).text == "7"
    assert made.call("add", {"a": 1, "b": 1}, mode=Mode.RESTRICTED).is_error, "nothing holds what it does"


def test_a_server_of_the_newest_protocol_tells_of_its_tools(hub: Callable[..., Hub], web: WebServer) -> None:
    made = hub(McpServer(name="t", url=web.url, headers={"Authorization": f"Bearer {TOKEN}"}))
    assert made.call("add", {"a": 2, "b": 3}).text == "5"
    assert made.call("grow").text == "grown"
    eventually(lambda: "mcp__t__more" in [tool.name for tool in made.status().tools], "the news")
    assert made.call("more", {"a": 2, "b": 3}).text == "5"


@pytest.mark.parametrize("protocol", ["auto", "2025-11-25"])
def test_a_server_that_was_restarted_is_called_in_a_new_session(hub: Callable[..., Hub], protocol: str) -> None:
    with WebServer() as first:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        made = hub(McpServer(name="t", url=first.url, headers=headers, protocol=protocol))
        assert made.call("add", {"a": 2, "b": 3}).text == "5"
    with WebServer(first.port):
        again = made.call("add", {"a": 2, "b": 5})
        assert again.text == ("7" if protocol == "auto" else f"{NEW_SESSION}\n7"), "the newest protocol has no sessions"
        assert made.call("add", {"a": 2, "b": 6}).text == "8"


def test_a_cancel_ends_the_call_at_the_server(hub: Callable[..., Hub], web: WebServer) -> None:
    made = hub(McpServer(name="t", url=web.url, headers={"Authorization": f"Bearer {TOKEN}"}))
    cancel = CancelToken()
    calling = threading.Thread(target=lambda: made.call("wait", cancel=cancel))
    calling.start()
    assert web.waiting.wait(30)
    cancel.cancel()
    calling.join(30)
    assert not calling.is_alive()
    assert web.ended.wait(30)
    assert made.call("add", {"a": 2, "b": 5}).text == "7"


def test_without_the_header_it_is_down_and_the_reason_holds_no_secret(hub: Callable[..., Hub], web: WebServer) -> None:
    made = hub(McpServer(name="t", url=web.url, headers={"Authorization": "Bearer wrong-secret"}))
    made.all.start()
    status = made.settled()
    assert status.state is McpState.FAILED
    assert "401" in status.error
    assert "wrong-secret" not in status.error


def test_an_access_token_is_got_for_client_credentials(hub: Callable[..., Hub], web: WebServer) -> None:
    made = hub(McpServer(name="t", url=web.url, oauth=OAuth("me", "pw", web.address)))
    assert made.call("add", {"a": 2, "b": 3}).text == "5"
    assert made.call("add", {"a": 2, "b": 3}).text == "5"
    assert web.tokens_given == 1


def test_credentials_go_to_their_issuer_only(hub: Callable[..., Hub], web: WebServer) -> None:
    made = hub(McpServer(name="t", url=web.url, oauth=OAuth("me", "pw", "https://auth.example.com")))
    assert made.call("add", {"a": 2, "b": 3}).is_error
    assert web.tokens_given == 0


def test_where_nobody_listens_the_server_is_down(hub: Callable[..., Hub]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = hub(McpServer(name="t", url=f"http://127.0.0.1:{port}/mcp"))
    made.all.start()
    assert made.settled().state is McpState.FAILED
    eventually(lambda: made.call("add").is_error, "an error")


def test_one_that_never_answers_is_given_up_and_can_be_stopped(hub: Callable[..., Hub]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/mcp"
        made = hub(McpServer(name="t", url=url, connect_seconds=1.0), McpServer(name="u", url=url))
        made.all.start()
        assert "did not respond within 1 s" in made.settled().error
        made.close()


class _Large(BaseHTTPRequestHandler):
    """Answers with one message of 100 MiB; at /login only where to log in is asked."""

    sent: ClassVar[list[int]] = []
    """How much of each answer was taken, in bytes."""

    def do_POST(self) -> None:
        if self.path == "/login":
            self.send_error(401)
        else:
            self._answer(self.path.strip("/").replace("-", "/", 1))

    def do_GET(self) -> None:
        self._answer("text/event-stream")

    def _answer(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(b"data: " if "event" in kind else b'"')
            place = len(self.sent)
            self.sent.append(0)
            for _ in range(1_600):
                self.wfile.write(b"x" * (1 << 16))
                self.sent[place] += 1 << 16

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize("kind", ["application-json", "text-event-stream", "login"])
def test_a_message_that_is_too_large_fills_no_memory(
    hub: Callable[..., Hub], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from actors.adapters.mcp import transports

    _Large.sent.clear()
    monkeypatch.setattr(transports, "LINE_BYTES", 1 << 20)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Large) as large:
        large.daemon_threads = True
        thread = threading.Thread(target=large.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            address = f"http://127.0.0.1:{large.server_address[1]}"
            oauth = OAuth("me", "pw", address) if kind == "login" else None
            made = hub(McpServer(name="t", url=f"{address}/{kind}", oauth=oauth))
            made.all.start()
            assert made.settled().state is McpState.FAILED
            assert 0 < max(_Large.sent) < 50 << 20
        finally:
            large.shutdown()
            thread.join()
