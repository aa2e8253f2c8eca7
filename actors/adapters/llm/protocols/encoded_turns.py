"""Turns of requests, encoded and joined; the settled ones of a conversation are encoded once."""

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
"""Returns what stands in front of an encoded turn, given the role of the turn before, "" for the first, and its own."""
Encode = Callable[["Turn"], bytes]
"""Encodes a turn; b"" if nothing of it can be sent."""


def comma(before: str, _role: str) -> bytes:
    """Return the joint of turns that are elements of a JSON array."""
    return b"," if before else b""


class EncodedTurns:
    """Turns as one protocol has them, joined; grows at its end."""

    def __init__(self, joint: Joint, role: str = "") -> None:
        self._joint = joint
        self.text = bytearray()
        self.role = role
        """Role of the last turn, at first of the one before; "" if there is none."""

    def add(self, turns: Iterable[Turn], encode: Encode) -> None:
        """Encode further turns. Raises what `encode` raises."""
        for turn in turns:
            if encoded := encode(turn):
                self.text += self._joint(self.role, turn.role)
                self.text += encoded
                self.role = turn.role


class EncodedPrefix:
    """The settled turns of a conversation's last request, in one form."""

    def __init__(self, form: Hashable, joint: Joint) -> None:
        self.form = form
        self.encoded = EncodedTurns(joint)
        self.turns = Prefix()

    @property
    def held(self) -> int:
        """Return the bytes of memory in use; the turns themselves belong to the conversation."""
        return sys.getsizeof(self.encoded.text)

    def grow(self, view: ProviderView, encode: Encode) -> None:
        """Encode the settled turns of a view that begins with this prefix. Raises what `encode` raises."""
        self.encoded.add(view.turns[self.turns.settled : view.settled], encode)
        self.turns = view.prefix


class PrefixCache:
    """Cache of encoded prefixes, one per conversation: each request encodes only what is new.

    Any thread. Forgotten conversations are dropped; beyond `max_bytes` the least recently used are.
    """

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        self._max = max_bytes
        self._lock = threading.Lock()  # guards _kept and _held; encoding happens outside, on prefixes taken out
        self._kept: OrderedDict[str, EncodedPrefix] = OrderedDict()
        self._held = 0

    @property
    def held(self) -> int:
        """Return the bytes of memory in use."""
        return self._held

    def take(self, conversation_id: str, form: Hashable, joint: Joint, view: ProviderView) -> EncodedPrefix:
        """Remove and return the prefix that `view` begins with, for the caller alone; an empty one if none is kept.

        `form` is everything beside the turns that the encoding depends on.
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
