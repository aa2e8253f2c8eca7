"""The pipeline that every change to a conversation goes through: load, transition, commit, publish, act; and retries.

The commit comes before everything that is visible outside: events are published and effects started only after they
are durable. A crash between two steps therefore loses no published event, and a failed commit has no effect.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeAlias, TypeGuard, TypeVar

import msgspec

from actors import ports
from actors.conversation.unit_of_work import OutcomeBatch, UnitOfWork
from actors.core import events
from actors.core.context import ConvContext
from actors.core.effects import ActEffect, ExecuteTool
from actors.core.events import InternalFault, UserCancel
from actors.core.notifications import ToolTreeReaped
from actors.core.states import INACTIVE, TERMINAL, ContextExhausted, JobStatus, State
from actors.core.tool_run import KillReceipt
from actors.messages import EffectOutcome, TreeReaped, UnknownConversationError
from actors.ports import DatabaseAwayError, StoreUnavailableError
from actors.ports.records import CommandOrigin
from actors.runners.effect_executor import EffectExecutor
from actors.runtime.services import Services

log = logging.getLogger(__name__)


class LoadedConversation:
    """The in-memory copy of a conversation, authoritative while its actor runs. Call only on the actor's thread."""

    def __init__(self, services: Services, record: ports.ConversationRecord) -> None:
        self._services = services
        self.record = record
        self.context = services.context_of(record)
        self._logged_context: ConvContext | None = None

    @property
    def state(self) -> State:
        return self.record.state

    def begin(self) -> UnitOfWork:
        # Read each time, because these can change while the conversation is loaded: the model's window becomes known,
        # the provider refuses images, the principal's other conversations use up its quotas, or a new day begins.
        services, model, known = self._services, self.record.model, self.context
        now, (window, images) = services.clock.now_ms(), services.window_and_images(model)
        quota, date = services.quotas.spent(self.record.principal), ports.date_of(now)
        if (window, images, quota, date) != (known.usable_window, known.takes_images, known.quota_spent, known.date):
            self.context = msgspec.structs.replace(
                known, usable_window=window, takes_images=images, quota_spent=quota, date=date
            )
        if isinstance(self.record.state, INACTIVE):
            self._choose_mcp_tools()
        return UnitOfWork(self.record, self.context, self._logged_context)

    def _choose_mcp_tools(self) -> None:
        """Offer the next run the MCP tools that are known now; during a run the offered tools stay the same."""
        mcp = self._services.mcp
        before = mcp.offered(self.record.id)
        if mcp.offer(self.record) != before:
            self.context = self._services.context_of(self.record)

    def commit(
        self, unit: UnitOfWork, *others: ports.Commit, command: ports.CommandRecord | None = None, urgent: bool = False
    ) -> tuple[ActEffect, ...]:
        """Commit a unit together with commits of other conversations, publish its events, and return its effects.

        Raises StoreError or QuotaExceededError, leaving this object unchanged.
        """
        faults = self._services.faults
        if unit.entries:
            faults.hit("commit.before")
            self._commit_within_quotas(unit, others, command, urgent=urgent)
            self._logged_context = unit.logged_context
        # After the commit, memory is updated before anything that can fail: otherwise it would lag behind the store.
        self.record, self.context = unit.record, unit.context
        if unit.entries:
            faults.hit("commit.after")
        self._publish(unit)
        return tuple(unit.effects)

    def _commit_within_quotas(
        self, unit: UnitOfWork, others: tuple[ports.Commit, ...], command: ports.CommandRecord | None, *, urgent: bool
    ) -> None:
        """Commit, counting a new run and the tokens used against the principal's quotas.

        Raises QuotaExceededError if the run would exceed them.
        """
        quotas, record = self._services.quotas, unit.record
        counted = quotas.limits_runs and unit.begins_run and quotas.begin_run(record.principal, record.id)
        spending = quotas.spending(record.principal, unit.used, record.updated_at)
        try:
            self._commit(unit, unit.commit(command, spending), others, urgent=urgent)
        except BaseException:
            if counted:
                quotas.end_run(record.id)
            raise
        if spending is not None:
            quotas.spend(spending)
        # The end of a run is counted before clients learn of it, because they may begin another run immediately.
        if isinstance(record.state, INACTIVE):
            quotas.end_run(record.id)

    def _commit(
        self, unit: UnitOfWork, commit: ports.Commit, others: tuple[ports.Commit, ...], *, urgent: bool
    ) -> None:
        try:
            self._services.store.commit(commit, *others, urgent=urgent)
        except ports.FencedError:
            # An earlier attempt may have been written although it was reported as failed. The retry of the same unit
            # then conflicts with the rows of that attempt, which counts as a success.
            if (stored := self._stored(unit)) is None:
                raise
            # The stored attempt may have created a different successor than this attempt would have.
            unit.record = msgspec.structs.replace(unit.record, continued_by=stored.continued_by)
            log.warning(
                "the store had accepted a commit that it reported as failed", extra={"conversation": self.record.id}
            )

    def _stored(self, unit: UnitOfWork) -> ports.ConversationRecord | None:
        """The stored record if the unit is stored: only its log rows follow the previous rows. None otherwise."""
        store, limit = self._services.store, len(unit.entries) + 1
        rows = store.transitions(unit.record.id, after_step=unit.before.step, limit=limit)
        stored = [(row.step, row.epoch, row.event) for row in rows]
        if stored != [(entry.step, unit.record.epoch, entry.event) for entry in unit.entries]:
            return None
        # Another server may have written the same rows with the same epoch; only the node's name tells them apart.
        record = store.load(unit.record.id)
        return record if record is not None and record.node == unit.record.node else None

    def _publish(self, unit: UnitOfWork) -> None:
        events = unit.stored_events()
        if events:
            self._services.bus.publish(self.record.id, events, self.record)
            self._services.telemetry.published(self.record, (event.notification for event in events))
            self._services.faults.hit("publish.after")


