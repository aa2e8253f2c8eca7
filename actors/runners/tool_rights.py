"""Keeps the permission mode in which tools of a conversation start now, and the mode of each running tool call."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from actors.core.context import Mode, wider

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.ports import CancelToken


class ToolRights:
    """The current permission mode, and the modes of the running tool calls.

    Safe to use from any thread; never blocks for long.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mode = Mode.RESTRICTED
        self._calls: dict[str, tuple[Mode, CancelToken]] = {}

    @property
    def mode(self) -> Mode:
        """The mode in which calls start now."""
        return self._mode

    def set(self, mode: Mode) -> None:
        """Let calls start in this mode from now on; running calls keep the mode in which they were started."""
        with self._lock:
            self._mode = mode

    def narrow(self, mode: Mode) -> None:
        """Let calls start in this mode from now on, unless the current mode gives fewer rights; then do nothing."""
        with self._lock:
            if wider(self._mode, mode):
                self._mode = mode

    def begin(self, tool_use_id: str, cancel: CancelToken) -> Mode:
        """Register a call that starts; return its permission mode, which stays the same until the call ends."""
        with self._lock:
            self._calls[tool_use_id] = self._mode, cancel
            return self._mode

    def end(self, tool_use_id: str) -> None:
        """Remove a call that has ended or never began. Idempotent."""
        with self._lock:
            self._calls.pop(tool_use_id, None)

    def wider_than(self, mode: Mode) -> tuple[str, ...]:
        """Return the ids of running calls with more rights than this mode gives, except calls that are being killed."""
        with self._lock:
            return tuple(
                tool_use_id
                for tool_use_id, (held, cancel) in self._calls.items()
                if wider(held, mode) and not cancel.cancelled
            )

    def cancel(self, tool_use_ids: Iterable[str]) -> None:
        """Kill those of these calls that are running; each will report that it was aborted."""
        with self._lock:
            tokens = [self._calls[tool_use_id][1] for tool_use_id in tool_use_ids if tool_use_id in self._calls]
        for token in tokens:
            token.cancel()
