"""Converts approval rules to API messages, and back."""

from __future__ import annotations

from bedrock import v1

from actors.core.context import Action, ApprovalRule, Origin
from server.contract import resource_names as names
from server.wire.values import timestamp

ACTION = {
    Action.ALLOW: v1.ApprovalRule.ACTION_ALLOW,
    Action.ASK: v1.ApprovalRule.ACTION_ASK,
    Action.DENY: v1.ApprovalRule.ACTION_DENY,
}
ORIGIN = {
    Origin.CONVERSATION: v1.ApprovalRule.ORIGIN_CONVERSATION,
    Origin.OPERATOR: v1.ApprovalRule.ORIGIN_OPERATOR,
}
_ACTIONS: dict[int, Action] = {number: action for action, number in ACTION.items()}


def approval_rule(conversation_id: str, rule: ApprovalRule) -> v1.ApprovalRule:
    """Return an approval rule of this conversation, or of the operator, as an API message.

    A rule that is only suggested to the user has no id yet, so its name is "".
    """
    answer = v1.ApprovalRule(
        name=names.approval_rule("" if rule.origin is Origin.OPERATOR else conversation_id, rule.id),
        action=ACTION[rule.action],
        create_time=timestamp(rule.created_at),
        creator=rule.creator,
        origin=ORIGIN[rule.origin],
    )
    if rule.tool:
        answer.tool = names.tool(rule.tool)
    for field in ("command", "command_prefix", "path", "mcp_server"):
        if value := getattr(rule, field):
            setattr(answer, field, value)
    return answer


def parse(rule: v1.ApprovalRule) -> ApprovalRule:
    """Return the approval rule in a request. Only its action (ALLOW if unset) and what it matches are converted."""
    return ApprovalRule(
        id="",
        action=_ACTIONS.get(rule.action, Action.ALLOW),
        tool=names.parse_tool(rule.tool) or "",
        command=rule.command,
        command_prefix=rule.command_prefix,
        path=rule.path,
        mcp_server=rule.mcp_server,
    )
