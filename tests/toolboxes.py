"""What a made-up toolbox needs beside the tools that a test is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from actors.core.context import Mode
    from actors.core.tool_run import KillReceipt
    from actors.ports import ToolContext, ToolOutput


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


class FunctionTool:
    """A tool that calls a function with its context (ports.Tool)."""

    def __init__(self, function: Callable[[ToolContext], ToolOutput]) -> None:
        self._function = function

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        return self._function(context)
