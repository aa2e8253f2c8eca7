"""Providers: their settings, and what their refusals mean."""

import copy
import email.utils
import json
import pickle
import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.adapters.llm import provider_errors
from actors.adapters.llm.provider import (
    ProviderConfig,
    Secret,
    Timeouts,
    presets,
    provider_from_mapping,
    providers_from_env,
)
from actors.core.errors import RETRYABLE, ErrorKind
from actors.ports import ModelFailedError
from tests.support.model_requests import KEY, provider

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
            {"protocol": "openai-chat", "models": (), "default_model": "default", "max_tokens_field": "max_tokens"},
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
        ValueError, match=r"^providers\.p\.base_ulr: unknown; did you mean 'base_url'\? Known keys: preset, "
    ):
        provider_from_mapping("p", {**MINIMAL, "base_ulr": "x"})


@pytest.mark.parametrize("missing", MINIMAL)
def test_a_missing_setting_is_named(missing: str) -> None:
    with pytest.raises(ValueError, match=rf"providers\.p\.{missing}: required; must be "):
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
        with pytest.raises(ValueError, match=f"^{variable}: contains whitespace or non-ASCII characters$"):
            providers_from_env({variable: key})
    with pytest.raises(ValueError, match=r"^providers\.p\.api_key_env: MY_KEY contains whitespace"):
        provider_from_mapping("p", {**MINIMAL, "api_key_env": "MY_KEY"}, {"MY_KEY": key})
    with pytest.raises(ValueError, match=r"^providers\.p\.api_key: contains whitespace"):
        provider_from_mapping("p", {**MINIMAL, "api_key": key})


def test_a_header_with_a_line_end_is_named_and_not_quoted() -> None:
    with pytest.raises(ValueError, match=r"^providers\.p\.headers\.X-Team: contains a line break or NUL$"):
        provider_from_mapping("p", {**MINIMAL, "headers": {"X-Team": "blue\n"}})


# --- What a provider's refusal means, and that it tells no secret ---


NOW = 1_800_000_000.0
PROVIDER = provider("anthropic", "https://models.example", key_source="ANTHROPIC_API_KEY")


def refused(status: int, error: Any = None, headers: dict[str, str] | None = None) -> ModelFailedError:
    body = json.dumps({"type": "error", "error": error or {}}).encode()
    return provider_errors.response_error(PROVIDER, status, headers or {}, body, NOW)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, ErrorKind.INVALID_REQUEST),
        (401, ErrorKind.AUTH),
        (402, ErrorKind.INVALID_REQUEST),
        (403, ErrorKind.AUTH),
        (404, ErrorKind.INVALID_REQUEST),
        (405, ErrorKind.INVALID_REQUEST),
        (408, ErrorKind.SERVER_ERROR),
        (409, ErrorKind.SERVER_ERROR),
        (413, ErrorKind.INVALID_REQUEST),
        (422, ErrorKind.INVALID_REQUEST),
        (425, ErrorKind.SERVER_ERROR),
        (429, ErrorKind.RATE_LIMIT),
        (500, ErrorKind.SERVER_ERROR),
        (503, ErrorKind.SERVER_ERROR),
        (529, ErrorKind.SERVER_ERROR),
        (302, ErrorKind.INVALID_REQUEST),
        (999, ErrorKind.SERVER_ERROR),
    ],
)
def test_kind_of_a_status(status: int, kind: ErrorKind) -> None:
    assert refused(status).failure.kind is kind


