"""Runs that end with a value, over HTTP as each protocol has it: kept by the provider, or submitted by a tool."""

import json
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bedrock import Client
from bedrock.errors import RunFailed
from bedrock.testing.anthropic_stream import ending, opening, tool_calls

from tests.support.scripted_server import STREAM_HEAD, ScriptedServer, ServedConnection, chunked, named, plain
from tests.support.server_process import API_KEY, ServerProcess, Servers
from tests.support.strict_checker import CHECKS

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}
PATHS = {"anthropic": "/v1/messages", "openai-chat": "/chat/completions", "openai-responses": "/responses"}
FORMS = {"native": "true", "tool": "false"}
GOOD, BAD = {"name": "Ada"}, {"name": 7}


class Provider:
    """Answers over one protocol, with a value each time. Every request must be one that a provider would take."""

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.values: deque[Any] = deque()
        """What the next answers say, or submit."""
        self.asked: list[dict[str, Any]] = []
        self.problems: list[str] = []

    def __call__(self, connection: ServedConnection) -> None:
        request = connection.read_request()
        try:
            assert request.path.endswith(PATHS[self.protocol]), request.path
            body = CHECKS[self.protocol](request.body)
        except Exception as error:
            self.problems.append(str(error))
            raise
        self.asked.append(body)
        value = self.values.popleft()
        stream = _STREAMS[self.protocol](value, submit="tool" in body["model"])
        connection.send(STREAM_HEAD + b"".join(map(chunked, stream)) + b"0\r\n\r\n")


def _anthropic(value: Any, *, submit: bool) -> list[bytes]:
    if submit:
        return named(*opening("Well:"), *tool_calls([("submit_output", value)]), *ending("tool_use"))
    return named(*opening(json.dumps(value)), *ending("end_turn"))


def _chat(value: Any, *, submit: bool) -> list[bytes]:
    function = {"name": "submit_output", "arguments": json.dumps(value)}
    call = {"index": 0, "id": f"call_{id(function)}", "type": "function", "function": function}
    delta = {"tool_calls": [call]} if submit else {"content": json.dumps(value)}
    return plain(
        {"choices": [{"index": 0, "delta": delta, "finish_reason": "tool_calls" if submit else "stop"}]}, "[DONE]"
    )


def _responses(value: Any, *, submit: bool) -> list[bytes]:
    said = [{"type": "output_text", "text": json.dumps(value), "annotations": []}]
    item: dict[str, Any] = {"type": "message", "id": "msg_1", "role": "assistant", "content": said}
    if submit:
        item = {"type": "function_call", "id": "fc_1", "name": "submit_output", "arguments": json.dumps(value)}
        item["call_id"] = f"call_{id(item)}"
    response: dict[str, Any] = {"id": "resp_1", "status": "completed", "output": [], "error": None}
    return named(
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response},
    )


_STREAMS: dict[str, Callable[..., list[bytes]]] = {
    "anthropic": _anthropic,
    "openai-chat": _chat,
    "openai-responses": _responses,
}


@pytest.fixture(scope="module")
def providers() -> Iterator[dict[str, Provider]]:
    made = {protocol: Provider(protocol) for protocol in PATHS}
    yield made
    assert not [problem for each in made.values() for problem in each.problems]


@pytest.fixture(scope="module")
def server(providers: dict[str, Provider], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that knows each provider twice: as one that keeps schemas, and as one that does not."""
    folder, servers = tmp_path_factory.mktemp("server"), Servers()
    http = {protocol: ScriptedServer(provider).__enter__() for protocol, provider in providers.items()}
    tables = [
        f'[providers.{form}-{protocol}]\nprotocol = "{protocol}"\nbase_url = "{each.url}"\napi_key = "{API_KEY}"\n'
        f'models = ["{form}-{protocol}"]\ndiscover = "never"\nstructured_output = {keeps}\n'
        for protocol, each in http.items()
        for form, keeps in FORMS.items()
    ]
    config = folder / "config.toml"
    config.write_text("\n".join(tables))
    yield servers(folder, "--config", str(config), BEDROCK_TITLES="false")
    servers.close()
    for each in http.values():
        each.__exit__()


def _is_asked_for(protocol: str, form: str, body: dict[str, Any]) -> bool:
    """Whether a request brings the schema in this form, and not in the other one."""
    native = {
        "anthropic": body.get("output_config", {}).get("format", {}).get("schema"),
        "openai-chat": body.get("response_format", {}).get("json_schema", {}).get("schema"),
        "openai-responses": body.get("text", {}).get("format", {}).get("schema"),
    }[protocol]
    tools = [(tool.get("name") or tool["function"]["name"]) for tool in body["tools"]]
    return (native == SCHEMA, "submit_output" in tools) == (form == "native", form == "tool")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("protocol", PATHS)
def test_a_run_ends_with_a_value_is_reminded_twice_and_then_fails(
    client: Client, providers: dict[str, Provider], protocol: str, form: str, tmp_path: Path
) -> None:
    provider, model = providers[protocol], f"{form}-{protocol}"
    provider.asked.clear()

    def ask(*values: Any) -> Any:
        provider.values.extend(values)
        return client.ask("Who?", working_directory=tmp_path, model=model, output_schema=SCHEMA, timeout=60).output

    assert ask(GOOD) == GOOD
    assert ask(BAD, BAD, GOOD) == GOOD
    with pytest.raises(RunFailed, match="name") as failed:
        ask(BAD, BAD, BAD)
    assert failed.value.reason == "OUTPUT_INVALID"
    assert not provider.values
    assert len(provider.asked) == 1 + 3 + 3
    assert all(_is_asked_for(protocol, form, body) for body in provider.asked)
    told = json.dumps(provider.asked[3])
    assert told.count("7 is not of type") == 2, "each reminder says what does not fit"
