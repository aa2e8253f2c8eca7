"""Changes settings: those fields of a conversation's record that the state machine never changes.

Call only on the actor's thread.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from actors.common.json_schema import InvalidSchemaError
from actors.conversation.unit_of_work import UnitOfWork
from actors.core import context
from actors.core.approval import MCP_PREFIX
from actors.core.errors import Reason, Rejected
from actors.core.notifications import ConversationUpdated
from actors.core.states import INACTIVE, TERMINAL
from actors.core.steps.runs import SUBMIT_OUTPUT
from actors.messages import (
    ApprovalRulesChanged,
    InvalidFieldError,
    SettingsChanged,
    UnknownApprovalRuleError,
    UpdateConversationCommand,
)
from actors.ports import ConversationRecord, InvalidApprovalRuleError
from actors.ports.tools import McpNotAllowedError, McpServerInvalidError
from actors.runtime.offered_tools import check_generation, compiled
from actors.runtime.services import Services, offered_model, served_model

SETTINGS = ("slug", "title", "model", "labels", "approval_policy", "follow_up_policy", "budget")

MAX_LABELS = 64


def update(services: Services, unit: UnitOfWork, request: UpdateConversationCommand, at: int) -> None:
    """Change the settings in the request that differ from the current ones. Raises Rejected or InvalidFieldError."""
    record = unit.record
    wanted: dict[str, Any] = {
        name: value
        for name in SETTINGS
        if (value := _wanted(record, request, name)) is not None and value != getattr(record, name)
    }
    if "model" in wanted:
        _require_idle(record, "the model")
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
        _require_idle(record, "the MCP servers")
        _change_profile(unit, at, "mcp_servers", mcp_servers=request.mcp_servers)
    if request.auto_continue not in (None, record.profile.auto_continue):
        _change_profile(unit, at, "auto_continue", auto_continue=request.auto_continue)
    if wanted:
        change(unit, at, **wanted)
        unit.set_context(services.context_of(unit.record))


def _wanted(record: ConversationRecord, request: UpdateConversationCommand, name: str) -> Any:
    """The new value of a setting; None if it is not to be changed. Raises InvalidFieldError."""
    if name == "budget" and request.some_amounts:
        return replace(record.budget, **request.some_amounts)
    if name == "labels" and request.some_labels:
        merged = record.labels | request.some_labels
        labels = {key: text for key, text in merged.items() if text is not None}
        if len(labels) > MAX_LABELS:
            raise InvalidFieldError("labels", f"must have at most {MAX_LABELS} entries, including unchanged ones")
        return labels
    return getattr(request, name)


def _set_client_tools(services: Services, unit: UnitOfWork, tools: tuple[context.ClientTool, ...], at: int) -> None:
    record, fresh = unit.record, checked_client_tools(services, tools)
    if fresh == record.profile.client_tools:
        return
    _require_idle(record, "the client tools")
    _change_profile(unit, at, "client_tools", client_tools=fresh)
    unit.set_context(services.context_of(unit.record))


def _change_profile(unit: UnitOfWork, at: int, name: str, **fields: Any) -> None:
    profile = replace(unit.record.profile, **fields)
    unit.change(SettingsChanged(at, (name,)), at, (ConversationUpdated((name,)),), profile=profile)


def _require_idle(record: ConversationRecord, what: str) -> None:
    if isinstance(record.state, TERMINAL):
        raise Rejected(Reason.TERMINAL)
    if not isinstance(record.state, INACTIVE):
        raise Rejected(Reason.AGENT_BUSY, f"agent is busy: cancel it or wait until it is done, then change {what}")


def archive(unit: UnitOfWork, archived: bool, at: int) -> None:
    change(unit, at, archived_at=at if archived else None)


def change(unit: UnitOfWork, at: int, **fields: Any) -> None:
    """Change fields of the record (or `generation`, a field of its profile), log the change, and notify clients."""
    names = tuple(fields)
    if "generation" in fields:
        fields["profile"] = replace(unit.record.profile, generation=fields.pop("generation"))
    unit.change(SettingsChanged(at, names), at, (ConversationUpdated(names),), **fields)


MAX_SCHEMA_BYTES = 16 * 1024
MAX_TOOLS_BYTES = 512 * 1024


def checked_profile(services: Services, wanted: context.Profile) -> context.Profile:
    """The profile with its tools in the model's order. Raises InvalidFieldError or Rejected (MCP_NOT_ALLOWED)."""
    checked_client_tools(services, wanted.client_tools)
    check_mcp_servers(services, wanted.mcp_servers)
    if wanted.tools is None:
        return wanted
    known = [spec.name for spec in services.toolbox.specs(sub_agent=False)]
    if unknown := [name for name in wanted.tools if name not in known]:
        raise InvalidFieldError("tools", f"there is no tool {unknown[0]!r}; available tools: {', '.join(known)}")
    return replace(wanted, tools=tuple(name for name in known if name in wanted.tools))


