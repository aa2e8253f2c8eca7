"""Adds and removes approval rules of a conversation. Actor's thread only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core.approval import MCP_PREFIX
from actors.core.context import Action, ApprovalRule, Origin
from actors.core.notifications import ConversationUpdated
from actors.messages.log_entries import ApprovalRulesChanged
from actors.messages.refusals import InvalidFieldError, UnknownApprovalRuleError
from actors.ports import InvalidApprovalRuleError

if TYPE_CHECKING:
    from actors.conversation.unit_of_work import UnitOfWork
    from actors.ports import ConversationRecord
    from actors.runtime.services import Services

MAX_RULES = 100
"""The maximum number of rules of a conversation; all of them are stored in the conversation's database row."""


def check_tool(services: Services, record: ConversationRecord, tool: str) -> None:
    """Check that the tool is a built-in tool, a tool of the conversation's clients, or a tool of any MCP server.

    A rule for any other name would never match: one that is meant to deny calls would deny none. Raises
    InvalidFieldError, which suggests a similar name.
    """
    ours = {spec.name for sub_agent in (False, True) for spec in services.toolbox.specs(sub_agent=sub_agent)}
    known = ours | {each.name for each in record.profile.client_tools}
    if not tool or tool in known or tool.startswith(MCP_PREFIX):
        return
    from difflib import get_close_matches  # noqa: PLC0415 -- only for error messages

    alike = get_close_matches(tool, known, n=1)
    meant = f"did you mean {alike[0]!r}?" if alike else f"there are: {', '.join(sorted(known))}"
    raise InvalidFieldError("tool", f"there is no tool {tool!r}; {meant}")


def make(services: Services, unit: UnitOfWork, wanted: ApprovalRule, principal: str, at: int) -> ApprovalRule:
    """Add a rule to the conversation and return it; it replaces a rule that matches the same calls.

    If the same rule with the same action exists already, that rule is returned. Raises InvalidFieldError; its `field`
    names a field of the rule.
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
    made = replace(prepared, id=_new_id(unit, kept), created_at=at, creator=principal, origin=Origin.CONVERSATION)
    entry = ApprovalRulesChanged(at, principal, made, tuple(rule.id for rule in replaced))
    _change(services, unit, entry, (*kept, made))
    return made


def make_with_answer(
    services: Services, unit: UnitOfWork, wanted: ApprovalRule, principal: str, at: int, *, approve: bool
) -> None:
    """Add the rule that a person requested along with the decision about a call: calls like it get the same decision.

    Raises InvalidFieldError.
    """
    action = Action.ALLOW if approve else Action.DENY
    try:
        make(services, unit, replace(wanted, action=action), principal, at)
    except InvalidFieldError as refusal:
        raise InvalidFieldError(".".join(filter(None, ("rule", refusal.field))), str(refusal)) from None


def revoke(services: Services, unit: UnitOfWork, rule_id: str, principal: str, at: int) -> None:
    """Remove a rule. Raises UnknownApprovalRuleError if no rule has this id."""
    rules = unit.record.approval_rules
    kept = tuple(rule for rule in rules if rule.id != rule_id)
    if len(kept) == len(rules):
        raise UnknownApprovalRuleError("there is no such approval rule")
    _change(services, unit, ApprovalRulesChanged(at, principal, revoked=(rule_id,)), kept)


def _change(services: Services, unit: UnitOfWork, entry: ApprovalRulesChanged, rules: tuple[ApprovalRule, ...]) -> None:
    unit.change(entry, entry.at, (ConversationUpdated(("approval_rules",)),), approval_rules=rules)
    unit.set_context(services.context_of(unit.record))


def _new_id(unit: UnitOfWork, rules: tuple[ApprovalRule, ...]) -> str:
    """Return an id that no rule has: "r" and the number of the next log row, or the next free number."""
    number, taken = unit.record.step + 1, {rule.id for rule in rules}
    while f"r{number}" in taken:
        number += 1
    return f"r{number}"
