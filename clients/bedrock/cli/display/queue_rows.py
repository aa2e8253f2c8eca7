"""Messages of the queue as rows of a table and as lines of a chat."""

from __future__ import annotations

from datetime import UTC, datetime

from bedrock import AsyncConversation, v1
from bedrock._shared.enum_names import enum_name
from bedrock.cli.display.labels import fate
from bedrock.cli.text.style import one_line
from bedrock.cli.text.tables import ago
from bedrock.messages import Message


async def queue_lines(conversation: AsyncConversation) -> list[str]:
    """Describe the waiting messages for a chat, one line for each message."""
    now = datetime.now(UTC)  # noqa: TID251 -- the age of things is meant for the reader's clock
    waiting = [queue_row(entry, now) async for entry in conversation.queue()]
    return [f"· {delivery}, sent {sent} ago: “{one_line(text, 60)}”" for _, delivery, sent, _, text in waiting] or [
        "· nothing waits"
    ]


def queue_row(entry: v1.QueuedMessage, now: datetime) -> tuple[str, str, str, str, str]:
    """Return message id, delivery, age, fate and text of a message in the queue."""
    message = Message(entry.message)
    return (
        message.name.rpartition("/")[2],
        enum_name(v1.Delivery, entry.message.delivery).replace("_", "-"),
        ago(message.time, now),
        fate(enum_name(v1.QueuedMessage.Fate, entry.fate)),
        message.text,
    )