@settings(deadline=None)
@given(st.integers(100, 999), st.sampled_from(["", "x", "overloaded_error", "invalid_request_error"]))
def test_every_status_has_a_kind_and_3xx_and_4xx_are_final(status: int, name: str) -> None:
    failure = refused(status, {"type": name, "message": "?"}).failure
    again = not 300 <= status < 500 or status in {408, 409, 425, 429}
    assert (failure.kind in RETRYABLE) is again
    assert failure.message


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (429, {"type": "insufficient_quota", "code": "insufficient_quota", "message": "You exceeded your quota"}),
        (429, {"code": "credit_balance_exhausted"}),
        (429, {"code": "project_spend_limit_exceeded"}),
        (429, {"type": "rate_limit_error", "details": {"error_code": "enforced_spend_limit_reached"}}),
        (400, {"type": "invalid_request_error", "message": "Your credit balance is too low to access the API"}),
        (402, {"type": "billing_error", "message": "Payment required"}),
        (403, {"type": "billing_error"}),
        (429, {"type": "exceeded_current_quota_error", "message": "Your account is suspended: insufficient balance"}),
        (402, {"code": 402, "message": "This request requires more credits, or fewer max_tokens."}),
        (429, {"type": "usage_limit_reached", "message": "The usage limit has been reached"}),
        (400, {"type": "invalid_request_error", "message": "You have reached your specified API usage limits."}),
        (429, {"message": "Budget has been exceeded! Current cost: 1.2, Max budget: 1.0", "type": "budget_exceeded"}),
        (429, {"message": "Insufficient account balance"}),
    ],
)
def test_an_account_without_quota_is_not_asked_again(status: int, error: dict[str, Any]) -> None:
    failed = refused(status, error, {"retry-after": "1"})
    assert failed.failure.kind is ErrorKind.INVALID_REQUEST
    assert "quota" in failed.failure.message
    assert failed.retry_after_ms is None


def test_a_429_that_must_not_be_retried_is_final() -> None:
    assert not refused(429, headers={"x-should-retry": "false"}).failure.retryable
    assert refused(429, headers={"x-should-retry": "true"}).failure.retryable
    assert refused(503, headers={"x-should-retry": "false"}).failure.retryable


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"type": "invalid_request_error", "message": "prompt is too long: 208310 tokens > 200000 maximum"}),
        (400, {"code": "context_length_exceeded", "message": "?"}),
        (400, {"message": "input length and `max_tokens` exceed context limit: 190000 + 32000 > 200000"}),
        (400, {"message": "You passed 1015 input tokens. However, the model's context length is only 1024 tokens"}),
        (400, {"message": "This model's maximum context length is 16384 tokens"}),
        (500, {"type": "exceed_context_size_error", "message": "the request exceeds the available context size"}),
        (413, {"message": "Input is too long for requested model."}),
        (413, {"type": "request_too_large", "message": "Request exceeds the maximum size"}),
        (400, {"message": "Your input exceeds the context window of this model. Please adjust your input."}),
        (400, {"message": "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575)."}),
        (400, {"message": "This model's maximum prompt length is 131072 but the request contains 537812 tokens."}),
        (400, {"message": "Please reduce the length of the messages or completion."}),
        (400, {"message": "This endpoint's maximum context length is 65536 tokens. However, you requested 70000."}),
        (400, {"message": "prompt token count of 128001 exceeds the limit of 128000"}),
        (400, {"message": "Invalid request: Your request exceeded model token limit: 131072 (requested: 140000)"}),
        (400, {"message": "invalid params, context window exceeds limit (2013)"}),
        (400, {"message": "Prompt contains 40000 tokens and is too large for model with 32768 maximum context length"}),
        (400, {"message": "The decoder prompt (length 5000) is longer than the maximum model length of 4096."}),
        (400, {"message": "max_tokens must be at least 1, got -3215."}),
        (400, {"message": "Trying to keep the first 9000 tokens when context the overflows."}),
        (400, {"message": "The number of tokens to keep is greater than the context length."}),
        (500, {"message": "prompt too long; exceeded max context length by 44 tokens"}),
        (400, {"message": "too many total text bytes: 9437185 > 9437184"}),
    ],
)
def test_a_prompt_that_is_too_long_exhausts_the_context(status: int, error: dict[str, Any]) -> None:
    assert refused(status, error).failure.kind is ErrorKind.CONTEXT_EXHAUSTED


