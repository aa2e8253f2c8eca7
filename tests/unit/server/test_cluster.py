"""Nodes: which one serves a call, what keeps them from one another, the tables that they share."""

import asyncio
import re
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from bedrock.v1 import catalog_service_pb2, conversation_service_pb2

from actors.common.settings_checks import read
from actors.ports.cluster import Cluster, Node
from actors.ports.records import CommandOrigin
from actors.ports.telemetry import Telemetry
from server.app.adapter_choice import CannotStartError, check_listener, check_workspaces, node_access
from server.auth.authorization import CONVERSATIONS, NEEDED, READING
from server.cluster import peers
from server.cluster.peers import TOKEN, NodeMarks, Obstacle, why_unreachable
from server.cluster.router import PLACES, REPEATABLE, URGENT, CallRouter, NodeAccess, ServingNode, directory_in
from server.contract.resource_names import conversation_in
from server.settings.config import ClusterSettings, Config, load, shown_database
from server.settings.setting_values import ConfigError
from tests.documents.pages import ROOT
from tests.support.certificates import make_authority, make_certificate
from tests.unit.server.test_checks import GOOD, made

# Which node serves which method, and how a node proves that it is one.


REQUESTS = {
    f"/{service.full_name}/{method.name}": method.input_type._concrete_class
    for file in (catalog_service_pb2, conversation_service_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def test_what_changes_a_conversation_is_never_done_by_any_node() -> None:
    """It has an actor on its owner only. A creation has none yet: its directory decides."""
    assert PLACES.keys() == REQUESTS.keys() == NEEDED.keys()
    changing = {method for method in PLACES if method.rpartition("/")[2] not in READING}
    here = {method for method, place in PLACES.items() if place is ServingNode.HERE}
    assert changing
    assert not changing & here
    owned = {method for method, place in PLACES.items() if place is ServingNode.OWNER}
    assert owned - changing == {f"{CONVERSATIONS}GetConversation"}


@pytest.mark.parametrize(
    "method", [method for method, place in PLACES.items() if place not in (ServingNode.HERE, ServingNode.DIRECTORY)]
)
def test_a_request_that_needs_the_owner_names_a_conversation(method: str) -> None:
    kind = REQUESTS[method]
    kind_of_name, _, key = conversation_in(made(kind, GOOD[kind])).partition("/")
    assert kind_of_name == "conversations"
    assert key
    assert "/" not in key


@pytest.mark.parametrize("method", [method for method, place in PLACES.items() if place is ServingNode.DIRECTORY])
def test_a_request_that_needs_a_directory_names_it(method: str) -> None:
    kind = REQUESTS[method]
    request: Any = made(kind, GOOD[kind])
    given = request.path if hasattr(request, "path") else request.conversation.working_directory
    assert directory_in(request) == given


def test_what_is_repeated_is_named_as_in_the_contract() -> None:
    names = {method.rsplit("/", 1)[1] for method, place in PLACES.items() if place is not ServingNode.HERE}
    assert names > REPEATABLE
    assert names > URGENT


@pytest.mark.parametrize("token", ["", "short", "x" * 31, "x" * 40 + " ", "x" * 40 + "\n", "ä" * 40])
def test_a_token_that_can_be_guessed_or_not_be_sent_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="at least 32 printable"):
        NodeMarks(token)


async def test_a_death_that_is_told_after_the_end_is_of_no_interest() -> None:
    made: Any = None
    router = CallRouter(Cluster(), NodeAccess(token="t" * 40), made, made, made, telemetry=Telemetry())
    router.peer_died(Node(2))
    await router.close()


def test_a_mark_says_who_calls() -> None:
    marks = NodeMarks("t" * 40)
    origin = CommandOrigin("ann", "user", "id-1", "ipv4:192.0.2.1", "SendMessage", "r")
    assert NodeMarks.among(marks.on(origin))
    assert marks.origin(marks.on(origin)) == origin
    assert not NodeMarks.among((("authorization", "Bearer x"),))
    assert marks.origin((*marks.on(origin), (TOKEN, "t" * 40))) is None, "it counts if it is given once"


# What keeps nodes from one another is said in words, with the setting to change.


NODE_TOKEN = "n" * 43


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the authorities `ours` and `others`, and certificates of `ours` for two hosts."""
    folder = tmp_path_factory.mktemp("pems")
    for authority in ("ours", "others"):
        make_authority(folder, authority)
    make_certificate(folder, "node", "IP:127.0.0.1", "ours")
    make_certificate(folder, "far", "IP:10.0.0.1", "ours")
    return folder


async def tried(pems: Path, certificate: str, authority: str) -> Obstacle:
    """What a node with this authority says of one that listens with this certificate; "": without."""
    context = None
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pems / f"{certificate}.pem", pems / f"{certificate}.key")
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        return await why_unreachable(
            f"127.0.0.1:{port}", (pems / f"{authority}.pem").read_bytes() if authority else None
        )


@pytest.mark.parametrize(
    ("certificate", "authority", "text", "for_good"),
    [
        ("node", "ours", "made shortly afterwards", False),
        ("node", "", "it uses TLS; set cluster.ca here", True),
        ("", "ours", "it does not use TLS; set tls_certificate", False),
        ("node", "others", "its certificate is not signed by cluster.ca here", True),
        ("far", "ours", "IP address mismatch", True),
        ("", "", "not a node", False),
    ],
)
def test_tls_at_one_of_two_nodes_and_certificates_of_others_are_told_apart(
    pems: Path, certificate: str, authority: str, text: str, for_good: bool
) -> None:
    found = asyncio.run(tried(pems, certificate, authority))
    assert text in found.text
    assert found.for_good == for_good


def test_addresses_that_lead_nowhere_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "connection refused" in asyncio.run(why_unreachable("127.0.0.1:1", None)).text
    assert "cannot be resolved on this machine" in asyncio.run(why_unreachable(f"{'x' * 64}.invalid:1", None)).text

    async def silent(*_: object, **__: object) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(peers, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(asyncio, "open_connection", silent)
    assert "no firewall blocks it" in asyncio.run(why_unreachable("192.0.2.1:1", None)).text


def checked(folder: Path, pems: Path, ca: str, certificate: str, listen: str = "127.0.0.1:7421") -> None:
    """Check the listener of a node at 127.0.0.1:7421."""
    given = {"listen": listen, "data_dir": str(folder / "data")}
    if certificate:
        given |= {"tls_certificate": str(pems / f"{certificate}.pem"), "tls_key": str(pems / f"{certificate}.key")}
    file = folder / "bedrock.toml"
    table = f'address = "127.0.0.1:7421"\ntoken_file = "{folder / "token"}"\n'
    file.write_text(f'database = "postgresql://db/x"\n[cluster]\n{table}' + (f'ca = "{pems / ca}.pem"\n' if ca else ""))
    file.chmod(0o600)
    config = load(given, environ={"HOME": str(folder)}, file=file)
    authorities = (pems / f"{ca}.pem").read_bytes() if ca else None
    check_listener(config, NodeAccess(token=NODE_TOKEN, authorities=authorities))


@pytest.mark.parametrize(
    ("ca", "certificate", "listen"),
    [("ours", "node", "127.0.0.1:7421"), ("", "", "127.0.0.1:7421"), ("others", "node", "127.0.0.1:9")],
    ids=["TLS", "plain", "something in front"],
)
def test_a_node_that_others_can_call_starts(tmp_path: Path, pems: Path, ca: str, certificate: str, listen: str) -> None:
    checked(tmp_path, pems, ca, certificate, listen)


@pytest.mark.parametrize(
    ("ca", "certificate", "told"),
    [
        ("ours", "", "tls_certificate is not"),
        ("", "node", "cluster.ca is not set, but "),
        ("others", "node", "unable to get local issuer certificate"),
        ("ours", "far", "IP address mismatch"),
    ],
)
def test_a_node_that_others_could_not_call_does_not_start(
    tmp_path: Path, pems: Path, ca: str, certificate: str, told: str
) -> None:
    with pytest.raises(CannotStartError, match="could not call this one at its cluster") as refused:
        checked(tmp_path, pems, ca, certificate)
    assert told in str(refused.value)


# The table [cluster], and the setting `database`: what they take, and what is refused in which words.


NEEDED_KEYS = {"address": "10.0.0.1:7421", "token_file": "/etc/bedrock/nodes.token"}


def loaded(tmp_path: Path, text: str, **environ: str) -> Config:
    file = tmp_path / "bedrock.toml"
    file.write_text(text)
    file.chmod(0o600)
    return load({}, {"HOME": str(tmp_path), **environ}, file)


def test_what_is_left_out_has_a_usual_value() -> None:
    assert read(ClusterSettings, "cluster", NEEDED_KEYS) == ClusterSettings(
        "10.0.0.1:7421", Path("/etc/bedrock/nodes.token"), socket.gethostname(), None, 10.0
    )


def test_everything_can_be_given() -> None:
    given = NEEDED_KEYS | {"address": "[fd00::1]:7421", "name": "ada", "ca": "/ca.pem", "lease_seconds": 3}
    given |= {"workspaces": ["/mnt/a/", "/mnt//b"]}
    assert read(ClusterSettings, "cluster", given) == ClusterSettings(
        "[fd00::1]:7421", Path("/etc/bedrock/nodes.token"), "ada", Path("/ca.pem"), 3.0, ("/mnt/a", "/mnt/b")
    )


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"place": "x"}, r"cluster\.place: unknown; known keys: address, token_file, name, ca, lease_seconds, work"),
        ({"address": None}, r"cluster\.address: must be the host:port"),
        ({"address": "host"}, r"cluster\.address: must be the host:port"),
        ({"address": "host:0"}, r"cluster\.address: must be the host:port"),
        ({"address": "a b:1"}, r"cluster\.address: must be the host:port"),
        ({"token_file": ""}, r"cluster\.token_file: must be a path"),
        ({"token_file": "~nobody-here/x"}, r"cluster\.token_file: user not found: '~nobody-here'"),
        ({"ca": 1}, r"cluster\.ca: must be a path"),
        ({"name": ""}, r"cluster\.name: must "),
        ({"name": "a\nb"}, r"cluster\.name: must "),
        ({"lease_seconds": 0.5}, r"cluster\.lease_seconds: must be between 1 and 60"),
        ({"workspaces": "/mnt"}, r"cluster\.workspaces: must be an array of at most 100 directories"),
        ({"workspaces": ["/mnt", "team-a"]}, r"cluster\.workspaces: 'team-a' must be an absolute path"),
        ({"workspaces": ["/"]}, r"cluster\.workspaces: '/' must be .*, other than /"),
        ({"workspaces": ["*"]}, r"cluster\.workspaces: '\*' must be an absolute path"),
        ({"workspaces": ["/a\nb"]}, r"cluster\.workspaces: '/a\\nb' must be an absolute path"),
        ({"workspaces": ["/a", 1]}, r"cluster\.workspaces\[2\]: must be an absolute path"),
        ({"lease_seconds": True}, r"cluster\.lease_seconds: must be between 1 and 60"),
    ],
)
def test_what_cannot_be_used_is_named(change: dict[str, object], refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        read(ClusterSettings, "cluster", NEEDED_KEYS | change)


@pytest.mark.parametrize("key", NEEDED_KEYS)
def test_what_is_needed_is_named(key: str) -> None:
    with pytest.raises(ValueError, match=rf"cluster\.{key}: required"):
        read(ClusterSettings, "cluster", {name: value for name, value in NEEDED_KEYS.items() if name != key})


def test_only_servers_that_share_a_database_have_the_table(tmp_path: Path) -> None:
    table = '[cluster]\naddress = "127.0.0.1:1"\ntoken_file = "t"\n'
    with pytest.raises(ConfigError, match="cluster: requires `database`"):
        loaded(tmp_path, table)
    assert loaded(tmp_path, table, BEDROCK_DATABASE="postgresql://db/bedrock").cluster is not None


@pytest.mark.parametrize(
    ("address", "more"),
    [
        ("127.0.0.1:7421", ""),
        ("[::1]:7421", ""),
        ("10.0.0.1:7421", 'ca = "/ca.pem"'),
        ("10.0.0.1:7421", '[[listen]]\naddress = "10.0.0.1:7421"\ninsecure_behind_proxy = true'),
    ],
)
def test_the_token_of_the_nodes_goes_over_no_network_in_the_clear(tmp_path: Path, address: str, more: str) -> None:
    text = f'database = "postgresql://db/bedrock"\n[cluster]\naddress = "{address}"\ntoken_file = "t"\n'
    assert loaded(tmp_path, text + more).cluster is not None
    if more:
        with pytest.raises(ConfigError, match=r"bedrock\.toml: cluster\.ca: required, or anyone on the network"):
            loaded(tmp_path, text)


def test_the_settings_in_the_document_are_those_of_the_code(tmp_path: Path) -> None:
    (block,) = re.findall(
        r"<!-- settings -->\n```toml\n(.*?)```", (ROOT / "docs" / "cluster.md").read_text(), re.DOTALL
    )
    config = loaded(tmp_path, block)
    assert config.cluster is not None
    assert set(ClusterSettings.__struct_fields__) <= set(re.findall(r"^(\w+) = ", block, re.MULTILINE))


@pytest.mark.parametrize("wrong", ["db:5432", "mysql://db/x", "postgresql://db/a b"])
def test_a_database_that_is_no_url_is_refused_without_showing_it(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"BEDROCK_DATABASE: must be postgresql://") as refused:
        loaded(tmp_path, "", BEDROCK_DATABASE=wrong)
    assert wrong not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ada:secret@db:5432/bedrock", "postgresql://ada@db:5432/bedrock"),
        ("postgresql://ada@db/bedrock?password=secret&sslmode=require", "postgresql://ada@db/bedrock"),
        ("postgresql:///bedrock?host=/run/postgresql", "postgresql:///bedrock"),
        ("postgresql://[::1/bedrock:secret", "postgresql://…"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert shown_database(url) == shown
    assert "secret" not in repr(Config(data_dir=Path("/d"), database=url))


def test_a_ca_without_certificates_is_refused(tmp_path: Path) -> None:
    token, ca = tmp_path / "token", tmp_path / "ca.pem"
    token.write_text("t" * 43)
    token.chmod(0o600)
    ca.write_text("no certificates\n")
    settings = ClusterSettings("10.0.0.1:7421", token, "one", ca)
    with pytest.raises(CannotStartError, match=rf"cluster\.ca: {ca} contains no certificates"):
        node_access(settings)
    ca.unlink()
    with pytest.raises(CannotStartError, match=rf"cluster\.ca: {ca} cannot be read"):
        node_access(settings)


def test_a_workspace_must_be_there_by_its_real_path(tmp_path: Path) -> None:
    there, missing, link = tmp_path / "there", tmp_path / "missing", tmp_path / "link"
    there.mkdir()
    link.symlink_to(there)
    for named, refusal in (
        (missing, "is not a directory on this machine; mount it"),
        (link, f"contains a symbolic link; use {there}"),
    ):
        with pytest.raises(CannotStartError, match=f"{named} {refusal}"):
            check_workspaces(read(ClusterSettings, "cluster", NEEDED_KEYS | {"workspaces": [str(there), str(named)]}))
    check_workspaces(read(ClusterSettings, "cluster", NEEDED_KEYS | {"workspaces": [f"{there}/"]}))
