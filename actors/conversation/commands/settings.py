"""Changes settings: those fields of a conversation's record that the state machine never changes.

Actor's thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from actors.conversation.commands.profiles import check_mcp_servers, check_offered, checked_client_tools
from actors.core.errors import Reason, Rejected
from actors.core.notifications import ConversationUpdated
from actors.core.states import QUIET, TERMINAL
from actors.messages.log_entries import SettingsChanged
from actors.messages.refusals import InvalidFieldError
from actors.runtime.offered_tools import check_generation
from actors.runtime.services import offered_model, served_model

if TYPE_CHECKING:
    from actors.conversation.unit_of_work import UnitOfWork
    from actors.core.context import ClientTool
    from actors.messages.commands import (
        UpdateConversationCommand,
    )
    from actors.ports import ConversationRecord
    from actors.runtime.services import Services

SETTINGS = ("slug", "title", "model", "labels", "approval_policy", "follow_up_policy", "budget")
"""The fields of the record that an Update command may change."""

MAX_LABELS = 64


def update(services: Services, unit: UnitOfWork, request: UpdateConversationCommand, at: int) -> None:
    """Change the settings whose requested value differs from the current one, as part of the unit of work.

    Raises Rejected or InvalidFieldError.
    """
    record = unit.record
    wanted: dict[str, Any] = {
        name: value
        for name in SETTINGS
        if (value := _wanted(record, request, name)) is not None and value != getattr(record, name)
    }
    if "model" in wanted:
        _refuse_unless_at_rest(record, "the model")
        offered_model(services, wanted["model"], record.principal)
    generation = request.generation or replace(record.profile.generation, **request.some_generation)
    if generation != record.profile.generation:
        wanted["generation"] = generation
    if "model" in wanted or "generation" in wanted:
        model = served_model(services, wanted.get("model", record.model))
        check_generation(wanted.get("generation", record.profile.generation), model.info)
    if request.client_tools is not None:
        if request.refuse_unoffered_tools:
            check_offered(request.client_tools, record.mode)
        _set_client_tools(services, unit, request.client_tools, at)
    if request.mcp_servers is not None and request.mcp_servers != record.profile.mcp_servers:
        check_mcp_servers(services, request.mcp_servers)
        _refuse_unless_at_rest(record, "the MCP servers")
        _change_profile(unit, at, "mcp_servers", mcp_servers=request.mcp_servers)
    if request.auto_continue not in (None, record.profile.auto_continue):
        _change_profile(unit, at, "auto_continue", auto_continue=request.auto_continue)
    if wanted:
        change(unit, at, **wanted)
        unit.set_context(services.context_of(unit.record))


def _wanted(record: ConversationRecord, request: UpdateConversationCommand, name: str) -> Any:
    """Return the new value of a setting; None if it is not to be changed. Raises InvalidFieldError."""
    if name == "budget" and request.some_amounts:
        return replace(record.budget, **request.some_amounts)
    if name == "labels" and request.some_labels:
        merged = record.labels | request.some_labels
        labels = {key: text for key, text in merged.items() if text is not None}
        if len(labels) > MAX_LABELS:
            raise InvalidFieldError("labels", f"must have at most {MAX_LABELS} entries, those that stay included")
        return labels
    return getattr(request, name)


def _set_client_tools(services: Services, unit: UnitOfWork, tools: tuple[ClientTool, ...], at: int) -> None:
    record, fresh = unit.record, checked_client_tools(services, tools)
    if fresh == record.profile.client_tools:
        return
    _refuse_unless_at_rest(record, "the tools of clients")
    _change_profile(unit, at, "client_tools", client_tools=fresh)
    unit.set_context(services.context_of(unit.record))


def _change_profile(unit: UnitOfWork, at: int, name: str, **fields: Any) -> None:
    """Change a field of the profile, log the change, and notify clients; `name` is the field's name in the gRPC API."""
    profile = replace(unit.record.profile, **fields)
    unit.change(SettingsChanged(at, (name,)), at, (ConversationUpdated((name,)),), profile=profile)


def _refuse_unless_at_rest(record: ConversationRecord, what: str) -> None:
    if isinstance(record.state, TERMINAL):
        raise Rejected(Reason.TERMINAL)
    if not isinstance(record.state, QUIET):
        raise Rejected(Reason.AGENT_BUSY, f"agent is busy: cancel it or wait until it is done, then change {what}")


def archive(unit: UnitOfWork, archived: bool, at: int) -> None:
    """Set or clear the archive flag."""
    change(unit, at, archived_at=at if archived else None)


def change(unit: UnitOfWork, at: int, **fields: Any) -> None:
    """Change fields of the record (or `generation`, a field of its profile), log the change, and notify clients."""
    names = tuple(fields)
    if "generation" in fields:
        fields["profile"] = replace(unit.record.profile, generation=fields.pop("generation"))
    unit.change(SettingsChanged(at, names), at, (ConversationUpdated(names),), **fields)
