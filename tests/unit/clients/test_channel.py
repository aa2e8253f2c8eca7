"""What is tried again by itself, and how long a call may take."""

import asyncio
import math
import socket
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from bedrock import Answer, AsyncClient, Client, v1
from bedrock._shared.reconnection import repeatable
from bedrock._sync import transport
from bedrock.cli.app import bedrock
from bedrock.errors import DeadlineExceeded, Unavailable
from click.testing import CliRunner
from google.protobuf.descriptor import MethodDescriptor

from tests.support.certificates import make_self_signed
from tests.support.fake_server import NAME, FakeBedrock, FakeServer, Refusal, says
from tests.support.scripted_server import ScriptedServer, answer

READS = ("Get", "List", "Browse", "Verify", "Wait")
"""How the names of calls begin that change nothing and have one answer. Streams: test_openings.py."""

METHODS = [
    method
    for file in ("conversation_service", "catalog_service")
    for service in getattr(v1, f"{file}_pb2").DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
LARGE = "x" * 600_000
"""More than gRPC keeps of a request in order to repeat it, and than fits into what is on the way."""


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_reads_and_calls_with_a_request_id_are_tried_again_and_nothing_else(method: MethodDescriptor) -> None:
    request: Any = getattr(v1, method.input_type.name)()
    assert repeatable(request) is (method.name.startswith(READS) and not method.server_streaming)
    if "request_id" in method.input_type.fields_by_name:
        request.request_id = "8a6e0804-2bd0-4672-b79d-d97027f9071a"
        assert repeatable(request)


@contextmanager
def broken_once(address: str, *, there: int = sys.maxsize, back: int = sys.maxsize) -> Generator[str]:
    """An address that leads to a server; the first connection breaks after so many bytes on the way there or back."""
    host, _, port = address.rpartition(":")

    def serve(listener: socket.socket, there: int, back: int) -> None:
        with suppress(OSError), listener.accept()[0] as near, socket.create_connection((host, int(port))) as far:
            returning = threading.Thread(target=pass_on, args=(far, near, back))
            returning.start()
            pass_on(near, far, there)
            returning.join()
            serve(listener, sys.maxsize, sys.maxsize)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener, there, back))
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def pass_on(source: socket.socket, sink: socket.socket, limit: int) -> None:
    """Until either side ends, or so much has passed; then both end."""
    with suppress(OSError):
        while limit and (data := source.recv(min(65536, limit))):
            sink.sendall(data)
            limit -= len(data)
    for side in (source, sink):
        with suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)


def sent_ids(fake: FakeBedrock) -> set[str]:
    """The request ids of the messages that a server has got."""
    return {each.request_id for each in fake.asked(v1.SendMessageRequest)}


