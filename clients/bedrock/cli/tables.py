"""Tables for people, and the same as JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import click
from google.protobuf import json_format
from google.protobuf.message import Message

from bedrock.cli.paint import harmless, one_line

JSON_OPTION = click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", help="For people or programs."
)

#: Characters of a cell that are shown.
CELL = 60


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table: fitted to a terminal, or with a tab between the cells and whole values for a pipe."""
    if not sys.stdout.isatty():
        for row in rows:
            click.echo("\t".join(harmless(cell).replace("\n", " ").replace("\t", " ") for cell in row))
        return
    from rich.console import Console  # noqa: PLC0415 -- costs more than most commands
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    cells = [[one_line(cell, CELL) for cell in row] for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        widest = max((len(row[index]) for row in cells), default=0)
        last = index == len(columns) - 1  # the one that gives way when the terminal is narrow
        table.add_column(column, overflow="ellipsis", no_wrap=True, min_width=None if last else widest)
    for row in cells:
        table.add_row(*map(Text, row))
    Console().print(table)


def print_json(value: Message | Sequence[Message]) -> None:
    """Print messages of the contract as JSON, with the field names of the contract."""
    click.echo(json.dumps(as_plain(value), indent=2))


def as_plain(value: Message | Sequence[Message]) -> Any:
    """Turn messages of the contract into lists and dictionaries."""
    if isinstance(value, Message):
        return json_format.MessageToDict(value, preserving_proto_field_name=True)
    return [as_plain(item) for item in value]


def ago(then: datetime, now: datetime) -> str:
    """How long ago something was, in its largest unit."""
    return lasted(then, now)


def lasted(begin: datetime, end: datetime) -> str:
    """How long something took, in its largest unit."""
    seconds = max(0, int((end - begin).total_seconds()))
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
