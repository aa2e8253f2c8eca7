"""Reports to telemetry the runs and calls that a restart ended, since the stopped server could not report them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.content import ToolCancelled
from actors.core.notifications import MessageAdded, RunStop
from actors.ports import live_run
from actors.ports.telemetry import RunStart, Telemetry, ToolStart, counted_as

if TYPE_CHECKING:
    from collections.abc import Collection

    from actors.conversation.unit_of_work import UnitOfWork
    from actors.ports import Toolbox


def own_tools(toolbox: Toolbox) -> frozenset[str]:
    """Return the names of the server's built-in tools."""
    specs = (*toolbox.specs(sub_agent=False), *toolbox.specs(sub_agent=True))
    return frozenset(spec.traits.name for spec in specs)


def tell_of_recovered(telemetry: Telemetry, unit: UnitOfWork, ours: Collection[str]) -> None:
    """Report to telemetry the calls and the run that a unit with a Restart event has ended.

    `ours` are the names of the server's built-in tools.
    """
    record = unit.record
    names = {call.id: call.name for call in getattr(unit.before.state, "calls", ())}
    clients = [tool.name for tool in record.profile.client_tools]
    for notification in unit.notifications:
        match notification:
            case MessageAdded(message=message):
                for block in message.content:
                    if isinstance(block, ToolCancelled):
                        name = names.get(block.tool_use_id, "")
                        call = ToolStart(record.id, block.tool_use_id, name, counted_as(name, ours, clients))
                        telemetry.call_left_out(call, block.outcome.value)
            case RunStop(reason=reason, detail=detail, run=run) if run == live_run(unit.before):
                parent = "" if record.user_initiated else record.parent_conversation_id or ""
                ended = RunStart(record.id, run, record.model, record.principal, parent)
                telemetry.run_recovered(ended, reason.value, detail)
            case _:
                pass
