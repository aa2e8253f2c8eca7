"""Classifies errors from providers: the kind of failure, advice for users, and when to try again.

Some cases need more than the HTTP status. An account without quota or credit looks like a rate limit (429) or a bad
request (400), but waiting does not help, so it becomes `invalid_request`, with a message that asks for credit. A 429
with a header that forbids retries is handled in the same way. Errors about a conversation that is too long become
`context_exhausted`, and those about refused content become `content_filter`. An error that says that the model does not
accept images becomes an ImagesRefusedError. Otherwise 401 and 403 become `auth`, and 429 becomes `rate_limit`.
Redirects and all other 4xx except 408, 409 and 425 become `invalid_request`, which fails at once (REQ-BED-006).
Everything else becomes `server_error`, which is retried.

A message contains the provider's own error text and nothing else from its answer. That text is shortened and put on one
line; everything in it that looks like a key, and every piece of a configured secret, is masked.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from actors.adapters.llm.provider import ProviderConfig
from actors.core.content import Usage
from actors.core.errors import ErrorKind, LlmFailure
from actors.ports import ModelFailedError

# Maximum bytes of an error response that are read.
MAX_ERROR_BYTES = 64 << 10
# Maximum characters of a provider's error text that are searched with patterns, because the time that a search takes
# grows with the square of the length.
_MAX_MATCHED = 8 << 10
# Maximum characters of a provider's error text that are passed on.
MAX_SAID = 400
# Maximum wait (30 days), so that infinity and huge numbers become valid integers.
_MAX_RETRY_AFTER_MS = 30 * 86_400_000

_QUOTA = frozenset({
    "insufficient_quota", "credit_balance_exhausted", "billing_error", "billing_hard_limit_reached",
    "billing_not_active", "access_terminated", "account_deactivated", "organization_on_hold", "quota_exceeded",
    "exceeded_current_quota_error", "insufficient_balance", "insufficient_user_quota", "payment_required",
    "usage_limit_reached", "usage_not_included",
})  # fmt: skip
_QUOTA_SUFFIXES = ("_spend_limit_exceeded", "_spend_limit_reached", "_budget_exceeded")
_QUOTA_TEXT = re.compile(
    r"credit balance is too low|exceeded your current quota|insufficient (account )?(balance|credits|funds|quota)"
    r"|never purchased credits|requires more credits|reached your specified (api )?usage limit"
    r"|(usage|spend(ing)?|billing|budget|hard) limit (has been )?(reached|exceeded)|exceeded (your|the) budget"
    r"|budget has been exceeded",
    re.IGNORECASE,
)
# Matches the error for a request with more tokens than are allowed per minute. The error looks like a rate limit, but
# no retry of this request can succeed.
_TOO_MUCH_TEXT = re.compile(r"request too large for .* on (input |output )?tokens per", re.IGNORECASE)
_FILTER = frozenset({
    "content_filter", "content_policy_violation", "responsibleaipolicyviolation", "bio_policy", "cyber_policy",
    "misalignment_policy_violation", "invalid_prompt", "data_inspection_failed", "image_content_policy_violation",
    "contentfilter", "moderation_blocked", "content_moderation", "sensitive",
})  # fmt: skip
_FILTER_TEXT = re.compile(
    r"content filter(ing)? policy|content management policy|flagged by (our|the) (content|safety|moderation)"
    r"|output blocked by content filter",
    re.IGNORECASE,
)
# The names of errors about a conversation that is too long. One of them, `request_too_large`, means that a request
# exceeds Anthropic's limit in bytes. Such a request is not retried, because later requests contain the same history.
_TOO_LONG = frozenset({
    "context_length_exceeded", "exceed_context_size_error", "model_context_window_exceeded", "context_window_exceeded",
    "context_exceeded", "request_too_large", "string_above_max_length",
})  # fmt: skip
_TOO_LONG_TEXT = re.compile(
    r"(prompt|input|request|context|conversation) (is |was )?too (long|large)|maximum context length"
    r"|context length (is|of) only|exceed(s|ed|ing)? (the )?(available |model'?s? |your |max(imum)? )*context"
    r"|maximum (prompt|input) length|too many (input |total )?(text )?(tokens|bytes)"
    r"|longer than the (maximum )?(model|context) length|reduce the length of the (messages|prompt|input)"
    r"|input token count .*exceeds|prompt token count .*exceeds|exceeded model token limit|context window exceeds"
    r"|context the overflows|greater than the context length|too large for model with .* context length"
    r"|max_tokens must be at least 1, got -",
    re.IGNORECASE,
)
_NO_IMAGES_TEXT = re.compile(
    r"(does not|doesn't|endpoints found that) support (the )?image"
    r"|image(_url)?['`]? (input )?(modality )?is (not|only) (supported|enabled)"
    r"|not a multimodal model|at most 0 image|data required for image input"
    r"|(unknown variant|invalid value:) ['`](input_)?image",
    re.IGNORECASE,
)
# The HTTP status that corresponds to an error's name, for errors inside a stream, which carry no status.
_NAMED = {
    "authentication_error": 401, "invalid_api_key": 401, "permission_error": 403, "not_found_error": 404,
    "model_not_found": 404, "invalid_request_error": 400, "request_too_large": 413, "rate_limit_error": 429,
    "rate_limit_exceeded": 429, "too_many_requests": 429, "slow_down": 429, "ramp_limit_exceeded": 429,
    "resource_exhausted": 429, "throttling_error": 429, "unauthenticated": 401, "permission_denied": 403,
    "invalid_argument": 400, "data_residency_mismatch": 400, "invalid_image": 400, "invalid_image_format": 400,
    "invalid_base64_image": 400, "invalid_image_url": 400, "invalid_image_mode": 400, "image_too_large": 400,
    "image_too_small": 400, "image_parse_error": 400, "image_file_too_large": 400, "image_file_not_found": 400,
    "unsupported_image_media_type": 400, "empty_image_file": 400, "failed_to_download_image": 400,
    "unknown_parameter": 400, "unsupported_parameter": 400, "unsupported_value": 400, "invalid_value": 400,
    "missing_required_parameter": 400,
}  # fmt: skip
# Matches waits such as "Please try again in 11.054s", "6m0s" or "20ms", because errors inside a stream have no
# Retry-After header.
_TRY_AGAIN_IN = re.compile(
    r"(?:try again|retry) in (?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)(ms|s)\w*)?", re.IGNORECASE
)
# Advice for users, by kind of failure.
_ADVICE = {
    ErrorKind.NETWORK: "Check the network and {where} of provider {name}, then send a message to retry.",
    ErrorKind.RESPONSE_TOO_LARGE: "Ask for less in one answer: split a long text or file into several parts.",
    ErrorKind.RATE_LIMIT: "Wait a while, then send a message to retry, or choose another model.",
    ErrorKind.SERVER_ERROR: "Send a message later to try again, or choose another model.",
    ErrorKind.AUTH: "Check {key}.",
    ErrorKind.INVALID_REQUEST: "Choose another model, or check the settings of provider {name}.",
    ErrorKind.CONTENT_FILTER: "Rephrase the message.",
    ErrorKind.CONTEXT_EXHAUSTED: "Continue in a new conversation.",
}
_TRY_AGAIN_STATUSES = frozenset({408, 409, 425})
_MASK = "[redacted]"
_KEY_LIKE = re.compile(r"(?i)\bbearer\s+\S+|\b(?:sk|xai|gsk)[-_][\w*.\-]{6,}|\bAIza[\w\-]{8,}")
_PIECE = 8
_MAX_NAME = 60
_ANSWER_TYPE = re.compile("^application/json|event-stream")
_SHORTEST_SECRET = 4


class ImagesRefusedError(ModelFailedError):
    pass


class ErrorBody(Struct, frozen=True):
    """A provider's error in normalized form."""

    names: frozenset[str] = frozenset()
    said: str = ""
    status: int | None = None
    """The HTTP status stated in the error itself; None if the error states none."""
    wait_ms: int | None = None
    moderated: bool = False


