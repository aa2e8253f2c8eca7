"""Models by name, with a server of one's own behind each protocol: refused when they are chosen, never at the first
message, and asked over the protocol of the provider that has them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from bedrock import Client, Task
from bedrock.errors import ModelUnavailable

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


@pytest.mark.one_server("the server is restarted")
def test_after_a_restart_the_providers_are_asked_again_whose_a_model_is(
    start_server: Servers, environment: dict[str, str], tmp_path: Path
) -> None:
    server = start_server(tmp_path, **environment)
    with server.client() as client:
        name = client.create(tmp_path, model="qwen3").name
    assert server.stop() == 0
    with start_server(tmp_path, **environment).client() as client:
        assert within(client.conversation(name).send("Who are you?").answer) == "I am qwen3."


def test_an_unknown_model_is_refused_when_it_is_chosen_with_those_that_there_are(
    client: Client, fake_provider: FakeProvider, openai: ScriptedServer, tmp_path: Path
) -> None:
    with pytest.raises(ModelUnavailable, match=r"'no-such' is not available; there are: qwen3, claude-mine, demo"):
        client.create(tmp_path, model="no-such")
    conversation = client.create(tmp_path, model="claude-opus-5")
    with pytest.raises(ModelUnavailable, match="'no-such' is not available"):
        conversation.update(model="no-such")
    assert conversation.get().model == "models/claude-opus-5"
    with pytest.raises(ModelUnavailable, match=r"tasks\[0\].model: the model 'no-such' is not available"):
        conversation.spawn([Task("x", model="no-such")])
    assert not [each for each in (*fake_provider.received, *openai.received) if b"no-such" in each.body]


def test_a_default_that_the_provider_does_not_list_is_neither_offered_nor_taken(
    start_server: Servers, environment: dict[str, str], tmp_path: Path
) -> None:
    with start_server(tmp_path, ANTHROPIC_BASE_URL=environment["ANTHROPIC_BASE_URL"]).client() as client:
        assert client.server_info().default_model == ""
        assert [(model.name, model.default) for model in client.models()] == [
            ("models/claude-mine", False),
            ("models/demo", False),
        ]
        with pytest.raises(
            ModelUnavailable, match="name one, or set ANTHROPIC_MODEL for the server; there are: claude-mine"
        ):
            client.create(tmp_path)
        client.create(tmp_path, model="claude-mine")
