"""MCP servers that do not hold to the protocol, over both transports: what can be used is used, the rest is named."""

import itertools
import json
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from actors.adapters.mcp.server_settings import McpServer
from actors.adapters.mcp.servers import NEW_SESSION
from actors.ports.tools import McpServerStatus, McpState
from tests.integration.mcp.conftest import Hub, server
from tests.support.certificates import make_self_signed
from tests.support.scripted_server import ScriptedServer, answer

OBJECT = '{"type": "object"}'


class OddServer(ThreadingHTTPServer):
    """A server behind HTTP that answers with the bytes that it is given, and can forget its sessions."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.listed = b'{"tools": []}'
        self.kind = "application/json"
        self.lists = 0
        self.sessions: set[str] = set()
        self.numbers = itertools.count(1)
        self.forgotten: tuple[int, str, bytes] = (404, "text/plain", b"no such session")
        """How a request of a session is answered that there is not: status, type and body."""
        self.keeps = True
        """Whether a session lasts for more than its list of tools."""
        self.answer: tuple[int, str, bytes] | None = None
        """How calls are answered instead of with their result."""
        self.called: list[Any] = []
        """The arguments of each call that was carried out."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/mcp"


class _Handler(BaseHTTPRequestHandler):
    server: OddServer

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method, session = message["method"], self.headers.get("mcp-session-id")
        if method == "server/discover":
            self._answer(400, "text/plain", b"")
        elif method == "initialize":
            session = f"s{next(self.server.numbers)}"
            self.server.sessions.add(session)
            result = {
                "protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                "serverInfo": {"name": "odd", "version": "1"},
            }  # fmt: skip
            self._result(message["id"], json.dumps(result).encode(), session)
        elif session not in self.server.sessions:
            self._answer(*self.server.forgotten)
        elif "id" not in message:
            self._answer(202, "text/plain", b"")
        elif method == "tools/list":
            self.server.lists += 1
            self.server.sessions &= self.server.sessions if self.server.keeps else set()
            self._result(message["id"], self.server.listed)
        else:
            self.server.called.append(message["params"]["arguments"])
            text = json.dumps({"content": [{"type": "text", "text": f"called in {session}"}]})
            if self.server.answer:
                status, kind, body = self.server.answer
                self._answer(status, kind, body.replace(b'"id":1', b'"id":%d' % message["id"]))
            else:
                self._result(message["id"], text.encode())

    def do_GET(self) -> None:
        self._answer(405, "text/plain", b"")

    def do_DELETE(self) -> None:
        self._answer(200, "text/plain", b"")

    def _result(self, number: int, result: bytes, session: str = "") -> None:
        body = b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (number, result)
        if self.server.kind != "application/json":
            body = b"event: message\ndata: %b\n\n" % body
        self._answer(200, self.server.kind, body, session)

    def _answer(self, status: int, kind: str, body: bytes, session: str = "") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        if session:
            self.send_header("mcp-session-id", session)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def odd() -> Iterator[OddServer]:
    with OddServer() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture(params=["program", "application/json", "text/event-stream"])
def listing(
    request: pytest.FixtureRequest, hub: Callable[..., Hub], odd: OddServer, tmp_path: Path
) -> Callable[[bytes], Hub]:
    """A hub of a server that answers tools/list with these bytes, by each transport."""

    def make(listed: bytes) -> Hub:
        if request.param == "program":
            file = tmp_path / "listed"
            file.write_bytes(listed)
            made = hub(server(f"list={file}"))
        else:
            odd.listed, odd.kind = listed, request.param
            made = hub(McpServer(name="t", url=odd.url, read_only=True))
        made.all.start()
        made.settled()
        return made

    return make


def listed(*tools: str, **more: Any) -> bytes:
    """The result of tools/list with tools as JSON."""
    return (
        b'{"tools": ['
        + ", ".join(tools).encode("utf-8", "surrogateescape")
        + b"]"
        + "".join(f", {json.dumps(key)}: {json.dumps(value)}" for key, value in more.items()).encode()
        + b"}"
    )


def tool(name: str = "a", schema: Any = None, **more: Any) -> str:
    return json.dumps({"name": name, "inputSchema": {"type": "object"} if schema is None else schema, **more})


