"""Decodes what providers send: streams of server-sent events, and JSON that deviates from their protocol.

The readers of all protocols use these functions for the fields in which servers differ, so that an oddity known from
one protocol is understood in all of them. A meaningless value raises msgspec.ValidationError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

_BOM = b"\xef\xbb\xbf"

# Maximum bytes of one event, or of an answer that arrives as one JSON body.
MAX_EVENT_BYTES = 8 << 20

Kind: TypeAlias = Literal["text", "reasoning", "refusal"]

_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # matches a surrogate pair
    rb"|\\u([dD][89a-fA-F][0-9a-fA-F]{2})"  # matches a lone surrogate
    rb"|\\.",  # matches any other escape, so that an escaped backslash does not begin a match
    re.DOTALL,
)
# Replaces the "\u" of a lone surrogate. It is a noncharacter, which no text contains.
_HALF = "\ufdd0"
_HIGH = f"{_HALF}[dD][89abAB][0-9a-fA-F]{{2}}"
_HALVES = re.compile(f"({_HIGH}{_HALF}[dD][c-fC-F][0-9a-fA-F]{{2}})|{_HALF}[dD][89a-fA-F][0-9a-fA-F]{{2}}")
_OPEN = re.compile(f"{_HIGH}$")

_KINDS: Mapping[str, Kind] = {"thinking": "reasoning", "reasoning": "reasoning", "refusal": "refusal"}
# The fields of a text part that may contain text or further parts.
_TEXTS = ("text", "value", "content", "thinking", "reasoning", "summary", "refusal")
# The fields, such as signatures, that a provider adds to a tool call and needs back; see `own_fields`.
_OWN = (
    "extra_content",
    "provider_specific_fields",
    "thought_signature",
    "signature",
    "caller",
    "toolset_name",
    "namespace",
)
# The fields whose texts are concatenated when fragments are joined; of any other field, the last value is kept.
_GROWING = frozenset({"text", "summary", "thinking", "data"})


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    name: str
    data: bytes


class SseTooLargeError(Exception):
    pass


class SseParser:
    """Incremental parser for one stream. Not thread-safe.

    Lines end with CR, LF or CRLF, even across chunks. A BOM and comments are skipped; `id` and `retry` are ignored,
    since a model request is never resumed. An unfinished event is never returned.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        # The beginning of the next event, with LF line endings.
        self._buffer = bytearray()
        self._after_cr = False
        self._at_start = True

    def feed(self, chunk: bytes) -> list[SseEvent]:
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        unseen = max(len(self._buffer) - 1, 0)  # no event ends before it, so a long event is searched only once
        self._buffer += chunk
        events: list[SseEvent] = []
        if self._buffer.find(b"\n\n", unseen) >= 0:
            *blocks, rest = bytes(self._buffer).split(b"\n\n")
            self._buffer = bytearray(rest)
            events = [event for block in blocks if (event := self._event(block))]
        if len(self._buffer) > self._max:
            raise self._too_large()
        return events

    def _event(self, block: bytes) -> SseEvent | None:
        if len(block) > self._max:
            raise self._too_large()
        if self._at_start:
            self._at_start = False
            block = block.removeprefix(_BOM)
        name, data = b"", []
        for line in block.split(b"\n"):
            field, _, value = line.partition(b":")
            if field == b"data":
                data.append(value.removeprefix(b" "))
            elif field == b"event":
                name = value.removeprefix(b" ")
        return SseEvent(name.decode("utf-8", "replace"), b"\n".join(data)) if data else None

    def _too_large(self) -> SseTooLargeError:
        return SseTooLargeError(f"an event of more than {self._max} bytes")


def mark_halves(data: bytes) -> bytes:
    """JSON with markers in place of escaped lone surrogates, which no decoder accepts.

    Some servers split a surrogate pair across two deltas; `join_halves` joins the marked halves.
    """
    if b"\\ud" not in data and b"\\uD" not in data:
        return data
    return _ESCAPE.sub(lambda found: _HALF.encode() + found[1] if found[1] else found[0], data)


