"""A TCP proxy in front of one server or several: it can cut every connection, slow it down, or let nothing through."""

import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from tests.support.patience import PATIENCE
from tests.support.scripted_server import ScriptedServer, ServedConnection

CONNECT_SECONDS = 2.0
"""What reaching the server may take. Where one was killed, and another has not begun to listen, it may take for ever;
a client whose connection is refused then connects again."""


class Held:
    """The first connection on which a word is sent to the server: it stands still just before that word."""

    def __init__(self, word: bytes) -> None:
        self._word = word
        self._taken = threading.Lock()
        self.arrived = threading.Event()
        """Set once the word is on its way, and held."""
        self._released = threading.Event()
        self.answered = threading.Event()
        """Set once the server has answered what was held, or no longer waits for it."""

    def release(self) -> None:
        """Let it reach the server."""
        self._released.set()

    def takes(self, sent: bytes) -> bool:
        """Return whether this is the first that has the word in it."""
        return not self.arrived.is_set() and self._word in sent and self._taken.acquire(blocking=False)

    def wait(self) -> None:
        """Wait for the release."""
        self.arrived.set()
        self._released.wait()

    def note_answer(self) -> None:
        """Take what the server says for an answer, also if it says that it no longer waits."""
        if self.arrived.is_set():
            self.answered.set()

    def rest(self, sent: bytes) -> bytes:
        """Return what of `sent` may be the beginning of the word."""
        return sent[-len(self._word) :]


class Proxy:
    """Listens for as long as the context is open."""

    def __init__(self, *targets: str, seed: int = 0, host: str = "127.0.0.1") -> None:
        """Of several targets, each HOST:PORT or the path of a socket, a connection goes to any that takes it."""
        self._targets = targets
        self._random = random.Random(seed)
        self._server = ScriptedServer(self._relay, host=host)
        self.address = f"{host}:{self._server.port}"
        self.accepted = 0
        """Connections so far."""
        self.seconds = 0.0
        """What anything takes in each direction, in addition."""
        self._flowing = threading.Event()
        self._flowing.set()
        self._answering = threading.Event()
        self._answering.set()
        self._held: Held | None = None
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

    def hold(self, word: str) -> Held:
        """Hold the first thing said to the server that has this word in it, and what follows it on its connection."""
        self._held = Held(word.encode())
        return self._held

    def thaw(self) -> None:
        """Let everything through again."""
        self._flowing.set()
        self._answering.set()
        if self._held is not None:
            self._held.release()

    def _relay(self, connection: ServedConnection) -> None:
        near = connection.sock
        with self._lock:
            self.accepted += 1
        self._flowing.wait()
        with self._connect() as far:
            far.settimeout(None)
            with self._lock:
                self._sockets |= {near, far}
            line = _Line(lambda: self._held)
            back = threading.Thread(target=self._pump, args=(far, near, self._answering, line.answers), daemon=True)
            back.start()
            self._pump(near, far, self._flowing, line.says)
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

    def _pump(
        self, source: socket.socket, sink: socket.socket, open_way: threading.Event, look: Callable[[bytes], None]
    ) -> None:
        """Copy until one side ends, then end both."""
        with suppress(OSError):
            while data := source.recv(65536):
                self._flowing.wait()
                open_way.wait()
                time.sleep(self.seconds)
                look(data)
                sink.sendall(data)
        for sock in (source, sink):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


class _Line:
    """One connection, as far as something may be held on it."""

    def __init__(self, held: Callable[[], Held | None]) -> None:
        self._held = held
        self._stopped: Held | None = None
        self._rest = b""

    def says(self, data: bytes) -> None:
        """Look at what is about to be sent to the server; may block."""
        held = self._held()
        if held is None:
            return
        self._rest += data
        if held.takes(self._rest):
            self._stopped = held
            held.wait()
        self._rest = held.rest(self._rest)

    def answers(self, _data: bytes) -> None:
        """Look at what the server has sent."""
        if self._stopped is not None:
            self._stopped.note_answer()


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
