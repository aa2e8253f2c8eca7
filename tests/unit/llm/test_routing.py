"""Who serves a model that somebody names: the settings, the providers' own lists, the known families, or nobody."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from actors.adapters.llm import http_model as discovery
from actors.adapters.llm.catalog import Catalog
from actors.adapters.llm.http_model import listed_in
from actors.adapters.llm.provider import ProviderConfig, Timeouts, provider_from_mapping, providers_from_env
from actors.core.errors import ErrorKind
from actors.ports import CancelToken
from tests.support.scripted_server import ScriptedServer, answer
from tests.unit.llm.test_discovery import listing

DEAD = "http://127.0.0.1:9"
"""Nothing listens there."""


@pytest.fixture(autouse=True)
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked is asked again."""
    monkeypatch.setattr(discovery, "LIST_AGAIN_SECONDS", 0.0)


def both(anthropic: str = DEAD, openai: str = DEAD, **more: str) -> Catalog:
    """A server of one's own behind each variable."""
    env = {"ANTHROPIC_BASE_URL": anthropic, "OPENAI_BASE_URL": openai, **more}
    return Catalog(providers_from_env(env))


@contextmanager
def serving(*names: str) -> Iterator[ScriptedServer]:
    with ScriptedServer(listing(*({"id": name} for name in names))) as server:
        yield server


def accepts(catalog: Catalog, name: str) -> bool:
    """Whether a conversation may begin with it, once providers have been asked if need be."""
    if catalog.undecided(name):
        catalog.learn(name, CancelToken())
    return catalog.offers(name)


def whose(catalog: Catalog, name: str) -> str:
    assert accepts(catalog, name)
    model = catalog.get(name)
    assert model is not None
    return model.info.provider


def settings(name: str, **given: object) -> ProviderConfig:
    return provider_from_mapping(name, {"protocol": "openai-chat", "base_url": DEAD, **given})


def test_known_models_go_to_the_provider_that_speaks_their_protocol_and_no_list_is_requested() -> None:
    with serving("x") as anthropic, serving("y") as openai:
        catalog = both(anthropic.url, openai.url)
        assert whose(catalog, "claude-opus-4-5-20251101") == "anthropic"
        assert whose(catalog, "gpt-4o") == "openai"
        assert whose(catalog, "o3") == "openai"
    assert not anthropic.received
    assert not openai.received


def test_other_models_go_to_the_provider_that_lists_them() -> None:
    with serving("mine", "claude-like") as anthropic, serving("qwen3:latest", "gpt-like") as openai:
        catalog = both(anthropic.url, openai.url)
        assert [whose(catalog, name) for name in ("qwen3", "mine", "gpt-like", "claude-like")] == [
            "openai",
            "anthropic",
            "openai",
            "anthropic",
        ]
        assert {"mine", "gpt-like"} <= {info.name for info in catalog.list()}


@pytest.mark.parametrize("name", ["no-such-model", "claude-no-such-model"])
def test_a_model_that_no_provider_lists_is_refused_with_those_that_are(name: str) -> None:
    with serving("mine") as anthropic, serving("qwen3") as openai:
        catalog = both(anthropic.url, openai.url)
        assert not accepts(catalog, name)
        refusal = catalog.refusal(name)
    assert refusal.kind is ErrorKind.INVALID_REQUEST
    assert refusal.message == (f"model {name!r} is not available; available models: qwen3, mine, demo")


def learned(catalog: Catalog) -> tuple[str, list[str]]:
    """The default and the models that there are, once providers have been asked if need be."""
    if catalog.undecided(catalog.default):
        catalog.learn(catalog.default, CancelToken())
    return catalog.default, [info.name for info in catalog.list()]


def test_a_presumed_default_that_no_server_lists_is_not_offered() -> None:
    with serving("mine", "yours") as anthropic, serving("qwen3", "llama") as openai:
        catalog = both(anthropic.url, openai.url)
        assert catalog.default == "claude-sonnet-5-5", "before anything is known"
        assert learned(catalog) == ("", ["mine", "yours", "qwen3", "llama", "demo"])
        assert not accepts(catalog, "claude-sonnet-5-5")
        assert not accepts(catalog, "default")
        assert not catalog.offers("")
        assert catalog.refusal("").message == (
            "no default model is configured; choose a model, or set ANTHROPIC_MODEL or OPENAI_MODEL for the server; "
            "available models: mine, yours, qwen3, llama, demo"
        )