def parse_error_body(payload: bytes) -> ErrorBody:
    """Parse an error response or an error inside a stream. An unknown format gives an empty ErrorBody."""
    try:
        outer = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ErrorBody()
    if isinstance(outer, list) and outer:
        outer = outer[0]
    if not isinstance(outer, dict):
        return ErrorBody()
    error = outer.get("error", outer)
    if isinstance(error, str):
        return ErrorBody(said=error[:_MAX_MATCHED])
    if not isinstance(error, dict):
        return ErrorBody()
    coded = (_inner(error, "details", "error_code"), _inner(error, "innererror", "code"))
    named = (error.get("type"), error.get("code"), error.get("status"), *coded)
    names = {name.lower()[:_MAX_NAME] for name in named if isinstance(name, str) and name.lower() != "error"}
    texts = (error.get("message"), error.get("detail"), outer.get("message"))
    said = next((text for text in texts if isinstance(text, str)), "")[:_MAX_MATCHED]
    code = error.get("code")
    status = int(code) if isinstance(code, str) and re.fullmatch(r"[45]\d\d", code) else code
    return ErrorBody(
        frozenset(names),
        said,
        status if isinstance(status, int) and 400 <= status < 600 else None,
        _wait_ms(error, said),
        bool(_inner(error, "metadata", "reasons")),
    )


