"""An HTTP server for tests: for each connection a script (a function) controls the bytes that are sent."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeAlias

if TYPE_CHECKING:
    import ssl

__all__ = ["KEPT_STREAM_HEAD", "STREAM_HEAD", "HttpScript", "Received", "ScriptedServer", "ServedConnection"]
__all__ += ["chunked", "whole"]

KEPT_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
"""The head of an HTTP response with server-sent events, after which the client may use the connection again."""
STREAM_HEAD = KEPT_STREAM_HEAD.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
"""The head of an HTTP response with server-sent events, after which the connection is closed."""

_JOIN_SECONDS = 10.0


class ServedConnection:
    """One accepted connection, for a script to read from and write to."""

    def __init__(self, sock: socket.socket, reached: threading.Event, received: list[Received]) -> None:
        self.sock = sock
        self.reached = reached
        """The script sets this event at the point at which the test should act."""
        self._received = received

    def read_request(self) -> Received:
        """Read one request with its body. Raises OSError if the connection ends too early."""
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
        """Send all bytes. Raises OSError if the other end has closed the connection."""
        self.sock.sendall(data)

    def wait_for_close(self) -> None:
        """Block until the client has closed the connection."""
        with suppress(OSError):
            while self.sock.recv(65536):
                pass

    def reset(self) -> None:
        """Close the connection so that the client gets a TCP reset (RST)."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


class Received:
    """A received HTTP request."""

    def __init__(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.path = path
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


HttpScript: TypeAlias = Callable[[ServedConnection], None]
"""Serves one connection, on its own thread. An OSError closes the connection, and is ignored."""


class ScriptedServer:
    """Serves each accepted connection with the next of its scripts. The last script serves all further connections."""

    def __init__(self, *scripts: HttpScript, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self._scripts = list(scripts)
        self._tls = tls
        self.reached = threading.Event()
        """Scripts set this event at the point at which the test should act."""
        self.received: list[Received] = []
        """All requests, in the order in which they were completely received."""
        self.accepted = 0
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((host, 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://{host}:{self.port}"

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
            thread.join(_JOIN_SECONDS)
            if thread.is_alive():
                raise AssertionError("a script hangs")

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()]
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
            self._sockets = [each for each in self._sockets if each.fileno() >= 0]
            self._sockets.append(sock)
            self._start(self._play, sock, script)

    def _play(self, sock: socket.socket, script: HttpScript) -> None:
        with suppress(OSError):
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
                self._sockets.append(sock)
            script(ServedConnection(sock, self.reached, self.received))
        sock.close()


def whole(status: int, body: bytes, content_type: str = "application/json", **headers: str) -> bytes:
    """A complete HTTP response. The connection closes after it, unless `headers` has another `connection`."""
    lines = [f"HTTP/1.1 {status} Fake", f"content-type: {content_type}", f"content-length: {len(body)}"]
    headers.setdefault("connection", "close")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def chunked(piece: bytes) -> bytes:
    """One chunk of a body in chunked encoding."""
    return b"%x\r\n%s\r\n" % (len(piece), piece)
