"""The part of the Store port that reads the transition log of a conversation, its events, and the indexes over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from actors.ports.store.records import SettledInput, StoppedRun, StoredEvent, StoredTransition


class LogReader(Protocol):
    """The log of committed transitions. Any thread; blocks briefly.

    Every method raises StoreUnavailableError or StoreDamagedError.
    """

    def events(self, conversation_id: str, *, after: int, limit: int) -> tuple[StoredEvent, ...]:
        """Return durable events after this revision, in order and without gaps. Raises RevisionTooOldError."""
        ...

    def transitions(self, conversation_id: str, *, after_step: int, limit: int) -> tuple[StoredTransition, ...]:
        """Return logged transitions after this step, in order."""
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
        """Return ended runs by the revision of their run-stop, between `after` and `before`. Never pruned."""
        ...

    def stopped_run(self, conversation_id: str, run: str) -> StoppedRun | None:
        """Return how a run ended; None if it has not, or if the conversation has no such run."""
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
        """Return steers and follow-ups that left the queue, by revision, between `after` and `before`. Never pruned."""
        ...

    def verify(self, conversation_id: str) -> tuple[str, ...]:
        """Check what is stored and return one sentence for each finding; empty if there are none. Repairs nothing.

        Checks the hash chain of the log, that steps, revisions and message sequences have no gaps, and that the
        messages are those that the log recorded.
        """
        ...