def test_a_rate_limit_in_tokens_is_no_exhausted_context() -> None:
    error = {"type": "tokens", "code": "rate_limit_exceeded", "message": "Too many tokens per minute"}
    assert refused(429, error).failure.kind is ErrorKind.RATE_LIMIT


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"message": "max_tokens: 200000 > 64000, which is the maximum allowed number of output tokens"}),
        (400, {"message": "tools.0.name: String should have at most 64 characters"}),
        (404, {"message": "model: claude-9 was not found"}),
    ],
)
def test_other_limits_are_no_exhausted_context(status: int, error: dict[str, Any]) -> None:
    assert refused(status, error).failure.kind is ErrorKind.INVALID_REQUEST


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"message": "Invalid content type. image_url is only supported by certain models.",
               "param": "messages.[1].content.[1].type"}),
        (400, {"message": "Invalid value: 'input_image'. Supported values are: 'input_text'.", "code": "invalid"}),
        (400, {"type": "invalid_request_error", "message": "'claude-3-5-haiku' does not support image input."}),
        (400, {"message": "This model doesn't support the image field for user messages."}),
        (400, {"message": "Qwen/Qwen3-8B is not a multimodal model None", "type": "BadRequestError", "code": 400}),
        (400, {"message": "At most 0 image(s) may be provided in one request.", "type": "BadRequestError"}),
        (500, {"message": "image input is not supported - hint: if this is unexpected, you may need to provide the "
                          "mmproj", "type": "server_error"}),
        (400, "this model does not support image input (ref: b8bd630e-4a39-4b57-82af-9158ee9d5703)"),
        (500, "Failed to create new sequence: failed to process inputs: this model is missing data required for image "
              "input"),
        (404, {"message": "No endpoints found that support image input", "code": 404}),
        (400, {"message": "litellm.BadRequestError: OpenAIException - Invalid content type. image_url is only "
                          "supported by certain models.. Received Model Group=mine", "type": None, "code": "400"}),
        (400, "Model does not support images. Please use a model that does."),
        (400, {"message": "Failed to deserialize the JSON body into the target type: messages[0]: unknown variant "
                          "`image_url`, expected `text` at line 1 column 512", "type": "invalid_request_error"}),
        (400, {"message": "messages[66].content: unknown variant `image`, expected one of `text`, `tool_use`"}),
        (400, {"message": "Image input is not enabled for this model"}),
        (400, {"message": "message type 'image_url' is not supported for model 'glm-5'"}),
    ],
)  # fmt: skip
def test_a_provider_that_takes_no_images_is_understood(status: int, error: Any) -> None:
    """These are what OpenAI, Anthropic, vLLM, llama.cpp, Ollama, OpenRouter, LiteLLM and others answer."""
    failed = provider_errors.response_error(PROVIDER, status, {}, json.dumps({"error": error}).encode(), NOW)
    assert isinstance(failed, provider_errors.ImagesRefusedError)
    assert (failed.failure.kind, failed.retry_after_ms) == (ErrorKind.INVALID_REQUEST, None)
    assert "refused the images: " in failed.failure.message
    assert isinstance(
        provider_errors.stream_error(PROVIDER, json.dumps({"error": error}).encode()),
        provider_errors.ImagesRefusedError,
    )


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "messages.0.content.0.image.source.base64: image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes"),
        (400, "Could not process image"),
        (400, "At most 4 image(s) may be provided in one request."),
        (400, "messages.34.content.2.image.source.base64.data: Image format image/png not supported"),
        (400, "Invalid value: 'text'. Supported values are: 'input_text', 'input_image' and 'output_text'."),
        (400, "tools: this model does not support tools"),
        (429, "this model does not support image input"),
    ],
)
def test_another_complaint_about_images_is_about_these_images(status: int, message: str) -> None:
    assert not isinstance(refused(status, {"message": message}), provider_errors.ImagesRefusedError)


def test_a_request_that_is_more_than_a_minutes_allowance_is_not_asked_again() -> None:
    error = {"type": "tokens", "code": "rate_limit_exceeded", "message": "Request too large for gpt-4o in organization "
             "org-1 on tokens per min (TPM): Limit 30000, Requested 40000."}  # fmt: skip
    assert refused(429, error).failure.kind is ErrorKind.INVALID_REQUEST


def test_a_minutes_quota_comes_back() -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}]
    error = {
        "code": 429,
        "status": "RESOURCE_EXHAUSTED",
        "message": "You exceeded your current quota",
        "details": details,
    }
    body = json.dumps([{"error": error}]).encode()
    failed = provider_errors.response_error(PROVIDER, 429, {}, body, NOW)
    assert (failed.failure.kind, failed.retry_after_ms) == (ErrorKind.RATE_LIMIT, 34_500)


@pytest.mark.parametrize(
    ("said", "milliseconds"),
    [
        ("Rate limit reached for gpt-6. Please try again in 11.054s. Visit", 11_054),
        ("Please try again in 20ms.", 20),
        ("Please try again in 6m0s.", 360_000),
        ("Please try again in 1h2m3s", 3_723_000),
        ("Please retry in 30 seconds", None),
        ("try again in a while", None),
        ("Overloaded", None),
    ],
)
def test_a_wait_that_only_the_text_tells(said: str, milliseconds: int | None) -> None:
    error = {"code": "rate_limit_exceeded", "message": said}
    inside = provider_errors.stream_error(PROVIDER, json.dumps({"error": error}).encode())
    assert (inside.failure.kind, inside.retry_after_ms) == (ErrorKind.RATE_LIMIT, milliseconds)
    assert refused(429, error).retry_after_ms == milliseconds
    assert refused(429, error, {"retry-after": "2"}).retry_after_ms == 2000
    assert refused(400, error).retry_after_ms is None


