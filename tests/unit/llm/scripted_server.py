"""A fake provider: plays one script per connection on 127.0.0.1, with real sockets, plain or TLS."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeAlias

if TYPE_CHECKING:
    import ssl


class Connection:
    """One accepted connection, in the hands of a script."""

    def __init__(self, sock: socket.socket, reached: threading.Event, received: list[Received]) -> None:
        self.sock = sock
        self.reached = reached
        """Set it where the test should act."""
        self._received = received

    def read_request(self) -> Received:
        data = bytearray()
        while b"\r\n\r\n" not in data:
            data += self._recv()
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        while len(body) < int(headers.get("content-length", "0")):
            body += self._recv()
        request = Received(first.split()[1], headers, bytes(body))
        self._received.append(request)
        return request

    def _recv(self) -> bytes:
        piece = self.sock.recv(65536)
        if not piece:
            raise ConnectionError("the client went away")
        return piece

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def wait_for_close(self) -> None:
        """Block until the client has closed the connection."""
        with suppress(OSError):
            while self.sock.recv(65536):
                pass

    def reset(self) -> None:
        """Close so that the client gets a RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


class Received:
    """A request as it came."""

    def __init__(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.path = path
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Script: TypeAlias = Callable[[Connection], None]


class ScriptedServer:
    """Serves connections, each by the next script; the last script serves all that follow."""

    def __init__(self, *scripts: Script, tls: ssl.SSLContext | None = None) -> None:
        self._scripts = list(scripts)
        self._tls = tls
        self.reached = threading.Event()
        self.received: list[Received] = []
        self.accepted = 0
        """How many connections it has accepted."""
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in list(self._sockets):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(10)
            assert not thread.is_alive(), "a script hangs"

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
            self._sockets.append(sock)
            self._start(self._play, sock, script)

    def _play(self, sock: socket.socket, script: Script) -> None:
        with suppress(OSError):
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
                self._sockets.append(sock)
            script(Connection(sock, self.reached, self.received))
        sock.close()


# --- scripts ------------------------------------------------------------------------------------------------------


def whole(status: int, body: bytes, content_type: str = "application/json", **headers: str) -> bytes:
    """A whole answer with a length."""
    lines = [f"HTTP/1.1 {status} Fake", f"content-type: {content_type}", f"content-length: {len(body)}"]
    headers.setdefault("connection", "close")  # a script ends with its connection
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def answer(status: int, body: bytes, content_type: str = "application/json", **headers: str) -> Script:
    """Read a request and give a whole answer."""

    def play(connection: Connection) -> None:
        connection.read_request()
        connection.send(whole(status, body, content_type, **headers))

    return play


def kept(body: bytes, **headers: str) -> Script:
    """Read a request and give a whole answer after which the connection can be used again."""
    return answer(200, body, connection="keep-alive", **headers)


def in_turn(*scripts: Script) -> Script:
    """Play scripts one after the other on one connection, and wait for its end."""

    def play(connection: Connection) -> None:
        for script in scripts:
            script(connection)
        connection.wait_for_close()

    return play


def tunnelling(tls: ssl.SSLContext, script: Script) -> Script:
    """A proxy that connects as it is asked to: to a server in itself that speaks TLS and plays `script`."""

    def play(connection: Connection) -> None:
        connection.read_request()
        connection.send(b"HTTP/1.1 200 Connected\r\n\r\n")
        connection.sock = tls.wrap_socket(connection.sock, server_side=True)
        try:
            script(connection)
        finally:
            connection.sock.close()

    return play


def stream(pieces: Iterable[bytes], then: Script | None = None) -> Script:
    """A chunked event stream; `then` plays instead of its end."""

    def play(connection: Connection) -> None:
        connection.read_request()
        connection.send(STREAM_HEAD)
        for piece in pieces:
            connection.send(chunked(piece))
        if then is not None:
            then(connection)
        else:
            connection.send(b"0\r\n\r\n")

    return play


KEPT_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
STREAM_HEAD = KEPT_STREAM_HEAD.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")


def chunked(piece: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(piece), piece)


def named(*events: dict[str, Any]) -> list[bytes]:
    """Events as Anthropic writes them."""
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]


def plain(*chunks: dict[str, Any] | str) -> list[bytes]:
    """Events as OpenAI writes them."""
    return [f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}\n\n".encode() for chunk in chunks]
