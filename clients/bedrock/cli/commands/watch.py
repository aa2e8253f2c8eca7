"""`bedrock watch`: follows a conversation and its sub-agents, or the list of conversations."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sys
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from bedrock import AsyncClient
from bedrock._shared.enum_names import resource_name
from bedrock.cli import exit_codes as exits
from bedrock.cli import stdio as streams
from bedrock.cli.arguments import CONVERSATION, FILTER_OPTION
from bedrock.cli.display.connection_state import Outage
from bedrock.cli.display.follower import Onlooker
from bedrock.cli.display.live_list import watch_list
from bedrock.cli.text.live_block import LiveBlock
from bedrock.cli.text.output import print_json, print_line
from bedrock.cli.text.style import PLAIN_OPTION, Paint, columns

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from bedrock.cli.text.safe_text import SafeText

#: Seconds between updates of the durations in the tree of sub-agents.
TICK = 0.5
#: The text or tool output that is streaming in is shown in at most UNFINISHED_LINES lines, and in at most
#: 1 / UNFINISHED_SHARE of the terminal's rows.
UNFINISHED_LINES, UNFINISHED_SHARE = 8, 4


@click.command()
@click.argument("name", required=False, type=CONVERSATION)
@click.option(
    "--output",
    type=click.Choice(["text", "stream-json"]),
    default="text",
    help="Text for people, or JSON lines.",
)
@FILTER_OPTION
@PLAIN_OPTION
@click.pass_context
def watch(ctx: click.Context, name: str | None, output: str, filter_: str, plain: bool) -> None:
    """Follow a conversation, or the list of conversations, until Ctrl-C. Watching changes nothing.

    While sub-agents are at work a terminal shows what each of them is doing. To see all that one does, watch it by its
    own name: `bedrock list --parent NAME` lists them. FILTER narrows the list, as that of `bedrock list` does.
    """
    if name is not None and filter_:
        raise click.UsageError("--filter is for the list of conversations: give no NAME")
    address: str | None = ctx.find_root().obj
    if name is None:
        following = watch_list(address, output, filter_)
    elif output == "stream-json":
        following = _print_events(address, name)
    else:
        following = _watch(address, name, plain=plain)
    asyncio.run(_until_closed(following))


async def _until_closed(following: Coroutine[Any, Any, None]) -> None:
    """Run `following` to its end, but stop as soon as the reader of standard output has closed it.

    Raises:
        BrokenPipeError: The output is closed.
    """
    watching = asyncio.create_task(following)
    looking = asyncio.create_task(streams.until_closed(sys.stdout))
    await asyncio.wait((watching, looking), return_when=asyncio.FIRST_COMPLETED)
    gone = not watching.done()
    for task in (watching, looking):
        task.cancel()
    results = await asyncio.gather(watching, looking, return_exceptions=True)
    if gone:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
    if isinstance(results[0], BaseException):
        raise results[0]


async def _print_events(address: str | None, name: str) -> None:
    async with AsyncClient(address) as client:
        conversation = client.conversation(resource_name("conversations", name))
        outage = Outage(lambda: conversation, exits.print_message)
        client.on_disconnect = outage.begin
        try:
            async with aclosing(conversation.events()) as events:
                async for event in events:
                    outage.end()
                    print_json(event.to_dict())
        finally:
            outage.close()


async def _watch(address: str | None, name: str, *, plain: bool) -> None:
    live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    width = columns(sys.stdout) if live else None
    block = LiveBlock(sys.stdout)
    async with AsyncClient(address) as client:
        paint = Paint.for_stream(sys.stdout, plain=plain)
        onlooker = Onlooker(client.conversation, paint, block.write if live else print_line, live=live, width=width)
        ticking = asyncio.create_task(_draw(block, onlooker)) if live else None
        conversation = client.conversation(resource_name("conversations", name))
        above = partial(_say_above, block, paint)
        outage = Outage(lambda: conversation, above if live else exits.print_message)
        client.on_disconnect = outage.begin
        try:
            async with aclosing(conversation.events(omit_deltas=not live)) as events:
                async for _ in onlooker.follow(events):
                    outage.end()
                    if live:
                        block.show(_unfinished(onlooker))
        finally:
            outage.close()
            if ticking is not None:
                ticking.cancel()


def _say_above(block: LiveBlock, paint: Paint, text: str) -> None:
    block.write(paint.careful(f"· {text}"))


async def _draw(block: LiveBlock, onlooker: Onlooker) -> None:
    while True:
        block.show(_unfinished(onlooker))
        await asyncio.sleep(TICK)


def _unfinished(onlooker: Onlooker) -> list[SafeText]:
    room = min(shutil.get_terminal_size().lines // UNFINISHED_SHARE, UNFINISHED_LINES)
    return [*onlooker.transcript.unfinished(room), *onlooker.agent_lines()]