class ConversationPipeline:
    """Loads one conversation, commits its changes, publishes its events and starts its effects.

    Call only on the actor's thread, except for reading `loaded` and `idle`.
    """

    def __init__(self, services: Services, executor: EffectExecutor, conversation_id: str) -> None:
        self.services = services
        self.executor = executor
        self.conversation_id = conversation_id
        self.loaded: LoadedConversation | None = None
        self.deleted: ports.ConversationRecord | None = None
        self.origin: CommandOrigin | None = None
        """The sender of the command that is being carried out; None if there is none."""
        self.now = services.clock.now_ms
        self.perform_exhausting: Callable[..., None] = self.perform
        """Commits outcomes that exhaust the conversation; the actor replaces it with creation.perform_exhausting."""

    @property
    def idle(self) -> bool:
        return self.loaded is None or isinstance(self.loaded.state, INACTIVE)

    @contextmanager
    def attributed_to(self, origin: CommandOrigin | None) -> Generator[None]:
        """Record in the log that `origin` sent the command which the `with` block carries out."""
        self.origin = origin
        try:
            yield
        finally:
            self.origin = None

    def load(self) -> LoadedConversation:
        """Read the conversation from the store and recover it, unless it is loaded.

        Raises UnknownConversationError or StoreError.
        """
        if self.loaded is None:
            record = self._claim()
            if record is None:
                raise UnknownConversationError("the conversation does not exist")
            loaded = LoadedConversation(self.services, taken_over(record, self.services.node))
            alive = self.services.toolbox.jobs(self.conversation_id)
            if (unit := recovering(loaded, self.now(), alive)) is not None:
                self._commit_and_act(loaded, unit)
            self.loaded = loaded
            self.executor.rights.mode = loaded.context.mode
        return self.loaded

    def _claim(self) -> ports.ConversationRecord | None:
        """Claim the conversation with its parent and sub-agents for this server; None if deleted. Raises StoreError.

        If the owner has changed, the parent and interrupted sub-agents are woken.
        """

        def wake_others(taken: tuple[str, ...]) -> None:
            self.services.cluster.on_taken(tuple(each for each in taken if each != self.conversation_id))

        return self.services.store.claim(self.conversation_id, wake_others)

    def advance(self, event: events.Event) -> UnitOfWork:
        """Run an event through the pipeline. If this raises Rejected or StoreError, nothing has changed."""
        loaded = self.load()
        unit = loaded.begin()
        unit.run(event)
        self.perform(loaded, unit, urgent=isinstance(event, (events.UserCancel, events.SetMode)))
        return unit

    def prepare(self, outcomes: Sequence[EffectOutcome]) -> Prepared:
        """Apply outcomes in one unit of work and prepare its commit.

        Rows and events are the same as with a unit for each outcome. The unit ends after the first outcome that starts
        an effect, because effects must not wait, or before an outcome that raises an error. If the very first outcome
        raises an error, so does this method. Raises StoreError if the conversation cannot be loaded.
        """
        loaded = self.load()
        batch = OutcomeBatch(loaded.begin())
        for outcome in outcomes:
            try:
                batch.run(outcome)
            except BaseException:
                if batch.count == 0:
                    raise
                return self.prepare(outcomes[: batch.count])
            if batch.unit.effects:
                break
        return Prepared(batch.count, functools.partial(self._commit, loaded, batch))

    def _commit(self, loaded: LoadedConversation, batch: OutcomeBatch) -> None:
        exhausted = isinstance(batch.unit.record.state, ContextExhausted)
        perform = self.perform_exhausting if exhausted else self.perform
        perform(loaded, batch.unit, urgent=batch.urgent)

    def record_kill(self, receipt: KillReceipt) -> None:
        """Log that the killed processes of a tool call or job have exited, or may still run. Raises StoreError."""
        loaded, at = self.load(), self.now()
        reaped = ToolTreeReaped(receipt.tool_use_id, receipt.pids, receipt.milliseconds, receipt.leaked)
        unit = loaded.begin()
        unit.change(TreeReaped(at, receipt.tool_use_id), at, (reaped,))
        self.perform(loaded, unit)

    def matches_store(self) -> bool:
        """Whether memory and store have the same step number. Raises StoreError, for example NotOwnerError.

        If the conversation is no longer stored, its deletion is published.
        """
        stored, loaded = self._claim(), self.loaded
        if stored is None:
            self.services.bus.deleted(self.conversation_id, loaded.record if loaded else None)
            self.services.telemetry.deleted(self.conversation_id)
        return loaded is not None and stored is not None and stored.step == loaded.record.step

    def perform(
        self,
        loaded: LoadedConversation,
        unit: UnitOfWork,
        *others: ports.Commit,
        command: ports.CommandRecord | None = None,
        urgent: bool = False,
    ) -> None:
        """Commit the unit, publish its events, and start its effects. Raises StoreError, having changed nothing."""
        unit.origin = self.origin or unit.origin
        self._commit_and_act(loaded, unit, *others, command=command, urgent=urgent)

    def _commit_and_act(
        self,
        loaded: LoadedConversation,
        unit: UnitOfWork,
        *others: ports.Commit,
        command: ports.CommandRecord | None = None,
        urgent: bool = False,
    ) -> None:
        self._compute(unit)
        effects = loaded.commit(unit, *others, command=command, urgent=urgent)
        self.executor.committed(loaded.record, loaded.context, unit.messages)
        # The mode is set before the effects start, so that a tool starts in the new mode.
        self.executor.rights.mode = loaded.context.mode
        for effect in effects:
            self.executor.perform(effect, loaded.record, loaded.context)

    def _compute(self, unit: UnitOfWork) -> None:
        """Add the outcomes of calls that only compute to the unit that starts these calls.

        Rows and events are the same as if each outcome had its own commit. If the commit fails, the calls are computed
        again.
        """
        while len(unit.effects) == 1 and isinstance(call := unit.effects[0], ExecuteTool):
            outcome = self.executor.compute(call, unit.record, unit.context)
            if outcome is None:
                break
            unit.effects.clear()
            # The unit's tokens are counted only once it is committed, but the next request must respect the quotas.
            spent = self.services.quotas.spent(unit.record.principal, unit.used)
            if spent != unit.context.quota_spent:
                unit.set_context(msgspec.structs.replace(unit.context, quota_spent=spent))
            unit.run(outcome)

    def reload(self, epoch: int) -> None:
        """Reload the conversation, unless that has happened since the copy with this epoch was dropped.

        Raises StoreError.
        """
        self.drop()
        record = self._claim()
        if record is not None and record.epoch <= epoch:
            self.load()

    def drop(self) -> None:
        self.executor.stop_everything()
        self.services.quotas.end_run(self.conversation_id)
        self.loaded = None


