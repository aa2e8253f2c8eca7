"""Serves reads of stored logs (exports, Verify, Replay, transitions, audit entries), and downloads of images.

A download is sent at the speed of its client: a slow client delays no other, and is disconnected after a time limit. An
export keeps one page at a time in memory.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
from bedrock import v1
from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from actors.core.notifications import ConversationUpdated
from actors.maintenance.verify import Replay, ReplayedStep, findings
from actors.ports import (
    Attachment,
    AttachmentStore,
    ConversationRecord,
    RevisionTooOldError,
    StoreDamagedError,
    StoredEvent,
    StoredTransition,
    StoreReader,
)
from actors.ports.records import AuditEntry, AuditFilter, AuditPlace, AuditStore, CallDecision, Outcome
from server.contract import limits
from server.contract import resource_names as names
from server.contract.errors import ConversationNotFoundError, SlowReaderError
from server.contract.pagination import fill_page, size_of
from server.queries.read_pool import ReadPool
from server.wire.conversation_messages import in_full
from server.wire.events import event_alone
from server.wire.messages import ConversionContext, message, named_alike, timestamp

Response = TypeVar("Response")


async def send(
    write: Callable[[Response], Awaitable[None]], response: Response, stall_seconds: float = limits.STALL_SECONDS
) -> None:
    """Send a response, and return once gRPC has accepted it. Raises SlowReaderError if that takes `stall_seconds`."""
    try:
        async with asyncio.timeout(stall_seconds):
            await write(response)
    except TimeoutError:
        raise SlowReaderError("the client read nothing for too long; repeat the call") from None


class AttachmentDownloads:
    """Serves the calls about attachments (images in messages). Use only on the event loop."""

    def __init__(self, store: AttachmentStore, reads: ReadPool, stall_seconds: float = limits.STALL_SECONDS) -> None:
        self._store = store
        self._reads = reads
        self._stall_seconds = stall_seconds

    async def serve(
        self,
        conversation_id: str,
        request: v1.DownloadAttachmentRequest,
        write: Callable[[v1.DownloadAttachmentResponse], Awaitable[None]],
    ) -> None:
        """Send an image in chunks through `write`. Raises ConversationNotFoundError, SlowReaderError or StoreError."""
        for piece in _pieces(await self._found(conversation_id, request.name)):
            await send(write, piece, self._stall_seconds)

    async def described(self, conversation_id: str, name: str) -> v1.Attachment:
        """An attachment's type and size. Raises ConversationNotFoundError or StoreError."""
        found = await self._found(conversation_id, name)
        return v1.Attachment(
            name=names.attachment(conversation_id, found.id),
            media_type=found.media_type,
            size_bytes=len(found.data),
            width=found.width,
            height=found.height,
        )

    async def _found(self, conversation_id: str, name: str) -> Attachment:
        _, attachment_id = names.parse_child(name, "attachments") or ("", "")
        found = None
        if "." not in attachment_id:  # clients cannot get scaled-down copies, whose ids have a dot
            found = await self._reads(self._store.attachment, conversation_id, attachment_id)
        if found is None:
            raise ConversationNotFoundError(name)
        return found


def _pieces(attachment: Attachment) -> list[v1.DownloadAttachmentResponse]:
    size = limits.ATTACHMENT_PIECE_BYTES
    starts = range(0, len(attachment.data), size)
    pieces = [v1.DownloadAttachmentResponse(data=attachment.data[start : start + size]) for start in starts]
    pieces[0].media_type, pieces[0].size_bytes = attachment.media_type, len(attachment.data)
    return pieces


PAGE = 100


