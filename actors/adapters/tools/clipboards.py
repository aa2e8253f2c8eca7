"""The clipboards of the patch tool, per conversation; kept in memory and lost with the conversation or the server."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Clipboards:
    """The texts that calls of the patch tool have stored under names, per conversation.

    Safe to call from any thread; never blocks.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # calls of several conversations, and a conversation's deletion, run in parallel
        self._kept: dict[str, dict[str, str]] = {}

    def of(self, conversation_id: str) -> Mapping[str, str]:
        """Return the conversation's current texts by name; do not modify the mapping."""
        with self._lock:
            return self._kept.setdefault(conversation_id, {})

    def store(self, conversation_id: str, before: Mapping[str, str], texts: Mapping[str, str]) -> None:
        """Add `texts` to the conversation's texts, which were `before` when the caller got them from `of`.

        Do nothing if the conversation's texts were changed or forgotten since then.
        """
        with self._lock:
            if self._kept.get(conversation_id) is before:
                self._kept[conversation_id] = {**before, **texts}

    def forget(self, conversation_id: str) -> None:
        """Drop the texts of a conversation."""
        with self._lock:
            self._kept.pop(conversation_id, None)
