"""A TCP proxy in front of one server or several: it can cut every connection, or let nothing through for a while."""

from __future__ import annotations

import random
import socket
import struct
import threading
from contextlib import suppress
from typing import Self

from tests.e2e.patience import PATIENCE
from tests.unit.llm.scripted_server import Connection, ScriptedServer

CONNECT_SECONDS = 2.0
"""What reaching the server may take. Where one was killed, and another has not begun to listen, it may take for ever;
a client whose connection is refused then connects again."""


class Proxy:
    """Listens on 127.0.0.1 for as long as the context is open."""

    def __init__(self, *targets: str, seed: int = 0) -> None:
        """Of several targets, each HOST:PORT or the path of a socket, a connection goes to any that takes it."""
        self._targets = targets
        self._random = random.Random(seed)
        self._server = ScriptedServer(self._relay)
        self.address = f"127.0.0.1:{self._server.port}"
        self.accepted = 0
        """Connections so far."""
        self._flowing = threading.Event()
        self._flowing.set()
        self._answering = threading.Event()
        self._answering.set()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.thaw()
        self._server.__exit__()

    def cut(self) -> None:
        """Reset every connection, on both sides."""
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for sock in sockets:
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads; the close that follows sends the reset

    def freeze(self) -> None:
        """Let nothing through; connections stay open, and new ones wait here without the server."""
        self._flowing.clear()

    def hold_answers(self) -> None:
        """Let everything reach the server, and nothing come back, so that nobody knows what it did."""
        self._answering.clear()

    def thaw(self) -> None:
        self._flowing.set()
        self._answering.set()

    def _relay(self, connection: Connection) -> None:
        near = connection.sock
        with self._lock:
            self.accepted += 1
        self._flowing.wait()
        with self._connect() as far:
            far.settimeout(None)
            with self._lock:
                self._sockets |= {near, far}
            back = threading.Thread(target=self._pump, args=(far, near, self._answering), daemon=True)
            back.start()
            self._pump(near, far, self._flowing)
            back.join(PATIENCE)
            with self._lock:
                self._sockets -= {near, far}

    def _connect(self) -> socket.socket:
        with self._lock:
            targets = self._random.sample(self._targets, len(self._targets))
        for target in targets[:-1]:
            with suppress(OSError):
                return _connected(target)
        return _connected(targets[-1])

    def _pump(self, source: socket.socket, sink: socket.socket, open_way: threading.Event) -> None:
        """Copy until one side ends, then end both."""
        with suppress(OSError):
            while data := source.recv(65536):
                self._flowing.wait()
                open_way.wait()
                sink.sendall(data)
        for sock in (source, sink):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def _connected(target: str) -> socket.socket:
    if not target.startswith("/"):
        host, _, port = target.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(target)
    except OSError:
        sock.close()
        raise
    return sock
