"""Models: what is known of each, and what it costs."""

import re
import tomllib
from datetime import date
from importlib.metadata import version

import pytest

from actors.adapters.llm.catalog import Catalog
from actors.adapters.llm.provider import (
    Price,
    ProviderConfig,
    assumed_limits,
    known_limits,
    limits_of,
    provider_from_mapping,
    providers_from_env,
)
from actors.core.content import Usage
from actors.ports import ModelCatalog, ModelInfo
from tests.generate.model_prices import CATALOG, ROW, STATED, refreshed

ENV = providers_from_env({"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "b"})


def info(catalog: ModelCatalog, name: str) -> ModelInfo:
    model = catalog.get(name)
    assert model is not None
    return model.info


def local(**settings: object) -> ProviderConfig:
    return provider_from_mapping("local", {"protocol": "openai-chat", "base_url": "http://127.0.0.1:1/v1", **settings})


def test_without_providers_the_demo_is_the_default_and_all_there_is() -> None:
    catalog = Catalog()
    assert catalog.default == "demo"
    assert [model.name for model in catalog.list()] == ["demo"]
    assert catalog.get("claude-sonnet-5-5") is None
    assert catalog.get("") is None


def test_the_first_provider_gives_the_default_and_the_demo_is_always_served() -> None:
    catalog = Catalog(ENV)
    assert catalog.default == "claude-sonnet-5-5"
    names = [model.name for model in catalog.list()]
    assert names[0] == "claude-sonnet-5-5"
    assert names[-1] == "demo"
    assert {"gpt-5.2", "gpt-6.1-sol"} <= set(names)
    assert len(set(names)) == len(names)
    assert Catalog(ENV, default="gpt-5").default == "gpt-5"


def test_models_are_lean_where_their_provider_says_so() -> None:
    assert info(Catalog([local(default_model="tiny", profile="lean")]), "tiny").lean
    assert not info(Catalog([local(default_model="tiny")]), "tiny").lean
    assert not info(Catalog([local(default_model="tiny", profile="lean")]), "demo").lean


def test_a_model_without_a_provider_is_refused_and_never_replaced() -> None:
    catalog = Catalog(ENV)
    assert catalog.get("llama-9") is None
    assert catalog.get("demo-2") is None
    with pytest.raises(ValueError, match="llama-9"):
        Catalog(ENV, default="llama-9")


def test_two_providers_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="same name"):
        Catalog((local(), local()))


def test_the_closest_setting_decides_who_serves_a_name() -> None:
    catalog = Catalog((*ENV, local(models=["*", "claude-sonnet-4-5"], default_model="mine")))
    assert info(catalog, "claude-opus-5").provider == "anthropic"
    assert info(catalog, "gpt-5").provider == "openai"
    assert info(catalog, "claude-sonnet-4-5").provider == "local"
    assert info(catalog, "mine").provider == "local"
    assert info(catalog, "anything").provider == "local"
    assert info(catalog, "claude-opus-5").protocol == "anthropic"


@pytest.mark.parametrize("name", ["", " ", "evil\x1b[31m", "two\nlines", "nul\0", "turned\u202e"])
def test_what_cannot_be_printed_is_no_name_even_where_every_name_is_served(name: str) -> None:
    assert Catalog((local(models=["*"], default_model="mine"),)).get(name) is None


def test_listed_are_the_names_that_settings_spell_out() -> None:
    names = [model.name for model in Catalog((local(models=["a", "b", "*"], default_model="c"),)).list()]
    assert names == ["c", "a", "b", "demo"]


@pytest.mark.parametrize(
    ("name", "window", "usable"),
    [
        ("claude-sonnet-5-5", 1_000_000, 968_000),
        ("claude-opus-4-5-20251101", 200_000, 168_000),
        ("gpt-5", 400_000, 272_000),
        ("gpt-5-2025-08-07", 400_000, 272_000),
        ("gpt-6.1-sol", 1_050_000, 922_000),
        ("gpt-4o-mini", 128_000, 111_616),
        ("anthropic/Claude-Haiku-4-5", 200_000, 168_000),
    ],
)
def test_known_windows(name: str, window: int, usable: int) -> None:
    served = info(Catalog((local(),)), name)
    assert (served.context_window, served.usable_window, served.known) == (window, usable, True)


@pytest.mark.parametrize("protocol", ["openai-chat", "openai-responses"])
def test_an_unknown_model_of_a_server_that_speaks_openais_protocols_gets_32768(protocol: str) -> None:
    served = info(Catalog((local(protocol=protocol),)), "my-finetune:latest")
    assert not served.known
    assert (served.context_window, served.usable_window) == (32_768, 24_576)


def test_an_unknown_model_of_another_server_gets_the_smallest_known_window() -> None:
    served = info(Catalog((local(protocol="anthropic"),)), "my-finetune:latest")
    assert not served.known
    assert served.context_window == min(row.window for row in known_limits().values()) == 8192


def test_a_prefix_ends_where_a_word_ends() -> None:
    assert limits_of("gpt-5.2-pro") is known_limits()["gpt-5.2"]
    assert limits_of("gpt-5.21") is known_limits()["gpt-5"]
    assert limits_of("gpt-50") is None
    assert limits_of("claude-opus-4-80") is None


def test_settings_override_the_table() -> None:
    served = info(Catalog((local(context_window=32_768, max_output=4_096),)), "my-finetune")
    assert (served.context_window, served.max_output, served.usable_window, served.known) == (
        32_768,
        4_096,
        28_672,
        True,
    )
    small = info(Catalog((local(context_window=4_096),)), "gpt-5")
    assert (small.context_window, small.usable_window) == (4_096, 3_072)


@pytest.mark.parametrize("prefix", known_limits())
def test_every_row_leaves_room_for_a_conversation(prefix: str) -> None:
    row = known_limits()[prefix]
    assert row.window // 2 <= row.usable_window < row.window
    assert row.usable_window + row.reserved_output <= row.window
    assert prefix == prefix.lower()
    assert limits_of(prefix) is row
    assert not row.protocol or row.name


def test_what_an_operator_says_about_a_model_goes_before_everything() -> None:
    operator = {
        "my-finetune": {
            "window": 40_000,
            "output": 4_000,
            "images": True,
            "name": "Mine",
            "price": {"input": 1, "output": 2},
        },
        "gpt-5": {"input": 100_000},
        "vendor/gpt-5": {"window": 50_000},
    }
    catalog = Catalog((local(context_window=16_384, max_output=512),), models=operator)
    mine = info(catalog, "My-Finetune:latest")
    assert (mine.context_window, mine.max_output, mine.usable_window) == (40_000, 4_000, 36_000)
    assert (mine.known, mine.images, mine.display_name) == (True, True, "Mine")
    assert info(catalog, "gpt-5").usable_window == min(100_000, 16_384 - 512)
    assert info(catalog, "vendor/gpt-5-x").context_window == 50_000
    assert info(catalog, "gpt-4o").context_window == 16_384
    assert info(Catalog((local(),), models=operator), "gpt-5").usable_window == 100_000


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (5, ": must be a table"),
        ({"window": "big"}, ".window: must be a whole number of tokens, at least 1"),
        ({"window": 0}, ".window: must be a whole number of tokens, at least 1"),
        ({"colour": 1}, ".colour: unknown; known keys: window, output, "),
        ({"price": {"input": 1}}, ".price.output: required"),
        ({"output": -1}, ".output: must be a whole number of tokens, at least 1"),
        ({"price": 5}, ".price: must be a table"),
    ],
)
def test_what_cannot_be_said_about_a_model_is_named(table: object, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f'models."mine"{said}')):
        Catalog((local(),), models={"mine": table})