def named(tools: Iterable[str]) -> Iterator[str]:
    """Give those that are called "a" a number as their name, so that no two have the same one."""
    return (each.replace('"name": "a"', f'"name": "{number}"') for number, each in enumerate(tools))


def names(status: McpServerStatus) -> list[str]:
    return [each.name.removeprefix("mcp__t__") for each in status.tools]


UNUSABLE = {
    "no schema": '{"name": "a"}',
    "null as schema": '{"name": "a", "inputSchema": null}',
    "list as schema": '{"name": "a", "inputSchema": []}',
    "null as name": f'{{"name": null, "inputSchema": {OBJECT}}}',
    "no name": f'{{"inputSchema": {OBJECT}}}',
    "number as name": f'{{"name": 7, "inputSchema": {OBJECT}}}',
    "text instead of a tool": '"a"',
    "null instead of a tool": "null",
    "list as schema's type": '{"name": "a", "inputSchema": {"type": "array"}}',
    "properties no object": '{"name": "a", "inputSchema": {"type": "object", "properties": 3}}',
    "required no list": '{"name": "a", "inputSchema": {"type": "object", "required": true}}',
    "800 levels": '{"name": "a", "inputSchema": ' + '{"properties": {"a": ' * 400 + "{}" + "}}" * 400 + "}",
    "5000 digits": f'{{"name": "a", "inputSchema": {{"properties": {{"b": {{"maximum": {"9" * 5_000}}}}}}}}}',
    "NaN": '{"name": "a", "inputSchema": {"properties": {"b": {"maximum": NaN}}}}',
}


def test_a_tool_that_cannot_be_used_is_left_out_alone(listing: Callable[[bytes], Hub]) -> None:
    status = listing(listed(tool("before"), *UNUSABLE.values(), tool("after"))).status()
    assert (status.state, status.error) == (McpState.READY, "")
    assert names(status) == ["before", "after"]
    for fault, left_out in zip(UNUSABLE, status.left_out, strict=True):
        assert left_out.name in {"a", ""}, fault
        assert left_out.reason, fault
        assert "Input should" not in left_out.reason, fault
        assert "validation" not in left_out.reason, fault


USABLE = {
    "annotations that are none": tool(annotations={"readOnlyHint": "perhaps"}, icons="a.png", outputSchema=[]),
    "nulls": tool(schema={"type": "object", "properties": None, "required": None}, title=None, description=None),
    "no type": tool(schema={}),
    "a list for no properties": tool(schema={"type": "object", "properties": []}),
    "a lone surrogate": tool(description="an emoji: \ud83d"),
    "bytes that are not UTF-8": '{"name": "a", "description": "caf\udce9", "inputSchema": {}}',
}


def test_a_tool_with_faults_that_do_not_matter_is_offered(listing: Callable[[bytes], Hub]) -> None:
    status = listing(listed(tool("before"), *named(USABLE.values()))).status()
    assert (names(status), status.left_out) == (["before", *map(str, range(len(USABLE)))], ())
    assert {each.input_schema["type"] for each in status.tools} == {"object"}


MAPPED: dict[str, tuple[str, dict[str, Any]]] = {
    "exclusiveMinimum as a boolean": (
        tool(schema={"type": "object", "properties": {"n": {"minimum": 1, "exclusiveMinimum": True}}}),
        {"type": "object", "properties": {"n": {"exclusiveMinimum": 1}}},
    ),
    "a tuple": (
        tool(schema={"type": "object", "properties": {"pair": {"items": [{"type": "string"}], "minItems": 1}}}),
        {"type": "object", "properties": {"pair": {"prefixItems": [{"type": "string"}], "minItems": 1}}},
    ),
    "a parameter of OData": (
        tool(schema={"properties": {"$top": {"type": "integer"}, "a.b": {}}, "required": ["$top", "a.b"]}),
        {"type": "object", "properties": {"_x24_top": {"type": "integer"}, "a.b": {}}, "required": ["_x24_top", "a.b"]},
    ),
    "a parameter with brackets, and definitions": (
        tool(schema={"properties": {"user[name]": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"minLength": 1}}}),
        {
            "type": "object",
            "properties": {"user_x5b_name_x5d_": {"$ref": "#/$defs/n"}},
            "$defs": {"n": {"minLength": 1}},
        },
    ),
}


