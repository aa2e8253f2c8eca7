"""What became of messages that had to wait, put among the messages that were stored, and as a line for people."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from bedrock import AsyncConversation, Conversation, Message, v1
from bedrock._names import enum_name
from bedrock.cli.paint import Paint, one_line
from bedrock.cli.words import NOT_RUN, fate

_WAITS = v1.QueuedMessage.FATE_QUEUED
_DELIVERED = v1.QueuedMessage.FATE_DELIVERED
_DISCARDED = v1.QueuedMessage.FATE_DISCARDED


def fates_since(conversation: Conversation, messages: Sequence[Message]) -> list[v1.QueuedMessage]:
    """Read what waits, and what became of others since the first of some messages, in order."""
    if not messages:
        return []
    entries = conversation.queue(include_settled=True, newest_first=True)
    return list(takewhile(lambda entry: _is_since(entry, messages[0]), entries))[::-1]


async def fates_of_snapshot(conversation: AsyncConversation, snapshot: v1.Event.Snapshot) -> list[v1.QueuedMessage]:
    """What waited when a snapshot was taken, and what had become of others since the first of its messages.

    What has happened since then is left out: the events that follow tell it.
    """
    if not snapshot.messages:
        return []
    first, until = Message(snapshot.messages[0]), snapshot.conversation.update_time.ToNanoseconds()
    settled: list[v1.QueuedMessage] = []
    async for entry in conversation.queue(include_settled=True, newest_first=True):
        if not _is_since(entry, first):
            break
        if entry.fate != _WAITS and entry.settle_time.ToNanoseconds() <= until:
            settled.append(entry)
    return settled[::-1] + [v1.QueuedMessage(message=message, fate=_WAITS) for message in snapshot.queue]


def with_fates(messages: Iterable[Message], fates: Iterable[v1.QueuedMessage]) -> Iterator[Message | v1.QueuedMessage]:
    """Yield messages in their order, and between them the fates of those that were never delivered.

    A fate stands where it was decided: of a message that is in the history behind it; of what waits at the end.
    """
    entries = [entry for entry in fates if entry.fate != _DELIVERED]
    dropped = {entry.message.name: entry for entry in entries if entry.fate == _DISCARDED}
    others = deque(entry for entry in entries if entry.fate != _DISCARDED)
    for message in messages:
        while others and _is_before(others[0], message):
            yield others.popleft()
        yield message
        if message.name in dropped:
            yield dropped[message.name]
    yield from others


def fate_line(entry: v1.QueuedMessage, paint: Paint) -> str:
    """Say what became of a message that was not delivered, or that it waits."""
    match enum_name(v1.QueuedMessage.Fate, entry.fate):
        case "discarded":
            return paint.careful(f"■ {NOT_RUN}")
        case "queued":
            text = f"waits ({enum_name(v1.Delivery, entry.message.delivery).replace('_', '-')})"
        case "returned":
            text = f"was {fate('returned')}; send it again if it still matters"
        case other:
            text = f"was {fate(other)}"
    return paint.dim(f"⋯ “{one_line(Message(entry.message).text, 60)}” {text}")


def _is_since(entry: v1.QueuedMessage, first: Message) -> bool:
    return entry.fate == _WAITS or entry.settle_time.ToNanoseconds() >= first.proto.create_time.ToNanoseconds()


def _is_before(entry: v1.QueuedMessage, message: Message) -> bool:
    """Whether a wait ended before a message was stored. The end of a run and the next run can be one moment."""
    if entry.fate == _WAITS:
        return False
    settled, stored = entry.settle_time.ToNanoseconds(), message.proto.create_time.ToNanoseconds()
    next_run = entry.message.request_cycle != message.proto.request_cycle
    return settled < stored or (settled == stored and next_run)
