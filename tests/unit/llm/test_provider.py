"""Provider settings: from the environment, from plain data, and never showing a secret."""

import copy
import pickle
from typing import Any

import pytest

from actors.adapters.llm.provider import (
    ProviderConfig,
    Secret,
    Timeouts,
    presets,
    provider_from_mapping,
    providers_from_env,
)

MINIMAL = {"protocol": "openai-chat", "base_url": "http://127.0.0.1:8080/v1"}


def test_a_secret_is_never_shown() -> None:
    secret = Secret("hunter22")
    assert "hunter22" not in f"{secret!r} {secret} {[secret]}"
    assert secret.reveal() == "hunter22"
    assert bool(secret)
    assert not Secret()
    assert secret == Secret("hunter22") != Secret("other")
    for serialise in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError):
            serialise(secret)


def test_the_repr_of_a_provider_holds_no_secret() -> None:
    config = provider_from_mapping(
        "p", {**MINIMAL, "api_key": "hunter22", "proxy": "http://u:hunter22@h:1", "headers": {"x-team": "hunter22"}}
    )
    assert "hunter22" not in repr(config)
    assert config.secrets == ("hunter22", "http://u:hunter22@h:1", "hunter22")


def test_no_environment_no_provider() -> None:
    assert providers_from_env({"PATH": "/bin", "ANTHROPIC_API_KEY": ""}) == ()


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (
            {"ANTHROPIC_API_KEY": "k"},
            {
                "base_url": "https://api.anthropic.com",
                "auth": "",
                "models": ("claude-*",),
                "key_source": "ANTHROPIC_API_KEY",
            },
        ),
        ({"ANTHROPIC_AUTH_TOKEN": "k"}, {"auth": "bearer", "key_source": "ANTHROPIC_AUTH_TOKEN"}),
        ({"ANTHROPIC_API_KEY": "k", "ANTHROPIC_AUTH_TOKEN": "t"}, {"auth": "", "api_key": Secret("k")}),
        (
            {"ANTHROPIC_BASE_URL": "http://127.0.0.1:1", "ANTHROPIC_MODEL": "m"},
            {"base_url": "http://127.0.0.1:1", "models": (), "default_model": "m", "api_key": Secret()},
        ),
        (
            {"OPENAI_API_KEY": "k"},
            {"protocol": "openai-responses", "base_url": "https://api.openai.com/v1", "default_model": "gpt-6.1-sol"},
        ),
        (
            {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"},
            {
                "protocol": "openai-chat",
                "models": (),
                "default_model": "default",
                "max_tokens_field": "max_tokens",
            },
        ),
    ],
)
def test_providers_of_the_environment(env: dict[str, str], expected: dict[str, Any]) -> None:
    (provider,) = providers_from_env(env)
    assert {key: getattr(provider, key) for key in expected} == expected


def test_anthropic_comes_first() -> None:
    both = providers_from_env({"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"})
    assert [provider.name for provider in both] == ["anthropic", "openai"]


def test_all_settings_can_be_given_as_plain_data() -> None:
    config = provider_from_mapping(
        "local",
        {
            **MINIMAL, "api_key": "k", "models": ["a", "b*"], "default_model": "a", "context_window": 8192,
            "timeouts": {"connect": 1, "idle": 2.5}, "headers": {"X-Team": "blue"}, "max_output": 512,
        },
    )  # fmt: skip
    assert config == ProviderConfig(
        name="local", protocol="openai-chat", base_url="http://127.0.0.1:8080/v1", api_key=Secret("k"),
        models=("a", "b*"), default_model="a", context_window=8192, max_output=512,
        timeouts=Timeouts(connect=1, idle=2.5), headers={"X-Team": Secret("blue")},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"protocol": "gopher"}, "protocol"),
        ({"protocol": 7}, "protocol"),
        ({"base_url": "ftp://host"}, "base_url"),
        ({"base_url": "host:80"}, "base_url"),
        ({"base_url": "http://"}, "base_url"),
        ({"base_url": "http://host:99999"}, "base_url"),
        ({"base_url": "http://user:hunter22@host"}, "base_url"),
        ({"base_url": "http://host/v1?key=hunter22"}, "base_url"),
        ({"proxy": "socks5://hunter22"}, "proxy"),
        ({"api_key": 5}, "api_key"),
        ({"headers": {"x": 1}}, "headers"),
        ({"models": "hunter22"}, "models"),
        ({"timeouts": {"idle": -1}}, r"timeouts\.idle"),
        ({"timeouts": {"ilde": 1}}, r"timeouts\.ilde"),
        ({"name": "other"}, "name"),
        ({"colour": "hunter22"}, "colour"),
        ({"preset": "hunter22"}, "preset"),
        ({"preset": 5}, "preset"),
        ({"auth": "two words"}, "auth"),
        ({"extra_body": {"stream": False}}, "extra_body"),
        ({"extra_body": {"messages": []}}, "extra_body"),
        ({"discover": "maybe"}, "discover"),
        ({"echo_reasoning": "maybe"}, "echo_reasoning"),
        ({"profile": "tiny"}, "profile"),
        ({"api_key_env": "NOT_SET_HERE"}, "api_key_env"),
        ({"api_key_command": "a text"}, "api_key_command"),
        ({"api_key_command": [""]}, "api_key_command"),
        ({"api_key": "hunter22", "api_key_command": ["a"]}, "api_key_command"),
        ({"api_key": "hunter22", "api_key_env": "A"}, "api_key_env"),
        ({"context_window": -1}, "context_window"),
        ({"max_output": -1}, "max_output"),
    ],
)
def test_a_wrong_setting_is_named_and_not_quoted(change: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=rf"^providers\.p\.{key}: ") as error:
        provider_from_mapping("p", {**MINIMAL, **change})
    assert "hunter22" not in str(error.value)


