"""Converts messages, their content and small values such as times, usage, errors and enums to API messages.

An enum value that the API lacks makes startup fail; `tests/unit/server` checks that each API value is reached.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar, get_args

import msgspec
from bedrock import v1
from google.protobuf import json_format
from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from actors.common.json_schema import is_too_deep
from actors.core import content, context
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.notifications import ApprovalDecision, CallStatus, Fate, QueueChanged, StopReason
from actors.core.states import JobStatus, LlmPhase, QuestionStatus, QueuedInput, State
from actors.core.summary import ContextState
from actors.ports import ConversationRecord, live_run
from actors.ports.tools import McpServerStatus, McpState
from server.contract import resource_names as names

E = TypeVar("E", bound=Enum)


def named_alike(kind: Iterable[E], api: Any) -> dict[E, Any]:
    """The API's enum value for each of our enum values. Names of API values begin with the name of the enum."""
    prefix = api.Name(0).removesuffix("UNSPECIFIED")
    return {each: api.Value(prefix + (each.name if each.value else "UNSPECIFIED")) for each in kind}


STATE_KIND: dict[str, Any] = {
    tag: v1.StateKind.Value(f"STATE_KIND_{tag.upper()}")
    for tag in (str(state.__struct_config__.tag) for state in get_args(State))
}
CONTEXT_STATE = named_alike(ContextState, v1.ContextState)
REASONING_EFFORT = named_alike(context.ReasoningEffort, v1.ReasoningEffort)
PHASE = named_alike(LlmPhase, v1.ConversationState.LlmRequesting.Phase)
ERROR_KIND = named_alike(ErrorKind, v1.ErrorKind)
STOP_REASON = named_alike(StopReason, v1.StopReason)
MODE = named_alike(context.Mode, v1.Mode)
APPROVAL_POLICY = named_alike(context.ApprovalPolicy, v1.ApprovalPolicy)
JOB_STATUS = named_alike(JobStatus, v1.Event.BackgroundJobChanged.Status)
FOLLOW_UP_POLICY = named_alike(context.FollowUpPolicy, v1.FollowUpPolicy)
ROLE = named_alike(content.MessageType, v1.Role)
SYSTEM_KIND = named_alike(content.SystemKind, v1.SystemMessageKind)
TOOL_OUTCOME = named_alike(content.ToolOutcome, v1.ToolOutcome)
CALL_STATUS = named_alike(CallStatus, v1.Event.ClientToolCallChanged.Status)
QUESTION_STATUS = named_alike(QuestionStatus, v1.Question.Status)
TOOL_GROUP = named_alike(context.ToolGroup, v1.ToolGroup)
FATE = named_alike(Fate, v1.QueuedMessage.Fate)
DECISION = named_alike(ApprovalDecision, v1.ApprovalDecision)
ACTION = named_alike(context.Action, v1.ApprovalRule.Action)
ORIGIN = named_alike(context.Origin, v1.ApprovalRule.Origin)
MCP_STATE = named_alike(McpState, v1.McpServer.State)

DELIVERY = {
    "": v1.DELIVERY_UNSPECIFIED,
    "direct": v1.DELIVERY_DIRECT,
    "steer": v1.DELIVERY_STEER,
    "follow_up": v1.DELIVERY_FOLLOW_UP,
}

DISPOSITION = {
    "direct": v1.DISPOSITION_DIRECT,
    "steer_queued": v1.DISPOSITION_STEER_QUEUED,
    "follow_up_queued": v1.DISPOSITION_FOLLOW_UP_QUEUED,
}


# A Struct larger than this is sent only if it is at most twice as long as the JSON text.
STRUCT_BYTES = 4096


def message(conversion: ConversionContext, conversation_id: str, stored: content.Message) -> v1.Message:
    return v1.Message(
        name=names.message(conversation_id, stored.id),
        sequence=stored.sequence,
        role=ROLE[stored.type],
        delivery=DELIVERY.get(stored.delivery, v1.DELIVERY_UNSPECIFIED),
        content=[block(conversion, conversation_id, part) for part in stored.content if _is_visible(part)],
        usage=usage(stored.usage),
        create_time=timestamp(stored.created_at),
        request_cycle=names.cycle(conversation_id, stored.run),
        llm_request_id=stored.request_id,
        attempt=stored.attempt,
        system_kind=SYSTEM_KIND[stored.kind],
        error_kind=ERROR_KIND.get(stored.error_kind, v1.ERROR_KIND_UNSPECIFIED),  # type: ignore[call-overload]
        meta=stored.meta,
    )


