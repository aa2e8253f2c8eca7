"""MCP servers that clients name for one conversation."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from actors.adapters.mcp import servers
from actors.adapters.mcp.server_settings import BoundSecret, FromClients, origin_of
from actors.core.context import ChosenMcpServer, Profile
from actors.ports import ConversationRecord
from actors.ports.sandbox import Permissions
from actors.ports.tools import McpNotAllowedError, McpState
from tests.integration.mcp.conftest import PROGRAM, Hub, conversation, server
from tests.integration.mcp.web import TOKEN, WebServer
from tests.support.patience import eventually

PROGRAMS = FromClients(programs=True)


def chosen(name: str = "own", *ways: str, **fields: Any) -> ChosenMcpServer:
    """The program of the tests, as a client names it."""
    return ChosenMcpServer(name, command=(sys.executable, "-I", "-S", PROGRAM, *ways), **fields)


def with_servers(*named: ChosenMcpServer, name: str = "c1") -> ConversationRecord:
    return conversation(name, profile=Profile(mcp_servers=named))


def settled(made: Hub, record: ConversationRecord) -> list[McpState]:
    """The states of a conversation's servers, once they are known."""
    unknown = {McpState.CONNECTING, McpState.STOPPED}
    eventually(lambda: not unknown & {each.state for each in made.all.statuses_of(record)}, "their states")
    return [each.state for each in made.all.statuses_of(record)]


def test_only_its_conversation_has_the_tools(hub: Callable[..., Hub]) -> None:
    made = hub(server(), rules=PROGRAMS)
    record, other = with_servers(chosen(read_only=("echo",))), conversation("c2")
    made.all.prepare(record)
    assert settled(made, record) == [McpState.READY]
    assert [status.name for status in made.all.statuses()] == ["t"]
    offered = {tool.name: tool for tool in made.all.offer(record)}
    assert [offered[f"mcp__own__{name}"].traits.writes for name in ("echo", "count")] == [False, True]
    assert not any(tool.name.startswith("mcp__own__") for tool in made.all.offer(other))
    assert made.call("mcp__own__echo", {"text": "hi"}).text == "echo hi"
    stranger = made.call("mcp__own__echo", conversation_id="c2")
    assert stranger.is_error
    assert "The MCP server own no longer exists" in stranger.text


def test_it_ends_with_its_conversation_and_with_another_choice(hub: Callable[..., Hub]) -> None:
    made = hub(rules=PROGRAMS)
    record = with_servers(chosen(), chosen("second"))
    made.all.prepare(record)
    settled(made, record)
    assert made.call("mcp__own__count").text == "1"
    before = made.running()
    fewer = with_servers(chosen())
    made.all.prepare(fewer)
    eventually(lambda: 0 < len(made.running()) < len(before), "the end of the one that is not chosen any more")
    assert made.call("mcp__own__count").text == "2", "the other one goes on"
    assert made.call("mcp__second__count").is_error
    made.all.prepare(with_servers(chosen(environment={"A": "B"})))
    assert made.call("mcp__own__count").text == "1", "another environment is another process"
    made.all.stop(record.id)
    eventually(lambda: not made.running(), "the end with the conversation")
    assert made.call("mcp__own__count").is_error


def test_a_server_that_fails_delays_nothing_and_says_why(hub: Callable[..., Hub]) -> None:
    made = hub(rules=PROGRAMS)
    record = with_servers(chosen("own", "crash"), ChosenMcpServer("gone", command=("no-such-program",)))
    made.all.prepare(record)
    assert made.all.offer(record) == ()
    assert settled(made, record) == [McpState.FAILED] * 2
    first, second = made.all.statuses_of(record)
    assert "no configuration" in first.error
    assert "No such file" in second.error
    assert made.call("mcp__own__echo").is_error


def test_what_is_not_allowed_any_more_is_down_and_a_server_of_the_operator_comes_first(hub: Callable[..., Hub]) -> None:
    made = hub(server())
    with pytest.raises(McpNotAllowedError):
        made.all.check((chosen(),))
    record = with_servers(chosen(), chosen("t", "crash"))
    made.all.prepare(record)
    first, second = made.all.statuses_of(record)
    assert (first.state, second.state) == (McpState.FAILED, McpState.FAILED)
    assert "does not allow" in first.error
    assert "the operator's server of this name" in second.error
    assert made.call("mcp__t__echo", {"text": "operator"}).text == "echo operator"
    assert made.call("mcp__own__echo").is_error


def test_a_principal_with_limits_has_none(hub: Callable[..., Hub]) -> None:
    made = hub(rules=PROGRAMS, permissions=lambda _principal: Permissions(roots=("/tmp",)))
    record = with_servers(chosen())
    made.all.prepare(record)
    (status,) = made.all.statuses_of(record)
    assert (status.state, status.error) == (McpState.FAILED, "this principal can use only the operator's MCP servers")
    assert made.call("mcp__own__echo").is_error
    assert made.running() == []


def test_a_sub_agent_has_none_and_few_are_remembered(hub: Callable[..., Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "MAX_CONVERSATIONS", 1)
    made = hub(rules=PROGRAMS)
    made.all.prepare(replace(with_servers(chosen()), user_initiated=False))
    assert made.running() == []
    one, two = with_servers(chosen("own", "crash")), with_servers(chosen(), name="c2")
    made.all.prepare(one)
    settled(made, one)
    made.all.prepare(two)
    assert made.all.statuses_of(one)[0].state is McpState.STOPPED, "forgotten, since nothing of it is connected"
    assert settled(made, two) == [McpState.READY]


def test_a_secret_of_the_operator_is_sent_to_its_url_and_shown_nowhere(hub: Callable[..., Hub]) -> None:
    with WebServer() as web:
        origin = origin_of(web.url)
        known = {"web": BoundSecret(f"Bearer {TOKEN}", origin), "wrong": BoundSecret("Bearer wrong-secret", origin)}
        made = hub(rules=FromClients(origins=frozenset({origin}), secrets=known))
        named = [ChosenMcpServer(name, url=web.url, headers={"Authorization": f"secret:{name}"}) for name in known]
        record = with_servers(*named)
        made.all.check(record.profile.mcp_servers)
        made.all.prepare(record)
        assert settled(made, record) == [McpState.READY, McpState.FAILED]
        assert made.call("mcp__web__add", {"a": 2, "b": 3}).text == "5"
        told = repr(made.all.statuses_of(record)) + made.call("mcp__wrong__add").text
        assert "401" in told
        assert "wrong-secret" not in told
        assert TOKEN not in told
        made.close()