def _plain_text(payload: bytes) -> str:
    text = payload.decode("utf-8", "replace").strip()
    return "" if text.startswith(("<", "{", "[")) or "\ufffd" in text or "\0" in text else text[:_MAX_MATCHED]


def _inner(error: dict[str, Any], outer: str, name: str) -> Any:
    inside = error.get(outer)
    return inside.get(name) if isinstance(inside, dict) else None


def _wait_ms(error: dict[str, Any], said: str) -> int | None:
    """The wait in milliseconds that an error's details ("retryDelay": "34s") or its text states, or None."""
    details = error.get("details")
    delays = [each.get("retryDelay") for each in details if isinstance(each, dict)] if isinstance(details, list) else []
    for delay in delays:
        if isinstance(delay, str) and re.fullmatch(r"\d{1,9}(\.\d+)?s", delay):
            return _bounded_ms(float(delay[:-1]) * 1000)
    found = _TRY_AGAIN_IN.search(said)
    if found is None or not any(found.groups()):
        return None
    hours, minutes, amount, unit = found.groups()
    last = float(amount or 0) * (1 if unit and unit.lower() == "ms" else 1000)
    return _bounded_ms(float(hours or 0) * 3_600_000 + float(minutes or 0) * 60_000 + last)


def response_error(
    provider: ProviderConfig, status: int, headers: Mapping[str, str], body: bytes, now: float
) -> ModelFailedError:
    error_body = parse_error_body(body)
    if error_body == ErrorBody() and status < 500:  # a gateway's 5xx text is about servers behind it, not for users
        said = _plain_text(body)
        error_body = ErrorBody(said=said, wait_ms=_wait_ms({}, said))
    final = status == 429 and headers.get("x-should-retry", "").lower() == "false"
    wait = retry_after_ms(headers, now)
    return _error(provider, error_body, status, f"HTTP {status}", final=final, header_ms=wait)


def stream_error(provider: ProviderConfig, payload: bytes, usage: Usage | None = None) -> ModelFailedError:
    error_body = parse_error_body(payload)
    named = next((status for name, status in _NAMED.items() if name in error_body.names), None)
    label = redacted(", ".join(sorted(error_body.names)), tuple(map(str.lower, provider.secrets)))
    label = label or "an error in the answer"
    return _error(provider, error_body, error_body.status or named or 500, label, usage=usage)


def _error(
    provider: ProviderConfig,
    error_body: ErrorBody,
    status: int,
    label: str,
    *,
    final: bool = False,
    header_ms: int | None = None,
    usage: Usage | None = None,
) -> ModelFailedError:
    if status in (400, 404, 415, 422, 500, 501) and _NO_IMAGES_TEXT.search(error_body.said):
        text = f"{provider.name} ({label}) refused the images{_tail(provider, error_body.said)}"
        return ImagesRefusedError(LlmFailure(ErrorKind.INVALID_REQUEST, text), usage=usage)
    failure = _failure(provider, error_body, status, label, final=final)
    wait = error_body.wait_ms if header_ms is None else header_ms
    return ModelFailedError(failure, wait if failure.retryable else None, usage)