def test_what_is_given_leaves_room_for_a_conversation() -> None:
    for said in ({"window": 1}, {"window": 3}, {"window": 4096, "output": 9999}, {"output": 10**9}):
        served = info(Catalog((local(),), models={"mine": said}), "mine")
        assert 0 <= served.usable_window <= served.context_window
        assert served.max_output >= 1


def test_a_long_prompt_costs_more() -> None:
    row = limits_of("gpt-6.1-sol")
    assert row is not None
    assert row.cost_micros(Usage(272_000, 10)) == 2 * 272_000 + 100
    assert row.cost_micros(Usage(200_000, 10, 72_001)) == round(2 * (2 * 200_000 + 0.1 * 72_001) + 1.5 * 100)


def test_cache_tokens_without_a_price_of_their_own_cost_as_input() -> None:
    assert Price(2, 3).micros(Usage(1, 1, 10, 100)) == 2 + 3 + 20 + 200


def test_costs_are_in_micro_dollars() -> None:
    row = limits_of("claude-sonnet-5-5")
    assert row is not None
    assert row.cost_micros(Usage(1_000_000, 100_000, 2_000_000, 1_000)) == 2_000_000 + 1_000_000 + 200_000 + 2_500
    assert assumed_limits("openai-chat").cost_micros(Usage(1000, 1000)) == 0


# --- small models -----------------------------------------------------------------------------------------------------


def small(catalog: Catalog, name: str) -> tuple[str, str] | None:
    """The small model beside conversations with a model, and whose it is."""
    found = catalog.small(name)
    return (found.info.name, found.info.provider) if found else None


