"""Forks a conversation: creates another one with the same history up to the end of one of its runs.

Runs on the thread of the fork's actor. The actor of the original conversation is not involved: only committed data that
never changes is read, so that a busy conversation can be forked without being disturbed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from actors import ports
from actors.core.content import Image, Message, MessageType, ToolSuccess
from actors.core.errors import Reason, Rejected
from actors.core.history import chain
from actors.core.states import ContextExhausted, Idle, Notice
from actors.messages import ForkConversationCommand, Forked, InvalidFieldError, UnknownConversationError
from actors.runtime.services import Services

# How many runs or messages are read from the store at a time.
PAGE = 200

USED_UP = "the context filled up in this request cycle: fork at an earlier one"


def forked_conversation(
    services: Services, conversation_id: str, request: ForkConversationCommand, at: int
) -> tuple[ports.ConversationRecord, ports.Commit]:
    """A fork's record and commit.

    Raises Rejected (SUB_AGENT, CYCLE_RUNNING, NOT_FORKABLE), InvalidFieldError, UnknownConversationError or StoreError.
    """
    origin = services.store.load(request.origin)
    if origin is None:
        raise UnknownConversationError("the conversation to fork does not exist")
    if not origin.user_initiated:
        raise Rejected(Reason.SUB_AGENT, "this is a sub-agent: fork its parent conversation")
    runs = _runs(services, origin, request.run)
    last = runs[-1]
    history = services.store.history(origin.id, last.last_sequence)
    if len(history) != last.last_sequence:
        raise UnknownConversationError("the conversation to fork has been deleted")
    messages = tuple(chain.copied_message(message, origin.id, conversation_id) for message in history)
    _check_room(services, origin, messages)
    later = tuple(_later(services, origin, last))
    notices = chain.first_notices(origin.mode, messages, last.stop.reason, later, at)
    record = _record(services, origin, conversation_id, request, at)
    stops = tuple(_copied_run(run, origin.id, conversation_id) for run in runs)
    date = ports.date_of(max(message.created_at for message in messages if message.type is MessageType.USER))
    ledger = chain.first_ledger(services.context_of(record), messages, stops[-1].stop.run, notices, date)
    profile = msgspec.structs.replace(
        origin.profile, forked_from=origin.id, forked_at=last.stop.run, cache_key=origin.profile.cache_key or origin.id
    )
    record = msgspec.structs.replace(record, state=Idle(ledger), revision=last.revision, profile=profile)
    taken = ports.ForkedHistory(origin.id, last.revision, stops, tuple(_attachments(services, messages)))
    entry = Forked(at, record.principal, origin.id, last.stop.run, ledger)
    return record, _commit(record, request, messages, taken, entry)


def _runs(services: Services, origin: ports.ConversationRecord, wanted: str) -> tuple[ports.StoppedRun, ...]:
    """The ended runs up to `wanted` or, if that is "", up to the last run after which a fork is possible.

    Raises Rejected if no fork is possible there, for example at an open run, or InvalidFieldError for an unknown run.
    """
    if wanted and wanted == ports.live_run(origin):
        raise Rejected(Reason.CYCLE_RUNNING, f"request cycle {wanted} has not ended: wait, or fork at an earlier one")
    found: list[ports.StoppedRun] = []
    for run in _ended(services, origin):
        found.append(run)
        if run.stop.run == wanted:
            break
    else:
        if wanted:
            raise InvalidFieldError("request_cycle", "the conversation has no such request cycle")
    end = _summary_at(services, origin)
    if wanted and found[-1].last_sequence >= end:
        raise Rejected(Reason.NOT_FORKABLE, USED_UP)
    found = [run for run in found if run.last_sequence < end]
    if not found:
        raise Rejected(Reason.NOT_FORKABLE)
    return tuple(found)


def _ended(services: Services, origin: ports.ConversationRecord) -> Iterator[ports.StoppedRun]:
    after, end = 0, origin.revision + 1
    while page := services.store.stopped_runs(origin.id, after=after, before=end, limit=PAGE):
        yield from page
        after = page[-1].revision


def _summary_at(services: Services, origin: ports.ConversationRecord) -> int:
    """The number of the summary that ended the conversation or, if it has not ended, of the next message."""
    before = origin.state.ledger.seq + 1
    if not isinstance(origin.state, ContextExhausted):
        return before
    while page := services.store.messages(origin.id, before=before, limit=PAGE, descending=True):
        for message in page:
            if message.kind in chain.SUMMARIES:
                return message.sequence
        before = page[-1].sequence
    return 0


def _check_room(services: Services, origin: ports.ConversationRecord, messages: Sequence[Message]) -> None:
    """Raise Rejected if the copied history fills the model's window, as far as both sizes are known."""
    if services.models.get(origin.model) is None:
        return
    if services.context_of(origin).full(chain.used_tokens(messages)):
        raise Rejected(Reason.NOT_FORKABLE, "this much history fills the model's context: fork at an earlier cycle")


