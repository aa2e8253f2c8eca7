"""Converts stored messages, queued messages and their content to API messages."""

from __future__ import annotations

from bedrock import v1

from actors.core.content import (
    Content,
    Image,
    Message,
    Reasoning,
    SubAgentComplete,
    Text,
    ToolCancelled,
    ToolError,
    ToolResult,
    ToolSuccess,
    ToolUse,
)
from actors.core.notifications import Fate, QueueChanged
from actors.core.states import QueuedInput
from server.contract import resource_names as names
from server.wire.enums import DELIVERY, ERROR_KIND, FATE, ROLE, SYSTEM_KIND, TOOL_GROUP, TOOL_OUTCOME
from server.wire.values import ConversionContext, duration, struct, timestamp, usage

STRUCT_BYTES = 4096
"""An input of a tool call whose protobuf Struct has up to this number of bytes is always sent as a Struct.

A larger Struct is sent only if it is at most twice as long as the JSON text; otherwise the JSON text is sent.
"""


def message(conversion: ConversionContext, conversation_id: str, stored: Message) -> v1.Message:
    """Return a stored message as an API message."""
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
    """Return a message that was sent to a busy agent, and is or was queued, as an API message."""
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
    """Return a message that was sent to a busy agent, with what became of it, as an API message.

    `at` is when the message left the queue, in milliseconds since 1970.
    """
    return v1.QueuedMessage(
        message=queued_message(conversation_id, change.input, change.delivery, run),
        fate=FATE[change.fate],
        settle_time=None if change.fate is Fate.QUEUED else timestamp(at),
    )


def _is_visible(part: Content) -> bool:
    """Return whether clients see a part of a message.

    Reasoning without text, which the provider hides, is not shown.
    """
    return not isinstance(part, Reasoning) or bool(part.text)


def block(conversion: ConversionContext, conversation_id: str, part: Content) -> v1.ContentBlock:
    """Return a part of a message, such as text or a tool call, as an API message."""
    match part:
        case Text(text=text):
            return v1.ContentBlock(text=text)
        case Reasoning(text=text):
            return v1.ContentBlock(reasoning=text)
        case Image():
            return v1.ContentBlock(image=image(conversation_id, part))
        case ToolUse():
            return v1.ContentBlock(tool_call=tool_call(conversion, part))
        case ToolSuccess() | ToolError() | ToolCancelled() | SubAgentComplete():
            return v1.ContentBlock(tool_result=tool_result(conversation_id, part))


def image(conversation_id: str, stored: Image) -> v1.Image:
    """Return a reference to a stored image as an API message."""
    return v1.Image(
        media_type=stored.media_type,
        attachment=names.attachment(conversation_id, stored.attachment),
        width=stored.width,
        height=stored.height,
    )


def tool_call(conversion: ConversionContext, call: ToolUse) -> v1.ToolCall:
    """Return a tool call as an API message. An input that would be much larger as a Struct is sent as JSON text.

    In a Struct, numbers in lists take many times the size of their text, and responses would become too large for
    clients.
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


def tool_result(conversation_id: str, result: ToolResult) -> v1.ToolResult:
    """Return the result of a tool call as an API message."""
    answer = v1.ToolResult(tool_use_id=result.tool_use_id, outcome=TOOL_OUTCOME[result.outcome], output=result.output)
    if isinstance(result, ToolSuccess):
        answer.images.extend(image(conversation_id, picture) for picture in result.images)
    if isinstance(result, ToolSuccess | ToolError):
        if result.display and (display := struct(result.display)) is not None:
            answer.display.CopyFrom(display)
        if result.duration_ms:
            answer.duration.CopyFrom(duration(result.duration_ms))
    return answer
