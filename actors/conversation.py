"""The conversation actor: the only road into the machine.

One message at a time: receive, `transition`, commit, publish, act. Cancel and mode changes overtake everything that
waits. The actor never waits for the network, a process or another actor; its one wait is the commit.
"""

from __future__ import annotations

import functools
import logging
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from actors import answers, settings
from actors.actor import Actor, Asked, tell
from actors.backlog import Backlog
from actors.core.content import Delivery
from actors.core.errors import Reason, Rejected
from actors.core.events import (
    ApprovalResponse,
    Event,
    InternalFault,
    Restart,
    TriggerContinuation,
    UserCancel,
    UserMessage,
)
from actors.core.notifications import ToolTreeReaped
from actors.core.states import QUIET, TERMINAL, AwaitingToolApproval, ContextExhausted
from actors.core.tool_run import Receipt
from actors.effect_executor import Admission, EffectExecutor, Work
from actors.journal import TreeReaped
from actors.llm_runner import Outcome, TextWaiting
from actors.machine import Draft, Machine, taken_over
from actors.ports import (
    CommandExists,
    CommandRecord,
    Commit,
    ConversationRecord,
    Fenced,
    SlugTaken,
    StoreError,
    StoreUnavailable,
)
from actors.requests import (
    Archive,
    Cancel,
    Cancelled,
    Continue,
    Create,
    Delete,
    EtagMismatch,
    Expired,
    Invalid,
    NotExhausted,
    NotFound,
    Request,
    Resolve,
    Send,
    Sent,
    Trigger,
    Update,
    etag_of,
)
from actors.runtime import Runtime
from actors.tool_runner import RunnerLeft

if TYPE_CHECKING:
    from actors.supervisor import Supervisor

log = logging.getLogger(__name__)

SLUG_TRIES = 10
"""How many generated slugs may turn out to be taken."""


@dataclass(frozen=True)
class IdleCheck:
    """Leave if nothing has happened for a while."""


@dataclass(frozen=True)
class Retry:
    """The store may take now what it did not take before."""


@dataclass(frozen=True)
class Doubt:
    """A commit failed, and it is not certain that the store has nothing of it."""


@dataclass(frozen=True)
class Shutdown:
    """Bring it to rest now, then end; `done` gets its result when the actor is gone."""

    done: Future[None]
    urgent: bool = True


