"""A server that was started again at the same address takes every call; what it may have done is not repeated."""

import asyncio
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from bedrock import AsyncClient, AsyncConversation, Client, Conversation, v1
from bedrock._shared import connection as channel
from bedrock.errors import BedrockError, ServerNotRunning, Unavailable

from tests.support.fake_server import NAME, FakeBedrock, FakeServer, Refusal

CALLS: dict[str, Callable[[Conversation | AsyncConversation], object]] = {
    "get": lambda conversation: conversation.get(),
    "cancel": lambda conversation: conversation.cancel(),
    "set_mode": lambda conversation: conversation.set_mode("unrestricted"),
    "update": lambda conversation: conversation.update(title="Other"),
    "delete": lambda conversation: conversation.delete(),
}
NO_CONNECTION = "failed to connect to all addresses; last error: UNKNOWN: Connection refused"


@pytest.fixture(autouse=True)
def patient_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a channel that failed to connect repeat its error for a minute, as it does for up to two seconds."""
    options = dict(channel._OPTIONS)
    options |= {"grpc.initial_reconnect_backoff_ms": 60_000, "grpc.max_reconnect_backoff_ms": 60_000}
    monkeypatch.setattr(channel, "_OPTIONS", list(options.items()))


@pytest.fixture
def address() -> Iterator[str]:
    """A Unix socket where nobody listens."""
    with tempfile.TemporaryDirectory(prefix="bedrock-") as folder:  # short enough for a socket
        yield f"unix:{folder}/s.sock"


@pytest.mark.parametrize("call", CALLS)
def test_a_call_reaches_the_server_that_was_started_again(fake: FakeBedrock, address: str, call: str) -> None:
    with Client(address) as client:
        conversation = client.conversation(NAME)
        with pytest.raises(ServerNotRunning):
            conversation.cancel()
        server = FakeServer(fake, address)
        try:
            CALLS[call](conversation)
        finally:
            server.stop()
        with pytest.raises(BedrockError):
            conversation.cancel()


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_on_an_event_loop_reaches_the_server_that_was_started_again(
    fake: FakeBedrock, address: str, call: str
) -> None:
    async with AsyncClient(address) as client:
        conversation = client.conversation(NAME)
        with pytest.raises(ServerNotRunning):
            await conversation.cancel()
        server = FakeServer(fake, address)
        try:
            await CALLS[call](conversation)  # type: ignore[misc]
        finally:
            await asyncio.to_thread(server.stop)


def test_a_stream_reaches_the_server_that_was_started_again(fake: FakeBedrock, address: str) -> None:
    with Client(address) as client:
        with pytest.raises(ServerNotRunning):
            client.conversation(NAME).cancel()
        server = FakeServer(fake, address)
        try:
            assert list(client.conversation(NAME).export())
        finally:
            server.stop()


def test_failed_calls_leave_no_channels_and_threads(address: str) -> None:
    with Client(address) as client:
        for _ in range(5):
            with pytest.raises(ServerNotRunning):
                client.conversation(NAME).cancel()
        assert len(client._transport._connection.channels) == 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_server_that_says_it_has_no_connection_may_have_done_its_part(
    fake: FakeBedrock, address: str, asynchronous: bool
) -> None:
    fake.refuse("CancelConversation", Refusal(grpc.StatusCode.UNAVAILABLE, "", NO_CONNECTION))

    async def cancel_on_a_loop() -> None:
        async with AsyncClient(address) as client:
            await client.conversation(NAME).cancel()

    def cancel() -> None:
        with Client(address) as client:
            client.conversation(NAME).cancel()

    server = FakeServer(fake, address)
    try:
        with pytest.raises(Unavailable):
            asyncio.run(cancel_on_a_loop()) if asynchronous else cancel()
    finally:
        server.stop()
    assert len(fake.asked(v1.CancelConversationRequest)) == 1


def test_a_call_whose_connection_breaks_is_not_repeated(address: str) -> None:
    called = []

    def break_off(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.sendall(b"\0\0\0\4\0\0\0\0\0")  # the settings that begin HTTP/2
                seen = b""
                while b"CancelConversation" not in seen and (piece := connection.recv(65536)):
                    seen += piece
                called.append(b"CancelConversation" in seen)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(Path(address.removeprefix("unix:"))))
        listener.listen()
        thread = threading.Thread(target=break_off, args=(listener,))
        thread.start()
        try:
            # The client is closed first: gRPC may connect once more, and the thread reads until that connection ends.
            with Client(address) as client, pytest.raises(Unavailable):
                client.conversation(NAME).cancel()
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
    assert called.count(True) == 1
