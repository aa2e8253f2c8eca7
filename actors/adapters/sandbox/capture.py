"""Keeps the beginning and the end of a program's output."""

from __future__ import annotations


class Capture:
    """Keeps at most `limit` bytes of a stream: the first bytes and the last ones, half of the limit each.

    Not thread-safe.
    """

    def __init__(self, limit: int) -> None:
        self._head_room = limit // 2
        self._tail_room = limit - self._head_room
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def add(self, data: bytes) -> None:
        """Append a chunk of output."""
        self._total += len(data)
        taken = min(len(data), self._head_room - len(self._head))
        self._head += data[:taken]
        self._tail += data[max(taken, len(data) - self._tail_room) :]
        if len(self._tail) > 2 * self._tail_room:
            self._trim()

    def parts(self) -> tuple[bytes, bytes, int]:
        """Return head, tail and the number of bytes dropped between them. Without dropped bytes, head is all output."""
        self._trim()
        cut = self._total - len(self._head) - len(self._tail)
        if cut == 0:
            return bytes(self._head + self._tail), b"", 0
        return bytes(self._head), bytes(self._tail), cut

    def _trim(self) -> None:
        del self._tail[: max(0, len(self._tail) - self._tail_room)]