class ConversationExports:
    def __init__(
        self,
        store: StoreReader,
        reads: ReadPool,
        conversion: ConversionContext,
        stall_seconds: float = limits.STALL_SECONDS,
    ) -> None:
        self._store = store
        self._reads = reads
        self._conversion = conversion
        self._stall_seconds = stall_seconds

    async def serve(
        self,
        conversation_id: str,
        request: v1.ExportConversationRequest,
        write: Callable[[v1.ExportConversationResponse], Awaitable[None]],
    ) -> None:
        """Send the whole export through `write`. Raises ConversationNotFoundError, SlowReaderError or StoreError."""
        record = await self._reads(self._store.load, conversation_id)
        if record is None:
            raise ConversationNotFoundError(request.name)
        pages = _pages(self._store, self._conversion, record)
        while (lines := await self._reads(next, pages, None)) is not None:
            for line in lines:
                await send(write, v1.ExportConversationResponse(line=line), self._stall_seconds)
        if await self._reads(self._store.load, conversation_id) is None:
            raise ConversationNotFoundError(request.name)  # deleted during the export: lines may be missing


def _pages(store: StoreReader, conversion: ConversionContext, record: ConversationRecord) -> Iterator[list[str]]:
    """Yield the lines of the export as of `record`. No snapshot is needed: messages and events never change."""
    shown = in_full(conversion, record)
    yield [_line("conversation", shown, system_prompt=record.system_prompt)]
    yield from _messages(store, conversion, record)
    yield from _events(store, conversion, record)


def _messages(store: StoreReader, conversion: ConversionContext, record: ConversationRecord) -> Iterator[list[str]]:
    after, end = 0, record.state.ledger.seq + 1
    while page := store.messages(record.id, after=after, before=end, limit=PAGE):
        yield [_line("message", message(conversion, record.id, each)) for each in page]
        after = page[-1].sequence


def _events(store: StoreReader, conversion: ConversionContext, record: ConversationRecord) -> Iterator[list[str]]:
    """Yield the lines of the events, except those pruned in the meantime."""
    after = 0
    while after < record.revision:
        try:
            page = store.events(record.id, after=after, limit=min(PAGE, record.revision - after))
        except RevisionTooOldError as error:
            after = error.oldest
            continue
        if not page:
            return
        yield [_line("event", event_alone(conversion, record.id, each), **_settings(each)) for each in page]
        after = page[-1].revision


def _settings(stored: StoredEvent) -> dict[str, list[str]]:
    """The names of the settings that an event has changed: the log does not keep the values."""
    notification = stored.notification
    return {"settings": list(notification.fields)} if isinstance(notification, ConversationUpdated) else {}


def _line(kind: str, body: Message, **more: object) -> str:
    fields = json_format.MessageToDict(body, preserving_proto_field_name=True)
    return json.dumps({"kind": kind, kind: fields, **more}, ensure_ascii=False, separators=(",", ":"))


OUTCOME = named_alike(Outcome, v1.AuditEntry.Outcome)
_OUTCOMES = {number: outcome for outcome, number in OUTCOME.items()}


def audit_filter(request: v1.ListAuditEntriesRequest) -> AuditFilter:
    return AuditFilter(
        since=_milliseconds(request.start_time) if request.HasField("start_time") else 0,
        until=_milliseconds(request.end_time) if request.HasField("end_time") else None,
        principal=request.principal or None,
        conversation=names.parse_conversation(request.conversation) if request.conversation else None,
        outcome=_OUTCOMES.get(request.outcome),
    )


def _milliseconds(time: Timestamp) -> int:
    return time.seconds * 1_000 + time.nanos // 10**6


def audit_entry(entry: AuditEntry) -> v1.AuditEntry:
    """An audit entry as an API message."""
    origin = entry.origin
    return v1.AuditEntry(
        time=timestamp(entry.at),
        outcome=OUTCOME[entry.outcome],
        reason=entry.reason,
        principal=origin.principal,
        role=origin.role,
        token=origin.token,
        peer=origin.peer,
        method=origin.method,
        conversation=names.conversation(entry.conversation),
        request_id=origin.request_id,
        count=entry.count,
        decisions=map(_decision, entry.decisions),
        step=entry.step,
    )


