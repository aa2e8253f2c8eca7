"""The front that Bedrock ships settings for: Envoy takes them, clients notice nothing, and storms end there."""

import json
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from bedrock import Client, v1
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.attacks import storms
from tests.attacks.legitimate import Callers
from tests.peers.front import Front, configured, front, program, self_signed
from tests.support import processes
from tests.support.patience import PATIENCE, eventually
from tests.support.server_process import ServerProcess, Servers

STORM_SECONDS = 2
WHAT_IT_IS = "This port speaks gRPC: use a client of Bedrock, or buf curl."
GROWTH_MIB = 96
"""Of the server, which without a front and bounds takes hundreds."""


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    servers = Servers()
    arguments = ("--insecure-behind-proxy",)
    yield servers(tmp_path_factory.mktemp("behind"), *arguments, open_files="-n 1024")
    servers.close()


@pytest.fixture(scope="module")
def envoy(behind: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with front(tmp_path_factory.mktemp("envoy"), behind.address) as made:
        Callers(made.address, behind.token, made.certificate).call_once(PATIENCE)
        yield made


@pytest.fixture
def client(behind: ServerProcess, envoy: Front) -> Iterator[Client]:
    with Client(envoy.address, token=behind.token, ca_file=envoy.certificate, timeout=PATIENCE) as made:
        yield made


def test_envoy_takes_the_settings(tmp_path: Path) -> None:
    settings = configured(tmp_path, "127.0.0.1:7421", 7443)
    command = [program(), "--mode", "validate", "-c", str(settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert "deprecated" not in done.stderr.lower()


def test_a_conversation_goes_on_through_it(client: Client, behind: ServerProcess, tmp_path: Path) -> None:
    conversation = client.create(working_directory=str(tmp_path))
    assert conversation.send("Hello").answer()
    lines = [json.loads(line) for line in behind.log_text().splitlines()]
    (peer,) = (line["peer"] for line in lines if line.get("rpc") == "CreateConversation")
    assert re.fullmatch(r"ipv4:[\d.]+", peer), "the client as Envoy names it, without a port"


def test_only_what_clients_need_gets_through(envoy: Front, behind: ServerProcess) -> None:
    trusted = grpc.ssl_channel_credentials(envoy.certificate.read_bytes())
    with grpc.secure_channel(envoy.address.removeprefix("https://"), trusted) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE).status == 1
        with pytest.raises(grpc.RpcError) as refused:
            list(health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE))
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert refused.value.details() == f"{WHAT_IT_IS}\n"
        forged = (*behind.metadata, ("x-forwarded-for", "203.0.113.7"))
        stub = v1.ConversationServiceStub(channel)
        wanted = v1.Conversation(working_directory=str(behind.folder), labels={"told": "otherwise"})
        stub.CreateConversation(v1.CreateConversationRequest(conversation=wanted), metadata=forged, timeout=PATIENCE)
    assert behind.log_text().count('"CreateConversation"') >= 1
    assert "203.0.113.7" not in behind.log_text()


def test_what_is_not_grpc_learns_what_the_port_is(envoy: Front) -> None:
    command = ["curl", "--silent", "--max-time", str(PATIENCE), "--cacert", str(envoy.certificate), envoy.address]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{WHAT_IT_IS}\n"


def _presented(address: str) -> bytes:
    host, _, port = address.removeprefix("https://").rpartition(":")
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((host, int(port)), timeout=PATIENCE))


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_it_speaks_tls_1_2_and_newer(envoy: Front) -> None:
    host, _, port = envoy.address.removeprefix("https://").rpartition(":")
    context = ssl.create_default_context(cafile=str(envoy.certificate))
    context.minimum_version, context.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, ssl.TLSVersion.TLSv1_1
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with socket.create_connection((host, int(port)), PATIENCE) as plain, pytest.raises((ssl.SSLError, ConnectionError)):
        context.wrap_socket(plain, server_hostname=host)


@pytest.mark.parametrize("name", storms.STORMS)
def test_a_storm_ends_at_the_front(envoy: Front, behind: ServerProcess, name: str) -> None:
    before = processes.resident_mib(behind.pid)
    callers = Callers(envoy.address, behind.token, envoy.certificate)
    command = [sys.executable, "-m", "tests.attacks.storms", name, envoy.address, "--seconds", str(STORM_SECONDS)]
    with callers.calling() as seen:
        storm = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert storm.stdout.startswith("{")
    assert seen.failed == []
    assert processes.resident_mib(behind.pid) - before < GROWTH_MIB
    assert processes.open_files(behind.pid) < 200, "connections end there, too"
    if name == "rapid reset":
        assert json.loads(storm.stdout)["dropped"] > 0, "connections that do nothing else are closed"


def test_a_renewed_certificate_needs_no_restart(envoy: Front) -> None:
    """The last test: clients of this module trust the first one."""
    first = _presented(envoy.address)
    self_signed(envoy.tls)
    wanted = ssl.PEM_cert_to_DER_cert(envoy.certificate.read_text())
    assert wanted != first
    eventually(lambda: _presented(envoy.address) == wanted, "new connections get the new one")
