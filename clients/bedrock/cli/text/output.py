"""The only functions of the program that print: other modules use neither `print` nor `click.echo`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import click

from bedrock.cli.text.safe_text import SafeText, for_pipe, for_terminal, json_text
from bedrock.cli.text.style import LineFlow, Paint, Width, cells, columns

if TYPE_CHECKING:
    from bedrock._shared.wrapper import Wrapper

T = TypeVar("T", bound="Wrapper[Any]")

Write: TypeAlias = Callable[[SafeText], None]


def print_line(line: SafeText, *, err: bool = False) -> None:
    click.echo(line, err=err)  # noqa: TID251 -- the only place where click.echo may be called


def print_text(text: str, *, err: bool = False) -> None:
    stream = sys.stderr if err else sys.stdout
    print_line(for_terminal(text) if stream.isatty() else for_pipe(text), err=err)


def print_json(value: Any, *, indent: int | None = None) -> None:
    print_line(SafeText(json.dumps(value, indent=indent)))


def print_json_line(line: str) -> None:
    """Print a line that is JSON already. Characters that are unsafe to print are escaped; none is lost."""
    print_line(json_text(line))


JSON_OPTION = click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", help="Text for people, or JSON for programs."
)


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, none: str, paths: str = "") -> None:
    """Print a table: aligned and truncated at a terminal, whole and tab-separated in a pipe.

    The first column contains names for use in other commands, and is never truncated. In the column `paths`, a terminal
    shows the home directory as ~, and long paths without their start. Without rows, `none` is printed.
    """
    room, paint, rows = columns(sys.stdout), Paint.for_stream(sys.stdout), list(rows)
    if not rows:
        print_none(none)
        return
    if room is None:
        for row in rows:
            print_line(paint.text("\t".join(paint.clean(cell).replace("\n", " ").replace("\t", " ") for cell in row)))
        return
    from bedrock.cli.text.drawing import table  # noqa: PLC0415 -- loads rich, which not every command needs

    at = head.index(paths) if paths else None
    shown = rows if at is None else [[*row[:at], with_tilde(row[at]), *row[at + 1 :]] for row in rows]
    first, *rest = table([head, *shown], room(), at)
    for line in (paint.bold(first), *rest):
        print_line(line)


def print_none(text: str) -> None:
    """Print that there is nothing to list: to standard error, unless standard output is a terminal."""
    print_text(text, err=not sys.stdout.isatty())


def with_tilde(path: str) -> str:
    """A path with ~ for the home directory of this machine's user."""
    home = os.path.realpath(os.path.expanduser("~"))
    return "~" + path.removeprefix(home) if path == home or path.startswith(f"{home}/") else path


def _zeros(value: Wrapper[Any]) -> dict[str, Any]:
    from google.protobuf import json_format  # noqa: PLC0415 -- not needed for the program's help

    found: dict[str, Any] = json_format.MessageToDict(
        type(value.proto)(), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return found


def print_listing(
    values: Iterable[T],
    output: str,
    columns: Mapping[str, Callable[[T], str]],
    *,
    none: str,
    paths: str = "",
    zeros: bool = False,
) -> None:
    """Print client objects as a table, or as JSON with the fields of the gRPC API (with `zeros`, empty fields, too)."""
    if output == "json":
        print_json([{**(_zeros(value) if zeros else {}), **value.to_dict()} for value in values], indent=2)
    else:
        rows = [[cell(value) for cell in columns.values()] for value in values]
        print_table(tuple(columns), rows, none=none, paths=paths)


def ago(then: datetime | None) -> str:
    """How long ago something was, by the clock of this machine; "" if that is unknown."""
    if then is None:
        return ""
    seconds = max(0, int((datetime.now(UTC) - then).total_seconds()))  # noqa: TID251
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def flow_of(paint: Paint, width: Width | None) -> LineFlow:
    """The converter for an agent's text: as Markdown if there are colours and a width, else as plain lines."""
    if not paint.enabled or width is None:
        return LineFlow(width, paint.clean)
    from bedrock.cli.text.drawing import MarkdownFlow  # noqa: PLC0415 -- loads rich, which not every command needs

    return MarkdownFlow(paint, width)


class Say(Protocol):
    """Prints a line; further lines are indented by `indent` or, if None, aligned with the text after the bullet."""

    def __call__(self, line: SafeText, *, indent: int | None = None) -> None: ...


def folding(write: Write, width: Width | None) -> Say:
    def fold(line: SafeText, *, indent: int | None = None) -> None:
        if width is None or cells(line.expandtabs()) <= (room := width()):
            write(line)
            return
        from bedrock.cli.text.drawing import folded  # noqa: PLC0415 -- loads nearly all of rich

        for piece in folded(line, room, indent):
            write(piece)

    return fold
