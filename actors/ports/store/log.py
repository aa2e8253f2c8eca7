"""The part of the Store port that reads a conversation's log: state changes, events, ended runs, dequeued inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from actors.ports.store.records import SettledInput, StoppedRun, StoredEvent, StoredTransition


class LogReader(Protocol):
    """Reads the log of a conversation's committed state changes. Safe to call from any thread; blocks briefly.

    Every method may raise StoreUnavailableError or StoreDamagedError.
    """

    def events(self, conversation_id: str, *, after: int, limit: int) -> tuple[StoredEvent, ...]:
        """Return the durable events after this revision, in order and without gaps.

        Raises RevisionTooOldError if some of them are no longer stored.
        """
        ...

    def transitions(self, conversation_id: str, *, after_step: int, limit: int) -> tuple[StoredTransition, ...]:
        """Return the logged transitions (state changes) with a step number above `after_step`, in order."""
        ...

    def stopped_runs(
        self,
        conversation_id: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int,
        descending: bool = False,
    ) -> tuple[StoppedRun, ...]:
        """Return the runs that ended between the revisions `after` and `before` (both excluded).

        These records are kept as long as the conversation.
        """
        ...

    def stopped_run(self, conversation_id: str, run: str) -> StoppedRun | None:
        """Return how a run ended; None if it has not ended or the conversation has no such run."""
        ...

    def settled_inputs(
        self,
        conversation_id: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int,
        descending: bool = False,
    ) -> tuple[SettledInput, ...]:
        """Return the queued inputs that left the queue between the revisions `after` and `before` (both excluded).

        These records are kept as long as the conversation.
        """
        ...

    def verify(self, conversation_id: str) -> tuple[str, ...]:
        """Check the stored data of a conversation and return one sentence for each finding; () if there are none.

        Checks the hash chain of the log; whether steps, revisions and message sequences have gaps; and whether the
        messages are those that the log recorded. Repairs nothing.
        """
        ...