@pytest.mark.parametrize(
    "error",
    [
        {"type": "invalid_request_error", "message": "Output blocked by content filtering policy"},
        {"code": "x", "message": "The response was filtered by our content management policy."},
        {"code": "x", "innererror": {"code": "ResponsibleAIPolicyViolation"}},
        {"code": 403, "message": "Your input was flagged", "metadata": {"reasons": ["violence"]}},
    ],
)
def test_other_forms_of_a_content_filter(error: dict[str, Any]) -> None:
    assert refused(403 if error.get("code") == 403 else 400, error).failure.kind is ErrorKind.CONTENT_FILTER


@pytest.mark.parametrize("code", ["content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation"])
def test_a_content_filter(code: str) -> None:
    assert refused(400, {"code": code, "message": "flagged"}).failure.kind is ErrorKind.CONTENT_FILTER


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, ErrorKind.SERVER_ERROR),
        ({"type": "api_error"}, ErrorKind.SERVER_ERROR),
        ({"type": "timeout_error"}, ErrorKind.SERVER_ERROR),
        ({"type": "rate_limit_error"}, ErrorKind.RATE_LIMIT),
        ({"type": "authentication_error"}, ErrorKind.AUTH),
        ({"type": "invalid_request_error"}, ErrorKind.INVALID_REQUEST),
        ({"type": "new_kind_of_error"}, ErrorKind.SERVER_ERROR),
        ({"code": 502, "message": "upstream"}, ErrorKind.SERVER_ERROR),
        ({"code": 401}, ErrorKind.AUTH),
        ({"code": "insufficient_quota"}, ErrorKind.INVALID_REQUEST),
        ({"code": "429"}, ErrorKind.RATE_LIMIT),
        ({"code": "server_error"}, ErrorKind.SERVER_ERROR),
        ({"code": "vector_store_timeout"}, ErrorKind.SERVER_ERROR),
        ({"code": "invalid_prompt"}, ErrorKind.CONTENT_FILTER),
        ({"code": "image_content_policy_violation"}, ErrorKind.CONTENT_FILTER),
        ({"code": "image_too_large"}, ErrorKind.INVALID_REQUEST),
        ({"code": "unsupported_parameter"}, ErrorKind.INVALID_REQUEST),
        ({"status": "RESOURCE_EXHAUSTED"}, ErrorKind.RATE_LIMIT),
        ({"status": "UNAUTHENTICATED"}, ErrorKind.AUTH),
        ({"code": "context_length_exceeded"}, ErrorKind.CONTEXT_EXHAUSTED),
        ("just a text", ErrorKind.SERVER_ERROR),
    ],
)
def test_an_error_inside_a_stream(error: Any, kind: ErrorKind) -> None:
    assert provider_errors.stream_error(PROVIDER, json.dumps({"error": error}).encode()).failure.kind is kind


@pytest.mark.parametrize(
    ("headers", "milliseconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2000),
        ({"retry-after": "1.5"}, 1500),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "3600"}, 3_600_000),
        ({"retry-after-ms": "250", "retry-after": "9"}, 250),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9000),
        ({"retry-after": email.utils.formatdate(NOW + 30, usegmt=True)}, 30_000),
        ({"retry-after": email.utils.formatdate(NOW - 30, usegmt=True)}, 0),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "1e400"}, 30 * 86_400_000),
    ],
)
def test_retry_after(headers: dict[str, str], milliseconds: int | None) -> None:
    assert provider_errors.retry_after_ms(headers, NOW) == milliseconds


def test_retry_after_comes_with_retryable_refusals_only() -> None:
    assert refused(429, headers={"retry-after": "2"}).retry_after_ms == 2000
    assert refused(529, headers={"retry-after-ms": "20"}).retry_after_ms == 20
    assert refused(401, headers={"retry-after": "2"}).retry_after_ms is None


