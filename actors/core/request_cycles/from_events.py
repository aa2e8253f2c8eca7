"""Converts a conversation's durable notifications into the input events of the Request Cycle Model."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from actors.core.content import (
    Delivery,
    Image,
    Message,
    MessageType,
    Reasoning,
    SubAgentComplete,
    Text,
    ToolCancelled,
    ToolError,
    ToolSuccess,
    ToolUse,
    text_of,
)
from actors.core.context import ToolGroup
from actors.core.notifications import Fate, MessageAdded, Notification, QueueChanged, RunStop
from actors.core.request_cycles.model import (
    AgentOutput,
    CycleDelivery,
    CycleEvent,
    CycleRunStop,
    CycleUserMessage,
    OutputKind,
    ToolResult,
    UserMessageWithdrawn,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


def events_of(
    notifications: Iterable[Notification], groups: Mapping[str, ToolGroup], times: Iterable[int] = repeat(0)
) -> Iterator[CycleEvent]:
    """Convert a conversation's durable notifications into input events, one by one.

    `groups` maps the names of tools to their groups; all other tools are in the group OTHER. `times` are the times at
    which the notifications were stored, in milliseconds since the epoch. The event of a follow-up (a message that waits
    for the end of the run) comes when the message is queued, not again when its run begins.
    """
    accepted: set[str] = set()
    for notification, at in zip(notifications, times, strict=False):
        match notification:
            case QueueChanged(input=queued, delivery=Delivery.FOLLOW_UP.value, fate=Fate.QUEUED):
                accepted.add(queued.message_id)
                yield CycleUserMessage(queued.message_id, CycleDelivery.FOLLOW_UP, queued.text, queued.at)
            case QueueChanged(input=queued, delivery=Delivery.FOLLOW_UP.value, fate=Fate.WITHDRAWN):
                yield UserMessageWithdrawn(queued.message_id)
            case MessageAdded(message=message) if message.id not in accepted:
                yield from _events_of_message(message, groups)
            case RunStop(run, reason, detail, output=output):
                yield CycleRunStop(reason, detail, run, at, output)
            case _:
                pass


def _events_of_message(message: Message, groups: Mapping[str, ToolGroup]) -> Iterator[CycleEvent]:
    """Yield the input events of one message.

    Only messages of people and of parent agents are user messages; reminders, notices and summaries are not.
    """
    if message.type is MessageType.USER and not message.meta:
        delivery = _DELIVERIES.get(message.delivery, CycleDelivery.DIRECT)
        yield CycleUserMessage(message.id, delivery, text_of(message.content), message.created_at)
    served, at = message.request_id or None, message.created_at
    for block in message.content:
        match block:
            case Text() if message.type is MessageType.AGENT:
                yield AgentOutput(OutputKind.ASSISTANT, block.text, served, message_id=message.id, at=at)
            case Reasoning() if block.text:
                yield AgentOutput(OutputKind.REASONING, block.text, served, message_id=message.id, at=at)
            case ToolUse():
                yield AgentOutput(
                    OutputKind.TOOL_CALL,
                    round=served,
                    tool_call_id=block.id,
                    tool=block.name,
                    input=block.input,
                    group=block.group or groups.get(block.name, ToolGroup.OTHER),
                    message_id=message.id,
                    at=at,
                )
            case ToolSuccess() | ToolError():
                yield ToolResult(block.tool_use_id, block.outcome.value, message.id, at, block.duration_ms)
            case ToolCancelled() | SubAgentComplete():
                yield ToolResult(block.tool_use_id, block.outcome.value, message.id, at)
            case Text() | Image() | Reasoning():  # Text not from the agent, images and hidden reasoning give no event.
                pass


_DELIVERIES = {Delivery.STEER.value: CycleDelivery.STEER, Delivery.FOLLOW_UP.value: CycleDelivery.FOLLOW_UP}
