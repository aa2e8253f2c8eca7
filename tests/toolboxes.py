"""What a made-up toolbox needs beside the tools that a test is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.core.context import Mode
    from actors.core.tool_run import KillReceipt


class NothingKept:
    """Its tools keep nothing between calls (ports.Toolbox)."""

    def jobs(self, conversation_id: str, wider_than: Mode | None = None) -> tuple[str, ...]:
        return ()

    def end_jobs(
        self, conversation_id: str, ended: Callable[[KillReceipt], None], wider_than: Mode | None = None
    ) -> int:
        return 0

    def forget(self, conversation_id: str) -> None:
        pass
