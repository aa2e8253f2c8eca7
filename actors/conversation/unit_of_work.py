"""The unit of work: the changes that one message makes to a conversation, collected until they are committed together.

A unit collects a chain of transitions, a changed setting, or both, and gives its events their revisions (`_log`). It is
written in one commit; if the commit fails, the unit has no effect.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from actors.core.approval import allows_part
from actors.core.content import Message, ToolUse, distinct_calls, tool_uses
from actors.core.context import Action, ApprovalPolicy, ApprovalRule, CallSubject, ConvContext, Origin
from actors.core.effects import ActEffect, Effect, NotifyClient, PersistMessage, PersistMode, PersistState
from actors.core.events import ApprovalResponse, Event, LlmAborted, LlmError, LlmResponse, UsageReported, UserCancel
from actors.core.notifications import Durable, MessageAdded, TextDelta
from actors.core.states import (
    INACTIVE,
    AwaitingLlm,
    AwaitingSubAgents,
    AwaitingToolApproval,
    Ledger,
    LlmReason,
    State,
    ToolExecuting,
)
from actors.core.steps.approvals import CallVerdict, Evaluation, evaluate
from actors.core.transition import run_chain
from actors.messages import EffectOutcome
from actors.ports import CommandRecord, Commit, ConversationRecord, LogEntry, Spending, StoredEvent
from actors.ports.records import CallDecision, CommandOrigin, LogAudit

_encode = msgspec.json.Encoder().encode
Found = TypeVar("Found", bound=Struct)


class UnitOfWork:
    def __init__(self, record: ConversationRecord, context: ConvContext, logged_context: ConvContext | None) -> None:
        self.before = record
        self.record = record
        self.context = context
        self.logged_context = logged_context
        """The context last written to the log; None if unknown. A log row contains the context only if it changed."""
        self.entries: list[LogEntry] = []
        self.messages: list[Message] = []
        self.effects: list[ActEffect] = []
        self.origin: CommandOrigin | None = None
        """Who sent the command: recorded in the first log row, and in those with decisions about tool calls."""
        self.used = (0, 0)
        """The tokens of the conversation's own model requests, and their cost in micro-dollars, without sub-agents."""

    @property
    def begins_run(self) -> bool:
        """Whether the unit begins a run in an idle conversation (not a sub-agent), even if it also ends that run."""
        before, after = self.before.state, self.record.state
        begun = not isinstance(after, INACTIVE) or after.ledger.run > before.ledger.run
        return self.record.user_initiated and isinstance(before, INACTIVE) and begun

    @property
    def notifications(self) -> tuple[Durable, ...]:
        return tuple(notification for entry in self.entries for notification in entry.notifications)

    def find(self, kind: type[Found]) -> tuple[Found, ...]:
        return tuple(n for n in self.notifications if isinstance(n, kind))

    def run(self, event: Event) -> None:
        for step in run_chain(self.record.state, self.context, event):
            self.context = step.context
            decisions = decisions_of(self.context, step.event, step.new_state, self.record.id)
            self._add_change(
                step.event, event.at, step.effects, step.new_state, LogAudit(None, decisions) if decisions else None
            )

    def change(self, entry: Struct, at: int, notifications: tuple[Durable, ...], **fields: Any) -> None:
        self.record = msgspec.structs.replace(self.record, **fields)
        self._log(_encode(entry), at, notifications)

    def set_context(self, context: ConvContext) -> None:
        self.context = context

    def commit(self, command: CommandRecord | None = None, spending: Spending | None = None) -> Commit:
        origin = self.origin
        return Commit(
            record=self.record,
            expected_step=self.before.step,
            messages=tuple(self.messages),
            log=tuple(
                attributed(entry, origin) if origin and (place == 0 or entry.audit) else entry
                for place, entry in enumerate(self.entries)
            ),
            command=command,
            profile_changed=self.record.profile != self.before.profile,
            spending=spending,
        )

    def _add_change(
        self, event: Event, at: int, effects: Iterable[Effect], new_state: State, audit: LogAudit | None
    ) -> None:
        durable: list[Durable] = []
        changed = False
        mode = self.record.mode
        for effect in effects:
            match effect:
                case PersistMessage(message=message):
                    self.messages.append(message)
                    durable.append(MessageAdded(message))
                    changed = True
                case PersistState():
                    changed = True
                case PersistMode(mode=mode):
                    changed = True
                case NotifyClient(data=data):
                    if not isinstance(data, TextDelta):  # streamed text is published through its window, not here
                        durable.append(data)
                case _:
                    self.effects.append(effect)
        if not (changed or durable):
            return
        # Tokens that are reported for a run were used by a sub-agent, which has counted them itself.
        if not (isinstance(event, UsageReported) and event.run):
            self.used = _added(self.used, self.record.state.ledger, new_state.ledger)
        entered = at if type(new_state) is not type(self.record.state) else self.record.state_updated_at
        self.record = msgspec.structs.replace(self.record, state=new_state, state_updated_at=entered, mode=mode)
        self._log(_encode(event), at, tuple(durable), audit)
        if mode != self.context.mode:
            self.context = msgspec.structs.replace(self.context, mode=mode)

    def _log(self, event: bytes, at: int, notifications: tuple[Durable, ...], audit: LogAudit | None = None) -> None:
        context = None if self.context == self.logged_context else _encode(self.context)
        self.logged_context = self.context
        step, first = self.record.step + 1, self.record.revision + 1
        self.entries.append(LogEntry(step, at, event, first, notifications, context, audit))
        self.record = msgspec.structs.replace(
            self.record, step=step, revision=first - 1 + len(notifications), updated_at=at
        )

    def stored_events(self) -> tuple[StoredEvent, ...]:
        """The unit's events in the form in which clients' streams read them."""
        return tuple(
            StoredEvent(entry.first_revision + offset, entry.at, notification)
            for entry in self.entries
            for offset, notification in enumerate(entry.notifications)
        )


