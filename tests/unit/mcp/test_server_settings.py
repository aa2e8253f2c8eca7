"""The tables [[mcp_servers]] of the operator's file."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from actors.adapters.mcp.server_settings import Login, OAuth, servers_from_tables
from actors.adapters.mcp.tools import encoded, full_name, parted

ENVIRON = {"TOKEN": "a-token-4711", "HOME": "/h"}


def test_a_program_has_its_environment_from_variables_and_files(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from a file\n")
    table: dict[str, Any] = {
        "name": "git",
        "command": ["mcp-server-git", "--repository", "."],
        "environment": {"A": "$TOKEN", "B": "x${TOKEN}y$$", "C": {"file": str(tmp_path / "key")}},
        "read_only": ["git_log"],
        "call_seconds": 5,
        "protocol": "2025-11-25",
    }
    (server,) = servers_from_tables([table], ENVIRON)
    assert server.command == ("mcp-server-git", "--repository", ".")
    assert server.environment == {"A": "a-token-4711", "B": "xa-token-4711y$", "C": "from a file"}
    assert (server.changes_nothing("git_log"), server.changes_nothing("git_commit")) == (True, False)
    assert (server.call_seconds, server.connect_seconds, server.protocol) == (5.0, 60.0, "2025-11-25")
    assert "a-token-4711" in server.secrets
    assert "4711" not in repr(server)


def test_a_url_has_headers_or_oauth() -> None:
    plain = {"name": "a", "url": "https://x.test/mcp", "headers": {"Authorization": "Bearer $TOKEN"}, "read_only": True}
    credentials = {"client_id": "me", "client_secret": "$TOKEN", "issuer": "https://auth.test"}
    one, two = servers_from_tables([plain, {"name": "b", "url": "http://localhost:1/", "oauth": credentials}], ENVIRON)
    assert one.headers == {"Authorization": "Bearer a-token-4711"}
    assert one.changes_nothing("anything")
    assert two.oauth == OAuth("me", "a-token-4711", "https://auth.test")
    assert "4711" not in repr(two.oauth)


def test_one_that_is_not_enabled_is_left_out_and_its_variables_need_not_be_set() -> None:
    assert servers_from_tables([{"name": "a", "enabled": False, "url": "https://$NONE"}], ENVIRON) == ()


@pytest.mark.parametrize(
    ("table", "where"),
    [
        ({}, r"mcp_servers\[1\].name"),
        ({"name": "A_b", "command": ["x"]}, r"mcp_servers\[1\].name"),
        ({"name": "a"}, "mcp_servers.a.command"),
        ({"name": "a", "command": ["x"], "url": "https://x"}, "mcp_servers.a.command"),
        ({"name": "a", "command": [""]}, "mcp_servers.a.command"),
        ({"name": "a", "command": "x y"}, "mcp_servers.a.command: must be a list of strings"),
        ({"name": "a", "url": "https://x", "login": True}, "mcp_servers.a.login: must be a table"),
        ({"name": "a", "url": "https://x", "read_only": 1}, "mcp_servers.a.read_only: must be true, false or a list"),
        ({"name": "a", "command": ["x"], "headers": {}}, "mcp_servers.a.headers: allowed only for servers with url"),
        ({"name": "a", "url": "https://x", "environment": {}}, "mcp_servers.a.environment"),
        ({"name": "a", "url": "ftp://x"}, "mcp_servers.a.url"),
        ({"name": "a", "url": "https://me:pw@x"}, "mcp_servers.a.url: must not contain credentials"),
        ({"name": "a", "url": "https://x", "headers": {"a b": "c"}}, "mcp_servers.a.headers"),
        ({"name": "a", "command": ["x"], "environment": {"K": "$MISSING"}}, "mcp_servers.a.environment.K: MISSING is"),
        ({"name": "a", "command": ["x"], "environment": {"K": {"file": "/no/such"}}}, "a.environment.K: the file"),
        ({"name": "a", "command": ["x"], "environment": {"K": "a\nb"}}, "mcp_servers.a.environment.K: must be one"),
        ({"name": "a", "command": ["x"], "environment": {"K": 3}}, "mcp_servers.a.environment.K: must be a string"),
        ({"name": "a", "command": ["x"], "call_seconds": 0}, "mcp_servers.a.call_seconds"),
        (
            {"name": "a", "command": ["x"], "protocol": "2024-11-05"},
            "mcp_servers.a.protocol: must be one of auto, 2025-",
        ),
        ({"name": "a", "command": ["x"], "color": 1}, "mcp_servers.a.color: unknown; known keys: name, "),
        ({"name": "a", "url": "https://x", "oauth": {"client_id": "i"}}, "mcp_servers.a.oauth.client_secret"),
        ({"name": "a", "command": ["x"], "login": {}}, "mcp_servers.a.login: allowed only for servers with url"),
        ({"name": "a", "url": "http://x.test", "login": {}}, "mcp_servers.a.login: requires an https URL"),
        ({"name": "a", "url": "https://x", "login": {"password": "i"}}, "mcp_servers.a.login.password: unknown"),
        ({"name": "a", "url": "https://x", "login": {"client_secret": "s"}}, "mcp_servers.a.login.client_id: required"),
        (
            {"name": "a", "url": "https://x", "login": {"client_secret": "s", "client_id": "i"}},
            "mcp_servers.a.login.issuer: required",
        ),
        ({"name": "a", "url": "https://x", "login": {"issuer": "http://y"}}, "mcp_servers.a.login.issuer: must be"),
        (
            {"name": "a", "url": "https://x", "headers": {"authorization": "x"}, "login": {}},
            "headers already sets the cred",
        ),
        (
            {"name": "a", "url": "https://x", "oauth": {"client_id": "i"}, "login": {}},
            "mcp_servers.a.oauth.client_secret: required",
        ),
        ({"name": "a", "url": "https://x", "oauth": {"password": "i"}}, "mcp_servers.a.oauth.password: unknown"),
    ],
)
def test_what_is_wrong_is_named(table: dict[str, Any], where: str) -> None:
    with pytest.raises(ValueError, match=where):
        servers_from_tables([table], ENVIRON)


def test_a_url_can_be_logged_in_to_unless_it_has_credentials_or_others_can_listen() -> None:
    def login_of(url: str, **more: Any) -> Login | None:
        return servers_from_tables([{"name": "a", "url": url, **more}], ENVIRON)[0].login

    for url in ("https://x.test/mcp", "http://localhost:1/", "http://127.0.0.1:1/", "http://[::1]:1/"):
        assert login_of(url) == Login()
    assert login_of("http://x.test/mcp") is None
    assert login_of("https://x.test", headers={"authorization": "Bearer x"}) is None
    assert login_of("https://x.test", headers={"X-Team": "x"}) == Login()
    credentials = {"client_id": "me", "client_secret": "$TOKEN", "issuer": "https://auth.test"}
    assert login_of("https://x.test", oauth=credentials) is None
    mine = login_of("https://x.test", login={**credentials, "scope": "read"})
    assert mine == Login("me", "a-token-4711", "https://auth.test", "read")
    assert "4711" not in repr(mine)


def test_two_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two servers have this name"):
        servers_from_tables([{"name": "a", "command": ["x"]}] * 2, ENVIRON)


def test_names_are_put_together_and_taken_apart() -> None:
    assert full_name("my-server", "do_it") == "mcp__my-server__do_it"
    assert parted("mcp__my-server__do_it") == ("my-server", "do_it")
    assert parted("mcp__my-server__do__it") == ("my-server", "do__it")
    assert [parted(name) for name in ("bash", "mcp__", "mcp__x", "mcp__x__")] == [None] * 4


def test_names_that_providers_refuse_are_encoded_and_no_two_become_one() -> None:
    assert full_name("s", "repo.search/v2") == "mcp__s__repo_x2e_search_x2f_v2"
    assert parted("mcp__s__repo_x2e_search_x2f_v2") == ("s", "repo.search/v2")
    plain = ("get_xml", "a_x2e", "x2e_", "_x_2e_", "_xyz_", "a-B_9", "_x2_")
    assert [encoded(name) for name in plain] == list(plain), "a name that providers accept stays as it is"
    assert encoded("$top.x") == "_x24_top.x", "a parameter may have a dot"
    of_codes = ("".join(letters) for size in range(1, 7) for letters in itertools.product("_x2e.\u6f22", repeat=size))
    names = [*of_codes, "\U0010ffff", "_x10ffff_", "_xd800_", "\0", "a b; rm -rf /"]
    full = [full_name("s", name) for name in names]
    assert len(set(full)) == len(names)
    assert [parted(name) for name in full] == [("s", name) for name in names]
    assert all(re.fullmatch("[A-Za-z0-9_-]+", name) for name in full)