def _later(services: Services, origin: ports.ConversationRecord, last: ports.StoppedRun) -> Iterator[Message | Notice]:
    """Yield the origin's messages after the run `last`, then the notices that its model has not received yet."""
    after, end = last.last_sequence, origin.state.ledger.seq + 1
    while page := services.store.messages(origin.id, after=after, before=end, limit=PAGE):
        yield from page
        after = page[-1].sequence
    yield from origin.state.ledger.pending_notices


def _copied_run(run: ports.StoppedRun, origin: str, conversation_id: str) -> ports.StoppedRun:
    return msgspec.structs.replace(run, stop=chain.copied_stop(run.stop, origin, conversation_id))


def _record(
    services: Services,
    origin: ports.ConversationRecord,
    conversation_id: str,
    request: ForkConversationCommand,
    at: int,
) -> ports.ConversationRecord:
    return msgspec.structs.replace(
        origin,
        id=conversation_id,
        slug=request.slug or services.ids.slug(),
        title=request.title or origin.title,
        state=Idle(),
        state_updated_at=at,
        created_at=at,
        updated_at=at,
        archived_at=None,
        continued_from="",
        continued_by="",
        node=services.node,
        epoch=1,
        step=1,
        log_hash="",
    )


def _attachments(services: Services, messages: Sequence[Message]) -> Iterator[str]:
    images: dict[str, Image] = {}
    for message in messages:
        for block in message.content:
            shown = (block,) if isinstance(block, Image) else block.images if isinstance(block, ToolSuccess) else ()
            images |= {image.attachment: image for image in shown}
    for image in images.values():
        yield from services.images.stored_as(image)


def stored_bytes(store: ports.Store, commit: ports.Commit) -> int:
    """How many bytes of the principal's quota a new conversation and its copied attachments need. Raises StoreError."""
    content = sum(len(msgspec.json.encode(message.content)) for message in commit.messages)
    profile = len(msgspec.json.encode(commit.record.profile))
    if commit.fork is None:
        return content + profile
    copied = (store.attachment(commit.fork.origin, each) for each in commit.fork.attachments)
    return content + profile + sum(len(each.data) for each in copied if each is not None)


def _commit(
    record: ports.ConversationRecord,
    request: ForkConversationCommand,
    messages: tuple[Message, ...],
    taken: ports.ForkedHistory,
    entry: Forked,
) -> ports.Commit:
    command = None
    if request.request_id:
        command = ports.CommandRecord(request.request_id, request.body_hash, record.id.encode(), entry.at)
    return ports.Commit(
        record=record,
        expected_step=0,
        messages=messages,
        log=(ports.LogEntry(1, entry.at, msgspec.json.encode(entry), taken.revision + 1, ()),),
        command=command,
        create=True,
        create_command=command is not None,
        fork=taken,
    )