def _decision(decision: CallDecision) -> v1.AuditEntry.Decision:
    return v1.AuditEntry.Decision(
        tool_use_id=decision.call,
        tool=names.tool(decision.tool) if decision.tool else "",
        verdict=_value(v1.AuditEntry.Verdict, "VERDICT", decision.verdict),
        decider=_value(v1.AuditEntry.Decider, "DECIDER", decision.decided_by),
        approval_rules=decision.rules,
    )


def _value(kind: Any, prefix: str, name: str) -> Any:
    """The enum value with this lower-case name; UNSPECIFIED for a name that a later version has written."""
    return dict(kind.items()).get(f"{prefix}_{name.upper()}", 0)


# How many rows of a conversation's log are read at a time.
ROWS = 50


class _Step(msgspec.Struct):
    step: int


class _Typed(msgspec.Struct):
    type: str


_TYPED = msgspec.json.Decoder(_Typed)


def transition(row: StoredTransition) -> v1.Transition:
    try:
        kind = _TYPED.decode(row.event).type
    except msgspec.DecodeError:
        kind = ""
    return v1.Transition(
        step=row.step,
        time=timestamp(row.at),
        revision=row.first_revision + len(row.notifications) - 1,
        event_type=kind,
        event_json=_fitting(row.event),
        context_json=_fitting(row.context or b""),
        effects_json=_fitting(msgspec.json.encode(row.notifications)),
        digest=row.hash,
    )


class AuditReader(StoreReader, AuditStore, Protocol):
    pass


class StoredAudits:
    """Serves the calls about a log and the audit trail.

    Call `replay` on the event loop. The other methods block, possibly for minutes, and run on `ReadPool.long`.
    """

    def __init__(self, store: AuditReader, reads: ReadPool, stall_seconds: float = limits.STALL_SECONDS) -> None:
        self._store = store
        self._reads = reads
        self._stall_seconds = stall_seconds

    def verify(self, conversation_id: str, name: str) -> v1.VerifyConversationResponse:
        """Check stored rows against each other and the hash chain. The response reports damage.

        Raises ConversationNotFoundError or StoreUnavailableError.
        """
        try:
            record = self._store.load(conversation_id)
        except StoreDamagedError:
            found = ("the conversation's row cannot be read", *self._store.verify(conversation_id))
            return v1.VerifyConversationResponse(violations=found)
        violations = findings(self._store, record) if record else ()
        if record is None or (violations and self._store.load(conversation_id) is None):
            raise ConversationNotFoundError(name)  # the conversation may have been deleted during the check
        return v1.VerifyConversationResponse(violations=violations, revision=record.revision)

    def transitions(self, record: ConversationRecord, request: v1.ListTransitionsRequest) -> v1.ListTransitionsResponse:
        listing = ("transitions", record.id, request.after_step, request.descending)
        rows = self._newest_first if request.descending else self._oldest_first
        answer = v1.ListTransitionsResponse()

        def entries(last: _Step | None) -> Iterator[tuple[v1.Transition, _Step]]:
            after, before = request.after_step, record.step + 1
            if last is not None:
                after, before = (after, last.step) if request.descending else (last.step, before)
            return ((transition(row), _Step(row.step)) for row in rows(record.id, after, before))

        answer.next_page_token = fill_page(
            answer.transitions, request, limits.TRANSITIONS_PAGE, entries, _Step, *listing
        )
        return answer

    def _oldest_first(self, conversation_id: str, after: int, before: int) -> Iterator[StoredTransition]:
        while rows := self._store.transitions(conversation_id, after_step=after, limit=ROWS):
            yield from (row for row in rows if row.step < before)
            after = rows[-1].step

    def _newest_first(self, conversation_id: str, after: int, before: int) -> Iterator[StoredTransition]:
        """Yield rows, newest first, down to the step `after` or to the first row that was pruned."""
        while before > after + 1:
            begin = max(after, before - 1 - ROWS)
            rows = self._store.transitions(conversation_id, after_step=begin, limit=ROWS)
            if not (found := [row for row in rows if row.step < before]):
                return
            yield from reversed(found)
            before = begin + 1

    def entries(self, request: v1.ListAuditEntriesRequest) -> v1.ListAuditEntriesResponse:
        wanted = audit_filter(request)
        answer, chunk = v1.ListAuditEntriesResponse(), size_of(request.page_size, limits.AUDIT_PAGE) + 1

        def entries(last: AuditPlace | None) -> Iterator[tuple[v1.AuditEntry, AuditPlace]]:
            found = self._store.audit(wanted, after=last, limit=chunk)
            return ((audit_entry(entry), entry.place) for entry in found)

        answer.next_page_token = fill_page(
            answer.entries, request, limits.AUDIT_PAGE, entries, AuditPlace, "audit", wanted
        )
        return answer

    async def replay(
        self,
        conversation_id: str,
        request: v1.ReplayConversationRequest,
        write: Callable[[v1.ReplayConversationResponse], Awaitable[None]],
    ) -> None:
        """Replay a log up to its end or a revision, and send each step through `write`.

        Raises ConversationNotFoundError, RevisionTooOldError (pruned), SlowReaderError or StoreError.
        """
        record = await self._reads(self._store.load, conversation_id)
        if record is None:
            raise ConversationNotFoundError(request.name)
        until = request.until_revision or record.revision
        run = _Run(self._store, record, until)
        while steps := await self._reads(run.next):
            for step in steps:
                await send(write, step, self._stall_seconds)
        if await self._reads(self._store.load, conversation_id) is None:
            raise ConversationNotFoundError(request.name)  # deleted during the replay: steps may be missing