@pytest.mark.parametrize(
    ("anthropic", "openai", "default"),
    [
        (["claude-sonnet-5-5", "b"], ["c", "d"], "claude-sonnet-5-5"),
        (["a", "b"], ["default", "d"], "default"),
        (["a", "b"], ["the-only-one"], "the-only-one"),
    ],
)
def test_a_presumed_default_is_the_first_that_its_server_has(
    anthropic: list[str], openai: list[str], default: str
) -> None:
    with serving(*anthropic) as first, serving(*openai) as second:
        catalog = both(first.url, second.url)
        assert learned(catalog)[0] == default
        assert accepts(catalog, default)
        assert not catalog.undecided(default), "it is not asked about again"


@pytest.mark.parametrize(
    ("loaded", "default"),
    [
        ({"models": [{"name": "qwen3:8b", "context_length": 4096}]}, "qwen3:8b"),
        ({"models": [{"name": "qwen3:8b"}, {"name": "llama3:latest"}]}, ""),
        ({"models": []}, ""),
        ({"error": "not found"}, ""),
    ],
)
def test_of_several_models_the_only_one_in_memory_is_the_default(loaded: dict[str, Any], default: str) -> None:
    """As Ollama lists them, at an address beside that of the protocol."""
    with ScriptedServer(
        listing({"id": "llama3:latest"}, {"id": "qwen3:8b"}), answer(200, json.dumps(loaded).encode())
    ) as server:
        catalog = Catalog(providers_from_env({"OPENAI_BASE_URL": f"{server.url}/v1"}))
        assert learned(catalog)[0] == default
    assert [each.path for each in server.received] == ["/v1/models", "/api/ps"]


def test_a_presumed_default_counts_where_no_list_can_be_had_and_is_not_asked_about_again() -> None:
    with ScriptedServer(answer(404, b"{}")) as server:
        catalog = both(server.url)
        assert learned(catalog)[0] == "claude-sonnet-5-5"
        assert whose(catalog, "claude-sonnet-5-5") == "anthropic"
    assert len(server.received) == 1


def test_a_configured_default_needs_no_request() -> None:
    with serving("mine") as anthropic, serving("qwen3") as openai:
        named = both(anthropic.url, openai.url, ANTHROPIC_MODEL="claude-x")
        assert learned(named)[0] == "claude-x"
        chosen = Catalog(
            providers_from_env({"ANTHROPIC_BASE_URL": anthropic.url, "OPENAI_BASE_URL": openai.url}), default="o3"
        )
        assert learned(chosen)[0] == "o3"
    assert not anthropic.received
    assert not openai.received


def test_one_provider_of_ones_own_does_not_take_any_name_either() -> None:
    with serving("qwen3") as server:
        catalog = Catalog(providers_from_env({"OPENAI_BASE_URL": server.url}))
        assert accepts(catalog, "qwen3")
        assert not accepts(catalog, "no-such-model")


def test_what_settings_name_is_served_whatever_the_server_lists_and_is_not_asked_about() -> None:
    with serving("qwen3") as server:
        catalog = Catalog(providers_from_env({"OPENAI_BASE_URL": server.url, "OPENAI_MODEL": "mine"}), default="chosen")
        for name in ("mine", "chosen"):
            assert not catalog.undecided(name)
            assert whose(catalog, name) == "openai"
    assert not server.received
    named = settings("named", models=["a", "b-*"], small_model="tiny")
    assert [Catalog([named]).offers(name) for name in ("a", "b-2", "tiny", "c")] == [True, True, True, False]


def test_settings_may_say_that_every_name_is_served() -> None:
    catalog = Catalog([settings("any", models=["*"]), *providers_from_env({"ANTHROPIC_API_KEY": "k"})])
    assert whose(catalog, "whatever") == "any"
    assert whose(catalog, "claude-opus-5") == "anthropic"
    with serving("qwen3") as server:
        catalog = Catalog([settings("any", models=["*"]), settings("lists", base_url=server.url)])
        assert whose(catalog, "qwen3") == "lists"
        assert whose(catalog, "whatever") == "any"


@pytest.mark.parametrize("status", [404, 500])
def test_where_no_list_can_be_had_only_what_is_known_is_served_and_the_refusal_says_why(status: int) -> None:
    with ScriptedServer(answer(status, b"{}")) as openai:
        catalog = both(DEAD, openai.url)
        assert whose(catalog, "claude-newer-than-this-program") == "anthropic"
        assert whose(catalog, "gpt-77") == "openai"
        assert whose(catalog, "default") == "openai"
        assert not accepts(catalog, "qwen3")
    message = catalog.refusal("qwen3").message
    assert "cannot list the models of provider anthropic (cannot connect to 127.0.0.1:9" in message
    assert f"cannot list the models of provider openai (HTTP {status})" in message
    assert message.endswith("if it serves this model, add the name to its `models` setting")
    assert catalog.refusal("qwen3").retryable


