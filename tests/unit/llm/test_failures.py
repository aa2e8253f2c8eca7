"""What a provider's refusal means, and that it tells no secret."""

from __future__ import annotations

import email.utils
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.core.errors import RETRYABLE, ErrorKind
from actors.llm.failures import MAX_SAID, refusal_of, retry_after_ms, stream_error_of
from actors.llm.provider import ProviderConfig, Secret
from actors.ports import ModelFailed
from tests.unit.llm.asking import KEY, provider

NOW = 1_800_000_000.0
PROVIDER = provider("anthropic", "https://models.example", key_source="ANTHROPIC_API_KEY")


def refused(status: int, error: Any = None, headers: dict[str, str] | None = None) -> ModelFailed:
    body = json.dumps({"type": "error", "error": error or {}}).encode()
    return refusal_of(PROVIDER, status, headers or {}, body, NOW)


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
        (302, ErrorKind.SERVER_ERROR),
        (999, ErrorKind.SERVER_ERROR),
    ],
)
def test_kind_of_a_status(status: int, kind: ErrorKind) -> None:
    assert refused(status).failure.kind is kind


@settings(deadline=None)
@given(st.integers(100, 999), st.sampled_from(["", "x", "overloaded_error", "invalid_request_error"]))
def test_every_status_has_a_kind_and_4xx_is_final(status: int, name: str) -> None:
    failure = refused(status, {"type": name, "message": "?"}).failure
    again = not 400 <= status < 500 or status in {408, 409, 425, 429}
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
    ],
)
def test_a_prompt_that_is_too_long_exhausts_the_context(status: int, error: dict[str, Any]) -> None:
    assert refused(status, error).failure.kind is ErrorKind.CONTEXT_EXHAUSTED


def test_a_rate_limit_in_tokens_is_no_exhausted_context() -> None:
    error = {"type": "tokens", "code": "rate_limit_exceeded", "message": "Too many tokens per minute"}
    assert refused(429, error).failure.kind is ErrorKind.RATE_LIMIT


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
        ({"code": "context_length_exceeded"}, ErrorKind.CONTEXT_EXHAUSTED),
        ("just a text", ErrorKind.SERVER_ERROR),
    ],
)
def test_an_error_inside_a_stream(error: Any, kind: ErrorKind) -> None:
    assert stream_error_of(PROVIDER, json.dumps({"error": error}).encode()).failure.kind is kind


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
    assert retry_after_ms(headers, NOW) == milliseconds


def test_retry_after_comes_with_retryable_refusals_only() -> None:
    assert refused(429, headers={"retry-after": "2"}).retry_after_ms == 2000
    assert refused(529, headers={"retry-after-ms": "20"}).retry_after_ms == 20
    assert refused(401, headers={"retry-after": "2"}).retry_after_ms is None


def test_messages_say_who_what_and_what_to_do() -> None:
    message = refused(401, {"type": "authentication_error", "message": "invalid x-api-key"}).failure.message
    assert message == "Authentication failed at twin (HTTP 401): invalid x-api-key. Check ANTHROPIC_API_KEY."
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
    for status in (400, 401, 429, 500):
        text = refusal_of(secretive, status, {}, body, NOW).failure.message
        assert "[redacted]" in text
        for secret in (KEY, KEY[:14], KEY[-10:], "sk-proj", "hunter22", "team-secret"):
            assert secret not in text


def test_a_long_message_is_cut_and_put_on_one_line() -> None:
    message = refused(500, {"message": "line one\nline two\x1b[31m\x00 " + "word " * 1000}).failure.message
    assert "line one line two [31m word" in message
    assert len(message) < MAX_SAID + 100


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>502 Bad Gateway secret-internal-host</html>", b"[1]", b"{", b"[" * 5000, b"\xff", b'{"error":[]}'],
)
def test_a_body_that_is_no_error_object_says_nothing(body: bytes) -> None:
    failed = refusal_of(PROVIDER, 502, {}, body, NOW)
    assert failed.failure.message == "Server error at twin (HTTP 502)."


@pytest.mark.parametrize(
    "body",
    [{"error": "model not found"}, {"detail": "model not found"}, {"message": "model not found", "object": "error"}],
)
def test_other_shapes_of_errors(body: dict[str, str]) -> None:
    failed = refusal_of(PROVIDER, 404, {}, json.dumps(body).encode(), NOW)
    assert "model not found" in failed.failure.message


@settings(deadline=None)
@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda v: json.dumps({"error": v}).encode())
)
def test_no_body_breaks_the_classification(body: bytes) -> None:
    anonymous = ProviderConfig(name="p", protocol="openai-chat", base_url="http://127.0.0.1")
    assert refusal_of(anonymous, 500, {}, body, NOW).failure.retryable
    assert stream_error_of(anonymous, body).failure.message
