"""Approval of tool calls by a person: each request is answered or withdrawn exactly once (REQ-BED-015)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec
from msgspec import Struct

from actors.core.approval import RuleMatch, covered, describe, match, suggestions
from actors.core.content import ToolUse
from actors.core.context import (
    Action,
    ApprovalPolicy,
    ApprovalRule,
    CallSubject,
    ConvContext,
    Mode,
    Origin,
    Rules,
    Suggested,
    ToolTraits,
)
from actors.core.effects import TransitionResult
from actors.core.notifications import ApprovalDecision, ApprovalRequested, ApprovalResolved
from actors.core.states import ApprovalKind, AwaitingToolApproval
from actors.core.steps.transition_builder import TransitionBuilder
from actors.core.summary import ContextState

REQUEST_MODE_UPGRADE = "request_mode_upgrade"


class _UpgradeInput(Struct):
    mode: Mode = Mode.UNRESTRICTED


_UPGRADE = msgspec.json.Decoder(_UpgradeInput)


def requested_mode(call: ToolUse) -> Mode:
    """The mode that the call asks for; UNRESTRICTED if it names none or its input is invalid."""
    try:
        return _UPGRADE.decode(call.input).mode
    except (msgspec.DecodeError, UnicodeError):
        return Mode.UNRESTRICTED


def traits_of(context: ConvContext, name: str) -> ToolTraits | None:
    for traits in context.tools:
        if traits.name == name:
            return traits
    return None


class CallVerdict(StrEnum):
    RUN = "run"
    ASK = "ask"
    DENY = "deny"


class Evaluation(Struct, frozen=True):
    verdict: CallVerdict
    rule: ApprovalRule | None = None
    """The rule that denies the call or demands approval; None if no rule does."""


def evaluate(context: ConvContext, call: ToolUse, subject: CallSubject | None) -> Evaluation:
    """Whether a call runs, needs approval or is denied.

    A rule that denies takes precedence over one that asks; a rule that allows overrules only the approval policy. A
    call also needs approval if a rule that denies might match, but only running the call would show whether it does.
    """
    # A call with invalid input, or of a tool that is not offered, needs no decision: `run_next_call` gives it an error
    # result instead of running it.
    if call.bad_input or left_out(context, call):
        return Evaluation(CallVerdict.RUN)
    rules = context.approval_rules
    denying = {rule: match(rule, call, subject, context.rules) for rule in rules if rule.action is Action.DENY}
    denied = [rule for rule, found in denying.items() if found is RuleMatch.YES]
    if denied:
        return Evaluation(CallVerdict.DENY, min(denied, key=lambda rule: rule.origin is not Origin.OPERATOR))
    if always_asks(context, call):
        return Evaluation(CallVerdict.ASK)
    asking = {rule: match(rule, call, subject, context.rules) for rule in rules if rule.action is Action.ASK} | denying
    if any(asking.values()):
        return Evaluation(CallVerdict.ASK, max(asking, key=asking.__getitem__))
    asks = _policy_asks(context, call) and not _allowed(context, call, subject)
    return Evaluation(CallVerdict.ASK if asks else CallVerdict.RUN)


def always_asks(context: ConvContext, call: ToolUse) -> bool:
    """Whether a person must approve this call whatever the policy and the rules say."""
    traits = traits_of(context, call.name)
    return call.name == REQUEST_MODE_UPGRADE or (traits is not None and traits.always_asks)


def _policy_asks(context: ConvContext, call: ToolUse) -> bool:
    if context.approval_policy is ApprovalPolicy.AUTO:
        return False
    traits = traits_of(context, call.name)
    return context.approval_policy is ApprovalPolicy.ASK_ALL or traits is None or traits.writes


def _allowed(context: ConvContext, call: ToolUse, subject: CallSubject | None) -> bool:
    allowing = (rule for rule in context.approval_rules if rule.action is Action.ALLOW)
    return call.name in context.always_approved or covered(allowing, call, subject, context.rules)


def left_out(context: ConvContext, call: ToolUse) -> bool:
    """Whether the model has called request_mode_upgrade although the conversation is not offered that tool."""
    if call.name != REQUEST_MODE_UPGRADE or context.is_sub_agent or context.rules < Rules.OWN_TOOLS:
        return False
    return traits_of(context, call.name) is None


def denial(rule: ApprovalRule) -> str:
    origin = "of the server" if rule.origin is Origin.OPERATOR else "of this conversation"
    return f"a rule {origin} denies {describe(rule)}"


def approval_kind(call: ToolUse) -> ApprovalKind:
    return ApprovalKind.MODE_UPGRADE if call.name == REQUEST_MODE_UPGRADE else ApprovalKind.TOOL


def ask(
    builder: TransitionBuilder,
    calls: tuple[ToolUse, ...],
    evaluated: Mapping[str, Evaluation],
    subjects: Mapping[str, CallSubject],
    request_id: str,
) -> TransitionResult:
    """Request approval for each call with the verdict ASK.

    `calls` are all calls in the response; none of them runs before all are decided.
    """
    builder.place_state()
    questions = tuple(call for call in calls if evaluated[call.id].verdict is CallVerdict.ASK)
    about = tuple(_about(builder.context, call, subjects.get(call.id), evaluated[call.id].rule) for call in questions)
    for call, each in zip(questions, about, strict=True):
        builder.notify(
            ApprovalRequested(call, approval_kind(call), builder.at, each.rules, each.asked_by, each.workspace)
        )
    upgrade = any(approval_kind(call) is ApprovalKind.MODE_UPGRADE for call in questions)
    waiting = AwaitingToolApproval(
        builder.ledger,
        calls,
        tuple(call.id for call in questions),
        ApprovalKind.MODE_UPGRADE if upgrade else ApprovalKind.TOOL,
        request_id,
        builder.at,
        tuple(each for each in about if each.rules or each.asked_by or each.workspace),
    )
    return builder.finish(waiting, ContextState.PROCESSING_LLM_RESPONSE)


def _about(
    context: ConvContext, call: ToolUse, subject: CallSubject | None, asked_by: ApprovalRule | None
) -> Suggested:
    asks = always_asks(context, call)
    rules = () if asks else suggestions(call, subject, context.working_dir, context.rules)
    return Suggested(call.id, rules, asked_by, workspace=subject is not None and subject.workspace)


def resolve_question(
    builder: TransitionBuilder, tool_use_id: str, decision: ApprovalDecision, reason: str = ""
) -> None:
    builder.notify(ApprovalResolved(tool_use_id, decision, reason))


def withdraw_questions(builder: TransitionBuilder, tool_use_ids: Iterable[str]) -> None:
    for tool_use_id in tool_use_ids:
        resolve_question(builder, tool_use_id, ApprovalDecision.WITHDRAWN)
