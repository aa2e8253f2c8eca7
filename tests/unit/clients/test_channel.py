"""What is tried again by itself is what may be: held against the contract, method by method."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from bedrock import Answer, AsyncClient, Client, v1
from bedrock._channel import SERVICE_CONFIG
from bedrock.errors import Unavailable
from google.protobuf.descriptor import MethodDescriptor

from tests.unit.clients.fake_server import FakeBedrock, FakeServer, Refusal, says
from tests.unit.llm.conftest import make_certificate

READS = ("Get", "List", "Browse", "Verify", "Replay", "Export", "Download", "Subscribe", "Watch")
"""How the names of calls begin that change nothing."""

METHODS = [
    method
    for file in ("conversation_service", "catalog_service")
    for service in getattr(v1, f"{file}_pb2").DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


def policies() -> list[dict[str, object]]:
    config = json.loads(SERVICE_CONFIG)
    assert list(config) == ["methodConfig"]
    return list(config["methodConfig"])


def is_retried(method: MethodDescriptor) -> bool:
    service = method.containing_service.full_name
    names = [name for policy in json.loads(SERVICE_CONFIG)["methodConfig"] for name in policy["name"]]
    return {"service": service} in names or {"service": service, "method": method.name} in names


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_reads_and_calls_with_a_request_id_are_tried_again_and_nothing_else(method: MethodDescriptor) -> None:
    once_only = "request_id" in method.input_type.fields_by_name
    harmless = once_only or method.name.startswith(READS)
    assert is_retried(method) == (harmless and not method.server_streaming)  # streams: test_openings.py


def test_nothing_is_named_that_does_not_exist() -> None:
    known = {(method.containing_service.full_name, method.name) for method in METHODS}
    for policy in json.loads(SERVICE_CONFIG)["methodConfig"]:
        named = {(name["service"], name["method"]) for name in policy["name"] if "method" in name}
        assert named <= known


def test_only_a_server_that_is_not_there_is_asked_again_and_never_twice_at_once() -> None:
    for policy in policies():
        assert set(policy) == {"name", "retryPolicy"}
        retry = policy["retryPolicy"]
        assert isinstance(retry, dict)
        assert retry["retryableStatusCodes"] == ["UNAVAILABLE"]
        assert 1 < retry["maxAttempts"] <= 5


def test_a_message_that_is_sent_again_is_the_same_message(client: Client, fake: FakeBedrock) -> None:
    fake.answers.append(says("Once."))
    fake.refuse("CreateConversation", Refusal(grpc.StatusCode.UNAVAILABLE, "", "gone for a moment"))
    fake.refuse("SendMessage", *[Refusal(grpc.StatusCode.UNAVAILABLE, "", "gone for a moment")] * 2)
    assert client.ask("Hi") == "Once."
    sent = fake.asked(v1.SendMessageRequest)
    assert len(sent) == 3
    assert sent[0] == sent[1] == sent[2]
    first, again = fake.asked(v1.CreateConversationRequest)
    assert first == again


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that no system trusts, with its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


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


def test_a_certificate_that_nobody_vouches_for_gets_no_token(secure: str, fake: FakeBedrock) -> None:
    with Client(secure, token="secret") as client, pytest.raises(Unavailable, match="certificate that is trusted here"):
        client.conversation("c1").cancel()
    assert not fake.metadata
