"""What a conversation does when it is asked: every command, from its request to its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from actors.conversation import replies as answers
from actors.conversation import settings
from actors.conversation import sub_agent_creation as spawning
from actors.conversation.pipeline import Machine
from actors.core.content import Delivery
from actors.core.errors import Reason, Rejected
from actors.core.events import (
    ApprovalResponse,
    SetMode,
    TriggerContinuation,
    UsageReported,
    UserCancel,
    UserMessage,
    WithdrawMessage,
)
from actors.core.notifications import QueueChanged
from actors.core.states import AwaitingContinuation, AwaitingToolApproval, ContextExhausted
from actors.messages.commands import (
    ArchiveConversationCommand,
    CancelConversationCommand,
    CancelConversationResult,
    ContinueConversationCommand,
    ConversationCommand,
    CreateConversationCommand,
    DeleteConversationCommand,
    ResolveApprovalCommand,
    SendMessageCommand,
    SendMessageResult,
    SetGeneratedTitleCommand,
    SetModeCommand,
    SetModeResult,
    SpawnSubAgentsCommand,
    SpawnSubAgentsResult,
    TriggerContinuationCommand,
    UpdateConversationCommand,
    WithdrawMessageCommand,
    etag_of,
)
from actors.messages.errors import EtagMismatchError, InvalidFieldError, UnknownConversationError
from actors.messages.outcomes import CreateSubAgent
from actors.ports import CommandExistsError, CommandRecord, ConversationRecord, SlugTakenError, StoreUnavailableError
from actors.runners.effect_executor import live_run
from actors.runners.titles import Titles, title_of, untitled
from actors.runtime import validation

if TYPE_CHECKING:
    from actors.road import Road

SLUG_TRIES = 10
"""How many generated slugs may turn out to be taken."""


class Commands:
    """The commands of one conversation (actor's thread).

    Every method raises Rejected, or what actors.messages.commands names, and then nothing has changed; or StoreError.
    """

    def __init__(self, road: Road, titles: Titles) -> None:
        self._road = road
        self._titles = titles
        self._runtime = road.runtime

    def carry_out(self, request: CreateConversationCommand | CreateSubAgent | ConversationCommand) -> object:
        """Do it, and return its answer; to a Delete that is None: it is finished with `delete`."""
        match request:
            case CreateConversationCommand():
                return self._create(request)
            case CreateSubAgent():
                return spawning.bear(self._road, request)
            case _:
                return self._obey(self._road.load(), request)

    def _obey(self, machine: Machine, request: ConversationCommand) -> object:
        match request:
            case SendMessageCommand():
                return self._send(machine, request)
            case CancelConversationCommand():
                return self.cancel(request, cancel_event(request, self._road.now()))
            case ResolveApprovalCommand():
                return self._resolve(machine, request)
            case SetModeCommand():
                return self._change_mode(machine, request)
            case TriggerContinuationCommand():
                _refuse_archived(machine)
                self._road.executor.read_history(machine.record)
                self._road.advance(TriggerContinuation(self._road.now()))
                return machine.record
            case UpdateConversationCommand():
                return self._update(machine, request)
            case SetGeneratedTitleCommand():
                return self._entitle(machine, request)
            case ArchiveConversationCommand(archived=archived):
                return self._archive(machine, archived)
            case ContinueConversationCommand():
                return self._continue(machine, request)
            case WithdrawMessageCommand(message_id=message_id):
                return self._withdraw(message_id)
            case SpawnSubAgentsCommand():
                return self._spawn(machine, request)
            case DeleteConversationCommand(force=force, archived_before=before):
                _check_archived(machine, before)
                self._stop(force)
                return None

    def delete(self) -> None:
        """Remove the conversation, which is at rest, and all that tools keep for it. Raises StoreError, and then
        it is still there as a whole.
        """
        conversation_id, runtime = self._road.conversation_id, self._runtime
        children = runtime.store.children(conversation_id)
        runtime.faults.hit("delete.before")
        runtime.store.delete(conversation_id)
        last = self._road.machine.record if self._road.machine else None
        self._road.machine = None
        runtime.faults.hit("delete.after")
        for gone in (conversation_id, *children):
            runtime.bus.deleted(gone, last)
            runtime.toolbox.forget(gone)

    def _create(self, request: CreateConversationCommand) -> ConversationRecord:
        for _ in range(SLUG_TRIES):
            known = self._known_create(request)
            if known is not None:
                return known
            record, commit = settings.creation(self._runtime, self._road.conversation_id, request, self._road.now())
            try:
                self._runtime.store.commit(commit)
            except CommandExistsError:
                continue
            except SlugTakenError:
                if request.slug:
                    raise
                continue
            self._road.machine = Machine(self._runtime, record)
            self._runtime.bus.created(record)
            return record
        raise SlugTakenError

    def _known_create(self, request: CreateConversationCommand) -> ConversationRecord | None:
        if not request.request_id:
            return None
        known = self._runtime.store.create_command(request.principal, request.request_id)
        if known is None:
            return None
        _same_body(known, request.body_hash)
        return self._created(known)

    def _send(self, machine: Machine, request: SendMessageCommand) -> SendMessageResult:
        known = self._known(request)
        if known is not None:
            return msgspec.structs.replace(msgspec.json.decode(known.answer, type=SendMessageResult), duplicate=True)
        _refuse_archived(machine)
        event = UserMessage(
            at=self._road.now(),
            message_id=self._runtime.ids.message(),
            text=request.text,
            images=request.images,
            delivery=_delivery(request.delivery),
            expected_run=request.expected_run,
        )
        self._road.executor.read_history(machine.record)
        draft = machine.draft()
        draft.run(event)
        answer = answers.sent(draft, event.message_id)
        entitled = self._titles.wanted and untitled(machine.record)
        if entitled and (title := title_of(request.text)):
            settings.change(draft, event.at, title=title)
        self._road.perform(machine, draft, command=_remembered(request, msgspec.json.encode(answer), event.at))
        if entitled:
            self._titles.improve(machine.record, request.text)
        return answer

    def _spawn(self, machine: Machine, request: SpawnSubAgentsCommand) -> SpawnSubAgentsResult:
        known = self._known(request)
        if known is not None:
            return msgspec.json.decode(known.answer, type=SpawnSubAgentsResult)
        _refuse_archived(machine)
        self._road.executor.read_history(machine.record)
        at = self._road.now()
        draft, answer = spawning.by_hand(self._road, machine, request, at)
        self._road.perform(machine, draft, command=_remembered(request, msgspec.json.encode(answer), at))
        return answer

    def cancel(self, request: CancelConversationCommand, event: UserCancel) -> CancelConversationResult:
        """Stop what is under way; `event` is the request as the machine takes it.

        The background jobs first: to kill them takes nothing of the store. If the store cannot take the cancel, all
        the same is stopped, and the receipt says so. Raises StoreUnavailableError if nothing is awake that it could
        stop.
        """
        machine = self._road.load()
        ended: tuple[str, ...] = ()
        if request.kill_jobs and request.run_id in ("", live_run(machine.record)):
            ended = self._road.executor.end_jobs(machine.record.id)
        draft = machine.draft()
        draft.run(event)
        try:
            self._road.perform(machine, draft, urgent=True)
            recorded = True
        except StoreUnavailableError:
            self._road.executor.stop_unrecorded(draft.effects, draft.record, draft.context)
            recorded = False
        surviving = tuple(job for job in self._jobs() if job not in ended)
        return answers.cancelled(draft, ended=ended, surviving=surviving, recorded=recorded)

    def _withdraw(self, message_id: str) -> QueueChanged:
        draft = self._road.advance(WithdrawMessage(self._road.now(), message_id))
        (withdrawn,) = draft.find(QueueChanged)
        return withdrawn

    def _change_mode(self, machine: Machine, request: SetModeCommand) -> SetModeResult:
        """Nothing starts in the wider mode any more before it is asked what runs in it."""
        rights, mode = self._road.executor.rights, request.mode
        rights.narrow(mode)
        stopped = rights.wider_than(mode) if request.stop_running else ()
        try:
            self._road.advance(SetMode(self._road.now(), mode, stopped))
        except Rejected as refusal:
            if refusal.reason is Reason.MODE_UNAVAILABLE:
                raise validation.mode_unavailable(self._runtime) from None
            raise
        finally:
            rights.set(machine.context.mode)
        rights.pull(stopped)
        # The calls before the jobs: one that becomes a job meanwhile is missed in neither place.
        calls = rights.wider_than(mode)
        ended = self._road.executor.end_jobs(machine.record.id, mode) if request.stop_running else ()
        jobs = tuple(job for job in self._runtime.toolbox.jobs(machine.record.id, mode) if job not in ended)
        return SetModeResult(machine.record, jobs, calls, ended, stopped)

    def _resolve(self, machine: Machine, request: ResolveApprovalCommand) -> ConversationRecord:
        draft = machine.draft()
        event = ApprovalResponse(self._road.now(), request.tool_use_id, request.approve, request.note)
        if request.always and request.approve and isinstance(machine.state, AwaitingToolApproval):
            settings.approve_always(self._runtime, draft, request.tool_use_id, event.at)
        draft.run(event)
        self._road.perform(machine, draft)
        return machine.record

    def _update(self, machine: Machine, request: UpdateConversationCommand) -> ConversationRecord:
        if request.etag and request.etag != etag_of(machine.record):
            raise EtagMismatchError("the conversation was changed since it was read: read it again")
        draft = machine.draft()
        settings.update(self._runtime, draft, request, self._road.now())
        self._road.perform(machine, draft)
        return machine.record

    def _entitle(self, machine: Machine, request: SetGeneratedTitleCommand) -> ConversationRecord:
        draft, at = machine.draft(), self._road.now()
        if request.usage is not None:
            draft.run(UsageReported(at, request.usage, aside=True))
        if request.title and draft.record.title == request.instead_of:
            settings.change(draft, at, title=request.title)
        self._road.perform(machine, draft)
        return machine.record

    def _archive(self, machine: Machine, archived: bool) -> ConversationRecord:
        if archived and not self._road.resting:
            raise Rejected(Reason.AGENT_BUSY, "agent is busy: cancel it first, then archive the conversation")
        if archived != (machine.record.archived_at is not None):
            draft = machine.draft()
            settings.archive(draft, archived, self._road.now())
            self._road.perform(machine, draft)
        if archived:
            self._road.executor.end_jobs(machine.record.id)
        return machine.record

    def _continue(self, machine: Machine, request: ContinueConversationCommand) -> ConversationRecord:
        known = self._known(request)
        if known is not None:
            return self._created(known)
        linked = machine.record.continued_by
        successor = self._runtime.store.load(linked) if linked else None
        if successor is not None:
            return successor
        if not isinstance(machine.state, ContextExhausted):
            raise Rejected(_why_not_continued(machine))
        return self._succeed(machine, request, machine.state.summary)

    def _succeed(self, machine: Machine, request: ContinueConversationCommand, summary: str) -> ConversationRecord:
        for _ in range(SLUG_TRIES):
            draft, at = machine.draft(), self._road.now()
            successor, commit = settings.succession(self._runtime, draft, request, summary, at)
            try:
                self._road.perform(machine, draft, commit, command=_remembered(request, successor.id.encode(), at))
            except SlugTakenError:
                continue
            self._runtime.bus.created(successor)
            return successor
        raise SlugTakenError

    def _stop(self, force: bool) -> None:
        """Bring it to rest and kill all that it has running, before it is deleted."""
        if not self._road.resting:
            if not force:
                raise Rejected(
                    Reason.AGENT_BUSY, "agent is busy: cancel it first, or delete the conversation with force"
                )
            self._road.advance(UserCancel(self._road.now(), discard_queued=True, kill_jobs=True, reason="deleted"))
        self._titles.stop(self._road.conversation_id)
        self._road.executor.stop_everything()
        self._road.executor.end_jobs(self._road.conversation_id)

    def _jobs(self) -> tuple[str, ...]:
        return self._runtime.toolbox.jobs(self._road.conversation_id)

    def _known(
        self, request: SendMessageCommand | ContinueConversationCommand | SpawnSubAgentsCommand
    ) -> CommandRecord | None:
        """The same command, if it was accepted before."""
        if not request.request_id:
            return None
        known = self._runtime.store.command(self._road.conversation_id, request.request_id)
        if known is not None:
            _same_body(known, request.body_hash)
        return known

    def _created(self, known: CommandRecord) -> ConversationRecord:
        record = self._runtime.store.load(known.answer.decode())
        if record is None:
            raise UnknownConversationError("the conversation that this request_id created has been deleted")
        return record


def _why_not_continued(machine: Machine) -> Reason:
    if not machine.record.user_initiated:
        return Reason.SUB_AGENT
    summarising = isinstance(machine.state, AwaitingContinuation)
    return Reason.CONTINUATION_IN_PROGRESS if summarising else Reason.NOT_EXHAUSTED


def cancel_event(request: CancelConversationCommand, at: int) -> UserCancel:
    """A request to stop as the machine takes it."""
    return UserCancel(
        at,
        run_id=request.run_id,
        discard_queued=request.discard_queued,
        kill_jobs=request.kill_jobs,
        reason=request.reason,
    )


def _delivery(name: str) -> Delivery:
    try:
        return Delivery(name)
    except ValueError:
        raise InvalidFieldError("delivery", f"there is no delivery {name!r}") from None


def _refuse_archived(machine: Machine) -> None:
    if machine.record.archived_at is not None:
        raise Rejected(Reason.ARCHIVED)


def _check_archived(machine: Machine, before: int | None) -> None:
    """Raise EtagMismatch unless it has been archived since before this time, if there is one."""
    at = machine.record.archived_at
    if before is not None and (at is None or at >= before):
        raise EtagMismatchError


def _same_body(known: CommandRecord, body_hash: str) -> None:
    if known.body_hash != body_hash:
        raise Rejected(Reason.REQUEST_ID_REUSED)


def _remembered(
    request: SendMessageCommand | ContinueConversationCommand | SpawnSubAgentsCommand, answer: bytes, at: int
) -> CommandRecord | None:
    """What is kept of an accepted command that has a request id."""
    return CommandRecord(request.request_id, request.body_hash, answer, at) if request.request_id else None