class _Run:
    """One replay of a log, in batches. The methods block, and are called on threads of `ReadPool`, one at a time."""

    def __init__(self, store: StoreReader, record: ConversationRecord, until: int) -> None:
        self._store = store
        self._record = record
        self._until = until
        self._replay = Replay()
        self._step = 0
        self._revision = 0

    def next(self) -> list[v1.ReplayConversationResponse]:
        """The next steps; [] at the end of the log. Raises RevisionTooOldError (pruned)."""
        try:
            rows = self._rows(ROWS)
        except StoreDamagedError:
            rows = self._first_readable()
            if not rows:
                return self._broken()
        if self._step == 0 and rows and rows[0].step != 1:
            raise RevisionTooOldError("the beginning of the log was pruned", oldest=rows[0].first_revision - 1)
        if rows and rows[0].step != self._step + 1:
            # This read raises RevisionTooOldError if the missing rows were pruned during the replay. Otherwise the log
            # has a gap, which the replay reports.
            self._store.events(self._record.id, after=self._revision, limit=1)
        return [self._response_of(self._replay.step(row)) for row in rows]

    def _rows(self, limit: int) -> Sequence[StoredTransition]:
        rows = self._store.transitions(self._record.id, after_step=self._step, limit=limit)
        return [row for row in rows if row.step <= self._record.step and row.first_revision <= self._until]

    def _first_readable(self) -> Sequence[StoredTransition]:
        try:
            return self._rows(1)
        except StoreDamagedError:
            return ()

    def _broken(self) -> list[v1.ReplayConversationResponse]:
        """One step that reports the next row as unreadable; [] if it was already reported, or at the end of the log.

        Nothing after that row can be replayed.
        """
        if self._step >= self._record.step:
            return []
        broken, self._step = self._step + 1, self._record.step
        return [v1.ReplayConversationResponse(step=broken, difference="the step cannot be read; the replay ends here")]

    def _response_of(self, step: ReplayedStep) -> v1.ReplayConversationResponse:
        self._step, self._revision = step.step, step.revision
        difference = step.difference
        if step.step == self._record.step:
            difference = "; ".join(filter(None, (difference, self._replay.end(self._record))))
        return v1.ReplayConversationResponse(
            step=step.step,
            revision=step.revision,
            event_json=_fitting(step.event),
            state_json=_fitting(step.state),
            effects_json=_fitting(step.effects),
            difference=difference,
        )


def _fitting(json: bytes) -> str:
    """The JSON as text; "" if it is too long for a response."""
    return json.decode(errors="replace") if len(json) <= limits.REPLAY_JSON_BYTES else ""
