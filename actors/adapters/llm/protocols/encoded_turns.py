"""Encodes the turns of requests. The settled turns of a conversation, which no longer change, are encoded only once."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from actors.core.history import Prefix

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.core.history import ProviderView, Turn

Joint = Callable[[str, str], bytes]
"""Returns the separator before an encoded turn, given the roles of the previous turn ("" for none) and of this turn."""
Encode = Callable[["Turn"], bytes]
"""Encodes a turn; returns b"" if no part of the turn can be sent."""


def comma(before: str, _role: str) -> bytes:
    """Return the separator before a turn that is an element of a JSON array: b"" before the first one."""
    return b"," if before else b""


class EncodedTurns:
    """Encoded turns of one protocol, joined with their separators, in few pieces. Turns can be appended.

    Requests share the pieces, which never change, instead of copying them. A new piece is merged with the previous one,
    repeatedly, until the previous one is at least twice as long. So there are few pieces, and bytes are copied rarely.
    """

    def __init__(self, joint: Joint, role: str = "") -> None:
        self._joint = joint
        self.pieces: list[bytes] = []
        self.role = role
        """The role of the last added turn; before the first `add`, that of the turn before these turns, "" for none."""

    def add(self, turns: Iterable[Turn], encode: Encode) -> None:
        """Encode further turns and append them. Raises what `encode` raises."""
        added: list[bytes] = []
        for turn in turns:
            if encoded := encode(turn):
                added += self._joint(self.role, turn.role), encoded
                self.role = turn.role
        if added:
            self._append(b"".join(added))

    def _append(self, piece: bytes) -> None:
        begin, size = len(self.pieces), len(piece)
        while begin and len(self.pieces[begin - 1]) < 2 * size:
            begin -= 1
            size += len(self.pieces[begin])
        self.pieces[begin:] = [b"".join((*self.pieces[begin:], piece))]


class EncodedPrefix:
    """The encoded beginning of a conversation: those turns of its last request that no longer change."""

    def __init__(self, form: Hashable, joint: Joint) -> None:
        self.form = form
        self.encoded = EncodedTurns(joint)
        self.turns = Prefix()

    @property
    def held(self) -> int:
        """The size of the encoded turns in bytes. The turns before encoding do not count: other objects hold them."""
        return sum(map(sys.getsizeof, self.encoded.pieces))

    def grow(self, view: ProviderView, encode: Encode) -> None:
        """Append the turns of `view` that no longer change and are not in this prefix yet.

        `view` must begin with the turns of this prefix. Raises what `encode` raises.
        """
        self.encoded.add(view.turns[self.turns.settled : view.settled], encode)
        self.turns = view.prefix


class PrefixCache:
    """Keeps one encoded prefix per conversation, so that a request encodes only its new turns.

    Safe to call from any thread. `forget` drops the prefix of a conversation. If all prefixes together exceed
    `max_bytes`, the least recently used ones are dropped.
    """

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        self._max = max_bytes
        # Guards _kept and _held. A prefix is taken out of the cache before it grows, so encoding does not need the
        # lock.
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, EncodedPrefix] = OrderedDict()
        self._held = 0

    @property
    def held(self) -> int:
        """The memory that all kept prefixes use, in bytes."""
        return self._held

    def take(self, conversation_id: str, form: Hashable, joint: Joint, view: ProviderView) -> EncodedPrefix:
        """Remove the conversation's prefix from the cache, and return it; if it does not fit, return an empty prefix.

        It fits if the turns of `view` begin with it, and if it was encoded for the same `form`: a value that stands for
        everything else on which the encoding depends.
        """
        with self._lock:
            kept = self._remove(conversation_id)
        if kept is None or kept.form != form or not view.begins_with(kept.turns):
            return EncodedPrefix(form, joint)
        return kept

    def put(self, conversation_id: str, prefix: EncodedPrefix) -> None:
        """Keep a prefix for the next request of the conversation."""
        with self._lock:
            self._remove(conversation_id)
            self._kept[conversation_id] = prefix
            self._held += prefix.held
            while self._held > self._max:
                self._remove(next(iter(self._kept)))

    def forget(self, conversation_id: str) -> None:
        """Drop the prefix of a conversation."""
        with self._lock:
            self._remove(conversation_id)

    def _remove(self, conversation_id: str) -> EncodedPrefix | None:
        kept = self._kept.pop(conversation_id, None)
        self._held -= kept.held if kept is not None else 0
        return kept
