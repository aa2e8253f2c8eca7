"""The part of the Store port for retention: pruning logs, and returning free space to the file system."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from actors.ports.store.records import ConversationRecord


class StoreMaintenance(Protocol):
    """Deletes old data, and returns free space to the file system. Safe to call from any thread.

    Each call is one short transaction and may raise StoreUnavailableError.
    """

    def load(self, conversation_id: str) -> ConversationRecord | None:
        """Return the conversation's row, or None. See `ConversationReader.load`."""
        ...

    def prunable(self, *, before: int, keep: int, after: str = "", limit: int) -> tuple[str, ...]:
        """Return the ids of conversations whose logs can be pruned, in order, starting after the id `after`.

        These are the conversations whose log begins before the time `before` (ms since the epoch) and that have more
        than `keep` revisions.
        """
        ...

    def prune_log(self, conversation_id: str, before_revision: int, *, older_than: int | None = None) -> int:
        """Delete the oldest state changes (transitions) from a log; return their number, 0 if none is left to delete.

        Deletes only transitions whose events all precede `before_revision` and, if given, that were written before the
        time `older_than` (ms since the epoch), and never the transition of the latest event. A call deletes at most a
        few hundred, so that it does not delay other writers.

        Raises StoreUnavailableError; NotOwnerError if another server owns the conversation; or StoreDamagedError if the
        transitions fail verification, in which case they are kept.
        """
        ...

    def archived(self, *, before: int, after: str = "", limit: int) -> tuple[str, ...]:
        """Return the ids of conversations archived before the time `before` (ms), in order, after the id `after`.

        Sub-agents are left out.
        """
        ...

    def prune_audit(self, *, before: int, keep: int) -> int:
        """Delete the oldest audit entries that are not part of a conversation's log. See `AuditStore.prune_audit`."""
        ...

    def compact(self, max_bytes: int, *, spare_bytes: int) -> bool:
        """Return at most `max_bytes` of the store's free space to the file system; return False if none was returned.

        `spare_bytes` of free space are kept for later writes.
        """
        ...
