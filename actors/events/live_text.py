"""Live text: text that a running model request or tool call is writing, for watchers (clients with open streams).

Live text is never stored, and is dropped when the model request or tool call ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

MAX_OUTPUT_CHARS = 256 * 1024
"""How many characters of a tool's live output are kept for clients that connect later; older output is dropped."""


class TextChunk:
    """A piece of live text, all of one kind: a model's reasoning, or output (a model's answer or a tool's output)."""

    __slots__ = ("offset", "reasoning", "text", "wire")

    def __init__(self, text: str, offset: int, *, reasoning: bool = False) -> None:
        self.text = text
        self.offset = offset
        """The number of characters of the same kind that were written before this piece."""
        self.reasoning = reasoning
        self.wire: bytes | None = None
        """The chunk encoded as a gRPC event, shared by all watchers; None until the first watcher sends the chunk."""


@dataclass(frozen=True, slots=True)
class LiveText:
    """The live text that one watcher (a client with an open stream) has not read yet."""

    key: str
    """The id of the model request or of the tool call."""
    attempt: int
    chunks: tuple[TextChunk, ...]


class Cursor(NamedTuple):
    """How far one watcher (a client with an open stream) has read a LiveBuffer."""

    key: str = ""
    attempt: int = 0
    chunks: int = 0
    """The number of chunks of the buffer that the watcher has read, including chunks that were dropped since."""


class LiveBuffer:
    """The text that one attempt of a model request, or one tool call, has streamed so far.

    Not thread-safe: callers must hold the lock of the event hub, which owns the buffers.
    """

    def __init__(self, key: str, attempt: int) -> None:
        self.key = key
        self.attempt = attempt
        self._chunks: list[TextChunk] = []
        self._dropped = 0
        """The number of chunks dropped so far, which is also the index of the oldest chunk still kept."""
        self._lengths = {False: 0, True: 0}
        """The number of characters written so far, of output (False) and of reasoning (True)."""

    def is_of(self, key: str, attempt: int) -> bool:
        """Return whether the buffer belongs to this attempt of the model request or tool call with the id `key`."""
        return (self.key, self.attempt) == (key, attempt)

    def add(self, text: str, *, reasoning: bool = False) -> None:
        """Append text that the model request or tool call has written."""
        self._chunks.append(TextChunk(text, self._lengths[reasoning], reasoning=reasoning))
        self._lengths[reasoning] += len(text)

    def trim(self, chars: int) -> None:
        """Drop the oldest chunks, keeping at least the latest `chars` characters of output."""
        chunks = self._chunks
        while chunks and self._lengths[False] - (chunks[0].offset + len(chunks[0].text)) > chars:
            chunks.pop(0)
            self._dropped += 1

    def read(self, cursor: Cursor) -> tuple[tuple[TextChunk, ...], Cursor]:
        """Return the chunks that `cursor` has not read, and the next cursor.

        Adjacent chunks of the same kind are joined. If `cursor` belongs to another buffer, all chunks are returned.
        """
        read = cursor.chunks if self.is_of(cursor.key, cursor.attempt) else 0
        unread = self._chunks[max(0, read - self._dropped) :]
        return _joined(unread), Cursor(self.key, self.attempt, self._dropped + len(self._chunks))


def buffer_for(buffer: LiveBuffer | None, source: tuple[str, int] | None) -> LiveBuffer | None:
    """Return the buffer for `source` (the id of a model request or tool call, and the attempt); None without a source.

    The result is `buffer` if it belongs to the same source, otherwise a new buffer.
    """
    if source is None:
        return None
    return buffer if buffer is not None and buffer.is_of(*source) else LiveBuffer(*source)


def read_live(buffer: LiveBuffer | None, cursor: Cursor) -> tuple[LiveText | None, Cursor]:
    """Return the text of `buffer` after the position `cursor`, and the position after that text.

    The text is None if there is no buffer or no new text.
    """
    if buffer is None:
        return None, cursor
    chunks, cursor = buffer.read(cursor)
    return (LiveText(buffer.key, buffer.attempt, chunks) if chunks else None), cursor


def _joined(chunks: list[TextChunk]) -> tuple[TextChunk, ...]:
    if len(chunks) < 2:  # the usual case: a single chunk stays the same object, so that its encoding is shared
        return tuple(chunks)
    return tuple(_join(list(run)) for _, run in groupby(chunks, key=lambda chunk: chunk.reasoning))


def _join(run: list[TextChunk]) -> TextChunk:
    first = run[0]
    # A single chunk stays the same object, so that watchers share its encoding.
    return first if len(run) == 1 else TextChunk("".join(c.text for c in run), first.offset, reasoning=first.reasoning)