def test_an_older_or_odd_schema_is_mapped_to_one_that_providers_accept(listing: Callable[[bytes], Hub]) -> None:
    status = listing(listed(*named(given for given, _ in MAPPED.values()))).status()
    assert [each.input_schema for each in status.tools] == [schema for _, schema in MAPPED.values()]
    assert status.left_out == ()


LEFT_OUT = {
    "is too long": (tool("n" * 60), "its full name would have more than 64 characters"),
    "is twice there": (tool("before"), "the server has another tool with this name"),
    "has a parameter that cannot be renamed": (
        tool(schema={"properties": {"$top": {}}, "anyOf": [{"required": ["$top"]}]}),
        "a parameter name has characters that providers do not accept, and cannot be changed",
    ),
    "has a recursive parameter that cannot be renamed": (
        tool(schema={"properties": {"$top": {"$ref": "#"}}}),
        "a parameter name has characters that providers do not accept, and cannot be changed",
    ),
    "has a parameter without a name": (
        tool(schema={"properties": {"": {}}}),
        "a parameter name is empty, or too long for providers",
    ),
    "refers to another schema": (
        tool(schema={"properties": {"a": {"$ref": "https://example.com/schema"}}}),
        "its input schema refers to 'https://example.com/schema', which it does not contain",
    ),
    "refers to nothing": (
        tool(schema={"properties": {"a": {"$ref": "#/$defs/a"}}}),
        "its input schema refers to '#/$defs/a', which it does not contain",
    ),
}


def test_a_tool_that_is_left_out_is_named_with_the_reason(
    listing: Callable[[bytes], Hub], caplog: pytest.LogCaptureFixture
) -> None:
    status = listing(listed(tool("before"), *named(given for given, _ in LEFT_OUT.values()))).status()
    assert [each.reason for each in status.left_out] == [reason for _, reason in LEFT_OUT.values()]
    assert [reason for _, reason in LEFT_OUT.values() if reason not in caplog.text] == []


def test_a_call_reaches_the_tool_and_the_parameters_by_their_own_names(
    hub: Callable[..., Hub], odd: OddServer, tmp_path: Path
) -> None:
    schema: dict[str, Any] = {"properties": {"$top": {}, "_x24_top": {}, "plain": {}}}
    (tmp_path / "listed").write_bytes(listed(tool("given", schema), tool("echo/a b"), tool("echo")))
    arguments = {"_x24_top": 1, "_x5f_x24_top": 2, "plain": 3, "_x24_not_listed": 4}
    own = {"$top": 1, "_x24_top": 2, "plain": 3, "_x24_not_listed": 4}
    made = hub(server(f"list={tmp_path / 'listed'}"))
    assert json.loads(made.call("given", arguments).text) == own
    assert names(made.status()) == ["given", "echo_x2f_a_x20_b", "echo"]
    assert "echo/a b" in made.call("echo_x2f_a_x20_b").text, "the server does not know it, but by its own name"
    odd.listed = (tmp_path / "listed").read_bytes()
    made = hub(McpServer(name="t", url=odd.url, read_only=True))
    made.call("given", arguments)
    assert odd.called == [own]


def test_read_only_tools_have_the_names_of_the_server(hub: Callable[..., Hub], tmp_path: Path) -> None:
    (tmp_path / "listed").write_bytes(listed(tool("a.b"), tool("c.d")))
    made = hub(server(f"list={tmp_path / 'listed'}", read_only=frozenset({"a.b"})))
    made.all.start()
    assert [each.traits.writes for each in made.settled().tools] == [False, True]


def test_a_list_that_is_none_is_told_in_words_for_people(listing: Callable[[bytes], Hub]) -> None:
    status = listing(b'{"tools": "none"}').status()
    assert status.state is McpState.FAILED
    assert "`tools` in its response must be a list" in status.error


def test_an_empty_cursor_ends_the_list(hub: Callable[..., Hub], odd: OddServer) -> None:
    odd.listed = listed(tool("a"), nextCursor="")
    made = hub(McpServer(name="t", url=odd.url))
    made.all.start()
    status = made.settled()
    assert (names(status), status.left_out, odd.lists) == (["a"], (), 1)


