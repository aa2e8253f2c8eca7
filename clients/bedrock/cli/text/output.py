"""The only functions of the program that print: other modules use neither `print` nor `click.echo`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import click

from bedrock.cli.text.safe_text import SafeText, for_pipe, for_terminal, json_text
from bedrock.cli.text.style import Flow, LineFlow, Paint, Width, cells, columns, cut, cut_start

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from bedrock._shared.wrapper import Wrapper

Write: TypeAlias = Callable[[SafeText], None]
"""A function that prints a line."""


def print_line(line: SafeText, *, err: bool = False) -> None:
    """Print a line to standard output, or to standard error if `err`."""
    click.echo(line, err=err)  # noqa: TID251 -- the only place where click.echo may be called


def print_text(text: str, *, err: bool = False) -> None:
    """Print a line of untrusted text, sanitized for a terminal or a pipe."""
    stream = sys.stderr if err else sys.stdout
    print_line(for_terminal(text) if stream.isatty() else for_pipe(text), err=err)


def print_json(value: Any, *, indent: int | None = None) -> None:
    """Print a value as JSON in printable ASCII. All other characters are escaped, so that none is lost."""
    print_line(SafeText(json.dumps(value, indent=indent)))


def print_json_line(line: str) -> None:
    """Print a line that is JSON already. Characters that are unsafe to print are escaped; none is lost."""
    print_line(json_text(line))


def window_title(title: str) -> SafeText:
    """Return the control sequence that sets the title of a terminal window."""
    return SafeText(f"\x1b]2;{' '.join(for_terminal(title).split())}\x07")


JSON_OPTION = click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", help="Text for people, or JSON for programs."
)

#: Minimum width of a truncated column, in a narrow terminal. The first column, which holds names, is never truncated.
LEAST = 8
#: Columns of at most this width, such as the mode, are truncated only after all wider ones have shrunk to LEAST.
SHORT = 12
_GAP = "  "


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, none: str, paths: str = "") -> None:
    """Print a table. At a terminal its columns are aligned and truncated; in a pipe the cells are whole, tab-separated.

    The first column contains names that users pass to other commands, and is never truncated. `paths` is the head of
    the column of directories: at a terminal the home directory is shown as ~, and a path that is too long is truncated
    at its start. If there are no rows, the sentence `none` is printed as by `print_none`.
    """
    room, paint, rows = columns(sys.stdout), Paint.for_stream(sys.stdout), list(rows)
    if not rows:
        print_none(none)
        return
    if room is None:
        for row in rows:
            print_line(paint.text("\t".join(paint.clean(cell).replace("\n", " ").replace("\t", " ") for cell in row)))
        return
    at = head.index(paths) if paths else None
    first, *rest = fitted([head, *rows], room(), at)
    print_line(paint.bold(first))
    for line in rest:
        print_line(line)


def print_none(text: str) -> None:
    """Print that there is nothing to list: to standard error, unless standard output is a terminal."""
    print_text(text, err=not sys.stdout.isatty())


def fitted(rows: Iterable[Sequence[str]], room: int, paths: int | None = None) -> list[SafeText]:
    """Lay out rows as a table that is at most `room` characters wide. `paths` is the index of the directory column.

    If the table is too wide, its widest columns are truncated, but never the first one, and none to less than LEAST.
    Columns no wider than SHORT are truncated only after all others. If that is not enough, the table is wider than
    `room`.
    """
    flattened = [
        [" ".join(for_terminal(with_tilde(cell) if at == paths else cell).split()) for at, cell in enumerate(row)]
        for row in rows
    ]
    first, *others = (max(map(cells, column)) for column in zip(*flattened, strict=True))
    widths = [first, *_narrowed(others, room - first - len(_GAP) * len(others))]
    cutting = [cut_start if at == paths else cut for at in range(len(widths))]
    return [for_terminal(_GAP.join(map(_padded, row, widths, cutting)).rstrip()) for row in flattened]


def with_tilde(path: str) -> str:
    """Return a path with ~ for the home directory of this machine's user."""
    home = os.path.realpath(os.path.expanduser("~"))
    return "~" + path.removeprefix(home) if path == home or path.startswith(f"{home}/") else path


def _padded(cell: str, width: int, cutting: Callable[[str, int], str]) -> str:
    cell = cutting(cell, width)
    return cell + " " * (width - cells(cell))


def _narrowed(widths: list[int], room: int) -> list[int]:
    short = [width for width in widths if width <= SHORT]
    long = [width for width in widths if width > SHORT]
    long_limit = _limit(long, room - sum(short))
    short_limit = _limit(short, room - sum(min(width, long_limit) for width in long))
    return [min(width, short_limit if width <= SHORT else long_limit) for width in widths]


def _limit(widths: list[int], room: int) -> int:
    """Return the largest column width with which all columns fit into `room`, but at least LEAST."""
    limits = range(min(max(widths, default=LEAST), room), LEAST, -1)
    return next((limit for limit in limits if sum(min(width, limit) for width in widths) <= room), LEAST)


def print_values(values: Iterable[Wrapper[Any]]) -> None:
    """Print objects of the client as JSON, with the field names of the gRPC API."""
    print_json([value.to_dict() for value in values], indent=2)


def ago(then: datetime, now: datetime) -> str:
    """Return how long ago something was, in the largest unit that fits, e.g. "3 h"."""
    return lasted(then, now)


def lasted(begin: datetime, end: datetime) -> str:
    """Return how long something took, in the largest unit that fits, e.g. "3 h"."""
    seconds = max(0, int((end - begin).total_seconds()))
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def flow_of(paint: Paint, width: Width | None) -> Flow:
    """Return the `Flow` for an agent's text: rendered Markdown if there are colours and a width, else plain lines."""
    if not paint.enabled or width is None:
        return LineFlow(width, paint.clean)
    from bedrock.cli.text.markdown import MarkdownFlow  # noqa: PLC0415 -- loads rich, which not every command needs

    return MarkdownFlow(paint, width)


class Say(Protocol):
    """A function that prints a line.

    Continuation lines are indented by `indent` columns; if that is None, they are aligned with the text of
    the first line, behind its bullet or number.
    """

    def __call__(self, line: SafeText, *, indent: int | None = None) -> None:
        """Print a line; `indent` is the indent of its continuation lines, in columns."""


def folding(write: Write, width: Width | None) -> Say:
    """Return a function that prints a line, broken into lines of at most `width` columns; None for no limit."""

    def fold(line: SafeText, *, indent: int | None = None) -> None:
        if width is None or cells(line.expandtabs()) <= (room := width()):
            write(line)
            return
        from bedrock.cli.text.markdown import folded  # noqa: PLC0415 -- loads nearly all of rich

        for piece in folded(line, room, indent):
            write(piece)

    return fold
