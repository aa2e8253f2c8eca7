"""Envoy, alerts and the service unit: what operators set up around a server."""

import json
import re
import shutil
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
from tests.peers import installed
from tests.peers.front import Front, configured, front, program, self_signed
from tests.peers.under_unit import NOBODY, UNIT
from tests.support import processes
from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider, calls, says
from tests.support.patience import PATIENCE, eventually
from tests.support.server_process import ServerProcess, Servers, provider

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


# --- The rules for alarms: Prometheus accepts them, and each fires when it should and only then ---


RULES = installed.ROOT / "server" / "deploy" / "bedrock.rules.yml"
PROGRAM = shutil.which("promtool") or installed.PROMTOOL


def promtool(*arguments: str | Path, folder: Path) -> str:
    """What promtool says. Fails if it finds anything wrong."""
    done = subprocess.run([PROGRAM, *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_accepts_the_rules(tmp_path: Path) -> None:
    assert "SUCCESS: 12 rules found" in promtool("check", "rules", RULES, folder=tmp_path)


def test_each_rule_fires_when_it_should(tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path)
    shutil.copy(Path(__file__).with_name("alerts_test.yml"), tmp_path)
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml", folder=tmp_path)


EXPOSURE = 35
"""The largest exposure, in tenths, as `systemd-analyze security` has it."""


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_systemd_knows_every_line(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/bedrock/bin/bedrock", "/bin/true"))
    done = analyze("verify", "--man=no", unit)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_is_hardened_as_far_as_the_sandbox_of_tools_allows() -> None:
    done = analyze("security", "--offline=true", f"--threshold={EXPOSURE}", UNIT)
    assert done.returncode == 0, done.stdout.splitlines()[-1]


def test_tools_are_restricted_by_namespaces_under_the_units_mounts(
    tmp_path: Path, start_server: Servers, fake_provider: FakeProvider
) -> None:
    server = start_server(
        tmp_path,
        "--sandbox",
        "A",
        program="tests.peers.under_unit",
        PYTHONPATH=str(installed.ROOT),
        **provider(fake_provider.url),
    )
    with server.client() as client:
        info = client.server_info()
        assert (info.sandbox.tier, info.sandbox.restricted_available) == ("a", True)
        work = tmp_path / "work"
        work.mkdir()
        chat = Chat(client, fake_provider.part(), work)
        chat.part.then(calls(("bash", {"command": "id -u; touch here; touch $HOME/there; ls /home"})), says("Done."))
        chat.ask("Try it.")
        ((_, output),) = [(role, text) for role, text in chat.said() if role == "tool"]
        assert output.splitlines()[0] == str(NOBODY)
        assert "'here': Read-only file system" in output
        assert "there" not in output
