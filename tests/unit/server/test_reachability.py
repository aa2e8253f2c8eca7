"""What keeps nodes from one another is said in words, with the setting to change."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

import pytest

from server.app.adapter_choice import CannotStartError
from server.app.store_choice import check_listener
from server.cluster import peers
from server.cluster.peers import Obstacle, why_unreachable
from server.cluster.router import NodeAccess
from server.settings.loading import load
from tests.support.certificates import make_authority, make_certificate

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "n" * 43


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
        ("node", "ours", "reached a moment later", False),
        ("node", "", "it listens with TLS: set cluster.ca here", True),
        ("", "ours", "it listens without TLS: set tls_certificate", False),
        ("node", "others", "cluster.ca here does not sign its certificate", True),
        ("far", "ours", "IP address mismatch", True),
        ("", "", "is no node", False),
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
    assert "is not known on this machine" in asyncio.run(why_unreachable(f"{'x' * 64}.invalid:1", None)).text

    async def silent(*_: object, **__: object) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(peers, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(asyncio, "open_connection", silent)
    assert "does a firewall let them" in asyncio.run(why_unreachable("192.0.2.1:1", None)).text


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
    check_listener(config, NodeAccess(token=TOKEN, authorities=authorities))


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
        ("ours", "", "there is no tls_certificate"),
        ("", "node", "cluster.ca: it is not set, and "),
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
