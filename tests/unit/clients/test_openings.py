"""Streams that cannot be opened at once: tried again for a moment, never twice once something came, never hanging."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress

import grpc
import pytest
from bedrock import AsyncClient, Client, v1
from bedrock.errors import BedrockError, NotFound, Unavailable

from tests.support.fake_server import NAME, FakeBedrock, FakeServer, Refusal

PATIENCE = 20.0
GONE = Refusal(grpc.StatusCode.UNAVAILABLE, "", "gone for a moment")
SLOW_SECONDS = 0.5
"""On the way to a server: more than the first pause between two attempts to connect, less than one may take."""

PREFACE = len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
HEAD = 9
"""What a frame of HTTP/2 has before its payload, in bytes."""
DATA, SETTINGS = 0, 4
"""Types of frames."""


def blocking(address: str) -> None:
    with Client(address) as client:
        for _ in client.conversation("c1").events():
            pass


def asynchronous(address: str) -> None:
    async def story() -> None:
        async with AsyncClient(address) as client:
            async for _ in client.conversation("c1").events():
                pass

    asyncio.run(story())


both = pytest.mark.parametrize("watch", [blocking, asynchronous])


def end(watch: Callable[[str], None], address: str) -> BaseException | None:
    """What watching raises. Fails if that never ends."""
    raised: Future[BaseException | None] = Future()

    def run() -> None:
        try:
            watch(address)
        except BaseException as error:  # noqa: BLE001 -- the test looks at it
            raised.set_result(error)
        else:
            raised.set_result(None)

    threading.Thread(target=run, daemon=True).start()
    return raised.result(PATIENCE)


@pytest.fixture
def killed() -> Iterator[str]:
    """The address of a server that takes one request and is killed before it answers; nobody listens afterwards."""
    listener = socket.create_server(("127.0.0.1", 0))
    host, port = listener.getsockname()

    def serve() -> None:
        with suppress(OSError), listener.accept()[0] as near, near.makefile("rb") as frames:
            near.sendall(bytes([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]))
            frames.read(PREFACE)
            while head := frames.read(HEAD):
                frames.read(int.from_bytes(head[:3]))
                if head[3] == DATA:
                    break
        listener.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"{host}:{port}"
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE)


@both
def test_a_server_that_is_killed_before_its_first_response_is_an_error(
    killed: str, watch: Callable[[str], None]
) -> None:
    assert isinstance(end(watch, killed), Unavailable)


def test_a_stream_that_cannot_be_opened_is_tried_again_for_a_moment(address: str, fake: FakeBedrock) -> None:
    lost: list[float] = []
    fake.refuse("Subscribe", *[GONE] * 3)
    with (
        Client(address, on_disconnect=lambda error, delay: lost.append(delay)) as client,
        client.conversation("c1").events() as events,
    ):
        assert next(events).kind == "snapshot"
    assert len(fake.asked(v1.SubscribeRequest)) == 4
    assert not lost, "nothing was lost that had been there"


@both
def test_a_missing_server_is_an_error(fake: FakeBedrock, watch: Callable[[str], None]) -> None:
    server = FakeServer(fake)
    server.stop()
    assert isinstance(end(watch, server.address), Unavailable)


@both
def test_a_refusal_is_reported_at_once(address: str, fake: FakeBedrock, watch: Callable[[str], None]) -> None:
    fake.refuse("Subscribe", Refusal(grpc.StatusCode.NOT_FOUND, "CONVERSATION_NOT_FOUND", "no such conversation"))
    assert isinstance(end(watch, address), NotFound)
    assert len(fake.asked(v1.SubscribeRequest)) == 1


def test_what_has_brought_something_is_not_asked_for_twice(client: Client, fake: FakeBedrock) -> None:
    fake.cuts.append(1)
    responses = client.stream(client.conversations_stub.Subscribe, v1.SubscribeRequest(name=NAME))
    assert next(responses).events[0].HasField("snapshot")
    with pytest.raises(Unavailable):
        next(responses)
    assert len(fake.asked(v1.SubscribeRequest)) == 1


def test_a_client_that_is_closed_meanwhile_tries_no_more(address: str, fake: FakeBedrock) -> None:
    fake.refuse("Subscribe", *[GONE] * 100)
    with Client(address) as client:
        threading.Timer(0.05, client.close).start()
        with pytest.raises(BedrockError):
            client.conversation("c1").events()
    assert len(fake.asked(v1.SubscribeRequest)) < 100


def test_a_server_that_is_far_away_is_reached(address: str) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        way = threading.Thread(target=relay, args=(listener, (host, int(port))))
        way.start()
        with Client(f"127.0.0.1:{listener.getsockname()[1]}", token="secret") as client:
            client.conversation("c1").cancel()  # a call that is not tried again
        way.join(PATIENCE)
        assert not way.is_alive()


def relay(listener: socket.socket, target: tuple[str, int]) -> None:
    """Bring one connection to a server and back; it takes a while until the server's first words arrive."""
    with listener.accept()[0] as near, socket.create_connection(target) as far:
        there = threading.Thread(target=pass_on, args=(near, far))
        there.start()
        threading.Event().wait(SLOW_SECONDS)
        pass_on(far, near)
        there.join(PATIENCE)


def pass_on(source: socket.socket, sink: socket.socket) -> None:
    """Until either side ends; then both do."""
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for side in (source, sink):
        with suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)
