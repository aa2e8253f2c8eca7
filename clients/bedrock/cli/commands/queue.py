"""Commands for queued messages: queue, withdraw."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice

import click

from bedrock.cli.arguments import NAME
from bedrock.cli.connect import connect
from bedrock.cli.display.queue_rows import queue_row
from bedrock.cli.text.output import print_text
from bedrock.cli.text.tables import JSON_OPTION, print_table, print_values


@click.command()
@NAME
@click.option("--all", "everything", is_flag=True, help="Include messages that are no longer queued, with their fates.")
@click.option("-n", "--limit", type=click.IntRange(1), default=50, show_default=True, help="How many of the latest.")
@JSON_OPTION
@click.pass_context
def queue(ctx: click.Context, name: str, everything: bool, limit: int, output: str) -> None:
    """List the queued messages of a conversation."""
    entries = connect(ctx).conversation(name).queue(include_settled=everything, newest_first=True)
    found = list(islice(entries, limit))[::-1]
    if output == "json":
        print_values(found)
        return
    now = datetime.now(UTC)  # noqa: TID251 -- ages are computed with this machine's clock
    print_table(
        ("message", "delivery", "sent", "fate", "text"),
        (queue_row(entry, now) for entry in found),
        none="Nothing has waited yet." if everything else "Nothing waits.",
    )


@click.command()
@NAME
@click.argument("messages", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Withdraw all queued messages.")
@click.pass_context
def withdraw(ctx: click.Context, name: str, messages: tuple[str, ...], everything: bool) -> None:
    """Withdraw messages from the queue, and print their texts.

    Without MESSAGES, the one that was sent last is withdrawn. `bedrock queue` shows the ids of messages.
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
        print_text(f"withdrawn: {conversation.withdraw(each).message.text}")
