"""Reads and prints what the stored messages of a conversation do not show: undelivered messages and interrupted runs.

Each is printed as one line that tells its outcome, in chronological order among the messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TypeAlias

from bedrock import AsyncConversation
from bedrock.cli.display.labels import NOT_RUN, fate, interruption
from bedrock.cli.text.safe_text import SafeText
from bedrock.cli.text.style import Paint, one_line
from bedrock.messages import Message, QueuedMessage
from bedrock.request_cycles import RequestCycle

Fate: TypeAlias = QueuedMessage | RequestCycle
"""A queued message with its outcome, or an interrupted run."""

NEVER = datetime.max.replace(tzinfo=UTC)


async def fates_among(
    conversation: AsyncConversation, messages: Sequence[Message], until: datetime = NEVER
) -> list[Fate]:
    """The queued messages and interrupted runs to print among `messages`, decided by `until`.

    They have left the queue after the first of `messages` was stored, or still wait.
    """
    if not messages:
        return []
    settled: list[Fate] = []
    async for entry in conversation.queue(include_settled=True, newest_first=True):
        if _decided(entry) < messages[0].create_time:
            break
        settled.append(entry)
    cut_short: list[Fate] = []
    runs = {message.request_cycle for message in messages} - {""}
    async for cycle in conversation.cycles(view="rounds", newest_first=True):
        if not runs:
            break
        # No stored message shows how an interrupted run ended, unless it was discarded before it began.
        if cycle.name in runs and cycle.stop_reason == "interrupted" and cycle.stop_detail != "not_run":
            cut_short.append(cycle)
        runs.discard(cycle.name)
    return [entry for entry in (*reversed(settled), *cut_short) if _decided(entry) <= until]


def with_fates(messages: Iterable[Message], fates: Iterable[Fate]) -> Iterator[Message | Fate]:
    """Yield messages, with outcomes at the times of their decisions.

    That of a discarded message, which is one of `messages`, follows it; those that wait come last.
    """
    dropped: dict[str, Fate] = {}
    others: deque[Fate] = deque()
    for entry in sorted(fates, key=_decided):
        if isinstance(entry, RequestCycle) or entry.fate not in ("delivered", "discarded"):
            others.append(entry)
        elif entry.fate == "discarded":
            dropped[entry.message.name] = entry
    for message in messages:
        while others and _is_before(others[0], message):
            yield others.popleft()
        yield message
        if message.name in dropped:
            yield dropped[message.name]
    yield from others


def fate_line(entry: Fate, paint: Paint) -> SafeText:
    """Describe the outcome of an undelivered message, or that it is still queued, or why a run was interrupted."""
    if isinstance(entry, RequestCycle):
        return paint.careful(f"■ {interruption(entry.stop_detail)}")
    match entry.fate:
        case "discarded":
            return paint.careful(f"■ {NOT_RUN}")
        case "queued":
            text = f"waits ({entry.message.delivery.replace('_', '-')})"
        case "returned":
            text = f"was {fate('returned')}; send it again if it still matters"
        case other:
            text = f"was {fate(other)}"
    return paint.dim(f"⋯ “{one_line(entry.message.text, 60)}” {text}")


def _decided(entry: Fate) -> datetime:
    """When the outcome was decided; the latest possible time if the message is still queued."""
    decided = entry.end_time if isinstance(entry, RequestCycle) else entry.settle_time
    return decided or NEVER


def _is_before(entry: Fate, message: Message) -> bool:
    """Whether an outcome was decided before a message was stored.

    At equal times, if it is another run's: one may end at the very time at which the next begins.
    """
    decided, stored = _decided(entry), message.create_time
    run = entry.name if isinstance(entry, RequestCycle) else entry.message.request_cycle
    return decided < stored or (decided == stored and run != message.request_cycle)
