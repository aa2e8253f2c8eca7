"""The conversation actor: the only road into the machine.

One message at a time: receive, `transition`, commit, publish, act. Cancel and mode changes overtake everything that
waits. The actor never waits for the network, a process or another actor; its one wait is the commit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from actors import settings
from actors.actor import Actor, Asked
from actors.core.content import Delivery, MessageType, ToolCancelled
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
from actors.core.notifications import Fate, MessageAdded, QueueChanged, ToolTreeReaped
from actors.core.states import QUIET, TERMINAL, AwaitingToolApproval, ContextExhausted
from actors.core.summary import run_id, summarize
from actors.effect_executor import Admission, EffectExecutor
from actors.journal import TreeReaped
from actors.llm_runner import Outcome, TextWaiting
from actors.machine import Draft, Machine
from actors.ports import (
    CommandExists,
    CommandRecord,
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
from actors.tool_runner import Reaped

if TYPE_CHECKING:
    from actors.supervisor import Supervisor

log = logging.getLogger(__name__)

COMMIT_BACKOFF_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Between attempts to commit an outcome while the store fails; the last one repeats."""


@dataclass(frozen=True)
class IdleCheck:
    """Leave if nothing happened since revision `step`."""

    step: int


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

    # --- what others may see (any thread) ---------------------------------------------------------------------

    @property
    def quiet(self) -> bool:
        """Nothing is under way."""
        machine = self._machine
        return machine is None or isinstance(machine.state, QUIET)

    def pull(self, run: str) -> None:
        """Stop what is under way without waiting for the mailbox; a cancel is already in it (any thread)."""
        work = self._executor.work
        if work is not None and run in ("", work.run):
            work.token.cancel()

    # --- messages ---------------------------------------------------------------------------------------------

    def receive(self, message: Any) -> None:
        match message:
            case Asked():
                self._answer(message)
            case Outcome(event=event):
                self._outcome(event)
            case TextWaiting(source=source):
                for chunk in source.take():
                    self._outcome(chunk)
            case Reaped():
                self._receipt(message)
            case IdleCheck(step=step):
                self._passivate(step)
            case Shutdown(done=done):
                self._shut_down(done)
            case _:
                raise TypeError(f"no such message: {type(message).__name__}")

    def on_fault(self, message: Any, error: BaseException) -> None:
        """A bug, or a store that fails: nothing of the message happened, or all of it did."""
        if isinstance(message, Asked) and isinstance(error, StoreError):
            message.fail(Rejected(Reason.STORE_UNAVAILABLE))
        else:
            super().on_fault(message, error)
        if isinstance(error, Fenced):
            self._forget()
        elif not isinstance(error, StoreError):
            self._contain(error)

    def _contain(self, error: BaseException) -> None:
        """End the run as an error; if even that fails, forget everything: the store knows the truth."""
        log.error("conversation %s met an internal fault: %s", self.conversation_id, type(error).__name__)
        try:
            if self._machine is not None:
                self._executor.stop_everything()
                self._advance(InternalFault(self._now(), "Bedrock itself failed; its log tells more."))
        except BaseException:
            log.exception("conversation %s could not record the fault", self.conversation_id)
            self._forget()

    def _forget(self) -> None:
        self._executor.stop_everything()
        self._machine = None

    # --- commands ---------------------------------------------------------------------------------------------

    def _answer(self, asked: Asked[Any]) -> None:
        if asked.deadline is not None and self._runtime.clock.monotonic() > asked.deadline:
            asked.fail(Expired())
            return
        try:
            asked.succeed(self._dispatch(asked.request))
        except (Rejected, NotFound, NotExhausted, Invalid, Expired, EtagMismatch) as refusal:
            asked.fail(refusal)
        except SlugTaken:
            asked.fail(Rejected(Reason.SLUG_TAKEN))
        finally:
            self._rest()

    def _dispatch(self, request: Create | Request) -> object:
        if isinstance(request, Create):
            return self._create(request)
        machine = self._load()
        match request:
            case Send():
                return self._send(machine, request)
            case Cancel():
                return self._cancel(machine, request)
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
        known = self._known_create(request)
        if known is not None:
            return known
        try:
            record, commit = settings.creation(self._runtime, self.conversation_id, request, self._now())
            self._runtime.store.commit(commit)
        except CommandExists:
            known = self._known_create(request)
            if known is None:
                raise
            return known
        except SlugTaken:
            if request.slug:
                raise
            return self._create(request)
        self._machine = Machine(self._runtime, record)
        return record

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
        message_id = self._runtime.ids.message()
        event = UserMessage(
            at=self._now(),
            message_id=message_id,
            text=request.text,
            images=request.images,
            delivery=Delivery(request.delivery),
            expected_run=request.expected_run,
        )
        answer = self._advance(event, request.request_id, request.body_hash, lambda d: _sent(d, message_id))
        assert isinstance(answer, Sent)  # noqa: S101 -- _sent made it
        return answer

    def _cancel(self, machine: Machine, request: Cancel) -> Cancelled:
        event = UserCancel(
            self._now(),
            run_id=request.run_id,
            discard_queued=request.discard_queued,
            kill_jobs=request.kill_jobs,
            reason=request.reason,
        )
        answer = self._advance(event, answer=_cancelled)
        assert isinstance(answer, Cancelled)  # noqa: S101 -- _cancelled made it
        return answer

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
        if machine.record.continued_by:
            successor = self._runtime.store.load(machine.record.continued_by)
            if successor is not None:
                return successor
        if not isinstance(machine.state, ContextExhausted):
            raise NotExhausted("its context is not used up: send it a message instead")
        draft = machine.draft()
        successor, commit = settings.succession(self._runtime, draft, request, machine.state.summary, self._now())
        self._runtime.store.commit(draft.commit(None), commit)
        machine.adopt(draft)
        return successor

    def _delete(self, machine: Machine, force: bool) -> tuple[str, ...]:
        if not isinstance(machine.state, QUIET):
            if not force:
                raise Rejected(Reason.AGENT_BUSY)
            self._advance(UserCancel(self._now(), discard_queued=True, kill_jobs=True, reason="deleted"))
        self._executor.stop_everything()
        self._runtime.store.delete(self.conversation_id)
        self._runtime.bus.deleted(self.conversation_id)
        self._machine = None
        self._supervisor.released(self)
        self.leave()
        return ()

    # --- outcomes ---------------------------------------------------------------------------------------------

    def _outcome(self, event: Event) -> None:
        self._load()
        self._insist(lambda: self._advance(event))
        self._rest()

    def _receipt(self, reaped: Reaped) -> None:
        machine = self._load()
        at = self._now()
        notice = ToolTreeReaped(reaped.tool_use_id, reaped.pids, reaped.milliseconds, reaped.leaked)

        def record() -> None:
            draft = machine.draft()
            draft.change(TreeReaped(at, reaped.tool_use_id), at, (notice,))
            self._perform(machine, draft)

        self._insist(record)

    def _insist(self, change: Callable[[], object]) -> None:
        """An outcome is committed again until the store takes it, or is closed (C36)."""
        for attempt in range(1_000_000):
            try:
                change()
            except StoreUnavailable:
                if self._supervisor.closing:
                    raise
                pause = COMMIT_BACKOFF_SECONDS[min(attempt, len(COMMIT_BACKOFF_SECONDS) - 1)]
                log.error("conversation %s: the store fails; trying again in %s s", self.conversation_id, pause)
                self._supervisor.pause(pause)
            else:
                return

    # --- the road ---------------------------------------------------------------------------------------------

    def _advance(
        self,
        event: Event,
        request_id: str = "",
        body_hash: str = "",
        answer: Callable[[Draft], msgspec.Struct] | None = None,
    ) -> msgspec.Struct | None:
        """Run an event, commit, publish, act. Returns what `answer` makes of the draft.

        Raises Rejected, and then nothing has changed.
        """
        machine = self._load()
        draft = machine.draft()
        draft.run(event)
        reply = answer(draft) if answer else None
        command = None
        if request_id:
            command = CommandRecord(request_id, body_hash, msgspec.json.encode(reply), event.at)
        self._perform(machine, draft, command, urgent=isinstance(event, UserCancel))
        return reply

    def _perform(
        self, machine: Machine, draft: Draft, command: CommandRecord | None = None, *, urgent: bool = False
    ) -> None:
        for effect in machine.apply(draft, command, urgent=urgent):
            self._executor.perform(effect, machine.record, machine.context)

    def _load(self) -> Machine:
        """The machine, restored from the store if need be (C35: what was under way is brought to rest)."""
        if self._machine is None:
            record = self._runtime.store.load(self.conversation_id)
            if record is None:
                self._supervisor.released(self)
                self.leave()
                raise NotFound("there is no such conversation")
            record = msgspec.structs.replace(record, epoch=record.epoch + 1, node=self._runtime.node)
            self._machine = Machine(self._runtime, record)
            if needs_rest(record):
                self._advance(Restart(self._now()))
        return self._machine

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

    def _now(self) -> int:
        return self._runtime.clock.now_ms()

    # --- rest and end -----------------------------------------------------------------------------------------

    def leave(self) -> None:
        """End this actor; requests that still wait go to its successor, which will know better."""
        waiting = [e.message for e in self.actor_inbox.close() if isinstance(e.message, Asked)]
        super().leave()
        for asked in waiting:
            self._supervisor.forward(self.conversation_id, asked)

    def _rest(self) -> None:
        """Nothing under way: let the tool runner go, and leave after a while."""
        machine = self._machine
        if machine is not None and isinstance(machine.state, QUIET):
            self._executor.work = None
            self._executor.retire()
            self._supervisor.rested()
            check = IdleCheck(machine.record.step)
            delay = 0 if isinstance(machine.state, TERMINAL) else int(self._runtime.idle_seconds * 1000)
            self._runtime.timers.after(delay, lambda: self._supervisor.remind(self, check))

    def _passivate(self, step: int) -> None:
        machine = self._machine
        idle = machine is None or (machine.record.step == step and isinstance(machine.state, QUIET))
        if idle and self.actor_inbox.close_if_empty():
            self._supervisor.released(self)
            self.leave()

    def _shut_down(self, done: Future[None]) -> None:
        try:
            self._executor.stop_everything()
            if self._machine is not None and needs_rest(self._machine.record):
                draft = self._machine.draft()
                draft.run(Restart(self._now()))
                self._machine.apply(draft)
        except StoreError:
            log.error("conversation %s is brought to rest at the next start", self.conversation_id)
        finally:
            self._supervisor.released(self)
            self.leave()
            done.set_result(None)