class ConversationActor(Actor):
    """Owns one conversation while it is awake."""

    def __init__(self, runtime: Runtime, supervisor: Supervisor, admission: Admission, conversation_id: str) -> None:
        super().__init__()
        self.conversation_id = conversation_id
        self._runtime = runtime
        self._supervisor = supervisor
        self._machine: Machine | None = None
        self._executor = EffectExecutor(runtime, admission, self.actor_ref, supervisor.notify_parent)
        self._backlog: Backlog[Outcome | TextWaiting | Receipt | Doubt] = Backlog(
            conversation_id, self._settle, functools.partial(self._remind, Retry())
        )
        self._touched = runtime.clock.monotonic()
        self._idle_check_due = False
        self._ending: Future[None] | None = None

    # --- what others may see (any thread) ---------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Nothing is under way that would end without anybody's help."""
        machine = self._machine
        return not self._backlog and (machine is None or isinstance(machine.state, (*QUIET, AwaitingToolApproval)))

    def under_way(self, run: str) -> Work | None:
        """The work that a cancel of this run, or of any if it is "", would stop now; to be pulled once the cancel
        is in the mailbox (any thread)."""
        work = self._executor.work
        return work if work is not None and run in ("", work.run) else None

    def pull(self, work: Work) -> None:
        """Stop it without waiting for the mailbox (any thread)."""
        self._executor.pull(work)

    # --- messages ---------------------------------------------------------------------------------------------

    def receive(self, message: Any) -> None:
        if not isinstance(message, IdleCheck):
            self._touched = self._runtime.clock.monotonic()
        match message:
            case Asked():
                self._answer(message)
            case Outcome() | TextWaiting() | Receipt():
                self._backlog.add(message)
                self._backlog.settle()
            case Retry():
                self._backlog.retry()
            case RunnerLeft(runner=runner):
                self._executor.runner_left(runner)
            case IdleCheck():
                self._check_idle()
            case Shutdown(done=done):
                self._shut_down(done)
            case _:
                raise TypeError(f"no such message: {type(message).__name__}")
        self._rest()

    def on_fault(self, message: Any, error: BaseException) -> None:
        """A bug, or a store that fails: nothing of the message happened, or all of it did."""
        if isinstance(message, Asked) and isinstance(error, StoreError):
            message.fail(Rejected(Reason.STORE_UNAVAILABLE))
        super().on_fault(message, error)
        if isinstance(error, Fenced):
            self._start_over()
        elif not isinstance(error, StoreError):
            self._contain()
        self._rest()

    def _contain(self) -> None:
        """End the run as an error (SEMANTICS §2.12); if even that fails, trust the store only."""
        self._executor.stop_everything()
        if self._machine is None:
            return
        fault = InternalFault(self._now(), "Bedrock itself failed; its log tells more.")
        try:
            self._advance(fault)
        except StoreUnavailable:
            self._backlog.put_off(Outcome(fault), first=True)
        except BaseException:
            log.exception("conversation %s could not record its fault", self.conversation_id)
            self._start_over()

    def _start_over(self) -> None:
        """Memory is not the truth any more: rest what the store has, unless it has another owner by now."""
        ours = self._machine.record.epoch if self._machine else 0
        self._executor.stop_everything()
        self._machine = None
        self._backlog.clear()
        try:
            record = self._runtime.store.load(self.conversation_id)
            if record is not None and record.epoch <= ours:
                self._load()
        except Exception:
            log.exception("conversation %s is not at rest; its next message brings it there", self.conversation_id)

    # --- commands ---------------------------------------------------------------------------------------------

    def _answer(self, asked: Asked[Any]) -> None:
        """Carry a command out. One that nobody waits for any more is dropped, but a cancel: it has struck already."""
        if not asked.claim() and not asked.urgent:
            return
        if asked.deadline is not None and self._runtime.clock.monotonic() > asked.deadline:
            asked.fail(Expired())
            return
        try:
            asked.succeed(self._dispatch(asked.request))
        except (Rejected, NotFound, NotExhausted, Invalid, EtagMismatch) as refusal:
            asked.fail(refusal)
        except SlugTaken:
            asked.fail(Rejected(Reason.SLUG_TAKEN))
        except StoreUnavailable:
            asked.fail(Rejected(Reason.STORE_UNAVAILABLE))
            self._backlog.put_off(Doubt())

    def _dispatch(self, request: Create | Request) -> object:
        if isinstance(request, Cancel):
            return self._cancel(request)
        if not self._backlog.settle():
            raise Rejected(Reason.STORE_UNAVAILABLE)
        if isinstance(request, Create):
            return self._create(request)
        machine = self._load()
        match request:
            case Send():
                return self._send(machine, request)
            case Resolve():
                return self._resolve(machine, request)
            case Trigger():
                self._refuse_archived(machine)
                self._advance(TriggerContinuation(self._now()))
                return machine.record
            case Update():
                return self._update(machine, request)
            case Archive(archived=archived):
                return self._archive(machine, archived)
            case Continue():
                return self._continue(machine, request)
            case Delete(force=force):
                return self._delete(machine, force)

    def _create(self, request: Create) -> ConversationRecord:
        for _ in range(SLUG_TRIES):
            known = self._known_create(request)
            if known is not None:
                return known
            record, commit = settings.creation(self._runtime, self.conversation_id, request, self._now())
            try:
                self._runtime.store.commit(commit)
            except CommandExists:
                continue
            except SlugTaken:
                if request.slug:
                    raise
                continue
            self._machine = Machine(self._runtime, record)
            return record
        raise SlugTaken

    def _known_create(self, request: Create) -> ConversationRecord | None:
        if not request.request_id:
            return None
        known = self._runtime.store.create_command(request.principal, request.request_id)
        if known is None:
            return None
        _same_body(known, request.body_hash)
        record = self._runtime.store.load(known.answer.decode())
        if record is None:
            raise NotFound("the conversation that this request_id created has been deleted")
        return record

    def _send(self, machine: Machine, request: Send) -> Sent:
        known = self._known(request.request_id, request.body_hash)
        if known is not None:
            return msgspec.structs.replace(msgspec.json.decode(known.answer, type=Sent), duplicate=True)
        self._refuse_archived(machine)
        event = UserMessage(
            at=self._now(),
            message_id=self._runtime.ids.message(),
            text=request.text,
            images=request.images,
            delivery=Delivery(request.delivery),
            expected_run=request.expected_run,
        )
        draft = machine.draft()
        draft.run(event)
        answer = answers.sent(draft, event.message_id)
        command = _remembered(request, msgspec.json.encode(answer), event.at)
        self._perform(machine, draft, command=command)
        return answer

    def _cancel(self, request: Cancel) -> Cancelled:
        """Stop it. What is under way has been stopped already: should the store fail now, the cancel still comes
        before everything else."""
        event = UserCancel(
            self._now(),
            run_id=request.run_id,
            discard_queued=request.discard_queued,
            kill_jobs=request.kill_jobs,
            reason=request.reason,
        )
        try:
            return answers.cancelled(self._advance(event))
        except StoreUnavailable:
            if not any(_covers(entry, event) for entry in self._backlog):
                self._backlog.put_off(Outcome(event), first=True)
            raise

    def _resolve(self, machine: Machine, request: Resolve) -> ConversationRecord:
        draft = machine.draft()
        event = ApprovalResponse(self._now(), request.tool_use_id, request.approve, request.note)
        if request.always and request.approve and isinstance(machine.state, AwaitingToolApproval):
            settings.approve_always(self._runtime, draft, request.tool_use_id, event.at)
        draft.run(event)
        self._perform(machine, draft)
        return machine.record

    def _update(self, machine: Machine, request: Update) -> ConversationRecord:
        if request.etag and request.etag != etag_of(machine.record):
            raise EtagMismatch("the conversation was changed since it was read: read it again")
        draft = machine.draft()
        settings.update(self._runtime, draft, request, self._now())
        self._perform(machine, draft)
        return machine.record

    def _archive(self, machine: Machine, archived: bool) -> ConversationRecord:
        if archived and not isinstance(machine.state, QUIET):
            raise Rejected(Reason.AGENT_BUSY)
        if archived != (machine.record.archived_at is not None):
            draft = machine.draft()
            settings.archive(draft, archived, self._now())
            self._perform(machine, draft)
        return machine.record

    def _continue(self, machine: Machine, request: Continue) -> ConversationRecord:
        known = self._known(request.request_id, request.body_hash)
        linked = known.answer.decode() if known is not None else machine.record.continued_by
        successor = self._runtime.store.load(linked) if linked else None
        if successor is not None:
            return successor
        if known is not None:
            raise NotFound("the conversation that this request_id created has been deleted")
        if not isinstance(machine.state, ContextExhausted):
            raise NotExhausted("its context is not used up: send it a message instead")
        return self._succeed(machine, request, machine.state.summary)

    def _succeed(self, machine: Machine, request: Continue, summary: str) -> ConversationRecord:
        for _ in range(SLUG_TRIES):
            draft, at = machine.draft(), self._now()
            successor, commit = settings.succession(self._runtime, draft, request, summary, at)
            try:
                self._perform(machine, draft, commit, command=_remembered(request, successor.id.encode(), at))
            except SlugTaken:
                continue
            return successor
        raise SlugTaken

    def _delete(self, machine: Machine, force: bool) -> tuple[str, ...]:
        if not isinstance(machine.state, QUIET):
            if not force:
                raise Rejected(Reason.AGENT_BUSY)
            self._advance(UserCancel(self._now(), discard_queued=True, kill_jobs=True, reason="deleted"))
        self._executor.stop_everything()
        self._runtime.store.delete(self.conversation_id)
        self._runtime.bus.deleted(self.conversation_id)
        self._machine = None
        return ()

    def _known(self, request_id: str, body_hash: str) -> CommandRecord | None:
        if not request_id:
            return None
        known = self._runtime.store.command(self.conversation_id, request_id)
        if known is not None:
            _same_body(known, body_hash)
        return known

    def _refuse_archived(self, machine: Machine) -> None:
        if machine.record.archived_at is not None:
            raise Rejected(Reason.ARCHIVED)

    # --- outcomes ---------------------------------------------------------------------------------------------

    def _settle(self, entry: Outcome | TextWaiting | Receipt | Doubt) -> None:
        """Apply what came from outside; nobody waits for a verdict. Raises StoreError."""
        try:
            match entry:
                case Outcome(event=event):
                    self._advance(event)
                case TextWaiting(source=source):
                    for chunk in source.take():
                        self._advance(chunk)
                case Receipt():
                    self._record(entry)
                case Doubt():
                    self._look_again()
        except NotFound:
            log.info("conversation %s is gone; nobody cares about %s", self.conversation_id, type(entry).__name__)

    def _record(self, receipt: Receipt) -> None:
        machine, at = self._load(), self._now()
        reaped = ToolTreeReaped(receipt.tool_use_id, receipt.pids, receipt.milliseconds, receipt.leaked)
        draft = machine.draft()
        draft.change(TreeReaped(at, receipt.tool_use_id), at, (reaped,))
        self._perform(machine, draft)

    def _look_again(self) -> None:
        """If the store has more than memory, what a command was told had failed has happened after all."""
        stored = self._runtime.store.load(self.conversation_id)
        if self._machine is not None and stored is not None and stored.step != self._machine.record.step:
            self._start_over()

    # --- the road ---------------------------------------------------------------------------------------------

    def _advance(self, event: Event) -> Draft:
        """Run an event, commit, publish, act; returns what changed.

        Raises Rejected or StoreError, and then nothing has changed.
        """
        machine = self._load()
        draft = machine.draft()
        draft.run(event)
        self._perform(machine, draft, urgent=isinstance(event, UserCancel))
        return draft

    def _perform(
        self,
        machine: Machine,
        draft: Draft,
        *others: Commit,
        command: CommandRecord | None = None,
        urgent: bool = False,
    ) -> None:
        for effect in machine.apply(draft, *others, command=command, urgent=urgent):
            self._executor.perform(effect, machine.record, machine.context)

    def _load(self) -> Machine:
        """The machine, restored from the store if need be (C35: what was under way is brought to rest).

        Raises NotFound or StoreError.
        """
        if self._machine is None:
            record = self._runtime.store.load(self.conversation_id)
            if record is None:
                raise NotFound("there is no such conversation")
            machine = Machine(self._runtime, taken_over(record, self._runtime.node))
            if needs_rest(record):
                draft = machine.draft()
                draft.run(Restart(self._now()))
                self._perform(machine, draft)
            self._machine = machine
        return self._machine

    def _now(self) -> int:
        return self._runtime.clock.now_ms()

    # --- rest and end -----------------------------------------------------------------------------------------

    def _rest(self) -> None:
        """After every message: if nothing is under way, let the tool runner go, and leave after a while."""
        if self.gone or self._backlog:
            return
        machine = self._machine
        if machine is not None and not isinstance(machine.state, QUIET):
            return
        self._executor.rest()
        self._supervisor.rested()
        if not self._executor.tools_gone:
            return
        if self._ending is not None:
            self.leave()
        elif machine is None or isinstance(machine.state, TERMINAL):
            self._leave_if_unwanted()
        elif not self._idle_check_due:
            self._idle_check_due = True
            self._remind(IdleCheck(), round(self._runtime.idle_seconds * 1000))

    def _check_idle(self) -> None:
        self._idle_check_due = False
        idle = self._runtime.clock.monotonic() - self._touched
        quiet = self._machine is None or isinstance(self._machine.state, QUIET)
        if quiet and not self._backlog and self._executor.tools_gone and idle >= self._runtime.idle_seconds:
            self._leave_if_unwanted()

    def _leave_if_unwanted(self) -> None:
        if self.actor_inbox.close_if_empty():
            self.leave()

    def _shut_down(self, done: Future[None]) -> None:
        self._ending = done
        self._executor.stop_everything()
        self._backlog.clear()
        try:
            if self._machine is not None and needs_rest(self._machine.record):
                self._advance(Restart(self._now()))
        except StoreError:
            log.error("conversation %s is brought to rest at the next start", self.conversation_id)
            self._machine = None

    def leave(self, refusal: Exception | None = None) -> None:
        """End this actor, and whatever it still has under way (actor's thread)."""
        try:
            self._executor.stop_everything()
        finally:
            super().leave(refusal or (Rejected(Reason.SHUTTING_DOWN) if self._ending else None))
            self._supervisor.released(self)
            if self._ending is not None:
                self._ending.set_result(None)

    def _remind(self, message: object, milliseconds: int) -> None:
        """Send this actor a message later; the timer does not keep the actor alive."""
        self._runtime.timers.after(milliseconds, functools.partial(tell, self.actor_ref, message))


def needs_rest(record: ConversationRecord) -> bool:
    """Whether a restart has to bring this conversation to rest (C35)."""
    if not record.user_initiated:
        return not isinstance(record.state, TERMINAL)
    return not isinstance(record.state, QUIET) or record.state.ledger.live


def _same_body(known: CommandRecord, body_hash: str) -> None:
    if known.body_hash != body_hash:
        raise Rejected(Reason.REQUEST_ID_REUSED)


def _remembered(request: Send | Continue, answer: bytes, at: int) -> CommandRecord | None:
    """What is kept of an accepted command that has a request id."""
    return CommandRecord(request.request_id, request.body_hash, answer, at) if request.request_id else None


def _covers(entry: object, cancel: UserCancel) -> bool:
    """Whether `entry` is a cancel that already does all that `cancel` would."""
    return (
        isinstance(entry, Outcome)
        and isinstance(entry.event, UserCancel)
        and entry.event.discard_queued >= cancel.discard_queued
        and entry.event.kill_jobs >= cancel.kill_jobs
    )
