"""Incremental parser of server-sent events."""

from __future__ import annotations

import msgspec

_BOM = b"\xef\xbb\xbf"

#: Maximum bytes of one event.
MAX_EVENT_BYTES = 16 << 20

#: Maximum bytes of an unfinished event that are kept to parse the whole event at once. A longer event is parsed line by
#: line as it arrives, because parsing it again after each chunk would be slow.
_MAX_TAIL = 64 << 10


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    """One event of a stream."""

    name: str
    """The `event` field; "" if the server sent none."""
    data: bytes
    """The `data` lines, joined by LF."""


class SseTooLargeError(Exception):
    """An event exceeded the size limit."""


class SseParser:
    """Incremental parser of one stream. Not thread-safe.

    Lines end with CR, LF or CRLF, also if a chunk ends between CR and LF. A leading BOM and comments are skipped; `id`
    and `retry` are ignored, since a model request is never resumed. An event without its final blank line is never
    returned.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._tail = b""
        """The beginning of an unfinished event; b"" while an event is parsed line by line."""
        self._line = bytearray()
        self._after_cr = False
        self._at_start = True
        self._name = ""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Parse the next bytes and return the events that they complete. Raises SseTooLargeError."""
        events: list[SseEvent] = []
        if self._at_start and not self._size and len(chunk) >= len(_BOM):
            self._at_start = False
            chunk = chunk.removeprefix(_BOM)
        if self._after_cr or self._at_start or b"\r" in chunk:
            self._feed_lines(self._tail + chunk, events)
            self._tail = b""
            return events
        # What follows is a faster way for chunks whose lines end with LF alone, as nearly all servers send them.
        if self._size:
            end = chunk.find(b"\n\n") + 2
            self._feed_lines(chunk[:end] if end > 1 else chunk, events)
            if end == 1:
                return events
            chunk = chunk[end:]
        *whole, self._tail = (self._tail + chunk).split(b"\n\n")
        for text in whole:
            self._feed_event(text, events)
        if len(self._tail) > min(_MAX_TAIL, self._max):
            self._feed_lines(self._tail, events)
            self._tail = b""
        return events

    def _feed_event(self, text: bytes, events: list[SseEvent]) -> None:
        """Parse one event; quickly if it has the usual form: one `data` line, which may follow one `event` line.

        Raises SseTooLargeError.
        """
        name, data = b"", text
        if text.startswith(b"event: "):
            name, _, data = text[7:].partition(b"\n")
        if not data.startswith(b"data: ") or b"\n" in data:
            self._feed_lines(text + b"\n\n", events)
        elif len(text) + 2 > self._max:
            raise SseTooLargeError(f"an event of more than {self._max} bytes")
        else:
            events.append(SseEvent(name.decode("utf-8", "replace") if name else "", data[6:]))

    def _feed_lines(self, chunk: bytes, events: list[SseEvent]) -> None:
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        for line in chunk.splitlines(keepends=True):
            self._size += len(line)
            if self._size > self._max:
                raise SseTooLargeError(f"an event of more than {self._max} bytes")
            text = line.rstrip(b"\r\n")
            self._line += text
            if len(text) != len(line):
                self._end_line(events)
        if chunk:
            self._after_cr = chunk.endswith(b"\r")

    def _end_line(self, events: list[SseEvent]) -> None:
        line = bytes(self._line)
        self._line.clear()
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if line:
            self._field(line)
            return
        if self._data:
            events.append(SseEvent(self._name, b"\n".join(self._data)))
        self._name, self._data, self._size = "", [], 0

    def _field(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