def taken_over(record: ports.ConversationRecord, node: str) -> ports.ConversationRecord:
    """The stored record, changed for its new owner: with the next epoch, so that the previous owner's commits fail."""
    return msgspec.structs.replace(record, epoch=record.epoch + 1, node=node)


def recovering(
    loaded: LoadedConversation, at: int, alive: Collection[str] = (), *, restarted: bool = False
) -> UnitOfWork | None:
    """The unit of work that ends the open run and marks jobs not in `alive` as lost; None if neither is necessary.

    With `restarted`, the error of the last run is cleared, too.
    """
    lost = [job for job in loaded.state.ledger.running_jobs if job.handle not in alive]
    interrupted = restarted or _needs_recovery(loaded.record)
    if not (lost or interrupted):
        return None
    unit = loaded.begin()
    if interrupted:
        unit.run(events.Restart(at))
    for job in lost:
        unit.run(events.JobChanged(at, msgspec.structs.replace(job, status=JobStatus.LOST)))
    return unit


def _needs_recovery(record: ports.ConversationRecord) -> bool:
    """Whether the previous owner stopped in the middle of a run, which a Restart event has to end."""
    if not record.user_initiated:
        return not isinstance(record.state, TERMINAL)
    return not isinstance(record.state, INACTIVE) or record.state.ledger.live


# --- the retry queue --------------------------------------------------------------------------------------------------

