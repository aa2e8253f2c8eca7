"""The writes of a store on SQL that are the same for SQLite and PostgreSQL."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec

from actors.adapters.store.audit_rows import audit_values
from actors.adapters.store.sql.write_statements import ADD_SPENDING, INSERT_AUDIT, PRUNE_AUDIT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import ExitStack

    from actors.adapters.store.sql.dialect import WritingConnection
    from actors.ports import Clock, Spending
    from actors.ports.store.audit import AuditEntry

PRUNED_ENTRIES = 500
"""Maximum entries of the audit trail that are deleted in one transaction."""


class NewSpending:
    """A change that adds an amount to what a principal has spent on a day."""

    def __init__(self, spending: Spending) -> None:
        self._values = msgspec.structs.astuple(spending)

    def apply(self, connection: WritingConnection) -> None:
        """Add the amounts to the row of the principal and the day."""
        connection.execute(ADD_SPENDING, self._values)


class AuditEntries:
    """A change that adds entries to the audit trail: those that belong to no conversation's log."""

    def __init__(self, entries: Iterable[AuditEntry]) -> None:
        self._rows = list(map(audit_values, entries))

    def apply(self, connection: WritingConnection) -> None:
        """Insert the rows."""
        connection.executemany(INSERT_AUDIT, self._rows)


class AuditPruning:
    """A change that deletes the oldest audit entries that belong to no conversation's log."""

    def __init__(self, before: int, keep: int) -> None:
        self._values = {"before": before, "keep": keep, "limit": PRUNED_ENTRIES}
        self.deleted = 0
        """How many entries were deleted, once the change is applied."""

    def apply(self, connection: WritingConnection) -> None:
        """Delete at most PRUNED_ENTRIES entries."""
        self.deleted = connection.execute(PRUNE_AUDIT, self._values).rowcount


class StoreWriter(Protocol):
    """The part of ChangeQueue that these writes use."""

    def write(self, change: NewSpending | AuditEntries | AuditPruning, /) -> None:
        """Return once `change` is durable."""
        ...

    @property
    def waiting(self) -> int:
        """How many changes wait for the next transaction."""
        ...


WriterT = TypeVar("WriterT", bound=StoreWriter)


class StoreWrites(Generic[WriterT]):
    """Implement the writes of ports.Store that concern no conversation, and `close`. Safe to call from any thread."""

    def __init__(self, writer: WriterT, clock: Clock | None, closing: ExitStack) -> None:
        """Keep the writer; `closing` is the stack that `close` unwinds."""
        self._writer = writer
        self._clock = clock
        # Held while one batch of a fork's attachments is copied, so that no transaction contains two.
        self._copying = threading.Lock()
        self._close_once = threading.Lock()  # a concurrent second close returns only after the first
        self._closing = closing

    def put_spending(self, spending: Spending) -> None:
        """Add to what a principal spent on a day; see ports.Store."""
        self._writer.write(NewSpending(spending))

    def put_audit(self, entries: Sequence[AuditEntry]) -> None:
        """Store entries of the audit trail that belong to no conversation's log; see ports.Store."""
        self._writer.write(AuditEntries(entries))

    def prune_audit(self, *, before: int, keep: int) -> int:
        """Delete the oldest audit entries that belong to no conversation's log; return how many; see ports.Store."""
        oldest = AuditPruning(before, keep)
        self._writer.write(oldest)
        return oldest.deleted

    @property
    def waiting(self) -> int:
        """How many changes wait for the next transaction."""
        return self._writer.waiting

    def close(self) -> None:
        """Release everything; idempotent; see ports.Store."""
        with self._close_once:
            self._closing.close()

    def _now_ms(self) -> int:
        return self._clock.now_ms() if self._clock is not None else time.time_ns() // 1_000_000
