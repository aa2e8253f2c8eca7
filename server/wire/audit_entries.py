"""Converts entries of the audit trail to API messages, and list requests to filters of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bedrock import v1

from actors.ports.store.audit import AuditEntry, AuditFilter, Outcome
from server.contract import resource_names as names
from server.wire.values import timestamp

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from actors.ports.store.audit import CallDecision

OUTCOME = {Outcome.ACCEPTED: v1.AuditEntry.OUTCOME_ACCEPTED, Outcome.REFUSED: v1.AuditEntry.OUTCOME_REFUSED}
VERDICT = {
    "run": v1.AuditEntry.VERDICT_RUN,
    "ask": v1.AuditEntry.VERDICT_ASK,
    "deny": v1.AuditEntry.VERDICT_DENY,
    "approved": v1.AuditEntry.VERDICT_APPROVED,
    "denied": v1.AuditEntry.VERDICT_DENIED,
}
DECIDER = {
    "rules": v1.AuditEntry.DECIDER_RULES,
    "policy": v1.AuditEntry.DECIDER_POLICY,
    "person": v1.AuditEntry.DECIDER_PERSON,
}
_OUTCOMES = {number: outcome for outcome, number in OUTCOME.items()}


def audit_filter(request: v1.ListAuditEntriesRequest) -> AuditFilter:
    """Return the store's filter for a request that lists audit entries."""
    return AuditFilter(
        since=_milliseconds(request.start_time) if request.HasField("start_time") else 0,
        until=_milliseconds(request.end_time) if request.HasField("end_time") else None,
        principal=request.principal or None,
        conversation=names.parse_conversation(request.conversation) if request.conversation else None,
        outcome=_OUTCOMES.get(request.outcome),
    )


def _milliseconds(time: Timestamp) -> int:
    """Return a timestamp in milliseconds since 1970. Its field `nanos` may be a second or more."""
    return time.seconds * 1_000 + time.nanos // 10**6


def audit_entry(entry: AuditEntry) -> v1.AuditEntry:
    """Return an audit entry as an API message."""
    origin = entry.origin
    return v1.AuditEntry(
        time=timestamp(entry.at),
        outcome=OUTCOME[entry.outcome],
        reason=entry.reason,
        principal=origin.principal,
        role=origin.role,
        token=origin.token,
        peer=origin.peer,
        method=origin.method,
        conversation=names.conversation(entry.conversation),
        request_id=origin.request_id,
        count=entry.count,
        decisions=map(_decision, entry.decisions),
        step=entry.step,
    )


def _decision(decision: CallDecision) -> v1.AuditEntry.Decision:
    return v1.AuditEntry.Decision(
        tool_use_id=decision.call,
        tool=names.tool(decision.tool) if decision.tool else "",
        verdict=VERDICT.get(decision.verdict, v1.AuditEntry.VERDICT_UNSPECIFIED),
        decider=DECIDER.get(decision.decided_by, v1.AuditEntry.DECIDER_UNSPECIFIED),
        approval_rules=decision.rules,
    )