@pytest.mark.parametrize("where", ["there", "back"])
def test_a_message_whose_connection_breaks_half_way_is_sent_again(address: str, fake: FakeBedrock, where: str) -> None:
    fake.answers.append(says("Once."))
    with broken_once(address, **{where: len(LARGE) // 2}) as way, Client(way, token="secret") as client:
        assert client.conversation("c1").send(LARGE).message.text == LARGE
    assert len(sent_ids(fake)) == 1


@pytest.mark.parametrize("where", ["there", "back"])
def test_so_it_is_with_asyncio(address: str, fake: FakeBedrock, where: str) -> None:
    fake.answers.append(says("Once."))

    async def story(way: str) -> str:
        async with AsyncClient(way, token="secret") as client:
            return (await client.conversation("c1").send(LARGE)).message.text

    with broken_once(address, **{where: len(LARGE) // 2}) as way:
        assert asyncio.run(story(way)) == LARGE
    assert len(sent_ids(fake)) == 1


def test_a_call_that_may_not_happen_twice_is_made_once(client: Client, fake: FakeBedrock) -> None:
    fake.refuse("SendMessage", Refusal(grpc.StatusCode.UNAVAILABLE, "", "gone for a moment"))
    with pytest.raises(Unavailable):
        client.call(client.conversations_stub.SendMessage, v1.SendMessageRequest(name=NAME, text="no request id"))
    assert len(fake.asked(v1.SendMessageRequest)) == 1


def test_a_call_that_a_server_cancels_as_it_stops_is_made_again(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(says("Once."))
    fake.refuse("SendMessage", Refusal(grpc.StatusCode.CANCELLED, "", ""))
    assert client.ask("Hi") == "Once."
    assert len(fake.asked(v1.SendMessageRequest)) == 2


def test_a_message_that_is_sent_again_is_the_same_message(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(says("Once."))
    fake.refuse("CreateConversation", Refusal(grpc.StatusCode.UNAVAILABLE, "", "gone for a moment"))
    cut = Refusal(grpc.StatusCode.CANCELLED, "", "cut as its server stopped")
    fake.refuse("SendMessage", Refusal(grpc.StatusCode.UNAVAILABLE, "", "gone for a moment"), cut)
    assert client.ask("Hi") == "Once."
    sent = fake.asked(v1.SendMessageRequest)
    assert len(sent) == 3
    assert sent[0] == sent[1] == sent[2]
    first, again = fake.asked(v1.CreateConversationRequest)
    assert first == again


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that no system trusts, with its key."""
    return make_self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def secure(fake: FakeBedrock, certificate: Path) -> Iterator[str]:
    """The address of a server that speaks TLS."""
    both = certificate.read_bytes()
    server = FakeServer(fake, tls=grpc.ssl_server_credentials([(both, both)]))
    yield f"https://{server.address}"
    server.stop()


def test_over_tls_both_clients_ask_a_server_whose_certificate_they_trust(
    secure: str, fake: FakeBedrock, certificate: Path
) -> None:
    fake.answers.extend([says("Safe."), says("Sound.")])
    with Client(secure, token="secret", ca_file=certificate) as client:
        assert client.ask("Hi") == "Safe."

    async def story() -> Answer:
        async with AsyncClient(secure, token="secret", ca_file=certificate) as client:
            return await client.ask("Hi")

    assert asyncio.run(story()) == "Sound."
    assert {metadata.get("authorization") for metadata in fake.metadata} == {"Bearer secret"}


def test_an_untrusted_certificate_gets_no_token(secure: str, fake: FakeBedrock) -> None:
    with (
        Client(secure, token="secret") as client,
        pytest.raises(Unavailable, match="certificate that this machine trusts"),
    ):
        client.conversation("c1").cancel()
    assert not fake.metadata


def test_a_wrong_scheme_in_the_address_is_reported_with_the_right_one(secure: str) -> None:
    def hint(address: str) -> str:
        return CliRunner().invoke(bedrock, ["--address", address, "list"]).stderr

    assert "BEDROCK_CA_FILE" in hint(secure)
    assert "begin the address with https://" in hint(secure.removeprefix("https://"))


def test_a_client_closes_where_grpc_waits_for_a_call_that_never_ends(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a KeyboardInterrupt within gRPC."""
    released, closing = threading.Event(), threading.Event()

    def close() -> None:
        closing.set()
        released.wait()

    monkeypatch.setattr(transport, "CLOSE_SECONDS", 0.01)
    with Client(address) as client:
        client.server_info()
        client._transport._connection.channels.append(SimpleNamespace(close=close))  # type: ignore[arg-type]
    assert closing.is_set()
    released.set()


def through(proxy: ScriptedServer) -> str:
    """The address of a proxy, with credentials."""
    return proxy.url.replace("//", "//me:secret-word@")


def test_a_server_of_this_machine_is_reached_without_the_proxy(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def models() -> int:
        async with AsyncClient(address, token="secret") as client:
            return len(await client.models())

    with ScriptedServer(answer(403, b"")) as proxy:
        for variable in ("grpc_proxy", "http_proxy", "https_proxy"):
            monkeypatch.setenv(variable, through(proxy))
        with Client(address, token="secret") as client:
            assert len(client.models()) == asyncio.run(models()) > 0
        ran = CliRunner().invoke(bedrock, ["--address", address, "models"], env={"BEDROCK_TOKEN": "secret"})
        assert ran.exit_code == 0
    assert proxy.received == []


def test_an_error_names_the_proxy_and_not_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(answer(403, b"")) as proxy:
        monkeypatch.setenv("http_proxy", through(proxy))
        with Client("http://bedrock.example", token="") as client, pytest.raises(Unavailable) as failed:
            client.models()
        ran = CliRunner().invoke(bedrock, ["--address", "http://bedrock.example", "models"])
    assert proxy.received[0].path == "bedrock.example:7421"
    way = f"at bedrock.example:7421 through the proxy {proxy.url.removeprefix('http://')} of http_proxy"
    assert way in failed.value.message
    assert "secret-word" not in failed.value.message + ran.stderr
    assert "add its host to `no_proxy`" in " ".join(ran.stderr.split())


# --- Every `timeout` means the same: seconds, zero or more; what is longer than years has no end ---


ENDLESS = [math.inf, 1e300, 9.3e9, 10**400]
WRONG = [(math.nan, ValueError), (-1, ValueError), (-math.inf, ValueError), ("5", TypeError), (True, TypeError)]
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "models": lambda client, timeout: client.models(timeout=timeout),
    "list": lambda client, timeout: client.conversations(timeout=timeout),
    "cancel": lambda client, timeout: client.conversation(NAME).cancel(timeout=timeout),
    "messages": lambda client, timeout: client.conversation(NAME).messages(timeout=timeout),
    "export": lambda client, timeout: client.conversation(NAME).export(timeout=timeout),
    "ask": lambda client, timeout: client.conversation(NAME).ask("Hello.", timeout=timeout),
    "events": lambda client, timeout: client.conversation(NAME).events(timeout=timeout),
    "send": lambda client, timeout: client.conversation(NAME).send("Hello.", timeout=timeout),
}

STATELESS = ["models", "list", "cancel", "messages", "export", "events"]
"""The calls that leave no run behind, which would be in the way of the next one."""


def call(client: Client, name: str, timeout: object) -> None:
    """Make a call; of a series take the first."""
    result = CALLS[name](client, timeout)
    if hasattr(result, "__next__") or hasattr(result, "__iter__"):
        next(iter(result), None)


async def call_on_a_loop(address: str, name: str, timeout: object) -> None:
    """Make a call of the other client; of a series take the first."""
    async with AsyncClient(address) as client:
        result = CALLS[name](client, timeout)
        if not hasattr(result, "__aiter__"):
            result = await result
        if hasattr(result, "__aiter__"):
            async for _ in result:
                break


@pytest.mark.parametrize("name", [*STATELESS, "ask"])
def test_an_endless_timeout_is_none(client: Client, address: str, fake: FakeBedrock, name: str) -> None:
    for timeout in ENDLESS:
        fake.answers.append(says("Hi."))
        call(client, name, timeout)
        fake.answers.append(says("Hi."))
        asyncio.run(call_on_a_loop(address, name, timeout))


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_timeout_is_refused_before_anything_is_sent(
    client: Client, address: str, fake: FakeBedrock, name: str
) -> None:
    for timeout, error in WRONG:
        with pytest.raises(error, match="timeout"):
            call(client, name, timeout)
        with pytest.raises(error, match="timeout"):
            asyncio.run(call_on_a_loop(address, name, timeout))
    assert not fake.requests


@pytest.mark.parametrize("name", STATELESS)
def test_no_time_at_all_is_allowed(client: Client, address: str, name: str) -> None:
    with suppress(DeadlineExceeded):  # unless the answer was there at once
        call(client, name, 0)
    with suppress(DeadlineExceeded):
        asyncio.run(call_on_a_loop(address, name, 0))


@pytest.mark.parametrize("make", [Client, AsyncClient])
def test_a_client_takes_the_same(make: Callable[..., object], address: str) -> None:
    for timeout, error in [*WRONG, (None, TypeError)]:
        with pytest.raises(error, match="timeout"):
            make(address, timeout=timeout)
    with Client(address, timeout=math.inf) as client:
        assert client.models()
