"""Converts audit entries to and from database rows.

Entries about accepted commands are in rows of the event log, all other entries in rows of the table `audit`.
"""

from __future__ import annotations

from typing import Any

from msgspec import DecodeError, json
from peewee import Case, Tuple, fn

from actors.adapters.store.models import LOG_PRINCIPAL, Audit, Log
from actors.adapters.store.query import PerDatabase, Statement, undeleted
from actors.adapters.store.rows import Row
from actors.ports.records import AuditEntry, AuditFilter, AuditPlace, CommandOrigin, LogAudit, Outcome

_encode = json.Encoder().encode
_LOG_AUDIT = json.Decoder(LogAudit)
_ORIGIN = json.Decoder(CommandOrigin)
NOBODY = CommandOrigin("")


def audit_values(entry: AuditEntry) -> Row:
    """Return the row of an audit entry, without its number."""
    origin = _encode(entry.origin).decode()
    return (
        entry.at, entry.outcome.value, entry.reason, entry.origin.principal, entry.conversation, entry.count, origin,
    )  # fmt: skip


def entry_of(row: Row) -> AuditEntry:
    """Return the audit entry in a row of the table `audit`.

    Raises msgspec.DecodeError or ValueError if the row cannot be decoded.
    """
    number, at, outcome, reason, _, conversation, count, origin = row
    return AuditEntry(at, Outcome(outcome), _ORIGIN.decode(origin), reason, conversation, count, number=number)


def logged_entry(at: int, conversation_id: str, step: int, audit: str) -> AuditEntry:
    """Return the audit entry for a row of the event log.

    If `audit` cannot be decoded, the entry has no origin, and the reason "UNREADABLE".
    """
    try:
        found = _LOG_AUDIT.decode(audit)
    except DecodeError:
        return AuditEntry(at, Outcome.ACCEPTED, NOBODY, "UNREADABLE", conversation_id, step=step)
    origin = found.origin or NOBODY
    return AuditEntry(at, Outcome.ACCEPTED, origin, "", conversation_id, decisions=found.decisions, step=step)


def logged_query(wanted: AuditFilter, after: AuditPlace | None, limit: int) -> Statement | None:
    """Return the query for the rows of the event log that match `wanted`, oldest first.

    Returns None if no row of the log can match, because `wanted` selects refused calls only. The columns of the query
    are the parameters of `logged_entry`.
    """
    if wanted.outcome is Outcome.REFUSED:
        return None
    place = Log.at, Log.conversation_id, Log.step
    where = [Log.audit.is_null(False), undeleted(Log.conversation_id), *_bounds(Log, wanted)]
    if wanted.principal is not None:
        where.append(_sent_by(wanted.principal))
    if after is not None:
        beyond = Tuple(*place) > Tuple(after.at, after.id, after.number)
        where.append(Log.at > after.at if after.source else beyond)
    return Statement(Log.select(*place, Log.audit).where(*where).order_by(*place).limit(limit))


def unlogged_query(wanted: AuditFilter, after: AuditPlace | None, limit: int) -> Statement:
    """Return the query for the rows of the table `audit` that match `wanted`, oldest first."""
    where = _bounds(Audit, wanted)
    if wanted.principal is not None:
        where.append(Audit.principal == wanted.principal)
    if wanted.outcome is not None:
        where.append(Audit.outcome == wanted.outcome.value)
    place = Audit.at, Audit.id
    if after is not None:
        where.append(Tuple(*place) > Tuple(after.at, after.number if after.source else -1))
    return Statement(Audit.select().where(*where).order_by(*place).limit(limit))


def _sent_by(principal: str) -> Any:
    """Return the condition that a principal sent the command in a row of the log; "" stands for nobody."""
    found = Case(None, [(fn.json_valid(Log.audit), fn.json_extract(Log.audit, "$.origin.principal"))])
    return PerDatabase(found == principal if principal else found.is_null(), principal == LOG_PRINCIPAL)


def _bounds(table: Any, wanted: AuditFilter) -> list[Any]:
    where = [table.at >= wanted.since]
    if wanted.until is not None:
        where.append(table.at < wanted.until)
    if wanted.conversation is not None:
        where.append(table.conversation_id == wanted.conversation)
    return where
