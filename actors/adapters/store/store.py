"""Common writing code of the stores on SQLite and PostgreSQL: a queue of changes, and the methods that hand them in.

One thread writes at a time. If no thread is writing, a caller writes its change itself, so that a lone change needs no
other thread; a caller that comes meanwhile queues its change and waits. The writing thread takes all queued changes,
urgent ones first, and writes them in one transaction: first the commits to existing conversations, together; then the
others, each after a savepoint, so that a refused change does not affect the other changes. If the transaction itself
fails, nothing is written and the callers of all its changes get the error. The writer's own thread writes the changes
that are still queued, and does background work in between.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, TypeVar

from actors.adapters.store import changes
from actors.adapters.store.changes import EncodedCommit, write_together
from actors.adapters.store.query import Session
from actors.adapters.store.reads import ReaderPool, StoreReads
from actors.adapters.store.removal import abandon_unfinished, remove_slice
from actors.adapters.store.rows import attachment_values, audit_values, place_after
from actors.ports import (
    Attachment,
    CommandExistsError,
    Commit,
    FaultPoints,
    FencedError,
    SlugTakenError,
    Spending,
    StoreError,
    StoreUnavailableError,
)  # fmt: skip
from actors.ports.records import AuditEntry

_log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_BATCH = 128  # maximum changes per batch; limits how long a change waits for the changes before it
WORK_EVERY = 1_000  # after how many changes written by callers the writer's thread does background work that is due
TIDY_SECONDS = 0.25  # seconds between slices of background work while changes keep arriving


class Ticket:
    """A queued change with its result and the lock that wakes its caller.

    The change is called on the writing thread, inside a savepoint, and written completely or not at all; its exceptions
    reach the caller.
    """

    __slots__ = ("change", "done", "error", "frees", "result", "written")

    def __init__(self, change: Callable[[Session], Any], *, frees: bool = False) -> None:
        self.change = change
        self.frees = frees  # whether the change frees space on the disk
        self.result: Any = None
        self.error: Exception | None = None
        self.written = False  # whether the change is durable; other changes of the same batch may not be
        self.done = threading.Lock()  # held until the caller is woken; a Lock is cheaper than an Event
        self.done.acquire()

    @property
    def lost(self) -> bool:
        return self.error is None and not self.written


class Writer(ABC):
    """Writes the queued changes over one connection, which only this writer uses."""

    _begin = "BEGIN"
    _unavailable: type[StoreUnavailableError] = StoreUnavailableError

    def __init__(
        self, faults: FaultPoints, written: Callable[[int, float], None] | None, *, longest_wait: float
    ) -> None:
        """Create the thread, which the subclass starts at the end of its constructor.

        `written(changes, seconds)` is called after each batch with the number of changes and how long writing them
        took; it must not raise. Background work is due after `longest_wait` seconds at the latest.
        """
        self._faults = faults
        self._longest_wait = longest_wait
        self._written = written
        self._tidying = False
        self._tidied_at = 0.0
        self._writing = threading.Lock()  # held by the writing thread
        self._since = 0  # changes since the last background work; guarded by _writing
        self._due = threading.Condition()  # guards the queues and _closing; notified when there is something to do
        self._urgent: deque[Ticket] = deque()
        self._normal: deque[Ticket] = deque()
        self._asking = False  # whether the writer's thread waits for _writing; callers then do not take it
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)

    def write(self, change: Callable[[Session], T], *, urgent: bool = False, frees: bool = False) -> T:
        """Write `change`, and return its result when it is durable. Thread-safe, but not reentrant.

        Raises the reason for a refusal, or StoreUnavailableError.
        """
        ticket = Ticket(change, frees=frees)
        queue = self._urgent if urgent else self._normal
        with self._due:
            if self._closing:
                raise StoreUnavailableError("the store is closed")
            queue.append(ticket)
            leads = not self._asking and self._writing.acquire(blocking=False)
            if not leads:
                self._due.notify()
        try:
            if leads:
                self._lead()
            ticket.done.acquire()
        except BaseException:  # raised by a signal handler on the main thread
            with self._due, suppress(ValueError):  # a change that is already part of a batch is still written
                queue.remove(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error
        result: T = ticket.result
        return result

    @property
    def waiting(self) -> int:
        """The number of queued changes that are not yet in a batch. Thread-safe."""
        return len(self._urgent) + len(self._normal)

    def tidy(self) -> None:
        """Request background work, and return immediately. Thread-safe."""
        with self._due:
            self._tidying = True
            self._due.notify()

    def close(self) -> None:
        """Write the queued changes and end the writer's thread. Later changes are refused. Idempotent."""
        with self._due:
            self._closing = True
            self._due.notify()
        self._thread.join()

    # --- the differences between the databases; called while _writing is held -----------------------------------------

    @abstractmethod
    def _ready(self) -> Session:
        """The session, ready for a transaction to begin. Raises StoreUnavailableError."""

    @abstractmethod
    def _refused(self, error: Exception) -> Exception | None:
        """The exception for the caller of a change that raised `error`; None if the database itself failed."""

    @abstractmethod
    def _failed(self, batch: list[Ticket], error: BaseException) -> str:
        """Recover from a failed transaction; log the failure, and return its text for the callers of the changes."""

    @abstractmethod
    def _committed(self) -> None:
        """Check after a commit that it went to the right database. Raises StoreUnavailableError."""

    def _remove_slice(self, session: Session) -> bool:
        """Do some background work within a transaction; return whether any is left."""
        return remove_slice(session)

    @abstractmethod
    def _not_removed(self, error: Exception) -> None:
        """Recover from a failure of background work, which is repeated later; no caller waits for it."""

    @abstractmethod
    def _between(self, batch: int) -> None:
        """Do the background work that is due after `batch` changes, on the writer's thread.

        If this raises, nothing more can be written.
        """

    def _end(self) -> None:  # noqa: B027 -- SQLite's connection is closed later, by the store
        """Close the connection when the writer's thread ends."""

    # --- on the thread that writes --------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._work():
            with self._due:
                if not (self._urgent or self._normal or self._tidying or self._closing):
                    self._due.wait(self._longest_wait)
                self._asking = True  # otherwise successive callers would keep this thread waiting
        self._end()

    def _work(self) -> bool:
        with self._writing:
            self._asking = False
            try:
                going = self._serve_next()
                if going:
                    since, self._since = self._since, 0
                    self._between(since)
            except BaseException:  # noqa: BLE001 -- the waiting callers must be woken after any error
                self._abandon()
                return False
            return going

    def _lead(self) -> None:
        try:
            self._serve_next()
        except BaseException:
            self._abandon()
            raise
        finally:
            self._writing.release()
        if self._since >= WORK_EVERY:
            with self._due:
                self._due.notify()

    def _serve_next(self) -> bool:
        """Write the next batch; return False if there is none and the store is closing."""
        batch: list[Ticket] = []
        with self._due:
            for queue in (self._urgent, self._normal):
                while queue and len(batch) < MAX_BATCH:
                    batch.append(queue.popleft())
            going = bool(batch) or not self._closing
        if batch:
            began = time.monotonic()
            self._serve(batch)
            self._since += len(batch)
            if self._written is not None:
                self._written(len(batch), time.monotonic() - began)
        return going

    def _serve(self, batch: list[Ticket]) -> None:
        """Write the changes in one transaction, and wake their callers whatever happens."""
        why = "the outcome of the write is unknown"
        try:
            self._transact(batch)
        except BaseException as error:
            why = self._failed(batch, error)
            if not isinstance(error, Exception):
                raise
        finally:
            for ticket in batch:
                if ticket.lost:
                    ticket.error = self._unavailable(why)
                ticket.done.release()

    def _transact(self, batch: list[Ticket]) -> None:
        self._faults.hit("store.before_begin")
        session = self._ready()
        together = [ticket.change for ticket in batch if isinstance(ticket.change, EncodedCommit)]
        done = write_together(session, together, self._begin)
        for ticket in batch:
            if ticket.change not in done:
                self._write_alone(ticket, session)
        self._faults.hit("store.before_commit")
        session.run("COMMIT")
        self._committed()
        self._faults.hit("store.after_commit")
        for ticket in batch:
            ticket.written = ticket.error is None

    def _write_alone(self, ticket: Ticket, session: Session) -> None:
        session.run("SAVEPOINT change")
        try:
            ticket.result = ticket.change(session)
        except Exception as error:
            ticket.error = self._refused(error)
            if ticket.error is None:
                raise
            session.run("ROLLBACK TO change")
        session.run("RELEASE change")

    def _tidy(self, batch: int) -> bool:
        """Do a slice of background work if one is due; return whether one was due.

        A slice is due if background work was requested and either `batch` is 0 (no changes were written just now) or
        the last slice was at least TIDY_SECONDS ago.
        """
        due = self._tidying and (not batch or time.monotonic() - self._tidied_at >= TIDY_SECONDS)
        if due:
            try:
                session = self._ready()
                session.run(self._begin)
                self._tidying = self._remove_slice(session)
                session.run("COMMIT")
            except Exception as error:  # noqa: BLE001 -- logged, and repeated later
                self._tidying = False
                self._not_removed(error)
            self._tidied_at = time.monotonic()
        return due

    def _abandon(self) -> None:
        """After an error not caused by a single change, refuse all further changes and wake all waiting callers."""
        _log.critical("the store's writer failed; nothing can be written until the server restarts", exc_info=True)
        with self._due:
            self._closing = True
            self._due.notify()
            left = [*self._urgent, *self._normal]
            self._urgent.clear()
            self._normal.clear()
        for ticket in left:
            ticket.error = StoreUnavailableError("the store's writer failed")
            ticket.done.release()


