"""The writing methods that the stores on SQLite and PostgreSQL share."""

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
"""Maximum number of entries of the audit trail that one transaction deletes."""


class NewSpending:
    """A change that adds tokens and costs to what a principal has spent on a day."""

    def __init__(self, spending: Spending) -> None:
        self._values = msgspec.structs.astuple(spending)

    def apply(self, connection: WritingConnection) -> None:
        """Add the amounts to the row of the principal and the day; insert the row if it is missing."""
        connection.execute(ADD_SPENDING, self._values)


class AuditEntries:
    """A change that adds those entries to the audit trail that no conversation's event log contains."""

    def __init__(self, entries: Iterable[AuditEntry]) -> None:
        self._rows = list(map(audit_values, entries))

    def apply(self, connection: WritingConnection) -> None:
        """Insert the entries into the table `audit`."""
        connection.executemany(INSERT_AUDIT, self._rows)


class AuditPruning:
    """A change that deletes the oldest entries of the table `audit` (the audit entries that are in no event log)."""

    def __init__(self, before: int, keep: int) -> None:
        self._values = {"before": before, "keep": keep, "limit": PRUNED_ENTRIES}
        self.deleted = 0
        """The number of deleted entries; 0 until the change is applied."""

    def apply(self, connection: WritingConnection) -> None:
        """Delete at most PRUNED_ENTRIES of the entries older than `before` or not among the latest `keep`."""
        self.deleted = connection.execute(PRUNE_AUDIT, self._values).rowcount


class StoreWriter(Protocol):
    """The methods of ChangeQueue that StoreWrites uses."""

    def write(self, change: NewSpending | AuditEntries | AuditPruning, /) -> None:
        """Return when `change` is durable."""
        ...

    @property
    def waiting(self) -> int:
        """The number of queued changes."""
        ...


WriterT = TypeVar("WriterT", bound=StoreWriter)


class StoreWrites(Generic[WriterT]):
    """Implements the writes of ports.Store that concern no conversation, and `close`. Safe to call from any thread."""

    def __init__(self, writer: WriterT, clock: Clock | None, closing: ExitStack) -> None:
        """`writer` writes the changes; `close` runs the callbacks in `closing`.

        The system's clock is used if `clock` is None.
        """
        self._writer = writer
        self._clock = clock
        # Held while one batch of a fork's attachments is copied, so that no transaction contains batches of two forks.
        self._copying = threading.Lock()
        self._close_once = threading.Lock()  # a second, concurrent close returns only after the first
        self._closing = closing

    def put_spending(self, spending: Spending) -> None:
        """Add tokens and costs to what a principal spent on a day; see ports.Store."""
        self._writer.write(NewSpending(spending))

    def put_audit(self, entries: Sequence[AuditEntry]) -> None:
        """Store audit entries that are in no event log; see ports.Store."""
        self._writer.write(AuditEntries(entries))

    def prune_audit(self, *, before: int, keep: int) -> int:
        """Delete the oldest audit entries that are in no event log; return how many; see ports.Store."""
        oldest = AuditPruning(before, keep)
        self._writer.write(oldest)
        return oldest.deleted

    @property
    def waiting(self) -> int:
        """The number of changes that wait to be written."""
        return self._writer.waiting

    def close(self) -> None:
        """Write the queued changes, then close every connection. Idempotent; see ports.Store."""
        with self._close_once:
            self._closing.close()

    def _now_ms(self) -> int:
        return self._clock.now_ms() if self._clock is not None else time.time_ns() // 1_000_000
