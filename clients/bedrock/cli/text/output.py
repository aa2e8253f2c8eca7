"""The only functions of the program that print: other modules use neither `print` nor `click.echo`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import click

from bedrock.cli.text.safe_text import SafeText, for_pipe, for_terminal, json_text

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