@pytest.mark.parametrize("body", [b"nonsense", b'{"data": 7}', b'{"data": [{"id": {}}]}', b"[" * 100_000])
def test_a_list_that_cannot_be_understood_says_nothing(body: bytes) -> None:
    with ScriptedServer(answer(200, body)) as server:
        assert not accepts(Catalog([settings("odd", base_url=server.url)]), "qwen3")


def test_a_conversation_keeps_its_model_over_a_restart_of_either_side() -> None:
    """What was accepted once is found without asking where only one provider can have served it."""
    catalog = Catalog(providers_from_env({"ANTHROPIC_API_KEY": "k", "OPENAI_BASE_URL": DEAD}))
    model = catalog.get("qwen3")
    assert model is not None
    assert model.info.provider == "openai"
    assert both().get("qwen3") is None, "it may be either's"
    with serving("mine") as anthropic, serving("qwen3") as openai:
        catalog = both(anthropic.url, openai.url)
        assert catalog.get("qwen3") is None
        catalog.learn("qwen3", CancelToken())
        found = catalog.get("qwen3")
        assert found is not None
        assert found.info.provider == "openai"


def test_a_model_that_comes_later_is_found_and_a_server_that_goes_keeps_its_list() -> None:
    with ScriptedServer(listing({"id": "a"}), listing({"id": "a"}, {"id": "b"}), answer(503, b"")) as server:
        catalog = Catalog([settings("growing", base_url=server.url)])
        assert not accepts(catalog, "b")
        assert accepts(catalog, "b")
        assert not accepts(catalog, "c")
        assert accepts(catalog, "b")


def test_many_who_ask_at_once_ask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "LIST_AGAIN_SECONDS", 3600.0)
    with serving("qwen3") as server:
        catalog = Catalog([settings("one", base_url=server.url)])
        askers = [threading.Thread(target=catalog.learn, args=(f"m{n}", CancelToken())) for n in range(10)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        assert len(server.received) == 1
        assert not catalog.undecided("no-such-model"), "it was asked just now"


def test_a_silent_server_is_waited_for_as_long_as_is_said_or_until_a_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(lambda connection: connection.wait_for_close()) as server:
        monkeypatch.setattr(discovery, "LIST_TIMEOUTS", Timeouts(connect=5, first_byte=0.2, idle=0.2))
        catalog = Catalog([settings("silent", base_url=server.url)])
        assert not accepts(catalog, "qwen3")
        assert "the server did not respond within 0.2 s" in catalog.refusal("qwen3").message
        monkeypatch.setattr(discovery, "LIST_TIMEOUTS", Timeouts())
        cancel = CancelToken()
        asker = threading.Thread(target=catalog.learn, args=("qwen3", cancel))
        asker.start()
        cancel.cancel()
        asker.join(10)
        assert not asker.is_alive()


def test_a_provider_that_is_never_to_be_asked_is_not() -> None:
    with serving("qwen3") as server:
        catalog = Catalog([settings("shy", base_url=server.url, discover="never")])
        assert not accepts(catalog, "qwen3")
        assert 'discover is set to "never"' in catalog.refusal("qwen3").message
    assert not server.received


def test_a_long_list_is_shortened_and_the_closest_matches_come_first() -> None:
    with serving(*(f"vendor/model-{n}" for n in range(400)), "qwen/qwen3-coder") as server:
        catalog = Catalog([settings("large", base_url=server.url)])
        assert not accepts(catalog, "qwen3-coder")
        message = catalog.refusal("qwen3-coder").message
    assert "available models: qwen/qwen3-coder, " in message
    assert message.endswith("and 382 more")
    assert len(message) < 1000


def test_lists_are_read_as_servers_write_them() -> None:
    both_forms = b'{"models": [{"name": "n", "model": "n"}], "data": [{"id": "d", "aliases": ["e", 7]}, {"id": null}]}'
    assert listed_in(both_forms) == ("d", "e", "n")
    assert listed_in(b'{"data": [{"id": "evil\\u001b[31m"}, {"id": " "}, {"id": "ok"}, {"id": "ok"}]}') == ("ok",)