def checked_client_tools(services: Services, tools: tuple[context.ClientTool, ...]) -> tuple[context.ClientTool, ...]:
    """The same tools, if all are valid; otherwise raise InvalidFieldError for the first invalid one."""
    ours = {spec.name for sub_agent in (False, True) for spec in services.toolbox.specs(sub_agent=sub_agent)}
    ours.add(SUBMIT_OUTPUT)
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if text := _name_fault(tool.name, ours, seen):
            raise InvalidFieldError(f"client_tools[{index}].name", text)
        if text := _schema_fault(tool.input_schema):
            raise InvalidFieldError(f"client_tools[{index}].input_schema", text)
        seen.add(tool.name)
    if len(msgspec.json.encode(tools)) > MAX_TOOLS_BYTES:
        raise InvalidFieldError("client_tools", f"must be at most {MAX_TOOLS_BYTES} bytes of JSON in total")
    return tools


def check_offered(tools: tuple[context.ClientTool, ...], mode: context.Mode) -> None:
    """Raise Rejected (TOOL_NOT_OFFERED) if the mode does not offer all of these tools to the agent."""
    if names := context.unoffered(tools, mode):
        raise Rejected(Reason.TOOL_NOT_OFFERED, f"{', '.join(names)} would not be offered: {context.NOT_OFFERED}")


def check_mcp_servers(services: Services, chosen: tuple[context.ChosenMcpServer, ...]) -> None:
    """Check the MCP servers that a client configures. Raises InvalidFieldError or Rejected (MCP_NOT_ALLOWED)."""
    if not chosen:
        return
    try:
        services.mcp.check(chosen)
    except McpNotAllowedError as error:
        raise Rejected(Reason.MCP_NOT_ALLOWED, str(error)) from None
    except McpServerInvalidError as error:
        raise InvalidFieldError(f"mcp_servers[{error.position}].{error.field}", str(error)) from None


def _name_fault(name: str, ours: set[str], seen: set[str]) -> str:
    if name in ours:
        return f"{name!r} is the name of a built-in tool: choose another name"
    if name.startswith(MCP_PREFIX):
        return f"names that begin with {MCP_PREFIX} are reserved for tools of MCP servers: choose another name"
    return f"duplicate name {name!r}" if name in seen else ""


def _schema_fault(schema: str) -> str:
    if len(schema.encode()) > MAX_SCHEMA_BYTES:
        return f"must be at most {MAX_SCHEMA_BYTES} bytes of JSON"
    if msgspec.json.decode(schema, type=dict).get("type") != "object":
        return 'must be of type object: {"type": "object", "properties": …}'
    try:
        compiled(schema)
    except InvalidSchemaError as error:
        return f"is not a usable JSON Schema: {error}"
    return ""


# The maximum number of rules of a conversation; all of them are stored in the conversation's database row.
MAX_RULES = 100