OF_THE_MACHINE = frozenset({
    ErrorKind.CANCELLED, ErrorKind.SUB_AGENT_ERROR, ErrorKind.TURN_LIMIT, ErrorKind.NO_RESULT, ErrorKind.BUDGET,
    ErrorKind.INTERRUPTED, ErrorKind.TIMED_OUT, ErrorKind.OUTPUT_INVALID, ErrorKind.REPEATED_FAILURE,
    ErrorKind.RESOURCE_EXHAUSTED,
})  # fmt: skip
"""What no provider says: how a sub-agent fails, outputs that do not fit, failures that repeat, and what we lack."""

ADVICE = {
    ErrorKind.NETWORK: "Check the network and the base_url of provider fake, then send a message to retry.",
    ErrorKind.RATE_LIMIT: "Wait a while, then send a message to retry, or choose another model.",
    ErrorKind.SERVER_ERROR: "Send a message later to try again, or choose another model.",
    ErrorKind.AUTH: "Check ANTHROPIC_API_KEY.",
    ErrorKind.INVALID_REQUEST: "Choose another model, or check the settings of provider fake.",
    ErrorKind.CONTENT_FILTER: "Rephrase the message.",
    ErrorKind.CONTEXT_EXHAUSTED: "Continue in a new conversation.",
    ErrorKind.RESPONSE_TOO_LARGE: "Ask for less in one answer: split a long text or file into several parts.",
    ErrorKind.UNKNOWN: "Send a message to continue; see the server log.",
}


@pytest.mark.parametrize("kind", sorted(set(ErrorKind) - OF_THE_MACHINE))
def test_every_kind_of_error_says_what_to_do(kind: ErrorKind) -> None:
    named = provider("anthropic", "https://models.example.com", key_source="ANTHROPIC_API_KEY")
    failures = [provider_errors.failed_request(named, kind, "it went wrong")]
    failures += [provider_errors.response_error(named, status, {}, b"", NOW) for status in (401, 400, 429, 503)]
    failures += [
        provider_errors.response_error(named, 413, {}, b'{"error": {"type": "request_too_large"}}', NOW),
        provider_errors.filtered(named, "", None),
    ]
    told = [failed.failure.message for failed in failures if failed.failure.kind is kind]
    assert told
    assert all(text.endswith(f". {ADVICE[kind]}") for text in told), told


@pytest.mark.parametrize(
    ("base_url", "advice"),
    [
        ("http://127.0.0.1:9/v1", "Check that the server at base_url http://127.0.0.1:9/v1 is running."),
        ("http://localhost/v1", "Check that the server at base_url http://localhost/v1 is running."),
        ("http://[::1]:80", "Check that the server at base_url http://[::1]:80 is running."),
        ("http://10.0.0.1/v1", "Check the network and the base_url of provider fake, then send a message to retry."),
    ],
)
def test_a_server_of_this_machine_that_does_not_answer_may_not_be_running(base_url: str, advice: str) -> None:
    failed = provider_errors.failed_request(provider("openai-chat", base_url), ErrorKind.NETWORK, "cannot connect")
    assert failed.failure.message == f"fake: cannot connect. {advice}"


def test_behind_a_proxy_that_is_to_be_looked_at() -> None:
    proxied = provider("openai-chat", "https://models.example.com", proxy=Secret("http://u:secret@proxy:3128"))
    message = provider_errors.failed_request(proxied, ErrorKind.NETWORK, "refused").failure.message
    assert message == "fake: refused. Check the network and the proxy of provider fake, then send a message to retry."


def test_messages_say_who_what_and_what_to_do() -> None:
    message = refused(401, {"type": "authentication_error", "message": "invalid x-api-key"}).failure.message
    assert message == "Authentication failed at fake (HTTP 401): invalid x-api-key. Check ANTHROPIC_API_KEY."
    assert "model" in refused(404).failure.message
    assert "base_url" in refused(302).failure.message


