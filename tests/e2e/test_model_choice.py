"""Models by name, with a server of one's own behind each protocol: refused when they are chosen, never at the first
message, and asked over the protocol of the provider that has them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from bedrock import Client

from tests.support.fake_provider import FakeProvider
from tests.support.patience import within
from tests.support.scripted_server import STREAM_HEAD, ScriptedServer, ServedConnection, chunked, plain
from tests.support.server_process import ServerProcess, Servers

LISTED = json.dumps({"data": [{"id": "qwen3"}]}).encode()


def _chat(connection: ServedConnection) -> None:
    """Lists its model, and answers over Chat Completions."""
    if connection.read_request().path.endswith("/models"):
        connection.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
        connection.send(b"content-length: %d\r\n\r\n%s" % (len(LISTED), LISTED))
        return
    said = {"choices": [{"index": 0, "delta": {"content": "I am qwen3."}, "finish_reason": "stop"}]}
    connection.send(STREAM_HEAD + b"".join(map(chunked, plain(said, "[DONE]"))) + b"0\r\n\r\n")


@pytest.fixture(scope="module")
def openai() -> Iterator[ScriptedServer]:
    with ScriptedServer(_chat) as server:
        yield server


@pytest.fixture(scope="module")
def environment(fake_provider: FakeProvider, openai: ScriptedServer) -> dict[str, str]:
    fake_provider.models = ("claude-mine",)
    return {"ANTHROPIC_BASE_URL": fake_provider.url, "OPENAI_BASE_URL": f"{openai.url}/v1", "BEDROCK_TITLES": "false"}


@pytest.fixture(scope="module")
def server(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    servers = Servers()
    yield servers(tmp_path_factory.mktemp("server"), **environment)
    servers.close()


def test_a_listed_model_is_asked_over_its_own_protocol(client: Client, openai: ScriptedServer, tmp_path: Path) -> None:
    conversation = client.create(tmp_path, model="qwen3")
    assert within(conversation.send("Who are you?").answer) == "I am qwen3."
    assert openai.received[-1].path == "/v1/chat/completions"
    assert openai.received[-1].json["model"] == "qwen3"
    models = {model.name: model.provider for model in client.models()}
    assert (models["models/qwen3"], models["models/claude-mine"]) == ("openai", "anthropic")