FORGOTTEN = {
    "plain text": (404, "text/plain", b"no such session"),
    "a page": (404, "text/html", b"<html>Not Found</html>"),
    "nothing": (404, "application/json", b""),
    "an error of JSON-RPC": (
        404,
        "application/json",
        b'{"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "Method not found"}}',
    ),
    "status 400 and words": (
        400,
        "application/json; charset=utf-8",
        b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": "Bad Request: No valid session ID"}}',
    ),
    "status 400 and plain text": (400, "text/plain", b"Invalid Session"),
}


@pytest.mark.parametrize("kind", FORGOTTEN)
def test_a_call_in_a_session_that_the_server_has_forgotten_is_made_once_in_a_new_one(
    hub: Callable[..., Hub], odd: OddServer, kind: str
) -> None:
    odd.listed, odd.forgotten = listed(tool("put")), FORGOTTEN[kind]
    made = hub(McpServer(name="t", url=odd.url, read_only=True))
    assert made.call("put", {"number": 1}).text == "called in s1"
    odd.sessions.clear()
    assert made.call("put", {"number": 2}).text == f"{NEW_SESSION}\ncalled in s2"
    assert made.call("put", {"number": 3}).text == "called in s2", "the conversation goes on in the new session"
    assert odd.called == [{"number": 1}, {"number": 2}, {"number": 3}], "each was carried out once"
    assert made.status().state is McpState.READY


def test_a_server_that_forgets_each_session_is_asked_twice_and_no_more(hub: Callable[..., Hub], odd: OddServer) -> None:
    odd.listed, odd.keeps = listed(tool("put")), False
    made = hub(McpServer(name="t", url=odd.url, read_only=True))
    failed = made.call("put")
    assert failed.is_error
    assert failed.text == "The MCP server t keeps losing its sessions."
    assert (odd.called, next(odd.numbers)) == ([], 3)


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (400, "application/json", b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"Invalid params"}}'),
        (500, "text/plain", b"the session is broken"),
        (200, "text/event-stream", b": it breaks off\n\n"),
        (200, "application/json", b'{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"Session not found"}}'),
    ],
)
def test_a_call_that_may_have_been_carried_out_is_not_made_again(
    hub: Callable[..., Hub], odd: OddServer, status: int, kind: str, body: bytes
) -> None:
    odd.listed, odd.answer = listed(tool("put")), (status, kind, body)
    made = hub(McpServer(name="t", url=odd.url, read_only=True))
    assert made.call("put", {"number": 1}).is_error
    odd.answer = None
    assert made.call("put", {"number": 2}).text == "called in s1"
    assert odd.called == [{"number": 1}, {"number": 2}]


def test_an_event_may_be_as_large_as_any_other_answer(hub: Callable[..., Hub], odd: OddServer) -> None:
    odd.listed, odd.kind = listed(tool("put")), "text/event-stream"
    text = b"x" * (2 << 20)
    body = b'data: {"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"%b"}]}}\n\n' % text
    odd.answer = (200, odd.kind, body)
    made = hub(McpServer(name="t", url=odd.url, read_only=True))
    answer = made.call("put")
    assert not answer.is_error
    assert "characters omitted" in answer.text


def test_authorities_of_the_environment_are_trusted(
    hub: Callable[..., Hub], odd: OddServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = make_self_signed(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(both)
    odd.socket = tls.wrap_socket(odd.socket, server_side=True)
    odd.listed = listed(tool("put"))
    secure = McpServer(name="t", url=odd.url.replace("http:", "https:"), read_only=True)
    made = hub(secure)
    made.all.start()
    assert "certificate verify failed" in made.settled().error
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(both))
    made = hub(secure)
    made.all.start()
    assert names(made.settled()) == ["put"]


def test_a_server_of_this_machine_is_reached_without_the_proxy(
    hub: Callable[..., Hub], odd: OddServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd.listed = listed(tool("put"))
    with ScriptedServer(answer(403, b"")) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("http_proxy", proxy.url)
        made = hub(McpServer(name="t", url=odd.url))
        made.all.start()
        assert names(made.settled()) == ["put"]
    assert proxy.received == []
