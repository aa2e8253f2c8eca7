"""Incremental parser of server-sent events."""

from __future__ import annotations

import msgspec

_BOM = b"\xef\xbb\xbf"

#: Maximum bytes of one event, and of an answer that comes as one JSON body.
MAX_EVENT_BYTES = 8 << 20


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    """One event of a stream."""

    name: str
    """The `event` field; "" if the server sent none."""
    data: bytes
    """The `data` lines, joined by LF."""


class SseTooLargeError(Exception):
    """An event, or a body that should have been a stream of them, exceeded the size limit."""


class SseParser:
    """Incremental parser of one stream. Not thread-safe.

    Lines end with CR, LF or CRLF, also if a chunk ends between CR and LF. A leading BOM and comments are skipped; `id`
    and `retry` are ignored, since a model request is never resumed. An event without its final blank line is never
    returned.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._line = bytearray()
        self._after_cr = False
        self._at_start = True
        self._name = ""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Parse the next bytes and return the events that they complete. Raises SseTooLargeError."""
        events: list[SseEvent] = []
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        for line in chunk.splitlines(keepends=True):
            self._size += len(line)
            if self._size > self._max:
                raise SseTooLargeError(f"an event of more than {self._max} bytes")
            self._line += line.rstrip(b"\r\n")
            if line[-1] not in b"\r\n":
                break  # its end comes with the next chunk
            field, _, value = self._line.removeprefix(_BOM if self._at_start else b"").partition(b":")
            self._at_start = False
            if field == b"data":
                self._data.append(bytes(value.removeprefix(b" ")))
            elif field == b"event":
                self._name = value.removeprefix(b" ").decode("utf-8", "replace")
            elif not self._line:
                if self._data:
                    events.append(SseEvent(self._name, b"\n".join(self._data)))
                self._name, self._data, self._size = "", [], 0
            self._line.clear()
        if chunk:
            self._after_cr = chunk.endswith(b"\r")
        return events
