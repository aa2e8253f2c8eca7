"""What a made-up toolbox needs beside the tools that a test is about."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from actors.adapters.tools import call_subjects
from actors.core.content import ToolUse
from actors.core.context import ApprovalRule, CallSubject, Mode, ToolGroup, ToolTraits
from actors.core.tool_run import KillReceipt
from actors.ports import ToolContext, ToolOutput, ToolSpec


class NothingKept:
    """Its tools keep nothing between calls (ports.Toolbox)."""

    def jobs(self, conversation_id: str, wider_than: Mode | None = None) -> tuple[str, ...]:
        return ()

    def end_jobs(
        self, conversation_id: str, ended: Callable[[KillReceipt], None], wider_than: Mode | None = None
    ) -> tuple[str, ...]:
        return ()

    def forget(self, conversation_id: str) -> None:
        pass

    def subject(self, call: ToolUse, working_directory: str, within: Sequence[str] | None = None) -> CallSubject:
        return call_subjects.subject_of(call.name, json.loads(call.input), working_directory, within)

    def prepared_rule(self, rule: ApprovalRule, within: Sequence[str] | None = None) -> ApprovalRule:
        return call_subjects.prepared_rule(rule, within)


class FunctionTool:
    """A tool that calls a function with its context (ports.Tool)."""

    def __init__(self, function: Callable[[ToolContext], ToolOutput], *, instant: bool = False) -> None:
        self._function = function
        self.spec = ToolSpec("", {}, ToolTraits("function", ToolGroup.OTHER), instant=instant)

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        return self._function(context)