def broken_answer(provider: ProviderConfig, text: str, usage: Usage | None = None) -> ModelFailedError:
    """The error for a malformed or incomplete answer, which is retried."""
    return failed_request(provider, ErrorKind.SERVER_ERROR, text, usage)


def wrong_type(provider: ProviderConfig, stated: str) -> ModelFailedError:
    """The error for a page or file instead of an answer.

    It is not retried, because something other than the provider's API has answered.
    """
    what = redacted(stated, provider.secrets)[:_MAX_NAME] if stated and not _ANSWER_TYPE.search(stated) else "a page"
    text = f"received {what} instead of a stream; check the base_url of provider {provider.name}"
    return ModelFailedError(LlmFailure(ErrorKind.INVALID_REQUEST, f"{provider.name}: {text}"))


def malformed_answer(provider: ProviderConfig, odd: Exception, usage: Usage | None = None) -> ModelFailedError:
    """The error for an answer that violates the protocol; it is retried only if the answer is not valid JSON."""
    if isinstance(odd, msgspec.ValidationError):
        return failed_request(provider, ErrorKind.INVALID_REQUEST, f"the answer cannot be parsed: {odd}", usage)
    return broken_answer(provider, "the answer is malformed", usage)


def failed_request(
    provider: ProviderConfig, kind: ErrorKind, text: str, usage: Usage | None = None
) -> ModelFailedError:
    """The error for an answer that is missing or unusable. `text` is the reason, without a final period."""
    return ModelFailedError(_advised(provider, kind, f"{provider.name}: {text}."), usage=usage)


def timed_out(provider: ProviderConfig, text: str, usage: Usage | None = None) -> ModelFailedError:
    advice = f"Check the network and the base_url of provider {provider.name}, or raise its timeouts."
    return ModelFailedError(LlmFailure(ErrorKind.NETWORK, f"{provider.name}: {text}. {advice}"), usage=usage)


def too_large(provider: ProviderConfig, limit: str, usage: Usage | None = None) -> ModelFailedError:
    """The error for an answer that exceeds the limit of a message; not retried, because a retry would cost as much."""
    text = f"the answer exceeds the limit of {limit}"
    return failed_request(provider, ErrorKind.RESPONSE_TOO_LARGE, text, usage)


def filtered(provider: ProviderConfig, said: str, usage: Usage | None) -> ModelFailedError:
    """The error for an answer that is a refusal without text. `said` is the provider's explanation."""
    return ModelFailedError(_content_filter(provider, _tail(provider, said)), usage=usage)


def retry_after_ms(headers: Mapping[str, str], now: float) -> int | None:
    """The wait in milliseconds from retry-after-ms or Retry-After (seconds or a date); None if neither is valid."""
    for name, factor in (("retry-after-ms", 1.0), ("retry-after", 1000.0)):
        try:
            wait = float(headers[name]) * factor
        except (KeyError, ValueError):
            continue
        if not math.isnan(wait) and wait >= 0:
            return _bounded_ms(wait)
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 -- 0.4 MiB that are rarely needed

    try:
        date = parsedate_to_datetime(headers["retry-after"]).timestamp()
    except (KeyError, ValueError, OverflowError):
        return None
    return _bounded_ms(max(date - now, 0) * 1000)


def _bounded_ms(wait: float) -> int:
    return math.ceil(min(wait, _MAX_RETRY_AFTER_MS))


