"""Converts audit entries to and from database rows.

Entries about accepted commands are in rows of the event log, all other entries in rows of the table `audit`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import DecodeError, json

from actors.ports.store.audit import AuditEntry, AuditPlace, CommandOrigin, LogAudit, Outcome

if TYPE_CHECKING:
    from actors.adapters.store.rows import Row
    from actors.ports.store.audit import AuditFilter

AUDIT = ("at", "outcome", "reason", "principal", "conversation_id", "count", "origin")
"""The columns of the table `audit`, except `id`."""

_encode = json.Encoder().encode
_LOG_AUDIT = json.Decoder(LogAudit)
_ORIGIN = json.Decoder(CommandOrigin)
NOBODY = CommandOrigin("")


def audit_values(entry: AuditEntry) -> Row:
    """Return the values of the columns AUDIT for an audit entry."""
    origin = _encode(entry.origin).decode()
    return (
        entry.at, entry.outcome.value, entry.reason, entry.origin.principal, entry.conversation, entry.count, origin,
    )  # fmt: skip


def entry_of(number: int, row: Row) -> AuditEntry:
    """Return the audit entry in a row of the table `audit`, whose number is `number`; `row` has the columns AUDIT.

    Raises msgspec.DecodeError or ValueError if the row cannot be decoded.
    """
    at, outcome, reason, _, conversation, count, origin = row
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


def logged_query(
    wanted: AuditFilter, after: AuditPlace | None, visible: str, audited: str
) -> tuple[str, dict[str, str | int]] | None:
    """Return the query for the rows of the event log that match `wanted`, with its parameters except `limit`.

    Returns None if no row of the log can match, because `wanted` selects refused calls only. The columns of the query
    are the parameters of `logged_entry`. `visible` is an SQL condition that excludes deleted conversations. `audited`
    is the SQL condition that a row's command was sent by the principal `:principal`, or by nobody if `:principal` is
    "".
    """
    if wanted.outcome is Outcome.REFUSED:
        return None
    where, values = _bounds(wanted)
    if wanted.principal is not None:
        where.append(audited)
    if after is not None:
        place = "at > :place_at" if after.source else "(at, conversation_id, step) > (:place_at, :place_id, :place)"
        where.append(place)
        values |= {"place_at": after.at, "place_id": after.id, "place": after.number}
    conditions = " AND ".join(("audit IS NOT NULL", visible, *where))
    columns = "SELECT at, conversation_id, step, audit FROM log"
    return f"{columns} WHERE {conditions} ORDER BY at, conversation_id, step LIMIT :limit", values


def unlogged_query(wanted: AuditFilter, after: AuditPlace | None) -> tuple[str, dict[str, str | int]]:
    """Return the query for the rows of the table `audit` that match `wanted`, with its parameters except `limit`.

    The query returns the number of each row and then the columns AUDIT, oldest rows first.
    """
    where, values = _bounds(wanted)
    if wanted.principal is not None:
        where.append("principal = :principal")
    if wanted.outcome is not None:
        where.append("outcome = :outcome")
        values["outcome"] = wanted.outcome.value
    if after is not None:
        where.append("(at, id) > (:place_at, :place)")
        values |= {"place_at": after.at, "place": after.number if after.source else -1}
    columns = f"SELECT id, {', '.join(AUDIT)} FROM audit"  # noqa: S608 -- only constant names
    return f"{columns} WHERE {' AND '.join(where)} ORDER BY at, id LIMIT :limit", values


def _bounds(wanted: AuditFilter) -> tuple[list[str], dict[str, str | int]]:
    where, values = ["at >= :since"], dict[str, str | int](since=wanted.since)
    if wanted.until is not None:
        where.append("at < :until")
        values["until"] = wanted.until
    if wanted.conversation is not None:
        where.append("conversation_id = :conversation")
        values["conversation"] = wanted.conversation
    if wanted.principal is not None:
        values["principal"] = wanted.principal
    return where, values
