"""Queued messages as rows of a table, and as lines of a chat."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from bedrock.cli.display.labels import fate
from bedrock.cli.text.style import one_line
from bedrock.cli.text.tables import ago

if TYPE_CHECKING:
    from bedrock import AsyncConversation
    from bedrock.messages import QueuedMessage


async def queue_lines(conversation: AsyncConversation) -> list[str]:
    """Return a line for each queued message, to be shown in a chat; if none is queued, one line that says so."""
    now = datetime.now(UTC)  # noqa: TID251 -- ages are computed with this machine's clock
    waiting = [queue_row(entry, now) async for entry in conversation.queue()]
    return [f"· {delivery}, sent {sent} ago: “{one_line(text, 60)}”" for _, delivery, sent, _, text in waiting] or [
        "· nothing waits"
    ]


def queue_row(entry: QueuedMessage, now: datetime) -> tuple[str, str, str, str, str]:
    """Return a queued message as a table row: id, delivery, age, fate and text."""
    message = entry.message
    return (
        message.name.rpartition("/")[2],
        entry.message.delivery.replace("_", "-"),
        ago(message.create_time, now),
        fate(entry.fate),
        message.text,
    )
