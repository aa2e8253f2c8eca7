"""What sends and receives on a provider's socket: the same promises for unencrypted sockets and for TLS."""

from __future__ import annotations

import socket
import ssl
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from actors.adapters.llm.transport.socket_io import READ_BYTES, SocketIo, socket_io
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Connected:
    """A connected socket, and its peer."""

    sock: socket.socket
    io: SocketIo
    peer: socket.socket


@pytest.fixture(params=["unencrypted", "TLS"])
def connected(request: pytest.FixtureRequest, server_tls: ssl.SSLContext) -> Iterator[Connected]:
    ours, theirs = socket.socketpair()
    if request.param == "TLS":
        ours, theirs = with_tls(ours, theirs, server_tls)
    with ours, theirs:
        yield Connected(ours, socket_io(ours), theirs)


def with_tls(ours: socket.socket, theirs: socket.socket, server: ssl.SSLContext) -> tuple[socket.socket, socket.socket]:
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    wrapped: list[socket.socket] = []
    served = threading.Thread(target=lambda: wrapped.append(server.wrap_socket(theirs, server_side=True)))
    served.start()
    secured = client.wrap_socket(ours)
    served.join(PATIENCE)
    return secured, wrapped[0]


def test_one_read_returns_all_that_has_arrived(connected: Connected) -> None:
    """A provider sends each piece of text by itself; a pause after each piece would make the answer late."""
    pieces = [b"piece %d " % number for number in range(50)]
    for piece in pieces:
        connected.peer.sendall(piece)
    assert connected.io.receive(PATIENCE) == b"".join(pieces)
    with pytest.raises(BlockingIOError):
        connected.io.receive_now()


def test_one_read_returns_no_more_than_its_limit_and_the_next_one_the_rest(connected: Connected) -> None:
    sent = b"".join(b"%07d " % number for number in range(READ_BYTES // 8 + 1_000))
    sending = threading.Thread(target=connected.peer.sendall, args=(sent,))
    sending.start()
    received = b""
    while len(received) < len(sent):
        piece = connected.io.receive(PATIENCE)
        assert 0 < len(piece) <= READ_BYTES
        received += piece
    sending.join(PATIENCE)
    assert received == sent


@pytest.mark.parametrize("seconds", [0.02, 0.0, -1.0])
def test_a_read_ends_at_its_time_limit_and_can_be_tried_again(connected: Connected, seconds: float) -> None:
    with pytest.raises(TimeoutError):
        connected.io.receive(seconds)
    connected.peer.sendall(b"late")
    assert connected.io.receive(PATIENCE) == b"late"


def test_what_came_before_the_end_is_returned_before_it(connected: Connected) -> None:
    connected.peer.sendall(b"the last ")
    connected.peer.sendall(b"words")
    connected.peer.close()
    assert connected.io.receive(PATIENCE) == b"the last words"
    assert connected.io.receive(PATIENCE) == b""
    assert connected.io.receive_now() == b""


def test_a_shutdown_by_another_thread_ends_a_read(connected: Connected) -> None:
    begun = threading.Event()

    def shut_down() -> None:
        begun.wait(PATIENCE)
        socket.socket.shutdown(connected.sock, socket.SHUT_RDWR)

    thread = threading.Thread(target=shut_down)
    thread.start()
    begun.set()
    assert connected.io.receive(PATIENCE) == b""
    thread.join(PATIENCE)


def send_for_ever(io: SocketIo) -> None:
    while True:
        io.send([memoryview(bytes(1 << 20))], 0.02)


def test_data_is_sent_piece_by_piece_until_the_peer_takes_no_more(connected: Connected) -> None:
    pieces = [memoryview(bytes([number]) * 1_000) for number in range(3)]
    accepted = connected.io.send(pieces, PATIENCE)
    assert accepted == (3_000 if connected.io.sends_many else 1_000)
    assert connected.peer.recv(accepted, socket.MSG_PEEK if connected.io.sends_many else 0)[:1_000] == pieces[0]
    with pytest.raises(TimeoutError):
        send_for_ever(connected.io)
