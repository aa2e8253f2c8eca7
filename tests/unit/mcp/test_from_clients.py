"""The table [mcp_from_clients]: which MCP servers clients may name for their conversations."""

from typing import Any

import pytest

from actors.adapters.mcp.server_settings import FromClients, from_clients, servers_of
from actors.core.context import ChosenMcpServer
from actors.ports.tools import McpNotAllowedError, McpServerInvalidError

ENVIRON = {"TOKEN": "a-token-4711"}
WEB = "https://mcp.example.com"
TABLE: dict[str, Any] = {
    "programs": True,
    "urls": [WEB, "http://10.0.0.7:8080/"],
    "secrets": {
        "web": {"value": "Bearer $TOKEN", "url": WEB},
        "inside": {"value": "$TOKEN", "url": "http://10.0.0.7:8080"},
    },
}
HEADERS = {"Authorization": "secret:web"}


def rules() -> FromClients:
    return from_clients(TABLE, ENVIRON)


def test_a_program_and_a_url_become_servers_and_secrets_are_filled_in() -> None:
    files = ChosenMcpServer("files", command=("files", "."), environment={"LANG": "C"}, read_only=("read",))
    web = ChosenMcpServer("web", url=f"{WEB}:443/path", headers=HEADERS)
    first, second = servers_of((files, web), rules(), frozenset())
    assert (first.command, first.environment, first.changes_nothing("read")) == (("files", "."), {"LANG": "C"}, True)
    assert (second.url, second.headers) == (f"{WEB}:443/path", {"Authorization": "Bearer a-token-4711"})
    assert not second.changes_nothing("read")
    assert "4711" not in repr(rules())


def test_nothing_is_allowed_by_default() -> None:
    for chosen in (ChosenMcpServer("a", command=("x",)), ChosenMcpServer("a", url=WEB)):
        with pytest.raises(McpNotAllowedError):
            servers_of((chosen,), FromClients(), frozenset())


@pytest.mark.parametrize(
    "url",
    [
        "http://mcp.example.com",
        "https://mcp.example.com:8443",
        "https://mcp.example.com.evil.test",
        "https://evil.test/https://mcp.example.com",
        "http://127.0.0.1:7421",
        "http://169.254.169.254/latest",
        "http://10.0.0.7",
    ],
)
def test_a_url_elsewhere_is_not_allowed(url: str) -> None:
    with pytest.raises(McpNotAllowedError, match=r"mcp_from_clients\.urls"):
        servers_of((ChosenMcpServer("a", url=url),), rules(), frozenset())


@pytest.mark.parametrize(
    ("chosen", "field"),
    [
        (ChosenMcpServer("a"), "stdio"),
        (ChosenMcpServer("a", command=("x",), url=WEB), "stdio"),
        (ChosenMcpServer("a", command=("",)), "stdio.command"),
        (ChosenMcpServer("a", command=("x",), environment={"A=B": ""}), "stdio.environment"),
        (ChosenMcpServer("a", command=("x",), environment={"BEDROCK_CALL": ""}), "stdio.environment"),
        (ChosenMcpServer("a", command=("x" * 4097,)), "name"),
        (ChosenMcpServer("a", command=("x\0",)), "name"),
        (ChosenMcpServer("a", command=("x",) * 65), "name"),
        (ChosenMcpServer("A", command=("x",)), "name"),
        (ChosenMcpServer("taken", command=("x",)), "name"),
        (ChosenMcpServer("a", url="ftp://mcp.example.com"), "http.url"),
        (ChosenMcpServer("a", url="https://me:pw@mcp.example.com"), "http.url"),
        (ChosenMcpServer("a", url=WEB, headers={"Authorization": "Bearer a-token"}), "http.headers"),
        (ChosenMcpServer("a", url=WEB, headers={"Authorization": "secret:none"}), "http.headers"),
        (ChosenMcpServer("a", url=WEB, headers={"Authorization": "secret:inside"}), "http.headers"),
        (ChosenMcpServer("a", url=WEB, headers={"Host": "secret:web"}), "http.headers"),
        (ChosenMcpServer("a", url=WEB, headers={"a b": "secret:web"}), "http.headers"),
    ],
)
def test_what_cannot_be_used_names_its_field(chosen: ChosenMcpServer, field: str) -> None:
    with pytest.raises(McpServerInvalidError) as refused:
        servers_of((ChosenMcpServer("other", command=("x",)), chosen), rules(), frozenset({"taken"}))
    assert (refused.value.position, refused.value.field) == (1, field)


def test_two_of_a_name_and_too_many_are_refused() -> None:
    one = ChosenMcpServer("a", command=("x",))
    for chosen in ((one, one), tuple(ChosenMcpServer(f"a{number}", command=("x",)) for number in range(9))):
        with pytest.raises(McpServerInvalidError):
            servers_of(chosen, rules(), frozenset())


@pytest.mark.parametrize(
    ("table", "where"),
    [
        ({"program": True}, "mcp_from_clients.program: unknown; did you mean 'programs'? Known keys: programs, urls"),
        ({"programs": "yes"}, "mcp_from_clients.programs"),
        ({"urls": WEB}, "mcp_from_clients.urls"),
        ({"urls": [f"{WEB}/path"]}, "mcp_from_clients.urls"),
        ({"urls": ["https://*.example.com:x"]}, "mcp_from_clients.urls"),
        ({"secrets": ["a"]}, "mcp_from_clients.secrets"),
        ({"secrets": {"a": "text"}}, "mcp_from_clients.secrets.a"),
        ({"secrets": {"a": {"value": "x", "url": WEB}}}, "mcp_from_clients.secrets.a.url: must be one of"),
        ({"urls": [WEB], "secrets": {"a": {"value": "$NONE", "url": WEB}}}, "mcp_from_clients.secrets.a.value: NONE"),
    ],
)
def test_a_setting_that_is_wrong_is_named(table: dict[str, Any], where: str) -> None:
    with pytest.raises(ValueError, match="mcp_from_clients") as refused:
        from_clients(table, ENVIRON)
    assert str(refused.value).startswith(where)