def _added(used: tuple[int, int], before: Ledger, after: Ledger) -> tuple[int, int]:
    if after.total_usage is before.total_usage and after.aside_usage is before.aside_usage:
        return used
    old, new = before.whole_usage, after.whole_usage
    return used[0] + new.context_tokens - old.context_tokens, used[1] + new.cost_micros - old.cost_micros


def attributed(entry: LogEntry, origin: CommandOrigin) -> LogEntry:
    """A copy of a log entry that records who sent the command."""
    decisions = entry.audit.decisions if entry.audit else ()
    return msgspec.structs.replace(entry, audit=LogAudit(origin, decisions))


class OutcomeBatch:
    """Outcomes that waited in the mailbox at the same time, and are processed as one unit of work."""

    def __init__(self, unit: UnitOfWork) -> None:
        self.unit = unit
        self.count = 0
        self.urgent = False

    def run(self, outcome: EffectOutcome) -> None:
        event, entries = outcome.event, len(self.unit.entries)
        self.urgent |= isinstance(event, UserCancel)
        # Only a cancel has an origin, and no other outcome shares its commit.
        self.unit.origin = outcome.origin or self.unit.origin
        self.unit.run(event)
        ignored = len(self.unit.entries) == entries
        if ignored and isinstance(event, (LlmResponse, LlmError, LlmAborted)) and event.usage is not None:
            self.unit.run(UsageReported(event.at, event.usage, aside=False))
        self.count += 1


def decisions_of(context: ConvContext, event: Event, state: State, conversation_id: str) -> tuple[CallDecision, ...]:
    """The decisions about tool calls that the transition of `event` to `state` made, and who or what made them.

    Without approval rules and with a policy that never asks, calls run without a decision.
    """
    match event:
        case ApprovalResponse(tool_use_id=call, approve=approve):
            return (CallDecision(call, verdict="approved" if approve else "denied", decided_by="person"),)
        case LlmResponse() if context.approval_rules or context.approval_policy is not ApprovalPolicy.AUTO:
            return _call_decisions(context, event, state, conversation_id)
        case _:
            return ()


def _call_decisions(
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
        judgement = evaluate(context, call, subjects.get(call.id))
        if denied and judgement.verdict is not CallVerdict.DENY:
            continue  # Nothing was decided about this call: it does not run because another one was denied.
        rules = deciding_rules(context, call, subjects.get(call.id), judgement)
        names = tuple(_name(rule, conversation_id) for rule in rules)
        found.append(CallDecision(call.id, call.name, judgement.verdict, "rules" if rules else "policy", names))
    return tuple(found)


def deciding_rules(
    context: ConvContext, call: ToolUse, subject: CallSubject | None, judgement: Evaluation
) -> tuple[ApprovalRule, ...]:
    if judgement.verdict is not CallVerdict.RUN:
        return (judgement.rule,) if judgement.rule else ()
    if context.approval_policy is ApprovalPolicy.AUTO:
        return ()
    allowing = (rule for rule in context.approval_rules if rule.action is Action.ALLOW)
    return tuple(rule for rule in allowing if allows_part(rule, call, subject, context.rules))


def _name(rule: ApprovalRule, conversation_id: str) -> str:
    own = f"approvalRules/{rule.id}"
    return own if rule.origin is Origin.OPERATOR else f"conversations/{conversation_id}/{own}"