@pytest.mark.parametrize(
    "said",
    [
        f"Incorrect API key provided: {KEY}. You can find your key at",
        f"Bearer {KEY}",
        f"key={KEY[:14]}",
        f"...{KEY[-10:]} is not valid",
        "Incorrect API key provided: sk-proj-abc***************wxyz.",
        "proxy http://someone:hunter22@proxy.internal:3128 refused",
        "header X-Team: team-secret-1234 unknown",
        f"{KEY * 200}",
    ],
)
def test_a_message_never_holds_a_secret(said: str) -> None:
    secretive = provider(
        "anthropic", "https://models.example", proxy=Secret("http://someone:hunter22@proxy.internal:3128"),
        headers={"x-team": Secret("team-secret-1234")},
    )  # fmt: skip
    body = json.dumps({"error": {"message": said}}).encode()
    for status, sent in ((400, body), (401, body), (429, body), (500, body), (400, said.encode())):
        text = provider_errors.response_error(secretive, status, {}, sent, NOW).failure.message
        assert "[redacted]" in text
        for secret in (KEY, KEY[:14], KEY[-10:], "sk-proj", "hunter22", "team-secret"):
            assert secret not in text
    named = provider_errors.stream_error(secretive, json.dumps({"error": {"type": said}}).encode()).failure.message
    for secret in (KEY, KEY[:14], KEY[-10:], "sk-proj", "hunter22", "team-secret"):
        assert secret.lower() not in named.lower()


def test_a_long_message_is_cut_and_put_on_one_line() -> None:
    message = refused(500, {"message": "line one\nline two\x1b[31m\x00 " + "word " * 1000}).failure.message
    assert "line one line two [31m word" in message
    assert len(message) < provider_errors.MAX_SAID + 100


def test_a_huge_error_takes_no_time_and_little_room() -> None:
    """Nothing else runs while a pattern is searched: some take a time that grows with the square of the text."""
    error = {"message": "input token count " * 5_000, "type": "t" * 5_000_000, "code": 400}
    began = time.process_time()
    failures = [provider_errors.stream_error(PROVIDER, json.dumps(each).encode()) for each in (error, error["message"])]
    failures.append(provider_errors.stream_error(PROVIDER, json.dumps({"error": error["message"]}).encode()))
    failures.append(refused(400, error))
    assert time.process_time() - began < 1
    assert max(len(each.failure.message) for each in failures) < provider_errors.MAX_SAID + 200


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>502 Bad Gateway secret-internal-host</html>", b"[1]", b"{", b"[" * 5000, b"\xff", b'{"error":[]}'],
)
def test_a_body_that_is_no_error_object_says_nothing(body: bytes) -> None:
    failed = provider_errors.response_error(PROVIDER, 502, {}, body, NOW)
    assert failed.failure.message.startswith("Server error from fake (HTTP 502). Send a message later")


@pytest.mark.parametrize("status", [400, 404, 422, 429])
def test_the_plain_text_of_a_refusal_is_shown_on_one_line_and_cut(status: int) -> None:
    for body in (b"404 page not found\n", b"404 page\r\nnot \x1b found", b"404 page not found. " + b"x" * 60_000):
        message = provider_errors.response_error(PROVIDER, status, {}, body, NOW).failure.message
        assert re.search(r": 404 page not (\[?)found", message)
        assert message.isprintable()
        assert len(message) < provider_errors.MAX_SAID + 200
    said = b"This model's maximum context length is 4096 tokens"
    assert provider_errors.response_error(PROVIDER, 400, {}, said, NOW).failure.kind is ErrorKind.CONTEXT_EXHAUSTED
    assert provider_errors.response_error(PROVIDER, 429, {}, b"Please try again in 20ms", NOW).retry_after_ms == 20


@pytest.mark.parametrize(
    "body", [b"<!DOCTYPE html><title>404 at secret-host</title>", b"\xff\xfeb\0", b'{"trace": "secret"', b""]
)
def test_a_page_or_what_is_no_text_is_not_shown(body: bytes) -> None:
    message = provider_errors.response_error(PROVIDER, 404, {}, body, NOW).failure.message
    assert message.startswith("The request was refused by fake (HTTP 404). Check")


@pytest.mark.parametrize(
    "body",
    [{"error": "model not found"}, {"detail": "model not found"}, {"message": "model not found", "object": "error"}],
)
def test_other_shapes_of_errors(body: dict[str, str]) -> None:
    failed = provider_errors.response_error(PROVIDER, 404, {}, json.dumps(body).encode(), NOW)
    assert "model not found" in failed.failure.message


@settings(deadline=None)
@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda v: json.dumps({"error": v}).encode())
)
def test_no_body_breaks_the_classification(body: bytes) -> None:
    anonymous = ProviderConfig(name="p", protocol="openai-chat", base_url="http://127.0.0.1")
    assert provider_errors.response_error(anonymous, 500, {}, body, NOW).failure.retryable
    assert provider_errors.stream_error(anonymous, body).failure.message