def check_rule_tool(services: Services, record: ConversationRecord, tool: str) -> None:
    """Raise InvalidFieldError, which suggests a similar name, if there is no such built-in tool or client tool.

    A rule for an unknown tool would never match: if it is meant to deny calls, it would deny none. Names of MCP tools
    are not checked.
    """
    ours = {spec.name for sub_agent in (False, True) for spec in services.toolbox.specs(sub_agent=sub_agent)}
    known = ours | {each.name for each in record.profile.client_tools}
    if not tool or tool in known or tool.startswith(MCP_PREFIX):
        return
    from difflib import get_close_matches  # noqa: PLC0415 -- only for error messages

    alike = get_close_matches(tool, known, n=1)
    meant = f"did you mean {alike[0]!r}?" if alike else f"available tools: {', '.join(sorted(known))}"
    raise InvalidFieldError("tool", f"there is no tool {tool!r}; {meant}")


def create_rule(
    services: Services, unit: UnitOfWork, wanted: context.ApprovalRule, principal: str, at: int
) -> context.ApprovalRule:
    """Add a rule. It replaces an existing rule for the same calls, which is returned instead if the actions are equal.

    Raises InvalidFieldError, whose `field` is a field of the rule.
    """
    try:
        prepared = services.toolbox.prepared_rule(wanted, services.permissions(unit.record.principal).roots)
    except InvalidApprovalRuleError as invalid:
        raise InvalidFieldError(invalid.field, str(invalid)) from None
    rules = unit.record.approval_rules
    replaced = [rule for rule in rules if rule.subject == prepared.subject]
    for rule in replaced:
        if rule.action is prepared.action:
            return rule
    kept = tuple(rule for rule in rules if rule not in replaced)
    if len(kept) >= MAX_RULES:
        raise InvalidFieldError("", f"a conversation has at most {MAX_RULES} approval rules: delete one first")
    made = replace(
        prepared, id=_new_rule_id(unit, kept), created_at=at, creator=principal, origin=context.Origin.CONVERSATION
    )
    entry = ApprovalRulesChanged(at, principal, made, tuple(rule.id for rule in replaced))
    _change_rules(services, unit, entry, (*kept, made))
    return made


def create_rule_with_answer(
    services: Services, unit: UnitOfWork, wanted: context.ApprovalRule, principal: str, at: int, *, approve: bool
) -> None:
    """Add a rule that decides similar calls in the same way as the person's answer. Raises InvalidFieldError."""
    action = context.Action.ALLOW if approve else context.Action.DENY
    try:
        create_rule(services, unit, replace(wanted, action=action), principal, at)
    except InvalidFieldError as refusal:
        raise InvalidFieldError(".".join(filter(None, ("rule", refusal.field))), str(refusal)) from None


def delete_rule(services: Services, unit: UnitOfWork, rule_id: str, principal: str, at: int) -> None:
    rules = unit.record.approval_rules
    kept = tuple(rule for rule in rules if rule.id != rule_id)
    if len(kept) == len(rules):
        raise UnknownApprovalRuleError("approval rule not found")
    _change_rules(services, unit, ApprovalRulesChanged(at, principal, revoked=(rule_id,)), kept)


def _change_rules(
    services: Services, unit: UnitOfWork, entry: ApprovalRulesChanged, rules: tuple[context.ApprovalRule, ...]
) -> None:
    unit.change(entry, entry.at, (ConversationUpdated(("approval_rules",)),), approval_rules=rules)
    unit.set_context(services.context_of(unit.record))


def _new_rule_id(unit: UnitOfWork, rules: tuple[context.ApprovalRule, ...]) -> str:
    """An id that no rule has: "r" and the number of the next log row, or the next free number."""
    number, taken = unit.record.step + 1, {rule.id for rule in rules}
    while f"r{number}" in taken:
        number += 1
    return f"r{number}"
