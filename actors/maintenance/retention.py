"""Retention: a background thread prunes old events, deletes conversations archived long ago, and compacts the store.

The thread never deletes a message or a command of a conversation that is kept. It works in steps, each a short
transaction, and after each step pauses ten times as long as the step took, so that writers are not slowed down.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Protocol

from msgspec import Struct

from actors.core.errors import Rejected
from actors.messages import ConversationCommand, DeleteConversationCommand, EtagMismatchError, UnknownConversationError
from actors.ports import Clock, NotOwnerError, StoreError, StoreMaintenance, StoreUnavailableError

log = logging.getLogger(__name__)

DAY_MS = 86_400_000
ROUNDS_A_PERIOD = 24  # rounds in the shortest retention period, if ROUND_SECONDS allows this
ROUND_SECONDS = (1.0, 3_600.0)  # the shortest and the longest time between two rounds
FIRST_SECONDS = 60.0  # the longest time until the first round, so that even a server that restarts often has one
PAUSE_FACTOR = 10.0  # the pause after a step, as a multiple of the time that the step took
PAGE = 100  # conversations per query
COMPACT_BYTES = 1 << 20  # the maximum number of bytes that one step returns to the file system
SPARE_BYTES = 16 << 20  # free space that the store keeps, because this space will soon be used again
AUDIT_ENTRIES = 100_000  # the maximum number of entries about refused calls and deletions that are kept
DELETE_SECONDS = 10.0  # how long to wait for one deletion before the next one is handled


class Retention(Struct, frozen=True, kw_only=True):
    """The retention periods, in days."""

    events_days: float = 0.0
    """Events older than this are pruned; 0: never."""
    events_min: int = 10_000
    """The number of latest events of each conversation that are kept regardless of their age."""
    archived_days: float = 0.0
    """Conversations that have been archived for longer than this are deleted, with their sub-agents; 0: never."""

    audit_days: float = 90.0
    """Audit entries about refused calls and about deletions are removed when older than this; 0: no age limit."""

    @property
    def round_seconds(self) -> float:
        least, most = ROUND_SECONDS
        periods = [days * DAY_MS / 1000 for days in (self.events_days, self.archived_days, self.audit_days) if days]
        return max(least, min([most, *(period / ROUNDS_A_PERIOD for period in periods)]))


class DeletableConversations(Protocol):
    """The interface for deleting conversations, implemented by actors.conversation.supervisor.Supervisor."""

    def ask(
        self, conversation_id: str, request: ConversationCommand, *, deadline: float | None = None
    ) -> Future[Any]: ...


class Housekeeper:
    """Runs maintenance rounds on its own thread, from `start` to `close`."""

    def __init__(
        self, store: StoreMaintenance, conversations: DeletableConversations, clock: Clock, retention: Retention
    ) -> None:
        self._store = store
        self._conversations = conversations
        self._clock = clock
        self._retention = retention
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bedrock-housekeeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread after the current step. Idempotent; may be called before `start`."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def sweep(self) -> None:
        """Run one maintenance round, step by step; return early if `close` is called. Blocks."""
        began = self._clock.monotonic()
        for _ in self._steps():
            if self._closing.wait(PAUSE_FACTOR * (self._clock.monotonic() - began)):
                return
            began = self._clock.monotonic()

    def _run(self) -> None:
        pause = min(FIRST_SECONDS, self._retention.round_seconds)
        while not self._closing.wait(pause):
            try:
                self.sweep()
            except StoreUnavailableError as error:
                log.warning("housekeeping stopped until its next round: %s", error)
            except Exception:
                log.exception("housekeeping failed; the next round will try again")
            pause = self._retention.round_seconds

    def _steps(self) -> Iterator[None]:
        """Do the work of one maintenance round; yield after each write."""
        if self._retention.events_days:
            yield from self._prune(self._clock.now_ms() - round(self._retention.events_days * DAY_MS))
        if self._retention.archived_days:
            yield from self._delete(self._clock.now_ms() - round(self._retention.archived_days * DAY_MS))
        yield from self._prune_audit()
        while self._store.compact(COMPACT_BYTES, spare_bytes=SPARE_BYTES):
            yield

    def _prune(self, before: int) -> Iterator[None]:
        keep = self._retention.events_min
        for id_ in _all(lambda after: self._store.prunable(before=before, keep=keep, after=after, limit=PAGE)):
            try:
                yield from self._prune_one(id_, before)
            except StoreUnavailableError:
                raise
            except NotOwnerError:
                continue  # the server that owns the conversation prunes its events
            except StoreError as error:
                log.error("cannot prune the conversation's events: %s", error, extra={"conversation": id_})

    def _prune_audit(self) -> Iterator[None]:
        days = self._retention.audit_days
        before = self._clock.now_ms() - round(days * DAY_MS) if days else 0
        while self._store.prune_audit(before=before, keep=AUDIT_ENTRIES):
            yield

    def _prune_one(self, conversation_id: str, before: int) -> Iterator[None]:
        record = self._store.load(conversation_id)
        if record is None:
            return
        first_kept = record.revision - self._retention.events_min + 1
        while self._store.prune_log(conversation_id, first_kept, older_than=before):
            yield

    def _delete(self, before: int) -> Iterator[None]:
        for id_ in _all(lambda after: self._store.archived(before=before, after=after, limit=PAGE)):
            try:
                self._conversations.ask(id_, DeleteConversationCommand(archived_before=before)).result(DELETE_SECONDS)
            except (UnknownConversationError, EtagMismatchError, NotOwnerError):
                continue  # already deleted, no longer archived, or owned by another server, which deletes it
            except (Rejected, TimeoutError) as refusal:
                log.info("cannot delete an expired conversation yet: %s", refusal, extra={"conversation": id_})
            else:
                log.info("conversation deleted: its retention period is over", extra={"conversation": id_})
            yield


def _all(page: Callable[[str], tuple[str, ...]]) -> Iterator[str]:
    ids: tuple[str, ...] = page("")
    while ids:
        yield from ids
        ids = page(ids[-1])
