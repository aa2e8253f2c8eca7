"""What a provider's refusal means: its kind (SEMANTICS C12), what a person can do, and when to try again.

Kinds that C12 leaves open: an account without quota or credit looks like a rate limit (429) or a bad request (400) but
waiting does not help, so it is `invalid_request` and says where to pay. A 429 that says "do not retry" is the same.
Every other 4xx but 401, 403, 408, 409, 425 and 429 is `invalid_request` too (REQ-BED-006: at once); all that is left,
redirects included, is a retryable `server_error`.

A text holds the provider's own error message and nothing else of its answer: bounded, on one line, and with
everything masked that looks like a key or is a piece of ours.
"""

from __future__ import annotations

import email.utils
import itertools
import math
import re
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from actors.core.content import Usage
from actors.core.errors import ErrorKind, LlmFailure
from actors.llm.provider import ProviderConfig
from actors.ports import ModelFailed

#: Bytes of an error answer that are read.
MAX_ERROR_BYTES = 64 << 10
#: Characters of a provider's message that are passed on.
MAX_SAID = 400
#: A wait beyond this is as good as for ever; keeps the number an integer.
_MAX_RETRY_AFTER_MS = 30 * 86_400_000

_QUOTA = frozenset({
    "insufficient_quota", "credit_balance_exhausted", "billing_error", "billing_hard_limit_reached",
    "billing_not_active", "access_terminated", "account_deactivated", "organization_on_hold", "quota_exceeded",
    "exceeded_current_quota_error",
})  # fmt: skip
_QUOTA_SUFFIXES = ("_spend_limit_exceeded", "_spend_limit_reached", "_budget_exceeded")
_QUOTA_TEXT = re.compile(r"credit balance is too low|exceeded your current quota|insufficient (balance|credits)", re.I)
_FILTER = frozenset({
    "content_filter", "content_policy_violation", "responsibleaipolicyviolation", "bio_policy", "cyber_policy",
    "misalignment_policy_violation", "invalid_prompt", "data_inspection_failed",
})  # fmt: skip
_TOO_LONG = frozenset({"context_length_exceeded", "exceed_context_size_error", "model_context_window_exceeded"})
_TOO_LONG_TEXT = re.compile(
    r"prompt is too long|input is too long|maximum context length|context length is only"
    r"|exceeds? (the )?(available |model'?s? |your )?(maximum )?context|maximum prompt length|too many (input )?tokens",
    re.I,
)
#: The kind that a name in the error stands for when no HTTP status says it: errors inside a stream.
_NAMED = {
    "authentication_error": 401, "invalid_api_key": 401, "permission_error": 403, "not_found_error": 404,
    "model_not_found": 404, "invalid_request_error": 400, "request_too_large": 413, "rate_limit_error": 429,
    "rate_limit_exceeded": 429, "too_many_requests": 429, "slow_down": 429, "ramp_limit_exceeded": 429,
}  # fmt: skip
_TRY_AGAIN_STATUSES = frozenset({408, 409, 425})
_MASK = "[redacted]"
_KEY_LIKE = re.compile(r"(?i)\bbearer\s+\S+|\b(?:sk|xai|gsk)[-_][\w*.\-]{6,}|\bAIza[\w\-]{8,}")
_PIECE = 8
_SHORTEST_SECRET = 4


class Complaint(Struct, frozen=True):
    """A provider's error, whatever shape it came in."""

    names: frozenset[str] = frozenset()
    """Its type and codes, in lower case."""
    said: str = ""
    status: int | None = None
    """The HTTP status it stands for, where the error itself names one."""


def complaint_of(payload: bytes) -> Complaint:
    """Read an error answer or in-stream error; anything that is not JSON of a known shape says nothing."""
    try:
        outer = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Complaint()
    if not isinstance(outer, dict):
        return Complaint()
    error = outer.get("error", outer)
    if isinstance(error, str):
        return Complaint(said=error)
    if not isinstance(error, dict):
        return Complaint()
    details = error.get("details")
    coded = details.get("error_code") if isinstance(details, dict) else None
    names = {str(name).lower() for name in (error.get("type"), error.get("code"), coded) if isinstance(name, str)}
    texts = (error.get("message"), error.get("detail"), outer.get("message"))
    said = next((text for text in texts if isinstance(text, str)), "")
    code = error.get("code")
    return Complaint(frozenset(names), said, code if isinstance(code, int) and 400 <= code < 600 else None)


def refusal_of(
    provider: ProviderConfig, status: int, headers: Mapping[str, str], body: bytes, now: float
) -> ModelFailed:
    """Classify an answer whose status is not 2xx. `now`: seconds since the epoch, for a Retry-After date."""
    complaint = complaint_of(body)
    final = status == 429 and headers.get("x-should-retry", "").lower() == "false"
    failure = _failure(provider, complaint, status, f"HTTP {status}", final=final)
    return ModelFailed(failure, retry_after_ms(headers, now) if failure.retryable else None)


