"""Limits that a server tells about its models: asked lazily, once, and never in anybody's way."""

import json
from typing import Any

import msgspec
import pytest

from actors.adapters.llm import http_model as discovery
from actors.adapters.llm.catalog import Catalog
from actors.adapters.llm.http_model import limits_in_list, listed_in
from actors.adapters.llm.provider import Price, StatedLimits, Timeouts, provider_from_mapping
from actors.core.errors import ErrorKind
from actors.ports import Model
from tests.support.model_requests import RequestThread, ask, failure, model, provider
from tests.support.scripted_server import Script, ScriptedServer, ServedConnection, answer, plain, stream

pytestmark = pytest.mark.usefixtures("no_leaked_fds")

SAID = stream(plain({"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}, "[DONE]"))
LLAMA = [{"id": "/m/x.gguf", "meta": {"n_ctx": 4096, "n_ctx_train": 8192}}]


def listing(*entries: dict[str, Any]) -> Script:
    return answer(200, json.dumps({"object": "list", "data": entries}).encode())


def mine(url: str, protocol: str = "openai-chat", **settings: Any) -> Model:
    return model(protocol, url, "my-finetune", **{"discover": "unknown", **settings})


@pytest.mark.parametrize(
    ("entries", "stated"),
    [
        (LLAMA, StatedLimits(window=4096)),
        ([{"id": "m", "max_model_len": 32768}, {"id": "x", "max_model_len": 1}], StatedLimits(window=32768)),
        (
            [
                {
                    "id": "m",
                    "context_length": 200_000,
                    "top_provider": {"context_length": 200_000, "max_completion_tokens": 64_000},
                    "architecture": {"input_modalities": ["text", "image"]},
                    "pricing": {"prompt": "0.000003", "completion": "0.000015", "input_cache_read": "0.0000003"},
                },
                {"id": "x", "pricing": {"prompt": "-1", "completion": "-1"}},
            ],
            StatedLimits(window=200_000, output=64_000, images=True, price=Price(3.0, 15.0, 0.3)),
        ),
        ([{"type": "model", "id": "m", "max_input_tokens": 1_000_000, "max_tokens": 128_000}],
         StatedLimits(window=1_000_000, output=128_000)),
        ([{"id": "other", "aliases": ["m"], "max_model_len": 5}, {"id": "x"}], StatedLimits(window=5)),
        ([{"id": "x", "max_model_len": 5}, {"id": "y"}], None),
        ([{"id": "m", "max_model_len": "soon", "meta": None, "pricing": {"prompt": "free"}}], None),
        ([], None),
    ],
)  # fmt: skip
def test_what_lists_of_models_say(entries: list[dict[str, Any]], stated: StatedLimits | None) -> None:
    found = limits_in_list(json.dumps({"data": entries}).encode(), "m")
    if found is not None and found.price is not None:
        assert stated is not None
        assert stated.price is not None
        assert found.price.input == pytest.approx(stated.price.input)
        assert found.price.cache_read == pytest.approx(stated.price.cache_read)
        assert found.price.cache_write is None
    else:
        assert found == stated
    assert (found and (found.window, found.output, found.images)) == (
        stated and (stated.window, stated.output, stated.images)
    )


def test_the_first_request_asks_and_the_limits_are_known_from_then_on() -> None:
    with ScriptedServer(listing({"id": "my-finetune", "max_model_len": 16_384}), SAID) as server:
        asked = mine(server.url)
        assert (asked.info.known, asked.info.context_window) == (False, 32_768)
        assert not server.received
        ask(asked)
        assert (asked.info.known, asked.info.context_window, asked.info.usable_window) == (True, 16_384, 12_288)
        ask(asked)
    assert [request.path for request in server.received] == ["/models", "/chat/completions", "/chat/completions"]
    assert server.received[0].headers["authorization"] == "Bearer sk-test-0123456789abcdef"
    assert [request.json["max_tokens"] for request in server.received[1:]] == [4096, 4096]


def test_anthropic_is_asked_for_one_page_of_all() -> None:
    entry = {"id": "my-finetune", "max_input_tokens": 500_000, "max_tokens": 64_000}
    with ScriptedServer(listing(entry), answer(500, b"")) as server:
        asked = mine(server.url, "anthropic")
        failure(asked)
    assert server.received[0].path == "/v1/models?limit=1000"
    assert (asked.info.context_window, asked.info.max_output) == (500_000, 64_000)


@pytest.mark.parametrize(
    "script", [answer(404, b""), answer(200, b"hello"), answer(200, b'{"data":{}}'), answer(500, b""), answer(401, b"")]
)
def test_a_server_that_does_not_tell_leaves_the_model_unknown(script: Script) -> None:
    with ScriptedServer(script, SAID) as server:
        asked = mine(server.url)
        ask(asked)
        ask(asked)
    assert not asked.info.known
    assert [request.path for request in server.received] == ["/models", "/chat/completions", "/chat/completions"]


def test_a_server_that_could_not_be_asked_is_asked_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(answer(503, b""), SAID, listing({"id": "x", "max_model_len": 16_384}), SAID) as server:
        asked = mine(server.url)
        ask(asked)
        monkeypatch.setattr(discovery, "LIMITS_AGAIN_SECONDS", 0.0)
        ask(asked)
    assert asked.info.context_window == 16_384


def test_a_server_that_hangs_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "PATIENCE", Timeouts(connect=0.2, first_byte=0.2, idle=0.2, total=0.2))

    def mute(connection: ServedConnection) -> None:
        connection.read_request()
        connection.wait_for_close()

    with ScriptedServer(mute, SAID) as server:
        asked = mine(server.url)
        ask(asked)
    assert not asked.info.known


def test_a_cancel_ends_the_asking() -> None:
    def mute(connection: ServedConnection) -> None:
        connection.read_request()
        connection.reached.set()
        connection.wait_for_close()

    with ScriptedServer(mute) as server:
        asking = RequestThread(mine(server.url))
        assert server.reached.wait(60)
        assert asking.cancelled(), asking.outcome
    assert len(server.received) == 1


@pytest.mark.parametrize(
    ("name", "settings", "operator", "asks"),
    [
        ("gpt-4o", {"discover": "unknown"}, {}, False),
        ("gpt-4o", {"discover": "always"}, {}, True),
        ("my-finetune", {"discover": "unknown"}, {}, True),
        ("my-finetune", {"discover": "never"}, {}, False),
        ("my-finetune", {"discover": "always", "context_window": 4096}, {}, False),
        ("my-finetune", {"discover": "always"}, {"my-finetune": {"window": 4096}}, False),
        ("my-finetune", {"discover": "always"}, {"my-finetune": {"images": True}}, True),
    ],
)
def test_who_is_asked(name: str, settings: dict[str, Any], operator: dict[str, Any], asks: bool) -> None:
    with ScriptedServer(*([listing()] if asks else []), SAID) as server:
        found = Catalog((provider("openai-chat", server.url, **settings),), models=operator).get(name)
        assert found is not None
        ask(found)
    assert ("/models" in [request.path for request in server.received]) is asks


def test_discovered_values_override_the_table_and_configured_ones_override_both() -> None:
    told = listing({"id": "gpt-4o", "max_model_len": 4096})
    with ScriptedServer(told, SAID, told, SAID) as server:
        for operator, window in (({}, 4096), ({"gpt-4o": {"output": 100}}, 4096)):
            found = Catalog((provider("openai-chat", server.url, discover="always"),), models=operator).get("gpt-4o")
            assert found is not None
            ask(found)
            assert found.info.context_window == window
            assert found.info.max_output == (100 if operator else 1024)


def test_a_failure_says_nothing_of_it() -> None:
    told = failure(mine("http://127.0.0.1:9"))
    assert told.failure.kind is ErrorKind.NETWORK
    assert "/models" not in told.failure.message


# --- servers whose windows are those of loaded models -----------------------------------------------------------------

OLLAMA = {"name": "qwen3:latest", "model": "qwen3:latest", "size": 5, "context_length": 40_960}
STUDIO = {"id": "qwen3", "object": "model", "type": "vlm", "state": "loaded", "max_context_length": 262_144}


def loaded(key: str, *entries: dict[str, Any]) -> Script:
    return answer(200, json.dumps({key: entries}).encode())


@pytest.mark.parametrize(
    ("preset", "path", "before", "after", "images"),
    [
        ("ollama", "/api/ps", loaded("models", OLLAMA | {"name": "embedder"}), loaded("models", OLLAMA), False),
        (
            "lmstudio",
            "/api/v0/models",
            loaded("data", STUDIO | {"state": "not-loaded"}),
            loaded("data", {"id": "other"}, STUDIO | {"loaded_context_length": 40_960}),
            True,
        ),
    ],
)
def test_the_window_of_a_loaded_model_is_known_from_the_second_request_on(
    preset: str, path: str, before: Script, after: Script, images: bool
) -> None:
    with ScriptedServer(before, SAID, after, SAID, SAID) as server:
        config = provider_from_mapping("mine", {"preset": preset, "base_url": f"{server.url}/v1"})
        asked = Catalog((config,)).get("qwen3")
        assert asked is not None
        ask(asked)
        assert not asked.info.known
        ask(asked)
        assert (asked.info.known, asked.info.context_window, asked.info.images_assumed) == (True, 40_960, not images)
        ask(asked)
    chat = "/v1/chat/completions"
    assert [request.path for request in server.received] == [path, chat, path, chat, chat]


def test_a_server_without_such_a_list_is_not_asked_again() -> None:
    with ScriptedServer(answer(404, b""), SAID, SAID) as server:
        asked = mine(server.url, discover="always", loaded_path="/api/ps")
        ask(asked)
        ask(asked)
    assert [request.path for request in server.received] == ["/api/ps", "/chat/completions", "/chat/completions"]


@pytest.mark.parametrize(
    "entry",
    [
        {"context_window": 9_000, "max_completion_tokens": 700},
        {"max_context_length": 9_000, "max_output_tokens": 700},
        {"context_length": 9_000.0, "max_output_tokens": "700"},
        {"max_model_len": 9_000, "max_output_tokens": 700},
        {"meta": {"n_ctx_train": 9_000}, "max_output_tokens": 700},
        {"meta": {"n_ctx": 9_000, "n_ctx_train": 131_072}, "max_output_tokens": 700},
        {"model_info": {"max_input_tokens": 9_000, "max_output_tokens": 700}},
        {"model_info": {"qwen3.context_length": 9_000}, "max_output_tokens": 700},
        {"limits": {"context_window": 9_000, "max_output_tokens": 700}},
        {"limits": {"max_context_length": 9_000, "max_completion_tokens": 700}},
        {"capabilities": {"limits": {"max_context_window_tokens": 9_000, "max_output_tokens": 700}}},
        {"top_provider": {"context_length": 9_000, "max_completion_tokens": 700}},
    ],
    ids=json.dumps,
)
def test_every_field_in_which_servers_state_limits_is_read(entry: dict[str, Any]) -> None:
    mine, other = {"id": "m", **entry}, {"id": "other", "context_window": 5}
    for body in ({"data": [other, mine]}, {"models": [mine, other]}, [other, mine]):
        assert limits_in_list(json.dumps(body).encode(), "m") == StatedLimits(window=9_000, output=700)
    assert limits_in_list(json.dumps([{"model_name": "m", **entry}, other]).encode(), "m") is not None


ODD: tuple[object, ...] = (
    None, 5, "a name", [], ["m"], {}, {"id": None, "meta": "?"}, {"id": "x", "meta": [], "limits": 7, "pricing": []},
    {"id": "m2", "architecture": "?", "top_provider": "?", "max_model_len": {}},
)  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_an_odd_entry_does_not_discard_the_others(odd: object) -> None:
    for entries in ([odd, {"id": "m", "context_length": 9_000}], [{"id": "m", "context_length": 9_000}, odd]):
        body = json.dumps({"object": "list", "data": entries}).encode()
        assert limits_in_list(body, "m") == StatedLimits(window=9_000)
        assert "m" in listed_in(body)


@pytest.mark.parametrize("body", [b"{}", b'{"data": 5}', b"5", b'"m"', b"<html>"])
def test_what_is_no_list_is_said_to_be_none(body: bytes) -> None:
    for read in (listed_in, lambda body: limits_in_list(body, "m")):
        with pytest.raises(msgspec.DecodeError):
            read(body)


def test_of_two_lists_in_one_answer_either_may_state_the_limits() -> None:
    """llama.cpp's has both; only one entry of each is the model, by the name of its file."""
    models, data = [{"name": "/m/x.gguf", "size": ""}], [{"id": "/m/x.gguf", "meta": {"n_ctx": 1024}}]
    for both in ({"models": models, "data": data}, {"models": data, "data": models}):
        assert limits_in_list(json.dumps(both).encode(), "m") == StatedLimits(window=1024)


def test_what_a_model_could_have_is_not_the_window_that_it_was_loaded_with() -> None:
    body = json.dumps({"data": [{"id": "m", "max_context_length": 262_144}]}).encode()
    assert limits_in_list(body, "m", loaded=True) is None


@pytest.mark.parametrize("name", [{"id": ["m"]}, {"id": {}, "name": 5}, {"name": None}])
def test_strange_names_are_those_of_others(name: dict[str, Any]) -> None:
    assert limits_in_list(json.dumps({"models": [name | {"context_length": 5}]}).encode(), "m", loaded=True) is None
