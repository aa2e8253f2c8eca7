"""`bedrock watch` without a name: a live table of the active conversations or, in a pipe, one line for each change."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING

from bedrock import AsyncClient
from bedrock.cli.display.labels import state_in_words
from bedrock.cli.text.live_block import LiveBlock
from bedrock.cli.text.output import print_json, print_line
from bedrock.cli.text.safe_text import SafeText
from bedrock.cli.text.style import Paint, cells, cut, cut_start
from bedrock.cli.text.tables import with_tilde

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from bedrock.conversations import ConversationInfo, ConversationListEvent

#: The number of the terminal's lines that the table leaves free.
MARGIN = 3
#: Maximum columns of a directory's path in the table.
DIRECTORY_COLUMNS = 30


async def watch_list(address: str | None, output: str, wanted: str = "") -> None:
    """Print the list of conversations and its changes until the stream ends. `wanted` is a filter; "" for all."""
    async with AsyncClient(address) as client, aclosing(client.watch_conversations(filter=wanted)) as entries:
        if output == "stream-json":
            async for entry in entries:
                print_json(entry.to_dict())
        elif sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
            await _draw(entries)
        else:
            paint, slugs = Paint.for_stream(sys.stdout), dict[str, str]()
            async for entry in entries:
                if line := _line(entry, paint, slugs):
                    print_line(line)


async def _draw(entries: AsyncIterator[ConversationListEvent]) -> None:
    """Redraw the table in place at each change; existing conversations are shown together at the start."""
    table, block, paint = Listing(), LiveBlock(sys.stdout), Paint.for_stream(sys.stdout)
    caught_up = False
    async for entry in entries:
        table.take(entry)
        caught_up = caught_up or entry.kind == "caught_up"
        if caught_up and entry.kind != "heartbeat":
            size = shutil.get_terminal_size()
            block.show(table.lines(paint, size.columns - 1, size.lines - MARGIN))


def _line(entry: ConversationListEvent, paint: Paint, slugs: dict[str, str]) -> SafeText:
    """Return the line for a change; empty if there is nothing to print.

    `slugs` maps the names of the conversations shown so far to their slugs, and is updated.
    """
    if gone := entry.conversation_deleted or entry.conversation_unmatched:
        ending = "  deleted" if entry.conversation_deleted else "  does not match any more"
        return paint.flat(slugs.pop(gone, gone)) + ending
    if (changed := entry.conversation_changed) is None:
        return SafeText()
    slugs[changed.name] = changed.slug
    state = "archived" if changed.archive_time else _state(changed)
    titled = ("  ", paint.flat(changed.title)) if changed.title else ()
    return paint.text(paint.flat(changed.slug), "  ", state, *titled)


def _state(conversation: ConversationInfo) -> str:
    return state_in_words(conversation.state.kind)


class Listing:
    """The active conversations, the latest changed first."""

    def __init__(self) -> None:
        self._active: dict[str, ConversationInfo] = {}

    def take(self, entry: ConversationListEvent) -> None:
        """Apply one event of the stream."""
        if entry.kind in ("conversation_deleted", "conversation_unmatched"):
            self._active.pop(entry.conversation_deleted or entry.conversation_unmatched, None)
        elif (changed := entry.conversation_changed) is not None:
            self._active.pop(changed.name, None)
            if not changed.archive_time:
                self._active[changed.name] = changed

    def lines(self, paint: Paint, width: int, height: int) -> list[SafeText]:
        """Return the table in at most `width` columns and `height` lines.

        If there is no room for all conversations, the last line says how many are omitted.
        """
        latest = sorted(self._active.values(), key=lambda each: each.update_time, reverse=True)
        if not latest:
            return [paint.dim("No conversations. Start one: `bedrock chat`.")]
        shown = latest if len(latest) <= height - 1 else latest[: max(1, height - 2)]
        rows = [("slug", "state", "mode", "context", "directory", "title"), *(_cells(each, paint) for each in shown)]
        widths = [max(cells(row[column]) for row in rows) for column in range(5)]
        lines = [paint.clean(cut(_row(row, widths), width)) for row in rows]
        lines[0] = paint.dim(lines[0])
        if len(shown) < len(latest):
            lines.append(paint.dim(f"and {len(latest) - len(shown)} more"))
        return lines


def _cells(conversation: ConversationInfo, paint: Paint) -> tuple[str, ...]:
    usage = conversation.context_usage
    share = f"{100 * usage.used_tokens / usage.usable_window_tokens:.0f} %" if usage.usable_window_tokens else ""
    directory = cut_start(paint.flat(with_tilde(conversation.working_directory)), DIRECTORY_COLUMNS)
    slug, title = paint.flat(conversation.slug), paint.flat(conversation.title)
    return slug, _state(conversation), conversation.mode, share, directory, title


def _row(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join((*(cell + " " * (width - cells(cell)) for cell, width in zip(row, widths, strict=False)), row[-1]))
