"""What tools may do now, and what the call that runs was started with (REQ-BED-014, 016)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from actors.core.context import Mode, wider

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.ports import CancelToken


class Rights:
    """The mode in force, and the modes of the calls that run under an earlier one. Any thread; never blocks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mode = Mode.RESTRICTED
        self._calls: dict[str, tuple[Mode, CancelToken]] = {}

    @property
    def mode(self) -> Mode:
        """What calls that start now may do."""
        return self._mode

    def set(self, mode: Mode) -> None:
        """From now on calls start in this mode; those that run keep theirs."""
        with self._lock:
            self._mode = mode

    def narrow(self, mode: Mode) -> None:
        """Like `set`, but never widens."""
        with self._lock:
            if wider(self._mode, mode):
                self._mode = mode

    def begin(self, tool_use_id: str, cancel: CancelToken) -> Mode:
        """A call starts: return the mode that it has until its `end`."""
        with self._lock:
            self._calls[tool_use_id] = self._mode, cancel
            return self._mode

    def end(self, tool_use_id: str) -> None:
        """The call has ended, or never began."""
        with self._lock:
            self._calls.pop(tool_use_id, None)

    def wider_than(self, mode: Mode) -> tuple[str, ...]:
        """The calls that run with more rights than this mode gives; not those that are being killed."""
        with self._lock:
            return tuple(
                tool_use_id
                for tool_use_id, (held, cancel) in self._calls.items()
                if wider(held, mode) and not cancel.cancelled
            )

    def pull(self, tool_use_ids: Iterable[str]) -> None:
        """Kill these calls; they get no outcome but that they were aborted."""
        with self._lock:
            tokens = [self._calls[tool_use_id][1] for tool_use_id in tool_use_ids if tool_use_id in self._calls]
        for token in tokens:
            token.cancel()
