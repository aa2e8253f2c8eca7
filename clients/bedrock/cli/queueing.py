"""Commands about messages that wait: queue, withdraw."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from itertools import islice

import click

from bedrock import AsyncConversation, v1
from bedrock._shared.names import enum_name
from bedrock.cli.connection import connect
from bedrock.cli.names import NAME
from bedrock.cli.paint import one_line
from bedrock.cli.tables import JSON_OPTION, ago, print_messages, print_table
from bedrock.cli.text.output import print_text
from bedrock.cli.words import fate
from bedrock.messages import Message


@click.command()
@NAME
@click.option("--all", "everything", is_flag=True, help="Also those that wait no more, with what became of them.")
@click.option("-n", "--limit", type=click.IntRange(1), default=50, show_default=True, help="How many of the latest.")
@JSON_OPTION
@click.pass_context
def queue(ctx: click.Context, name: str, everything: bool, limit: int, output: str) -> None:
    """List the messages that wait for their turn."""
    entries = connect(ctx).conversation(name).queue(include_settled=everything, newest_first=True)
    found = list(islice(entries, limit))[::-1]
    if output == "json":
        print_messages(found)
        return
    if not found and sys.stdout.isatty():
        print_text("Nothing has waited yet." if everything else "Nothing waits.")
        return
    now = datetime.now(UTC)  # noqa: TID251 -- the age of things is meant for the reader's clock
    print_table(("message", "delivery", "sent", "fate", "text"), (_row(entry, now) for entry in found))


@click.command()
@NAME
@click.argument("messages", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that wait.")
@click.pass_context
def withdraw(ctx: click.Context, name: str, messages: tuple[str, ...], everything: bool) -> None:
    """Take back messages that still wait.

    Those named, or the one that was sent last. `bedrock queue` shows what they are called. Their texts are printed.
    """
    if messages and everything:
        raise click.UsageError("name messages, or use --all")
    conversation = connect(ctx).conversation(name)
    chosen = [message if "/" in message else f"{conversation.name}/messages/{message}" for message in messages]
    if not chosen:
        waiting = [entry.message.name for entry in conversation.queue(newest_first=True)]
        chosen = waiting if everything else waiting[:1]
    if not chosen:
        print_text("nothing waits", err=True)
    for each in chosen:
        print_text(f"withdrawn: {one_line(conversation.withdraw(each).text, 200)}")


async def queue_lines(conversation: AsyncConversation) -> list[str]:
    """Say in a chat what waits, a line for each message."""
    waiting = [_row(entry, datetime.now(UTC)) async for entry in conversation.queue()]  # noqa: TID251 -- as above
    return [f"· {delivery}, sent {sent} ago: “{one_line(text, 60)}”" for _, delivery, sent, _, text in waiting] or [
        "· nothing waits"
    ]


def _row(entry: v1.QueuedMessage, now: datetime) -> tuple[str, str, str, str, str]:
    message = Message(entry.message)
    return (
        message.name.rpartition("/")[2],
        enum_name(v1.Delivery, entry.message.delivery).replace("_", "-"),
        ago(message.time, now),
        fate(enum_name(v1.QueuedMessage.Fate, entry.fate)),
        message.text,
    )