def queued_message(conversation_id: str, queued: QueuedInput, delivery: str, run: str = "") -> v1.Message:
    blocks = [v1.ContentBlock(image=image(conversation_id, picture)) for picture in queued.images]
    if queued.text:
        blocks.append(v1.ContentBlock(text=queued.text))
    return v1.Message(
        name=names.message(conversation_id, queued.message_id),
        role=v1.ROLE_USER,
        delivery=DELIVERY.get(delivery, v1.DELIVERY_UNSPECIFIED),
        content=blocks,
        create_time=timestamp(queued.at),
        request_cycle=names.cycle(conversation_id, run),
    )


def queued(conversation_id: str, change: QueueChanged, *, run: str = "", at: int = 0) -> v1.QueuedMessage:
    """`at` is when the message left the queue, in milliseconds since 1970."""
    return v1.QueuedMessage(
        message=queued_message(conversation_id, change.input, change.delivery, run),
        fate=FATE[change.fate],
        settle_time=None if change.fate is Fate.QUEUED else timestamp(at),
    )


Waiting = tuple[QueuedInput, str, str]


def waiting(record: ConversationRecord) -> list[Waiting]:
    """The waiting messages, oldest first, each as (input, delivery, run id); the run id of a follow-up is "".

    Steers and follow-ups are merged by time, but stay in their own order even if the clock was set back.
    """
    ledger = record.state.ledger
    steers: list[Waiting] = [(each, "steer", live_run(record)) for each in ledger.steers]
    follows: list[Waiting] = [(each, "follow_up", "") for each in ledger.follows]
    return list(heapq.merge(steers, follows, key=lambda entry: entry[0].at))


def waiting_message(conversation_id: str, queued_input: QueuedInput, delivery: str, run: str) -> v1.QueuedMessage:
    return queued(conversation_id, QueueChanged(queued_input, delivery, Fate.QUEUED), run=run)


def _is_visible(part: content.Content) -> bool:
    """Whether a part of a message is shown. Reasoning without text, which the provider hides, is not."""
    return not isinstance(part, content.Reasoning) or bool(part.text)


def block(conversion: ConversionContext, conversation_id: str, part: content.Content) -> v1.ContentBlock:
    match part:
        case content.Text(text=text):
            return v1.ContentBlock(text=text)
        case content.Reasoning(text=text):
            return v1.ContentBlock(reasoning=text)
        case content.Image():
            return v1.ContentBlock(image=image(conversation_id, part))
        case content.ToolUse():
            return v1.ContentBlock(tool_call=tool_call(conversion, part))
        case content.ToolSuccess() | content.ToolError() | content.ToolCancelled() | content.SubAgentComplete():
            return v1.ContentBlock(tool_result=tool_result(conversation_id, part))


def image(conversation_id: str, stored: content.Image) -> v1.Image:
    return v1.Image(
        media_type=stored.media_type,
        attachment=names.attachment(conversation_id, stored.attachment),
        width=stored.width,
        height=stored.height,
    )


def tool_call(conversion: ConversionContext, call: content.ToolUse) -> v1.ToolCall:
    """The API message of a call.

    An input that would be much larger as a Struct, such as a list of numbers, is sent as text.
    """
    arguments = struct(call.input)
    if arguments is not None and arguments.ByteSize() > max(STRUCT_BYTES, 2 * len(call.input)):
        arguments = None
    return v1.ToolCall(
        tool_use_id=call.id,
        tool=call.name,
        input=arguments,
        raw_input="" if arguments is not None else call.input,
        group=TOOL_GROUP[conversion.group_of(call)],
    )


def tool_result(conversation_id: str, result: content.ToolResult) -> v1.ToolResult:
    answer = v1.ToolResult(tool_use_id=result.tool_use_id, outcome=TOOL_OUTCOME[result.outcome], output=result.output)
    if isinstance(result, content.ToolSuccess):
        answer.images.extend(image(conversation_id, picture) for picture in result.images)
    if isinstance(result, content.ToolSuccess | content.ToolError):
        if result.display and (display := struct(result.display)) is not None:
            answer.display.CopyFrom(display)
        if result.duration_ms:
            answer.duration.CopyFrom(duration(result.duration_ms))
    return answer