def join_halves(text: str) -> str:
    """Replace each pair of marked halves with its character, and each lone marked half with U+FFFD."""
    return _HALVES.sub(_joined, text) if _HALF in text else text


def _joined(found: re.Match[str]) -> str:
    if not found[1]:
        return "\ufffd"
    _, high, low = found[1].split(_HALF)
    return chr(0x10000 + ((int(high, 16) & 0x3FF) << 10) + (int(low, 16) & 0x3FF))


def open_half(text: str) -> int:
    """The length of the marked half at the end of `text` whose other half may follow; 0 if there is none."""
    found = _OPEN.search(text) if _HALF in text else None
    return len(found[0]) if found else 0


def replace_lone_surrogates(text: str) -> str:
    """JSON text with U+FFFD in place of every escaped lone surrogate, which cannot be stored or sent."""
    return join_halves(mark_halves(text.encode("utf-8", "replace")).decode())


def word(value: object) -> str:
    """An id, a name or another short string, which may have been sent as a number; "" if there is none."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else ""


def whole_number(value: object) -> int | None:
    """A whole number written as 12, 12.0 or "12"; None for anything else."""
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() and len(value) < 20 else None
    if isinstance(value, float):
        value = int(value) if value.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def json_text(value: object) -> str:
    """A field that should be JSON text, such as a tool's arguments. Encodes a value that is not text; "" for null."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def object_text(text: str) -> str:
    """Unwrap the JSON text of an object that was encoded as a JSON string, perhaps repeatedly; else return `text`."""
    inner = text
    try:
        while inner.lstrip().startswith('"'):
            inner = msgspec.json.decode(inner, type=str)
        return inner if inner is text or isinstance(msgspec.json.decode(inner), dict) else text
    except (msgspec.DecodeError, RecursionError):
        return text


def pieces(value: Any, kind: Kind = "text") -> Iterator[tuple[Kind, str]]:
    """Yield the texts of a field, which is a string, a part, or nested lists of parts; parts without text are skipped.

    Raises msgspec.ValidationError for anything else.
    """
    match value:
        case str():
            yield kind, value
        case None:
            pass
        case list():
            for part in value:
                yield from pieces(part, kind)
        case dict():
            inner = _KINDS.get(word(value.get("type")), kind)
            for field in _TEXTS:
                yield from pieces(value.get(field), _KINDS.get(field, inner))
        case _:
            raise msgspec.ValidationError(f"Expected text, got `{type(value).__name__}`")


def text_in(value: Any) -> str:
    """All texts of a field, joined; see `pieces`."""
    return value if isinstance(value, str) else "".join(text for _, text in pieces(value))


def own_fields(call: Mapping[str, Any]) -> str:
    """The fields of a call that the provider needs back in later requests, as JSON; "" if there are none."""
    found = {field: call[field] for field in _OWN if call.get(field) is not None}
    return json.dumps(found, ensure_ascii=False) if found else ""


def joined_fragments(fragments: Iterable[Any]) -> list[dict[str, Any]]:
    """Join streamed fragments into the original objects, in order.

    Fragments with the same type and index belong to one object. Without an index, a signature or encrypted data marks
    the last fragment of an object.
    """
    wholes: dict[tuple[str, str, int], dict[str, list[Any]]] = {}
    completed = 0
    for fragment in fragments:
        if isinstance(fragment, dict):
            index = word(fragment.get("index"))
            whole = wholes.setdefault((word(fragment.get("type")), index, 0 if index else completed), {})
            for field, value in fragment.items():
                whole.setdefault(field, []).extend([] if value is None else [value])
            completed += bool(not index and (fragment.get("signature") or fragment.get("data")))
    return [{field: _grown(field, values) for field, values in whole.items()} for whole in wholes.values()]


def _grown(field: str, values: list[Any]) -> Any:
    if field in _GROWING and all(isinstance(value, str) for value in values):
        return "".join(values)
    return values[-1] if values else None