def stream_error_of(provider: ProviderConfig, payload: bytes, usage: Usage | None = None) -> ModelFailed:
    """Classify an error that came inside an answer that had begun well."""
    complaint = complaint_of(payload)
    named = next((status for name, status in _NAMED.items() if name in complaint.names), None)
    label = ", ".join(sorted(complaint.names)) or "an error inside the answer"
    return ModelFailed(_failure(provider, complaint, complaint.status or named or 500, label, final=False), usage=usage)


def broken_off(provider: ProviderConfig, text: str, usage: Usage | None = None) -> ModelFailed:
    """An answer that makes no sense or has no end; retryable."""
    return ModelFailed(LlmFailure(ErrorKind.SERVER_ERROR, f"{provider.name}: {text}"), usage=usage)


def filtered(provider: ProviderConfig, said: str, usage: Usage | None) -> ModelFailed:
    """The provider answered with a refusal and no text."""
    return ModelFailed(_content_filter(provider, _tail(provider, said)), usage=usage)


def retry_after_ms(headers: Mapping[str, str], now: float) -> int | None:
    """Milliseconds from retry-after-ms, or Retry-After in seconds or as a date; None without a usable one."""
    for name, factor in (("retry-after-ms", 1.0), ("retry-after", 1000.0)):
        try:
            wait = float(headers[name]) * factor
        except (KeyError, ValueError):
            continue
        if not math.isnan(wait) and wait >= 0:
            return math.ceil(min(wait, _MAX_RETRY_AFTER_MS))
    try:
        date = email.utils.parsedate_to_datetime(headers["retry-after"]).timestamp()
    except (KeyError, ValueError, OverflowError):
        return None
    return math.ceil(min(max(date - now, 0) * 1000, _MAX_RETRY_AFTER_MS))


def _failure(provider: ProviderConfig, complaint: Complaint, status: int, label: str, *, final: bool) -> LlmFailure:
    tail = _tail(provider, complaint.said)
    whose = f"{provider.name} ({label})"
    if _is_too_long(complaint, status):
        return LlmFailure(ErrorKind.CONTEXT_EXHAUSTED, f"The conversation no longer fits the model of {whose}{tail}")
    if complaint.names & _FILTER:
        return _content_filter(provider, tail)
    if final or _is_quota(complaint, status):
        text = f"The account at {whose} has no quota left{tail} Add credit or raise its limit, then send a message."
        return LlmFailure(ErrorKind.INVALID_REQUEST, text)
    return _by_status(provider, status, whose, tail)


def _by_status(provider: ProviderConfig, status: int, whose: str, tail: str) -> LlmFailure:
    if status in (401, 403):
        where = provider.key_source or f"the api_key of provider {provider.name}"
        return LlmFailure(ErrorKind.AUTH, f"Authentication failed at {whose}{tail} Check {where}.")
    if status == 429:
        return LlmFailure(ErrorKind.RATE_LIMIT, f"Rate limited by {whose}{tail}")
    if status in _TRY_AGAIN_STATUSES or not 400 <= status < 500:
        advice = " Its base_url redirects: set the final address." if 300 <= status < 400 else ""
        return LlmFailure(ErrorKind.SERVER_ERROR, f"Server error at {whose}{tail}{advice}")
    advice = " Check the model's name and the base_url." if status == 404 else ""
    return LlmFailure(ErrorKind.INVALID_REQUEST, f"The request was refused by {whose}{tail}{advice}")


def _content_filter(provider: ProviderConfig, tail: str) -> LlmFailure:
    text = f"The content filter of {provider.name} stopped the answer{tail} Say it in other words."
    return LlmFailure(ErrorKind.CONTENT_FILTER, text)


def _is_too_long(complaint: Complaint, status: int) -> bool:
    if complaint.names & _TOO_LONG:
        return True
    return status in (400, 413, 422, 500) and _TOO_LONG_TEXT.search(complaint.said) is not None


def _is_quota(complaint: Complaint, status: int) -> bool:
    named = complaint.names & _QUOTA or any(name.endswith(_QUOTA_SUFFIXES) for name in complaint.names)
    told = status in (400, 403, 429) and _QUOTA_TEXT.search(complaint.said)
    return bool(named or told or status == 402)


def _tail(provider: ProviderConfig, said: str) -> str:
    """The provider's own words, fit to be shown, as the end of a sentence."""
    text = redacted(said, provider.secrets)
    if len(text) > MAX_SAID:
        text = text[:MAX_SAID] + "…"
    return f": {text}" + ("" if text.endswith((".", "!", "?", "…")) else ".") if text else "."


def redacted(text: str, secrets: tuple[str, ...]) -> str:
    """`text` on one line, without control characters, keys, or pieces of `secrets` of 8 characters or more."""
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
