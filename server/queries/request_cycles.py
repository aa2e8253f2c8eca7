"""Serves the calls about request cycles: the work from a user's message to the end of the answer.

They are built from messages and the outcomes of runs, which are never pruned. A client chooses a view: steps (what
users see), rounds (requests to the model), both, or events. Everything here blocks, and runs on threads of `ReadPool`.
For a page, only the messages of the page's runs are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise, repeat
from typing import TypeAlias

from bedrock import v1
from msgspec import Struct
from msgspec.structs import replace

from actors.core import request_cycles as cycles
from actors.core.content import Message, SubAgentComplete, ToolCancelled, ToolError, ToolResult, ToolSuccess, ToolUse
from actors.core.notifications import Durable, MessageAdded
from actors.core.summary import run_id
from actors.ports import ConversationRecord, StoppedRun, StoreReader
from server.contract import limits
from server.contract import resource_names as names
from server.contract.errors import ConversationNotFoundError
from server.contract.pagination import fill_page, size_of
from server.wire.messages import (
    STOP_REASON,
    TOOL_GROUP,
    ConversionContext,
    json_value,
    message,
    timestamp,
    tool_call,
    tool_result,
    usage,
)


class _Place(Struct):
    revision: int = 0
    sequence: int = 0


class _Span(Struct):
    run: str
    after: int
    through: int
    ended: StoppedRun | None = None

    @property
    def place(self) -> _Place:
        return _Place(self.ended.revision, self.through) if self.ended else _Place()


def list_cycles(
    store: StoreReader, conversion: ConversionContext, request: v1.ListRequestCyclesRequest, conversation_id: str
) -> v1.ListRequestCyclesResponse:
    """A page of cycles, with a run in progress as the newest.

    Raises ConversationNotFoundError or MalformedRequestError.
    """
    record = store.load(conversation_id)
    if record is None:
        raise ConversationNotFoundError(request.parent)
    listing = ("cycles", conversation_id, request.view, request.descending)
    answer = v1.ListRequestCyclesResponse()
    chunk = size_of(request.page_size, limits.CYCLES_PAGE) + 1
    spans_after = _backwards if request.descending else _forwards

    def entries(last: _Place | None) -> Iterator[tuple[v1.RequestCycle, _Place]]:
        for span in spans_after(store, record, last, chunk):
            if (shown := _message(store, conversion, record.id, span, request.view)) is not None:
                yield shown, span.place

    answer.next_page_token = fill_page(answer.request_cycles, request, limits.CYCLES_PAGE, entries, _Place, *listing)
    return answer


def find_cycle(
    store: StoreReader,
    conversion: ConversionContext,
    conversation_id: str,
    run: str,
    request: v1.GetRequestCycleRequest | v1.WaitRequestCycleRequest,
) -> v1.RequestCycle:
    """The request cycle of a run. Raises ConversationNotFoundError if the run does not exist."""
    record = store.load(conversation_id)
    if record is None:
        raise ConversationNotFoundError(request.name)
    # Must be read before `ended`: otherwise `newest` could be the wanted run itself, instead of the run before it.
    newest = store.stopped_runs(conversation_id, limit=1, descending=True)
    ended = store.stopped_run(conversation_id, run)
    if ended is None:
        span = next((live for live in _under_way(record, _last(newest)) if live.run == run), None)
    else:
        older = store.stopped_runs(conversation_id, before=ended.revision, limit=1, descending=True)
        span = _Span(run, _last(older), ended.last_sequence, ended)
    shown = None if span is None else _message(store, conversion, conversation_id, span, request.view)
    if shown is None:
        raise ConversationNotFoundError(request.name)
    return shown


def _last(ended: Sequence[StoppedRun]) -> int:
    return ended[0].last_sequence if ended else 0


def _message(
    store: StoreReader, conversion: ConversionContext, conversation_id: str, span: _Span, view: View
) -> v1.RequestCycle | None:
    found = store.messages(conversation_id, after=span.after, before=span.through + 1, limit=span.through - span.after)
    own = [message for message in found if message.run == span.run]
    cycle = _fold(conversion, own, span.ended)
    if cycle is None:
        return None
    return fit(CycleView(conversion, conversation_id, cycle, own).show(view), limits.PAGE_BYTES)


def _fold(
    conversion: ConversionContext, messages: list[Message], ended: StoppedRun | None
) -> cycles.RequestCycle | None:
    notifications: list[Durable] = [MessageAdded(message) for message in messages]
    times: Iterable[int] = repeat(0)
    if ended:
        times = chain(repeat(0, len(notifications)), (ended.at,))
        notifications.append(ended.stop)
    return cycles.cycle_of(cycles.events_of(notifications, conversion.groups, times))


def _forwards(store: StoreReader, record: ConversationRecord, last: _Place | None, chunk: int) -> Iterator[_Span]:
    place = last or _Place()
    while True:
        found = store.stopped_runs(record.id, after=place.revision, limit=chunk)
        for ended in found:
            span = _Span(ended.stop.run, place.sequence, ended.last_sequence, ended)
            place = span.place
            yield span
        if len(found) < chunk:
            break
    yield from _under_way(record, place.sequence)


def _backwards(store: StoreReader, record: ConversationRecord, last: _Place | None, chunk: int) -> Iterator[_Span]:
    before = last.revision or None if last else None  # a last revision of 0 stands for the run in progress
    stopped = _stopped_backwards(store, record.id, before, chunk)
    newest = next(stopped, None)
    if last is None:
        yield from _under_way(record, newest.last_sequence if newest else 0)
    if newest is None:
        return
    for ended, older in pairwise(chain((newest,), stopped, (None,))):
        if ended is not None:
            yield _Span(ended.stop.run, older.last_sequence if older else 0, ended.last_sequence, ended)


def _stopped_backwards(
    store: StoreReader, conversation_id: str, before: int | None, chunk: int
) -> Iterator[StoppedRun]:
    while found := store.stopped_runs(conversation_id, before=before, limit=chunk, descending=True):
        yield from found
        before = found[-1].revision


def _under_way(record: ConversationRecord, after: int) -> Iterator[_Span]:
    """Yield the run that is in progress in `record`, unless it has ended since `record` was read."""
    ledger = record.state.ledger
    if ledger.live and after < ledger.seq:
        yield _Span(run_id(record.id, ledger.run), after, ledger.seq)


View: TypeAlias = v1.ListRequestCyclesRequest.View.ValueType

_STEPS = (
    v1.ListRequestCyclesRequest.VIEW_UNSPECIFIED,
    v1.ListRequestCyclesRequest.VIEW_STEPS,
    v1.ListRequestCyclesRequest.VIEW_FULL,
)
_ROUNDS = (v1.ListRequestCyclesRequest.VIEW_ROUNDS, v1.ListRequestCyclesRequest.VIEW_FULL)
_EVENTS = (v1.ListRequestCyclesRequest.VIEW_EVENTS,)

# Limits in characters, tried in turn until the cycle fits into a response.
SHORTENED = (16_384, 1_024, 64)


def fit(cycle: v1.RequestCycle, limit_bytes: int) -> v1.RequestCycle:
    """Cut a cycle's texts in place until it fits into a response. ListMessages returns them in full."""
    for characters in SHORTENED:
        if cycle.ByteSize() <= limit_bytes:
            break
        for step in cycle.steps:
            _shorten(step.ai_block, characters)
        cycle.events[:] = [_shortened(event, characters) for event in cycles.decode_lines(cycle.events)]
    return cycle


