"""Finds out, for the audit trail, what decided about tool calls: approval rules, the approval policy, or a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.approval import allows_part
from actors.core.content import distinct_calls, tool_uses
from actors.core.context import Action, ApprovalPolicy, ApprovalRule, ConvContext, Origin
from actors.core.events import ApprovalResponse, LlmResponse
from actors.core.states import (
    AwaitingLlm,
    AwaitingSubAgents,
    AwaitingToolApproval,
    LlmReason,
    State,
    ToolExecuting,
)
from actors.core.steps.approvals import CallVerdict, Judgement, judge
from actors.ports.store.audit import CallDecision

if TYPE_CHECKING:
    from actors.core.content import ToolUse
    from actors.core.context import CallSubject
    from actors.core.events import Event


def decisions_of(context: ConvContext, event: Event, state: State, conversation_id: str) -> tuple[CallDecision, ...]:
    """Return, for each tool call that the transition of `event` decided about, the decision and who or what made it.

    `state` is the state after the transition. If there are no approval rules and the policy never asks, calls run
    without a decision.
    """
    match event:
        case ApprovalResponse(tool_use_id=call, approve=approve):
            return (CallDecision(call, verdict="approved" if approve else "denied", decided_by="person"),)
        case LlmResponse() if context.approval_rules or context.approval_policy is not ApprovalPolicy.AUTO:
            return _judgements(context, event, state, conversation_id)
        case _:
            return ()


def _judgements(
    context: ConvContext, event: LlmResponse, state: State, conversation_id: str
) -> tuple[CallDecision, ...]:
    denied = isinstance(state, AwaitingLlm) and state.reason is LlmReason.DENIED
    if not denied and not isinstance(state, ToolExecuting | AwaitingSubAgents | AwaitingToolApproval):
        return ()  # The calls were not judged, for example because the context was full.
    calls = tool_uses(distinct_calls(event.content, event.request_id))
    read = len(event.subjects) == len(calls)
    subjects = dict(zip((call.id for call in calls), event.subjects, strict=True)) if read else {}
    found: list[CallDecision] = []
    for call in calls:
        judgement = judge(context, call, subjects.get(call.id))
        if denied and judgement.verdict is not CallVerdict.DENY:
            continue  # Nothing was decided about this call: it does not run because another one was denied.
        rules = deciding_rules(context, call, subjects.get(call.id), judgement)
        names = tuple(_name(rule, conversation_id) for rule in rules)
        found.append(CallDecision(call.id, call.name, judgement.verdict, "rules" if rules else "policy", names))
    return tuple(found)


def deciding_rules(
    context: ConvContext, call: ToolUse, subject: CallSubject | None, judgement: Judgement
) -> tuple[ApprovalRule, ...]:
    """Return the rules that led to a judgement; () if no rule did."""
    if judgement.verdict is not CallVerdict.RUN:
        return (judgement.rule,) if judgement.rule else ()
    if context.approval_policy is ApprovalPolicy.AUTO:
        return ()
    allowing = (rule for rule in context.approval_rules if rule.action is Action.ALLOW)
    return tuple(rule for rule in allowing if allows_part(rule, call, subject, context.rules))


def _name(rule: ApprovalRule, conversation_id: str) -> str:
    own = f"approvalRules/{rule.id}"
    return own if rule.origin is Origin.OPERATOR else f"conversations/{conversation_id}/{own}"