# The queue holds events that could not be committed yet because the store is unavailable. The actor does not wait for
# the store: commands are refused, a cancel is tried immediately, and a shutdown is not delayed. The entries are retried
# after increasing pauses, oldest first, and before any new command.

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
    """Queue entry: drop the in-memory copy with this epoch and reload the conversation."""

    epoch: int


# An entry of a conversation's retry queue: changes to commit for which no caller waits.
Uncommitted: TypeAlias = EffectOutcome | KillReceipt | VerifyUncertainCommit | ReloadFromStore


@dataclass(frozen=True)
class Prepared:
    entries: int
    commit: Callable[[], object]
    """Commits these entries. If the store cannot write now, it raises StoreUnavailableError and changes nothing."""


class CommitRetries(Generic[Entry]):
    """A queue of entries to be committed in order. Call only on the actor's thread.

    `name` is the conversation's id, for the log. `prepare` returns the next commit of one or more entries; it raises
    StoreUnavailableError if the store cannot be read now, and any other error for a bug in the first entry. `later`
    calls `retry` after a delay in milliseconds.
    """

    def __init__(self, name: str, prepare: Callable[[Sequence[Entry]], Prepared], later: Callable[[int], None]) -> None:
        self._name = name
        self._prepare = prepare
        self._later = later
        self._waiting: deque[Entry] = deque()
        # The number of entries at the head whose last commit the store refused. That commit may have been written
        # nevertheless, which is recognised only if the same entries are committed again.
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
        """Queue an entry that the store has just refused, at the end or (`first`) the head, unless already queued."""
        if entry not in self._waiting:
            (self._waiting.appendleft if first else self._waiting.append)(entry)
            self._refused = 0 if first else self._refused
        self._retry_later(why)

    def clear(self) -> None:
        self._waiting.clear()
        self._refused = 0

    def flush(self) -> bool:
        """Commit the entries in order. If the store refuses some, keep those and all later ones, and return False.

        Raises any other error from a commit; the entries of that commit are dropped, and the others are retried later.
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
        log.log(level, "changes not stored yet; retrying in %d ms", pause, extra={"conversation": self._name})
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


class Recovery:
    """Commits a conversation's retry queue, and repairs the copy in memory. Call only on the actor's thread."""

    def __init__(self, pipeline: ConversationPipeline, later: Callable[[int], None]) -> None:
        self._pipeline = pipeline
        self.commit_retries: CommitRetries[Uncommitted] = CommitRetries(pipeline.conversation_id, self._prepare, later)
        """The retry queue: results of effects that are not committed yet, and repairs of the copy in memory."""

    def record_fault(self) -> None:
        """After a bug, fail the run; if that fails as well, reload the conversation.

        Raises NotOwnerError as `reload` does.
        """
        self._pipeline.executor.stop_everything()
        if self._pipeline.loaded is None:
            return
        fault = events.InternalFault(self._pipeline.now(), "Internal error; see the server log.")
        try:
            self._pipeline.advance(fault)
        except ports.StoreUnavailableError as error:
            self.commit_retries.requeue(EffectOutcome(fault), first=True, why=error)
        except ports.NotOwnerError:
            raise
        except BaseException:
            log.exception("cannot record an error; reloading", extra={"conversation": self._pipeline.conversation_id})
            self.reload()

    def reload(self) -> None:
        epoch = self._pipeline.loaded.record.epoch if self._pipeline.loaded else 0
        self.commit_retries.clear()
        self.commit_retries.enqueue(ReloadFromStore(epoch))

    def _prepare(self, entries: Sequence[Uncommitted]) -> Prepared:
        """The next commit of the retry queue. Raises StoreError.

        If the conversation is not in memory, only ReloadFromStore loads it; all other entries are dropped.
        """
        match first := entries[0]:
            case ReloadFromStore(epoch=epoch):
                return Prepared(1, functools.partial(self._pipeline.reload, epoch))
            case _ if self._pipeline.loaded is None:
                return Prepared(1, functools.partial(self._drop, first))
            case EffectOutcome():
                return self._pipeline.prepare(sharing_commit(entries) or (first,))
            case KillReceipt():
                return Prepared(1, functools.partial(self._pipeline.record_kill, first))
            case VerifyUncertainCommit():
                return Prepared(1, self._verify_commit)

    def _verify_commit(self) -> None:
        if not self._pipeline.matches_store():
            self.reload()

    def _drop(self, entry: Uncommitted) -> None:
        fields = {"conversation": self._pipeline.conversation_id}
        event, deleted = getattr(entry, "event", None), self._pipeline.deleted
        if (
            deleted is not None
            and isinstance(event, (events.LlmResponse, events.LlmError, events.LlmAborted))
            and event.usage is not None
        ):
            self._pipeline.services.quotas.spend_alone(deleted.principal, event.usage)
        log.info("the conversation is no longer in memory; dropped %s", type(entry).__name__, extra=fields)