def _shorten(block: v1.AiBlock, characters: int) -> None:
    if len(block.assistant) > characters:
        block.assistant = _cut(block.assistant, characters)
    if len(block.reasoning) > characters:
        block.reasoning = _cut(block.reasoning, characters)
    for group in block.tool_call_groups:
        for call in group.calls:
            if call.input.ByteSize() > characters:
                call.ClearField("input")
            call.raw_input = _cut(call.raw_input, characters)
        for result in group.results.values():
            result.output = _cut(result.output, characters)
            if result.display.ByteSize() > characters:
                result.ClearField("display")


def _shortened(event: cycles.CycleEvent, characters: int) -> str:
    match event:
        case cycles.CycleUserMessage():
            event = replace(event, text=_cut(event.text, characters))
        case cycles.AgentOutput():
            event = replace(event, text=_cut(event.text, characters), input=_cut(event.input, characters))
        case _:
            pass
    return cycles.encode_line(event)


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[:characters]} … [{len(text) - characters} more characters]"


class CycleView:
    def __init__(
        self,
        conversion: ConversionContext,
        conversation_id: str,
        cycle: cycles.RequestCycle,
        messages: Iterable[Message],
    ) -> None:
        self._conversion = conversion
        self._conversation_id = conversation_id
        self._cycle = cycle
        self._messages = {stored.id: stored for stored in messages}
        self._results: dict[str, ToolResult] = {
            block.tool_use_id: block
            for stored in self._messages.values()
            for block in stored.content
            if isinstance(block, ToolSuccess | ToolError | ToolCancelled | SubAgentComplete)
        }

    def show(self, view: View) -> v1.RequestCycle:
        """The request cycle as an API message, with the parts that the view includes."""
        cycle, stop = self._cycle, self._cycle.stop
        run = self._messages[cycle.root.id].run
        follow_up = cycle.kind is cycles.CycleDelivery.FOLLOW_UP
        return v1.RequestCycle(
            name=names.cycle(self._conversation_id, run),
            root_delivery=v1.DELIVERY_FOLLOW_UP if follow_up else v1.DELIVERY_DIRECT,
            stop_reason=STOP_REASON[stop.reason] if stop else v1.STOP_REASON_UNSPECIFIED,
            stop_detail=stop.detail if stop else "",
            steps=[self._step(step) for step in cycles.steps(cycle)] if view in _STEPS else (),
            rounds=[self._round(each) for each in cycles.rounds(cycle)] if view in _ROUNDS else (),
            events=map(cycles.encode_line, cycles.events_in(cycle)) if view in _EVENTS else (),
            start_time=timestamp(cycle.root.at),
            end_time=timestamp(stop.at if stop else 0),
            output=json_value(stop.output) if stop and stop.output else None,
        )

    def _message(self, said: cycles.CycleUserMessage) -> v1.Message:
        return message(self._conversion, self._conversation_id, self._messages[said.id])

    def _step(self, step: cycles.Step) -> v1.ResolutionStep:
        match step:
            case cycles.UserStep(kind=cycles.StepKind.STEER, message=said):
                return v1.ResolutionStep(steer=self._message(said))
            case cycles.UserStep(message=said):
                return v1.ResolutionStep(root=self._message(said))
            case cycles.AiBlock():
                return v1.ResolutionStep(ai_block=self._ai_block(step))

    def _ai_block(self, block: cycles.AiBlock) -> v1.AiBlock:
        answer = v1.AiBlock(
            synthetic=block.synthetic,
            tool_call_groups=[self._group(group) for group in block.groups],
            message=names.message(self._conversation_id, block.message_id) if block.message_id else "",
        )
        if block.kind is cycles.OutputKind.REASONING:
            answer.reasoning = block.text
        else:
            answer.assistant = block.text
        return answer

    def _group(self, group: cycles.CallGroup) -> v1.ToolCallGroup:
        answer = v1.ToolCallGroup(group=TOOL_GROUP[group.group])
        for each in group.calls:
            use = ToolUse(each.call.tool_call_id, each.call.tool, each.call.input)
            answer.calls.append(tool_call(self._conversion, use))
            result = self._results.get(use.id)
            if result is not None:
                answer.results[use.id].CopyFrom(tool_result(self._conversation_id, result))
        return answer

    def _round(self, served: cycles.InferenceRound) -> v1.InferenceRound:
        ids = dict.fromkeys(
            each.id if isinstance(each, cycles.CycleUserMessage) else each.message_id for each in served.inputs
        )
        output = self._messages.get(served.outputs[0].message_id)
        return v1.InferenceRound(
            llm_request_id=served.round or "",
            inputs=[names.message(self._conversation_id, each) for each in ids if each],
            output=names.message(self._conversation_id, output.id) if output else "",
            usage=usage(output.usage) if output else None,
            output_time=timestamp(output.created_at) if output else None,
            tool_use_ids=[each.tool_call_id for each in served.outputs if each.kind is cycles.OutputKind.TOOL_CALL],
        )