def _failure(provider: ProviderConfig, error_body: ErrorBody, status: int, label: str, *, final: bool) -> LlmFailure:
    tail = _tail(provider, error_body.said)
    whose = f"{provider.name} ({label})"
    if _is_too_long(error_body, status):
        text = f"The conversation is too long for the model of {whose}{tail}"
        return _advised(provider, ErrorKind.CONTEXT_EXHAUSTED, text)
    if _is_filtered(error_body, status):
        return _content_filter(provider, tail)
    if status in (400, 429) and _TOO_MUCH_TEXT.search(error_body.said):
        text = f"The request exceeds the per-minute token limit of {whose}{tail} Raise it, or choose another model."
        return LlmFailure(ErrorKind.INVALID_REQUEST, text)
    if final or _is_quota(error_body, status):
        text = f"The account at {whose} has no quota left{tail} Add credit or raise its limit, then send a message."
        return LlmFailure(ErrorKind.INVALID_REQUEST, text)
    if status in (401, 403):
        return _advised(provider, ErrorKind.AUTH, f"Authentication failed at {whose}{tail}")
    if status == 429:
        return _advised(provider, ErrorKind.RATE_LIMIT, f"Rate limited by {whose}{tail}")
    if status in _TRY_AGAIN_STATUSES or not 300 <= status < 500:
        return _advised(provider, ErrorKind.SERVER_ERROR, f"Server error from {whose}{tail}")
    if status < 400:
        text = f"The base_url of provider {whose} redirects; set it to the final URL."
        return LlmFailure(ErrorKind.INVALID_REQUEST, text)
    text = f"The request was refused by {whose}{tail}"
    if status == 404:
        return LlmFailure(ErrorKind.INVALID_REQUEST, f"{text} Check the model's name and the base_url.")
    return _advised(provider, ErrorKind.INVALID_REQUEST, text)


def _advised(provider: ProviderConfig, kind: ErrorKind, text: str) -> LlmFailure:
    if kind is ErrorKind.NETWORK and provider.local:
        advice = f"Check that the server at base_url {provider.base_url} is running."
    else:
        where = "the proxy" if provider.proxy else "the base_url"
        advice = _ADVICE.get(kind, "Send a message to continue; see the server log.")
        advice = advice.format(name=provider.name, where=where, key=provider.advice)
    return LlmFailure(kind, f"{text} {advice}")


def _content_filter(provider: ProviderConfig, tail: str) -> LlmFailure:
    return _advised(
        provider, ErrorKind.CONTENT_FILTER, f"The content filter of {provider.name} stopped the answer{tail}"
    )


def _is_too_long(error_body: ErrorBody, status: int) -> bool:
    if error_body.names & _TOO_LONG:
        return True
    return status in (400, 413, 422, 500) and _TOO_LONG_TEXT.search(error_body.said) is not None


def _is_filtered(error_body: ErrorBody, status: int) -> bool:
    described = status in (400, 403, 422) and (error_body.moderated or _FILTER_TEXT.search(error_body.said))
    return bool(error_body.names & _FILTER or described)


def _is_quota(error_body: ErrorBody, status: int) -> bool:
    named = error_body.names & _QUOTA or any(name.endswith(_QUOTA_SUFFIXES) for name in error_body.names)
    # Google's error about a per-minute quota has the same text, but also says how long to wait.
    described = status in (400, 403, 429) and error_body.wait_ms is None and _QUOTA_TEXT.search(error_body.said)
    return bool(named or described or status == 402)


def _tail(provider: ProviderConfig, said: str) -> str:
    text = redacted(said, provider.secrets)
    if len(text) > MAX_SAID:
        text = text[:MAX_SAID] + "…"
    return f": {text}" + ("" if text.endswith((".", "!", "?", "…")) else ".") if text else "."


def redacted(text: str, secrets: tuple[str, ...]) -> str:
    """The beginning of `text` on one line, with secrets masked.

    Masked are anything that looks like a key, any 8 or more successive characters of one of `secrets`, and whole
    secrets of 4 to 7 characters.
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * MAX_SAID]).split())
    line = _KEY_LIKE.sub(_MASK, _without_pieces(line, secrets))
    for secret in secrets:
        if _SHORTEST_SECRET <= len(secret) < _PIECE:
            line = line.replace(secret, _MASK)
    return line


def _without_pieces(line: str, secrets: tuple[str, ...]) -> str:
    pieces = {secret[i : i + _PIECE] for secret in secrets for i in range(len(secret) - _PIECE + 1)}
    hidden = [False] * len(line)
    for i in range(len(line) - _PIECE + 1):
        if line[i : i + _PIECE] in pieces:
            hidden[i : i + _PIECE] = [True] * _PIECE
    runs = itertools.groupby(zip(line, hidden, strict=True), key=lambda pair: pair[1])
    return "".join(_MASK if masked else "".join(c for c, _ in run) for masked, run in runs)