def test_an_unknown_setting_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        ValueError, match=r"^providers\.p\.base_ulr: unknown; did you mean 'base_url'\? There are: preset, "
    ):
        provider_from_mapping("p", {**MINIMAL, "base_ulr": "x"})


@pytest.mark.parametrize("missing", MINIMAL)
def test_a_missing_setting_is_named(missing: str) -> None:
    with pytest.raises(ValueError, match=rf"providers\.p\.{missing}: needed; must be "):
        provider_from_mapping("p", {key: value for key, value in MINIMAL.items() if key != missing})


def test_a_key_may_come_from_the_environment() -> None:
    config = provider_from_mapping("p", {**MINIMAL, "api_key_env": "MY_KEY"}, {"MY_KEY": "hunter22"})
    assert config.api_key == Secret("hunter22")
    assert config.advice == "MY_KEY"
    commanded = provider_from_mapping("p", {**MINIMAL, "api_key_command": ["a"]})
    assert commanded.advice == "the api_key_command of provider p"
    assert provider_from_mapping("p", MINIMAL).advice == "the api_key of provider p"


@pytest.mark.parametrize("preset", presets())
def test_every_preset_can_be_used_as_it_is(preset: str) -> None:
    settings = presets()[preset]
    environ = {settings["api_key_env"]: "k"} if "api_key_env" in settings else {}
    config = provider_from_mapping("p", {"preset": preset}, environ)
    assert (config.preset, config.api_key) == (preset, Secret("k") if environ else Secret())


def test_a_preset_gives_what_is_not_given() -> None:
    environ = {"OPENAI_API_KEY": "from-the-environment"}
    config = provider_from_mapping("p", {"preset": "openai", "protocol": "openai-chat", "max_output": 9}, environ)
    assert (config.protocol, config.max_output, config.cache_key) == ("openai-chat", 9, True)
    assert config.api_key == Secret("from-the-environment")
    own = provider_from_mapping("p", {"preset": "openai", "api_key": "mine"}, environ)
    assert (own.api_key, own.api_key_env) == (Secret("mine"), "")


def test_credentials_go_where_the_protocol_wants_them() -> None:
    settings = {"base_url": "http://h", "api_key": "k", "headers": {"X-Team": "blue"}}
    anthropic = provider_from_mapping("p", {**settings, "protocol": "anthropic"}).request_headers()
    assert anthropic["x-api-key"] == "k"
    assert "authorization" not in anthropic
    assert anthropic["anthropic-version"] == "2026-10-21"
    token = provider_from_mapping("p", {**settings, "protocol": "anthropic", "auth": "bearer"}).request_headers()
    assert token["authorization"] == "Bearer k"
    assert "x-api-key" not in token
    settings_of_azure = {**settings, "protocol": "openai-responses", "auth": "Api-Key"}
    azure = provider_from_mapping("p", settings_of_azure).request_headers()
    assert azure["api-key"] == "k"
    assert "authorization" not in azure
    openai = provider_from_mapping("p", {**settings, "protocol": "openai-chat"}).request_headers()
    assert openai["authorization"] == "Bearer k"
    assert openai["x-team"] == "blue"
    keyless = provider_from_mapping("p", MINIMAL).request_headers()
    assert not {"authorization", "x-api-key"} & keyless.keys()


@pytest.mark.parametrize("variable", ["OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"])
@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("not-a-url", "must be an http or https URL with a host"),
        ("http://me:secret@host", "must not contain credentials; use api_key"),
    ],
)
def test_a_wrong_url_in_the_environment_is_reported_by_its_variable(variable: str, url: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"^{variable}: {why}$"):
        providers_from_env({variable: url})


@pytest.mark.parametrize("key", ["hunter22\n", "hunter 22", " hunter22", "\N{LEFT DOUBLE QUOTATION MARK}hunter22"])
def test_a_key_that_cannot_be_one_is_refused_by_the_name_of_its_variable(key: str) -> None:
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        with pytest.raises(ValueError, match=f"^{variable}: has blanks, line ends or characters that are not ASCII$"):
            providers_from_env({variable: key})
    with pytest.raises(ValueError, match=r"^providers\.p\.api_key_env: MY_KEY has blanks"):
        provider_from_mapping("p", {**MINIMAL, "api_key_env": "MY_KEY"}, {"MY_KEY": key})
    with pytest.raises(ValueError, match=r"^providers\.p\.api_key: has blanks"):
        provider_from_mapping("p", {**MINIMAL, "api_key": key})


def test_a_header_with_a_line_end_is_named_and_not_quoted() -> None:
    with pytest.raises(ValueError, match=r"^providers\.p\.headers\.X-Team: has a line end or NUL$"):
        provider_from_mapping("p", {**MINIMAL, "headers": {"X-Team": "blue\n"}})
