"""Incremental parser of server-sent events."""

from __future__ import annotations

import msgspec

_BOM = b"\xef\xbb\xbf"

# Maximum bytes of one event, and of an answer that comes as one JSON body.
MAX_EVENT_BYTES = 8 << 20


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    name: str
    data: bytes


class SseTooLargeError(Exception):
    pass


class SseParser:
    """Incremental parser of one stream. Not thread-safe.

    Lines end with CR, LF or CRLF, also across chunks. A BOM and comments are skipped; `id` and `retry` are ignored,
    since a model request is never resumed. An unfinished event is never returned.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        # The beginning of the next event, with LF as line end.
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
        unseen = max(len(self._buffer) - 1, 0)  # nothing before it ends an event, so a long one is searched once only
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
