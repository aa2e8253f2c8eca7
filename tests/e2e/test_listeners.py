"""A server with several addresses: what each of them asks for, and whom certificates of clients stand for."""

import base64
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from bedrock import BedrockError, Client, Unauthenticated, Unavailable, v1
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc

from server.certificates import SHOWN_TO_GATEWAY
from tests.e2e.test_principals import token
from tests.support.certificates import make_authority, make_certificate, make_self_signed
from tests.support.patience import PATIENCE, eventually
from tests.support.server_process import ServerProcess, Servers, http_url
from tests.unit.test_contract import all_methods

pytestmark = pytest.mark.one_server("it is about the addresses of one server")

NAMES = {
    "ada": "URI:spiffe://example.org/ada",
    "bob": "DNS:bob.example.org,DNS:other.example.org",
    "both": "URI:spiffe://example.org/ada,DNS:bob.example.org",
    "gateway": "DNS:gateway.example.org",
    "pretender": "DNS:spiffe://example.org/ada,email:ada",
}
"""The names in the certificates of clients."""


def make_short_certificate(folder: Path, name: str, like: str, seconds: int) -> None:
    """Make a certificate with the key and the names of another one, which expires soon."""
    load = x509.load_pem_x509_certificate
    signer, other = (load((folder / f"{each}.pem").read_bytes()) for each in ("clients", like))
    names = other.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    now = datetime.fromtimestamp(time.time(), UTC)
    made = x509.CertificateBuilder(signer.subject, other.subject, other.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(seconds=seconds))
    key: Any = serialization.load_pem_private_key((folder / "clients.key").read_bytes(), None)
    signed = made.add_extension(names, critical=False).sign(key, hashes.SHA256())
    (folder / f"{name}.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    (folder / f"{name}.key").write_bytes((folder / f"{like}.key").read_bytes())


@dataclass
class Listening:
    """A server that listens on its socket, in the clear, with TLS, and for clients with certificates."""

    server: ServerProcess
    folder: Path
    addresses: list[str]
    tokens: dict[str, str]

    @property
    def guarded(self) -> str:
        return self.addresses[1]

    def client(self, address: str, certificate: str = "", secret: str = "") -> Client:
        """A client with a certificate; to be closed."""
        file, key = (self.folder / f"{certificate}.{kind}" if certificate else None for kind in ("pem", "key"))
        return Client(
            address, token=secret, ca_file=self.folder / "server.pem", certificate_file=file, key_file=key, timeout=10
        )

    def http(self, certificate: str, secret: str = "") -> httpx.Client:
        """A client of the gateway, which asks for a certificate as the guarded address does."""
        context = ssl.create_default_context(cafile=str(self.folder / "server.pem"))
        if certificate:
            context.load_cert_chain(self.folder / f"{certificate}.pem", self.folder / f"{certificate}.key")
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        return httpx.Client(
            base_url=http_url(self.server), headers=headers, verify=context, timeout=PATIENCE, trust_env=False
        )

    def channel(self, certificate: str) -> grpc.Channel:
        files = [
            (self.folder / f"{name}").read_bytes()
            for name in ("server.pem", f"{certificate}.key", f"{certificate}.pem")
        ]
        return grpc.secure_channel(self.guarded.removeprefix("https://"), grpc.ssl_channel_credentials(*files))


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    folder = tmp_path_factory.mktemp("listeners")
    make_authority(folder, "clients")
    make_authority(folder, "strangers")
    make_self_signed(folder)
    for name, names in NAMES.items():
        make_certificate(folder, name, names, "clients")
    make_certificate(folder, "stranger", NAMES["ada"], "strangers")
    (folder / "authority.pem").write_bytes((folder / "clients.pem").read_bytes())
    pair = f'certificate = "{folder}/server.pem"\nkey = "{folder}/server.key"\n'
    (folder / "config.toml").write_text(
        f'[[listen]]\naddress = "127.0.0.1:0"\nclient_ca = "{folder}/authority.pem"\n{pair}'
        f'[[listen]]\naddress = "127.0.0.1:0"\n{pair}'
        '[[listen]]\naddress = "127.0.0.1:0"\n'
        "[principals.ada]\nroots = []\n[principals.bob]\nroots = []\n"
        '[client_certificates]\n"uri:spiffe://example.org/ada" = "ada"\n"dns:bob.example.org" = "bob"\n'
    )
    servers = Servers()
    server = servers(folder, "--config", str(folder / "config.toml"), "--http", "127.0.0.1:0", listen="")
    with ExitStack() as opened:
        opened.callback(servers.close)
        addresses = server.ready.partition("bedrock ready on ")[2].partition(" (data")[0].split(" and ")
        yield Listening(server, folder, addresses, {name: token(folder, "create", name) for name in ("ada", "bob")})


def test_every_address_serves_and_tells_that_it_does(listening: Listening) -> None:
    assert [address.partition(":")[0] for address in listening.addresses] == ["unix", "https", "https", "127.0.0.1"]
    for address in listening.addresses:
        with listening.client(
            address, "gateway" if address == listening.guarded else "", listening.server.token
        ) as own:
            assert own.models()
    with listening.channel("gateway") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        health = stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        assert health.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize(
    ("certificate", "secret", "who"),
    [
        ("ada", "", "ada"),
        ("bob", "", "bob"),
        ("ada", "ada", "ada"),
        ("gateway", "bob", "bob"),
        ("pretender", "bob", "bob"),
        ("ada", "bob", ""),
        ("ada", "own", ""),
        ("ada", "wrong", ""),
        ("both", "", ""),
        ("both", "ada", ""),
        ("gateway", "", ""),
        ("pretender", "", ""),
    ],
)
def test_a_certificate_stands_for_its_principal_and_goes_with_no_other_ones_token(
    listening: Listening, certificate: str, secret: str, who: str
) -> None:
    secrets = {**listening.tokens, "": "", "own": listening.server.token, "wrong": "x" * 43}
    slug = f"made-by-{certificate}-{secret or 'nothing'}"
    with listening.http(certificate, secrets[secret]) as http:
        answer = http.post("/v1/conversations", json={"workingDirectory": "/", "slug": slug})
        assert answer.status_code == (400 if who else 401), answer.text
        assert ("outside this principal's directories" in answer.text) == bool(who)
    with listening.client(listening.guarded, certificate, secrets[secret]) as client:
        if not who:
            with pytest.raises(Unauthenticated):
                client.create(working_directory="/", slug=slug)
            return
        with pytest.raises(BedrockError, match="outside this principal's directories"):
            client.create(working_directory="/", slug=slug)
        assert client.server_info()


@pytest.mark.parametrize("certificate", ["", "stranger"])
def test_without_a_certificate_of_the_authority_nobody_connects(listening: Listening, certificate: str) -> None:
    own = listening.server.token
    with listening.client(listening.guarded, certificate, own) as client, pytest.raises(Unavailable):
        client.models(timeout=3)
    with listening.http(certificate, own) as http, pytest.raises(httpx.TransportError):
        http.get("/v1/models")


@pytest.mark.parametrize("secret", [b"", b"x" * 43, b"\0" * 43])
def test_nobody_but_the_gateway_can_say_who_has_shown_a_certificate(listening: Listening, secret: bytes) -> None:
    forged = secret + ssl.PEM_cert_to_DER_cert((listening.folder / "ada.pem").read_text())
    with listening.http("gateway") as http:
        for name in (SHOWN_TO_GATEWAY, SHOWN_TO_GATEWAY.title(), "X-Client-Cert", "X-Forwarded-Client-Cert"):
            answer = http.get("/v1/models", headers={name: base64.b64encode(forged).decode()})
            assert answer.status_code == 401
    unix, _, tls, tcp = listening.addresses
    encrypted = grpc.ssl_channel_credentials((listening.folder / "server.pem").read_bytes())
    for channel in (
        listening.channel("gateway"),
        grpc.secure_channel(tls.removeprefix("https://"), encrypted),
        grpc.insecure_channel(tcp),
        grpc.secure_channel(unix, grpc.local_channel_credentials(grpc.LocalConnectionType.UDS)),
    ):
        with channel, pytest.raises(grpc.RpcError) as refusal:
            v1.CatalogServiceStub(channel).ListModels(
                v1.ListModelsRequest(), metadata=((SHOWN_TO_GATEWAY, forged),), timeout=PATIENCE
            )
        assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_roles_and_the_audit_trail_see_whose_certificate_was_shown_over_http(listening: Listening) -> None:
    with listening.http("ada") as http, listening.http("gateway", listening.server.token) as own:
        assert http.get("/v1/serverInfo").json()["principal"] == "ada"
        assert http.get("/v1/auditEntries").status_code == 403

        def peers() -> set[str]:
            found = own.get("/v1/auditEntries", params={"principal": "ada", "pageSize": "1000"}).json()
            return {each["peer"] for each in found.get("entries", ()) if each["method"] == "ListAuditEntries"}

        eventually(lambda: peers() == {"ipv4:127.0.0.1"}, "the refusal names the principal and its address")


def test_a_certificate_says_nothing_where_none_is_asked_for(listening: Listening) -> None:
    with listening.client(listening.addresses[2], "ada") as client, pytest.raises(Unauthenticated):
        client.models()


def test_the_end_of_a_certificate_ends_what_its_connection_serves(listening: Listening) -> None:
    for seconds in (3, 10, 60):  # a busy machine may take too long to connect
        make_short_certificate(listening.folder, "short", "ada", seconds)
        with listening.channel("short") as channel:
            stub = v1.ConversationServiceStub(channel)
            stream = stub.WatchConversations(v1.WatchConversationsRequest(), timeout=PATIENCE)
            try:
                next(stream)
            except grpc.RpcError:
                continue
            with pytest.raises(grpc.RpcError) as refusal:
                list(stream)
            assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED
            with pytest.raises(grpc.RpcError) as refusal:
                stub.ListConversations(v1.ListConversationsRequest(), timeout=PATIENCE)
            assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED, "on the same connection, too"
            return
    pytest.fail("no connection was made in time")


def test_no_call_is_taken_from_a_certificate_that_stands_for_nobody(listening: Listening) -> None:
    with listening.channel("gateway") as channel:
        for method in all_methods():
            path = f"/{method.containing_service.full_name}/{method.name}"
            kind: Any = channel.unary_stream if method.server_streaming else channel.unary_unary
            with pytest.raises(grpc.RpcError) as refusal:
                list(kind(path)(GetMessageClass(method.input_type)().SerializeToString(), timeout=PATIENCE))
            assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED, path


def test_another_authority_is_believed_without_a_restart(listening: Listening) -> None:
    renewed = listening.folder / "renewed.pem"
    renewed.write_bytes((listening.folder / "strangers.pem").read_bytes())
    renewed.replace(listening.folder / "authority.pem")
    with listening.client(listening.guarded, "stranger") as client:
        assert client.models()
    with listening.client(listening.guarded, "ada") as client, pytest.raises(Unavailable):
        client.models(timeout=3)
    with listening.http("stranger") as http:
        assert http.get("/v1/models").status_code == 200
    with listening.http("ada") as http, pytest.raises(httpx.TransportError):
        http.get("/v1/models")