def _no_jobs(_conversation_id: str) -> Sequence[str]:
    return ()


def _known(_model: str) -> bool:
    return False


def _nothing_fixed(_record: ConversationRecord) -> int:
    return 0


def _no_servers(_record: ConversationRecord) -> Sequence[McpServerStatus]:
    return ()


@dataclass(frozen=True)
class ConversionContext:
    """The facts that conversions to API messages need. Functions may be called on any thread, and must not block."""

    groups: Mapping[str, context.ToolGroup]
    """The group of each built-in tool (such as READ or WRITE), by the tool's name."""
    usable_window: Callable[[str], int]
    """How many tokens of history a model accepts."""
    limits: context.Limits
    background_jobs: Callable[[str], Sequence[str]] = _no_jobs
    """The handles of a conversation's running jobs."""
    mcp_servers: Callable[[ConversationRecord], Sequence[McpServerStatus]] = _no_servers
    """The states of the MCP servers that clients added."""

    fixed_tokens: Callable[[ConversationRecord], int] = _nothing_fixed
    """Estimates the tokens of system prompt and tools."""

    window_assumed: Callable[[str], bool] = _known

    def group_of(self, call: content.ToolUse) -> context.ToolGroup:
        """The group (such as READ or WRITE) of the tool that a call is for; OTHER if the tool is unknown."""
        return call.group or self.groups.get(call.name, context.ToolGroup.OTHER)


# The maximum depth of JSON in a Struct. Protobuf parsers accept 100 nested messages, and a level of JSON takes up to
# three.
MAX_DEPTH = 24


def timestamp(milliseconds: int) -> Timestamp | None:
    """Milliseconds since 1970 as a protobuf timestamp; None for 0, which means "not set"."""
    if not milliseconds:
        return None
    return Timestamp(seconds=milliseconds // 1000, nanos=milliseconds % 1000 * 1_000_000)


def duration(milliseconds: int) -> Duration:
    return Duration(seconds=milliseconds // 1000, nanos=milliseconds % 1000 * 1_000_000)


def struct(text: str) -> Struct | None:
    """JSON text as a protobuf Struct; None if it is not a JSON object, or a Struct cannot represent it."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return struct_of(value) if isinstance(value, dict) else None


def plain(struct: Struct) -> dict[str, Any]:
    """A protobuf Struct as a dict. Whole numbers become int, although a Struct stores only doubles."""
    return {key: _plain(value) for key, value in struct.fields.items()}


def _plain(value: Value) -> Any:
    match value.WhichOneof("kind"):
        case "struct_value":
            return plain(value.struct_value)
        case "list_value":
            return [_plain(item) for item in value.list_value.values]
        case "number_value":
            number = value.number_value
            return int(number) if number.is_integer() else number
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case _:
            return None


def struct_of(value: dict[str, Any]) -> Struct | None:
    """A JSON object as a protobuf Struct; None if a Struct cannot represent it, or it is nested too deeply."""
    if is_too_deep(value, MAX_DEPTH):
        return None
    result = Struct()
    try:
        result.update(value)
    except (ValueError, OverflowError):  # a number too large for a double, or a lone surrogate
        return None
    return result


def usage(value: content.Usage | None) -> v1.Usage | None:
    if value is None:
        return None
    return v1.Usage(
        input_tokens=value.input_tokens,
        output_tokens=value.output_tokens,
        cache_read_tokens=value.cache_read_tokens,
        cache_write_tokens=value.cache_write_tokens,
        cost_micros=value.cost_micros,
    )


def budget(value: context.Budget) -> v1.Budget | None:
    if value == context.Budget():
        return None
    return v1.Budget(
        run_tokens=value.run_tokens,
        conversation_tokens=value.conversation_tokens,
        conversation_cost_micros=value.conversation_cost_micros,
    )


def run_error(kind: ErrorKind | str, message: str) -> v1.RunError:
    return v1.RunError(kind=ERROR_KIND.get(ErrorKind(kind), v1.ERROR_KIND_UNKNOWN), message=message)


def failure(value: LlmFailure | None) -> v1.RunError | None:
    return None if value is None else run_error(value.kind, value.message)


def json_value(text: str) -> Value:
    return json_format.Parse(text, Value())
