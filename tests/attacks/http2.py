"""HTTP/2 by hand: connections that say what a client of good will never says, and nothing that it would."""

import select
import socket
import ssl
import struct
from collections.abc import Iterator
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK = END_STREAM = 1
END_HEADERS = 4
CANCEL = 8
INITIAL_WINDOW = 65_535
PIECE = 16_384
"""The largest frame that every peer accepts."""
CONNECT_SECONDS = 5


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


GREETING = PREFACE + frame(SETTINGS, 0, 0)
"""What every client begins with."""


def fields(path: str, token: str = "") -> bytes:
    """The header block of a call, as literals that no table remembers."""
    named = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    if token:
        named["authorization"] = f"Bearer {token}"
    return b"".join(_literal(name.encode(), value.encode()) for name, value in named.items())


def _literal(name: bytes, value: bytes) -> bytes:
    assert max(len(name), len(value)) < 127, "longer lengths take more than a byte"
    return bytes((0, len(name))) + name + bytes((len(value),)) + value


def _any_certificate() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


class Raw:
    """A connection, with the windows that its peer gives it. One thread."""

    def __init__(self, address: str, *, greet: bool = True) -> None:
        """`address`: host:port, with https:// in front for TLS. `greet`: shake hands and send what every client begins
        with; without it the peer waits for it. Raises OSError."""
        scheme, _, place = address.rpartition("://")
        host, _, port = place.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), CONNECT_SECONDS)
        if scheme == "https" and greet:
            self.socket = _any_certificate().wrap_socket(self.socket)
        self._poll = select.poll()
        self._poll.register(self.socket, select.POLLIN)
        self.seen: list[Frame] = []
        """What the peer has sent so far, but for pings and windows."""
        self.closed = False
        self._next = 1
        self._left = b""
        self._window = INITIAL_WINDOW
        self._first_window = INITIAL_WINDOW
        self._windows: dict[int, int] = {}
        if greet:
            self.send(GREETING)

    def send(self, data: bytes) -> None:
        """Send all of it, unless the peer has closed the connection: that is what `closed` tells of."""
        try:
            self.socket.sendall(data)
        except OSError:
            self.closed = True

    def open(self, block: bytes, *, end: bool = False) -> bytes:
        """The bytes that open the next stream; sent by the caller, so that many can be sent at once."""
        number = self._next
        self._next += 2
        self._windows[number] = self._first_window
        return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), number, block)

    @property
    def last(self) -> int:
        """The stream that was opened last."""
        return self._next - 2

    def upload(self, stream: int, data: bytes, *, end: bool = False) -> int:
        """Send as much of a body as the windows of the connection and of the stream allow; return how much that was."""
        room = max(0, min(len(data), self._window, self._windows.get(stream, 0), PIECE))
        if room:
            last = end and room == len(data)
            self.send(frame(DATA, END_STREAM if last else 0, stream, data[:room]))
            self._window -= room
            self._windows[stream] -= room
        return room

    def read(self, seconds: float = 0.0) -> bool:
        """Take in what has come, or comes within this time; whether anything did."""
        waiting = isinstance(self.socket, ssl.SSLSocket) and self.socket.pending()
        if self.closed or not (waiting or self._poll.poll(seconds * 1000)):
            return False
        try:
            got = self.socket.recv(1 << 20)
        except OSError:
            got = b""
        if not got:
            self.closed = True
            return False
        self._left += got
        for each in self._frames():
            self._take(each)
        return True

    def _frames(self) -> Iterator[Frame]:
        while len(self._left) >= 9:
            length = int.from_bytes(self._left[:3])
            if len(self._left) < 9 + length:
                return
            kind, flags, stream = struct.unpack(">BBI", self._left[3:9])
            yield Frame(kind, flags, stream & 0x7FFFFFFF, self._left[9 : 9 + length])
            self._left = self._left[9 + length :]

    def _take(self, got: Frame) -> None:
        match got.kind:
            case 8:
                step = int.from_bytes(got.payload)
                if got.stream == 0:
                    self._window += step
                elif got.stream in self._windows:
                    self._windows[got.stream] += step
            case 4 if not got.flags & ACK:
                for at in range(0, len(got.payload), 6):
                    name, value = struct.unpack(">HI", got.payload[at : at + 6])
                    if name == 4:
                        change = value - self._first_window
                        self._first_window = value
                        self._windows = {stream: left + change for stream, left in self._windows.items()}
                self.seen.append(got)
                self.send(frame(SETTINGS, ACK, 0))
            case 6 if not got.flags & ACK:
                self.send(frame(PING, ACK, 0, got.payload))
            case 6:
                pass
            case _:
                self.seen.append(got)

    def setting(self, number: int) -> int | None:
        """What the peer has set of this name, if it did."""
        for each in self.seen:
            if each.kind == SETTINGS and not each.flags & ACK:
                for at in range(0, len(each.payload), 6):
                    name, value = struct.unpack(">HI", each.payload[at : at + 6])
                    if name == number:
                        return int(value)
        return None

    def close(self) -> None:
        self.closed = True
        self.socket.close()
