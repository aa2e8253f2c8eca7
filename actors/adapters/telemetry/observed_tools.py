"""Wraps the server's own tools and the tools of MCP servers, and reports each tool call to telemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from actors.ports import Clock, SandboxUnavailableError, Tool, Toolbox, ToolContext, ToolOutput, ToolTransientError
from actors.ports.telemetry import MCP, Telemetry, ToolEnd, ToolStart

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from actors.core.approval.approval_rules import ApprovalRule, CallSubject
    from actors.core.content import ToolUse
    from actors.core.context import Mode
    from actors.core.profile import ChosenMcpServer
    from actors.core.tool_run import KillReceipt
    from actors.ports import ConversationRecord, ToolSpec
    from actors.ports.mcp import McpServers, McpServerStatus


class ObservedToolbox:
    """Wraps a Toolbox, and reports the calls of its tools."""

    def __init__(self, toolbox: Toolbox, telemetry: Telemetry, clock: Clock) -> None:
        self._toolbox = toolbox
        self._telemetry = telemetry
        self._clock = clock

    def specs(self, *, sub_agent: bool) -> tuple[ToolSpec, ...]:
        return self._toolbox.specs(sub_agent=sub_agent)

    def get(self, name: str) -> Tool | None:
        tool = self._toolbox.get(name)
        return None if tool is None else ObservedTool(tool, name, self._telemetry, self._clock)

    def parse(self, name: str, raw: str) -> Mapping[str, Any]:
        return self._toolbox.parse(name, raw)

    def subject(self, call: ToolUse, working_directory: str, within: Sequence[str] | None = None) -> CallSubject:
        return self._toolbox.subject(call, working_directory, within)

    def prepared_rule(self, rule: ApprovalRule, within: Sequence[str] | None = None) -> ApprovalRule:
        return self._toolbox.prepared_rule(rule, within)

    def jobs(self, conversation_id: str, wider_than: Mode | None = None) -> tuple[str, ...]:
        return self._toolbox.jobs(conversation_id, wider_than)

    def end_jobs(
        self, conversation_id: str, ended: Callable[[KillReceipt], None], wider_than: Mode | None = None
    ) -> tuple[str, ...]:
        return self._toolbox.end_jobs(conversation_id, ended, wider_than)

    def forget(self, conversation_id: str) -> None:
        self._toolbox.forget(conversation_id)


class ObservedMcpServers:
    """Wraps an McpServers, and reports the calls of the tools of MCP servers."""

    def __init__(self, servers: McpServers, telemetry: Telemetry, clock: Clock) -> None:
        self._servers = servers
        self._telemetry = telemetry
        self._clock = clock

    def start(self) -> None:
        self._servers.start()

    def close(self) -> None:
        self._servers.close()

    def offer(self, record: ConversationRecord) -> tuple[ToolSpec, ...]:
        return self._servers.offer(record)

    def offered(self, conversation_id: str) -> tuple[ToolSpec, ...]:
        return self._servers.offered(conversation_id)

    def tool(self, name: str, conversation_id: str) -> Tool | None:
        tool = self._servers.tool(name, conversation_id)
        return None if tool is None else ObservedTool(tool, MCP, self._telemetry, self._clock)

    def check(self, chosen: tuple[ChosenMcpServer, ...]) -> None:
        self._servers.check(chosen)

    def prepare(self, record: ConversationRecord) -> None:
        self._servers.prepare(record)

    def statuses_of(self, record: ConversationRecord) -> tuple[McpServerStatus, ...]:
        return self._servers.statuses_of(record)

    def outdated(self, record: ConversationRecord) -> tuple[str, ...]:
        return self._servers.outdated(record)

    def end_outdated(self, record: ConversationRecord) -> None:
        self._servers.end_outdated(record)

    def wider_than(self, conversation_id: str, mode: Mode) -> tuple[str, ...]:
        return self._servers.wider_than(conversation_id, mode)

    def stop(self, conversation_id: str, wider_than: Mode | None = None) -> tuple[str, ...]:
        return self._servers.stop(conversation_id, wider_than)

    def release(self, conversation_id: str) -> None:
        self._servers.release(conversation_id)

    def statuses(self, principal: str = "") -> tuple[McpServerStatus, ...]:
        return self._servers.statuses(principal)


class ObservedTool:
    """Wraps a Tool, and reports each call."""

    def __init__(self, tool: Tool, group: str, telemetry: Telemetry, clock: Clock) -> None:
        self._tool = tool
        self._group = group
        self._telemetry = telemetry
        self._clock = clock

    @property
    def spec(self) -> ToolSpec:
        return self._tool.spec

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        call = ToolStart(context.conversation_id, context.tool_use_id, self._tool.spec.name, self._group)
        began = self._clock.monotonic()
        self._telemetry.tool_began(call)
        outcome, result = "failed", ""
        try:
            if trace_parent := self._telemetry.trace_parent_of(call):
                context = msgspec.structs.replace(context, trace_parent=trace_parent)
            output = self._tool.run(arguments, context)
            outcome, result = _outcome_of(output), output.text
            return output
        except (ToolTransientError, SandboxUnavailableError) as refused:
            result = str(refused)
            raise
        finally:
            if context.cancel.cancelled:
                outcome = "cancelled"
            end = ToolEnd(outcome, self._clock.monotonic() - began)
            self._telemetry.tool_ended(call, end, arguments, result)


def _outcome_of(output: ToolOutput) -> str:
    if output.agents:
        return "sub_agents"
    return "error" if output.is_error else "ok"