def test_the_small_model_is_that_of_the_provider_that_is_talked_to_anyhow() -> None:
    catalog = Catalog((*ENV, local(default_model="mine", small_model="tiny"), local_named("other")))
    assert small(catalog, "claude-opus-5-5") == ("claude-haiku-5-5", "anthropic")
    assert small(catalog, "gpt-6.1-sol") == ("gpt-6-luna", "openai")
    assert small(catalog, "mine") == ("tiny", "local")
    assert small(catalog, "demo") == ("demo", "demo")
    assert info(catalog, "tiny").provider == "local"
    assert "tiny" in {model.name for model in catalog.list()}


def local_named(name: str) -> ProviderConfig:
    settings = {"protocol": "openai-chat", "base_url": "http://127.0.0.1:2/v1", "models": ["tiny", "theirs"]}
    return provider_from_mapping(name, settings)


def test_no_other_provider_gets_the_key_even_if_its_name_matches_too() -> None:
    catalog = Catalog((local_named("first"), local(models=["mine"], small_model="tiny")))
    assert info(catalog, "tiny").provider == "first"
    assert small(catalog, "mine") == ("tiny", "local")
    assert small(catalog, "theirs") is None


def test_servers_of_ones_own_have_none_unless_they_say_so() -> None:
    elsewhere = {"ANTHROPIC_API_KEY": "a", "ANTHROPIC_BASE_URL": "http://127.0.0.1:1", "ANTHROPIC_MODEL": "m"}
    assert small(Catalog(providers_from_env(elsewhere)), "m") is None
    assert small(Catalog(providers_from_env({"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"})), "default") is None
    assert small(Catalog((local(),)), "anything") is None
    for preset in ("llama.cpp", "vllm", "ollama", "lmstudio", "openrouter"):
        settings = {"preset": preset, "api_key": "k"}
        assert small(Catalog((provider_from_mapping("p", settings),)), "anything") is None
    there = {"preset": "anthropic", "api_key": "k", "base_url": "http://127.0.0.1:1", "small_model": "claude-haiku-4-5"}
    assert small(Catalog((provider_from_mapping("p", there),)), "claude-opus-5") == ("claude-haiku-4-5", "p")


@pytest.mark.parametrize("none", ["", "none"])
def test_a_provider_can_be_kept_from_it(none: str) -> None:
    provider = provider_from_mapping("p", {"preset": "anthropic", "api_key": "k", "small_model": none})
    assert small(Catalog((provider,)), "claude-opus-5") is None


def test_one_setting_goes_before_all_providers() -> None:
    assert small(Catalog(ENV, small="gpt-5-mini"), "claude-opus-5") == ("gpt-5-mini", "openai")
    assert small(Catalog(ENV, small="demo"), "claude-opus-5") == ("demo", "demo")
    off = Catalog(ENV, small="none")
    assert (small(off, "claude-opus-5"), small(off, "demo")) == (None, None)
    with pytest.raises(ValueError, match="small_model: no provider serves llama-9"):
        Catalog(ENV, small="llama-9")


def test_a_model_without_a_provider_has_no_small_one() -> None:
    assert small(Catalog(ENV), "llama-9") is None


TEXT = CATALOG.read_text(encoding="utf-8")


def test_the_file_is_what_make_model_prices_writes() -> None:
    stated = STATED.search(TEXT)
    assert stated is not None
    assert stated["version"] == version("genai-prices"), "if this is meant: make model-prices"
    assert refreshed(TEXT, date.fromisoformat(stated["day"])) == TEXT, "if this is meant: make model-prices"


def test_what_is_written_by_hand_survives() -> None:
    spoilt = re.sub(r"price = \{.*\} \}", "price = { input = 1 } }", TEXT)
    spoilt = re.sub(r"window = [\d_]+(?=.*price)", "window = 1", spoilt)
    day = date.fromisoformat(STATED.findall(TEXT)[0][1])
    rows = [row for row in map(ROW.fullmatch, refreshed(spoilt, day).split("\n")) if row and row["window"] != "1"]
    known = {row["name"] for row in rows}
    assert {"claude-sonnet-5-5", "gpt-6.1-sol", "gpt-5.4"} <= known
    before, after = (tomllib.loads(text)["models"] for text in (TEXT, refreshed(spoilt, day)))
    assert {name: after[name] for name in known} == {name: before[name] for name in known}
    assert after["gpt-5.4"]["input"] == 922_000


def test_the_price_is_that_of_the_day() -> None:
    before, after = (tomllib.loads(refreshed(TEXT, date(2026, month, 1)))["models"]["gpt-5.6"] for month in (8, 9))
    assert (before["price"]["input"], after["price"]["input"]) == (5, 4)
    assert before["price"]["long"] == after["price"]["long"] == {"from": 272_000, "input": 2, "output": 1.5}