def refusal(constraint: str) -> StoreError:
    """The exception for a violated constraint, given its name (PostgreSQL) or a message with its columns (SQLite)."""
    if "conversations.slug" in constraint or "conversations_slug" in constraint:
        return SlugTakenError(constraint)
    if any(name in constraint for name in ("commands.", "commands_", "messages.id", "messages_pkey")):
        return CommandExistsError(constraint)
    return FencedError(constraint)


class SqlStore(StoreReads):
    """Implements ports.Store, except for the differences between the databases. Thread-safe."""

    def __init__(self, writer: Writer, readers: ReaderPool[Any], closing: ExitStack) -> None:
        """`writer` writes the changes; `close` closes the resources in `closing`."""
        super().__init__(readers)
        self._writer = writer
        # Held while an attachment is copied into a fork, so that no transaction contains attachments of two forks.
        self._copying = threading.Lock()
        self._close_once = threading.Lock()  # a second, concurrent close returns only after the first
        self._closing = closing

    def commit(self, *parts: Commit, urgent: bool = False) -> None:
        commits = [EncodedCommit(part) for part in parts]
        forks = [commit for commit in commits if commit.attachments]
        try:
            for fork in forks:
                self._prepare(fork)
            self._writer.write(
                commits[0] if len(commits) == 1 else partial(changes.write_alone, commits=commits), urgent=urgent
            )
        except BaseException:
            self._abandon(forks)
            raise

    def _prepare(self, fork: EncodedCommit) -> None:
        """Copy attachments into a hidden fork, each in its own transaction, so that other changes can come in between.

        Raises FencedError if the conversation to fork does not exist, and other StoreErrors.
        """
        self._writer.write(partial(changes.begin_fork, fork=fork))
        for attachment_id in fork.attachments:
            self._copy(fork, attachment_id)

    def _copy(self, fork: EncodedCommit, attachment_id: str) -> None:
        attachment = self.attachment(fork.origin, attachment_id)
        if attachment is not None:
            row = attachment_values(fork.id, attachment, fork.created_at)
            with self._copying:
                self._writer.write(partial(changes.copy_attachment, row=row))

    def _abandon(self, forks: Iterable[EncodedCommit]) -> None:
        """Mark unfinished forks for removal; if that fails, the next start or another server removes them."""
        with suppress(StoreError):
            for fork in forks:
                self._writer.write(partial(abandon_unfinished, conversation_id=fork.id))
                self._writer.tidy()

    def delete(self, conversation_id: str, audit: AuditEntry | None = None) -> None:
        entries = [] if audit is None else [audit_values(audit)]
        self._writer.write(partial(changes.delete, conversation_id=conversation_id, audit=entries), frees=True)
        self._writer.tidy()

    def prune_log(self, conversation_id: str, before_revision: int, *, older_than: int | None = None) -> int:
        was, going = self._to_prune(conversation_id, before_revision, older_than)
        if going:
            begins = place_after(going[-1])
            self._writer.write(partial(changes.prune_log, conversation_id=conversation_id, begins=begins, was=was))
        return len(going)

    def put_attachment(self, conversation_id: str, attachment: Attachment) -> None:
        row = attachment_values(conversation_id, attachment, time.time_ns() // 1_000_000)
        self._writer.write(partial(changes.put_attachment, row=row))

    def put_spending(self, spending: Spending) -> None:
        self._writer.write(partial(changes.add_spendings, spendings=[spending]))

    def put_audit(self, entries: Sequence[AuditEntry]) -> None:
        encoded = list(map(audit_values, entries))
        self._writer.write(lambda session: session.insert(changes.INSERT_AUDIT, encoded))

    def prune_audit(self, *, before: int, keep: int) -> int:
        return self._writer.write(partial(changes.prune_audit, before=before, keep=keep))

    @property
    def waiting(self) -> int:
        return self._writer.waiting

    def close(self) -> None:
        with self._close_once:
            self._closing.close()
