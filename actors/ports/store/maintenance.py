"""Retention: pruning of logs, and returning free space to the file system."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from actors.ports.store.records import ConversationRecord


class StoreMaintenance(Protocol):
    """The operations that retention needs.

    They can be called on any thread. Each call is one short transaction and may raise StoreUnavailableError.
    """

    def load(self, conversation_id: str) -> ConversationRecord | None:
        """Return the conversation's row, or None. See `ConversationReader.load`."""
        ...

    def prunable(self, *, before: int, keep: int, after: str = "", limit: int) -> tuple[str, ...]:
        """Return the ids of conversations with a log to prune, in order, starting after the id `after`.

        These are the ones whose log begins before the time `before` (ms since the epoch) and that have more than
        `keep` revisions.
        """
        ...

    def prune_log(self, conversation_id: str, before_revision: int, *, older_than: int | None = None) -> int:
        """Delete the oldest logged transitions and return how many; 0 means that there are no more to delete.

        Only transitions whose events all precede `before_revision` and, if given, that were written before the time
        `older_than` (ms since the epoch); never the one of the latest event. A call deletes a few hundred at most, so
        that it does not hold up other writers.

        Raises StoreUnavailableError; NotOwnerError if another server owns the conversation; StoreDamagedError if they
        fail verification; then they are kept.
        """
        ...

    def archived(self, *, before: int, after: str = "", limit: int) -> tuple[str, ...]:
        """Return the ids of conversations archived before the time `before` (ms), in order, after the id `after`.

        Sub-agents are omitted.
        """
        ...

    def prune_audit(self, *, before: int, keep: int) -> int:
        """Delete the oldest entries of the audit trail that are in no log. See `AuditStore.prune_audit`."""
        ...

    def compact(self, max_bytes: int, *, spare_bytes: int) -> bool:
        """Return up to `max_bytes` of free space to the file system; returns whether there was any to return.

        `spare_bytes` of free space are kept for future writes.
        """
        ...
