"""The table [cluster], and the setting `database`: what they take, and what is refused in which words."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from actors.ports.settings_checks import read
from server.app.adapter_choice import CannotStartError
from server.app.store_choice import check_workspaces, node_access
from server.settings.config import ClusterSettings, Config, shown_database
from server.settings.loading import load
from server.settings.setting_values import ConfigError
from tests.documents.pages import ROOT

NEEDED = {"address": "10.0.0.1:7421", "token_file": "/etc/bedrock/nodes.token"}


def loaded(tmp_path: Path, text: str, **environ: str) -> Config:
    file = tmp_path / "bedrock.toml"
    file.write_text(text)
    file.chmod(0o600)
    return load({}, {"HOME": str(tmp_path), **environ}, file)


def test_what_is_left_out_has_a_usual_value() -> None:
    assert read(ClusterSettings, "cluster", NEEDED) == ClusterSettings(
        "10.0.0.1:7421", Path("/etc/bedrock/nodes.token"), socket.gethostname(), None, 10.0
    )


def test_everything_can_be_given() -> None:
    given = NEEDED | {"address": "[fd00::1]:7421", "name": "ada", "ca": "/ca.pem", "lease_seconds": 3}
    given |= {"workspaces": ["/mnt/a/", "/mnt//b"]}
    assert read(ClusterSettings, "cluster", given) == ClusterSettings(
        "[fd00::1]:7421", Path("/etc/bedrock/nodes.token"), "ada", Path("/ca.pem"), 3.0, ("/mnt/a", "/mnt/b")
    )


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (
            {"place": "x"},
            r"cluster\.place: unknown; there are: address, token_file, name, ca, lease_seconds, work",
        ),
        ({"address": None}, r"cluster\.address: must be host:port"),
        ({"address": "host"}, r"cluster\.address: must be host:port"),
        ({"address": "host:0"}, r"cluster\.address: must be host:port"),
        ({"address": "a b:1"}, r"cluster\.address: must be host:port"),
        ({"token_file": ""}, r"cluster\.token_file: must be a path"),
        ({"token_file": "~nobody-here/x"}, r"cluster\.token_file: there is no user '~nobody-here'"),
        ({"ca": 1}, r"cluster\.ca: must be a path"),
        ({"name": ""}, r"cluster\.name: must be a text"),
        ({"name": "a\nb"}, r"cluster\.name: must be a text"),
        ({"lease_seconds": 0.5}, r"cluster\.lease_seconds: must be between 1 and 60"),
        ({"workspaces": "/mnt"}, r"cluster\.workspaces: must be a list of 100 directories at most"),
        ({"workspaces": ["/mnt", "team-a"]}, r"cluster\.workspaces: 'team-a' must be an absolute path"),
        ({"workspaces": ["/"]}, r"cluster\.workspaces: '/' must be .* beneath the root"),
        ({"workspaces": ["*"]}, r"cluster\.workspaces: '\*' must be an absolute path"),
        ({"workspaces": ["/a\nb"]}, r"cluster\.workspaces: '/a\\nb' must be an absolute path"),
        ({"workspaces": ["/a", 1]}, r"cluster\.workspaces\[2\]: must be an absolute path"),
        ({"lease_seconds": True}, r"cluster\.lease_seconds: must be between 1 and 60"),
    ],
)
def test_what_cannot_be_used_is_named(change: dict[str, object], refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        read(ClusterSettings, "cluster", NEEDED | change)


@pytest.mark.parametrize("key", NEEDED)
def test_what_is_needed_is_named(key: str) -> None:
    with pytest.raises(ValueError, match=rf"cluster\.{key}: needed"):
        read(ClusterSettings, "cluster", {name: value for name, value in NEEDED.items() if name != key})


def test_only_servers_that_share_a_database_have_the_table(tmp_path: Path) -> None:
    table = '[cluster]\naddress = "127.0.0.1:1"\ntoken_file = "t"\n'
    with pytest.raises(ConfigError, match="cluster: needs database"):
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
        with pytest.raises(ConfigError, match=r"bedrock\.toml: cluster\.ca: anyone on the network could read"):
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
    with pytest.raises(CannotStartError, match=rf"cluster\.ca: {ca} holds no certificates"):
        node_access(settings)
    ca.unlink()
    with pytest.raises(CannotStartError, match=rf"cluster\.ca: {ca} cannot be read"):
        node_access(settings)


def test_a_workspace_must_be_there_by_its_real_path(tmp_path: Path) -> None:
    there, missing, link = tmp_path / "there", tmp_path / "missing", tmp_path / "link"
    there.mkdir()
    link.symlink_to(there)
    for named, refusal in (
        (missing, "is not a directory here: mount it"),
        (link, f"contains a symbolic link; use {there}"),
    ):
        with pytest.raises(CannotStartError, match=f"{named} {refusal}"):
            check_workspaces(read(ClusterSettings, "cluster", NEEDED | {"workspaces": [str(there), str(named)]}))
    check_workspaces(read(ClusterSettings, "cluster", NEEDED | {"workspaces": [f"{there}/"]}))