def needs_rest(record: ConversationRecord) -> bool:
    """Whether a restart has to bring this conversation to rest (C35)."""
    if not record.user_initiated:
        return not isinstance(record.state, TERMINAL)
    return not isinstance(record.state, QUIET) or record.state.ledger.live


def _same_body(known: CommandRecord, body_hash: str) -> None:
    if known.body_hash != body_hash:
        raise Rejected(Reason.REQUEST_ID_REUSED)


def _sent(draft: Draft, message_id: str) -> Sent:
    """How a message was taken: stored as the root of a run, or queued."""
    after, before = draft.record, draft.before
    run = run_id(after.id, after.state.ledger.run)
    for added in draft.find(MessageAdded):
        if added.message.id == message_id:
            return Sent(message_id, "direct", run, before.last_seq, message=added.message)
    queued = next(q for q in draft.find(QueueChanged) if q.input.message_id == message_id)
    steer = queued.delivery == "steer"
    disposition = "steer_queued" if steer else "follow_up_queued"
    return Sent(message_id, disposition, run if steer else "", before.last_seq, queued=queued.input)


def _cancelled(draft: Draft) -> Cancelled:
    """The receipt of a cancel, read off what it changed."""
    summary = summarize(draft.record.state, draft.context)
    if draft.empty:
        return Cancelled(no_op=True, state=summary, revision=draft.record.last_seq)
    before = summarize(draft.before.state, draft.context)
    fates = draft.find(QueueChanged)
    return Cancelled(
        no_op=False,
        state=summary,
        run=before.run,
        revision=draft.record.last_seq,
        llm_request_id=before.request_id,
        tool_use_ids=tuple(
            result.tool_use_id
            for added in draft.find(MessageAdded)
            if added.message.type is MessageType.TOOL
            for result in added.message.content
            if isinstance(result, ToolCancelled)
        ),
        sub_agents=before.pending_agents,
        returned=tuple(q.input for q in fates if q.fate is Fate.RETURNED),
        discarded=tuple(q.input for q in fates if q.fate is Fate.DISCARDED),
    )
