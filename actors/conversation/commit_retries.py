"""The retry queue: events of a conversation that could not be committed yet because the store is unavailable.

The actor does not wait for the store: commands are refused, a cancel is tried immediately, and a shutdown is not
delayed. The entries are retried after increasing pauses, the oldest first, and before any new command.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeAlias, TypeGuard, TypeVar

from actors.core.events import InternalFault, UserCancel
from actors.core.tool_run import KillReceipt
from actors.messages import EffectOutcome
from actors.ports import DatabaseAwayError, StoreUnavailableError

log = logging.getLogger(__name__)

# The pauses between attempts, in milliseconds; the last one repeats.
PAUSES_MS = (50, 100, 200, 500, 1_000)

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Retry:
    pass


@dataclass(frozen=True)
class VerifyUncertainCommit:
    pass


@dataclass(frozen=True)
class ReloadFromStore:
    """Queue entry: drop the in-memory copy of this epoch and reload the conversation."""

    epoch: int


# An entry of a conversation's retry queue: changes to commit for which no caller waits.
Uncommitted: TypeAlias = EffectOutcome | KillReceipt | VerifyUncertainCommit | ReloadFromStore


@dataclass(frozen=True)
class Prepared:
    entries: int
    commit: Callable[[], object]
    """Commits these entries. If the store cannot write now, it raises StoreUnavailableError and changes nothing."""


class CommitRetries(Generic[Entry]):
    """Entries to be committed in order. Actor's thread only.

    `name` is the conversation's id, for the log. `prepare` returns the next commit of one or more entries; it raises
    StoreUnavailableError if the store cannot be read now, and anything else for a bug in the first entry. `later` calls
    `retry` after a delay in milliseconds.
    """

    def __init__(self, name: str, prepare: Callable[[Sequence[Entry]], Prepared], later: Callable[[int], None]) -> None:
        self._name = name
        self._prepare = prepare
        self._later = later
        self._waiting: deque[Entry] = deque()
        # The number of entries at the head whose last commit the store refused. It may have been written nevertheless,
        # which is recognised only if the same entries are committed again.
        self._refused = 0
        self._failures = 0
        self._retry_due = False

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._waiting)

    def enqueue(self, *entries: Entry) -> bool:
        self._waiting.extend(entries)
        return self.flush()

    def requeue(self, entry: Entry, *, first: bool = False, why: Exception | None = None) -> None:
        """Put an entry that the store has just refused at the end or the head, unless it is queued already."""
        if entry not in self._waiting:
            (self._waiting.appendleft if first else self._waiting.append)(entry)
            self._refused = 0 if first else self._refused
        self._retry_later(why)

    def clear(self) -> None:
        self._waiting.clear()
        self._refused = 0

    def flush(self) -> bool:
        """Commit the entries in order; False if the store refused some, which stay queued with all later ones.

        Raises any other error of a commit, whose entries are dropped; the others are retried later.
        """
        while self._waiting:
            try:
                self._commit_next()
            except StoreUnavailableError as error:
                self._retry_later(error)
                return False
            except BaseException:
                self._retry_later()
                raise
        self._failures = 0
        return True

    def _commit_next(self) -> None:
        try:
            prepared = self._prepare(tuple(islice(self._waiting, self._refused or None)))
        except StoreUnavailableError:
            raise
        except BaseException:
            self._waiting.popleft()
            raise
        entries = [self._waiting.popleft() for _ in range(prepared.entries)]
        self._refused = max(0, self._refused - len(entries))
        try:
            prepared.commit()
        except StoreUnavailableError:
            self._waiting.extendleft(reversed(entries))
            self._refused = len(entries)
            raise

    def retry(self) -> None:
        self._retry_due = False
        self.flush()

    def _retry_later(self, why: Exception | None = None) -> None:
        if self._retry_due or not self._waiting:
            return
        pause = PAUSES_MS[min(self._failures, len(PAUSES_MS) - 1)]
        loud = logging.CRITICAL if self._failures == len(PAUSES_MS) else logging.WARNING
        level = logging.DEBUG if isinstance(why, DatabaseAwayError) else loud
        log.log(level, "not stored yet; trying again in %d ms", pause, extra={"conversation": self._name})
        self._failures += 1
        self._retry_due = True
        self._later(pause)


def may_share_commit(entry: object) -> TypeGuard[EffectOutcome]:
    """Whether `entry` may share a commit with others; cancels, faults and urgent outcomes may not."""
    if not isinstance(entry, EffectOutcome):
        return False
    return not (entry.urgent or isinstance(entry.event, (InternalFault, UserCancel)))


def sharing_commit(entries: Iterable[object]) -> tuple[EffectOutcome, ...]:
    """The leading entries that may be committed together; () if the first entry must be committed alone."""
    shared: list[EffectOutcome] = []
    for entry in entries:
        if not may_share_commit(entry):
            break
        shared.append(entry)
    return tuple(shared)


def covers_cancel(entry: object, cancel: UserCancel) -> bool:
    """Whether `entry` is a cancel that does everything that `cancel` would do."""
    return (
        isinstance(entry, EffectOutcome)
        and isinstance(entry.event, UserCancel)
        and entry.event.discard_queued >= cancel.discard_queued
        and entry.event.kill_jobs >= cancel.kill_jobs
    )
