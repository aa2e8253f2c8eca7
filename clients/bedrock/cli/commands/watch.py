"""`bedrock watch`: follows a conversation or, with one line for each change, the list of conversations."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import AsyncExitStack, aclosing, closing

import click

from bedrock import AsyncClient
from bedrock._shared.wrapper import resource_name
from bedrock.cli import exit_codes as exits
from bedrock.cli import stdio as streams
from bedrock.cli.arguments import CONVERSATION, FILTER_OPTION, option
from bedrock.cli.display.follower import Drawing, Outage
from bedrock.cli.display.labels import state_in_words
from bedrock.cli.text.live_block import LiveBlock
from bedrock.cli.text.output import print_json, print_line
from bedrock.cli.text.safe_text import SafeText
from bedrock.cli.text.style import Paint, columns
from bedrock.conversations import ConversationListEvent


async def watch_list(address: str | None, output: str, wanted: str = "") -> None:
    """Print the list of conversations and its changes until the stream ends. `wanted` is a filter; "" for all."""
    async with AsyncClient(address) as client, aclosing(client.watch_conversations(filter=wanted)) as entries:
        if output == "stream-json":
            async for entry in entries:
                print_json(entry.to_dict())
        else:
            paint, slugs = Paint.for_stream(sys.stdout), dict[str, str]()
            async for entry in entries:
                if line := _line(entry, paint, slugs):
                    print_line(line)


def _line(entry: ConversationListEvent, paint: Paint, slugs: dict[str, str]) -> SafeText:
    """The line for a change; empty if there is nothing to print.

    `slugs` maps the names of the conversations shown so far to their slugs, and is updated.
    """
    if gone := entry.conversation_deleted or entry.conversation_unmatched:
        ending = "  deleted" if entry.conversation_deleted else "  no longer matches"
        return paint.flat(slugs.pop(gone, gone)) + ending
    if (changed := entry.conversation_changed) is None:
        return SafeText()
    slugs[changed.name] = changed.slug
    state = "archived" if changed.archive_time else state_in_words(changed.state.kind)
    titled = ("  ", paint.flat(changed.title)) if changed.title else ()
    return paint.text(paint.flat(changed.slug), "  ", state, *titled)


# The text or tool output that is streaming in is shown in at most UNFINISHED_LINES lines, and in at most
# 1 / UNFINISHED_SHARE of the terminal's rows.
UNFINISHED_LINES, UNFINISHED_SHARE = 8, 4


@click.command()
@click.argument("name", required=False, type=CONVERSATION)
@option("--output", "Text for people, or JSON lines.", type=click.Choice(["text", "stream-json"]), default="text")
@FILTER_OPTION
@click.pass_context
def watch(ctx: click.Context, name: str | None, output: str, filter_: str) -> None:
    """Follow a conversation, or the list of conversations, until Ctrl-C. Watching changes nothing.

    A terminal also shows which sub-agents are at work. To follow one, watch it by its own name: `bedrock list --parent
    NAME` lists them. FILTER narrows the list, as that of `bedrock list` does.
    """
    if name is not None and filter_:
        raise click.UsageError("--filter is only for the list of conversations, without NAME")
    address: str | None = ctx.find_root().obj
    following = watch_list(address, output, filter_) if name is None else _watch(address, name, output)
    streams.run(following)


async def _watch(address: str | None, name: str, output: str) -> None:
    text = output == "text"
    live = text and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    paint, block = Paint.for_stream(sys.stdout), LiveBlock(sys.stdout)
    width = columns(sys.stdout) if live else None
    drawing = Drawing(paint, block.write if live else print_line, live=live, width=width)

    def below() -> list[SafeText]:
        room = min(shutil.get_terminal_size().lines // UNFINISHED_SHARE, UNFINISHED_LINES)
        return [*drawing.transcript.unfinished(room), *drawing.agent_lines()]

    def say(text: str) -> None:
        if live:
            block.write(paint.careful(f"· {text}"))
        else:
            exits.print_message(text)

    async with AsyncClient(address) as client, AsyncExitStack() as stack:
        conversation = client.conversation(resource_name("conversations", name))
        outage = stack.enter_context(closing(Outage(lambda: conversation, say)))
        client.on_disconnect = outage.begin
        if live:
            await stack.enter_async_context(block.updated(below))
        events = await stack.enter_async_context(aclosing(conversation.events(omit_deltas=text and not live)))
        async for event in drawing.follow(events, client.conversation) if text else events:
            outage.end()
            if not text:
                print_json(event.to_dict())
            elif live:
                block.show(below())
