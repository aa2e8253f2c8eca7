"""Sets the terminal's title to the state of the chat, and rings the bell when the chat needs the user."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, TextIO

import click

from bedrock.cli.text.output import window_title
from bedrock.cli.text.safe_text import SafeText
from bedrock.cli.text.style import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bedrock.cli.display.conversation_view import ConversationView

#: The bell rings at the end of a run that took at least this many seconds: the user may have stopped watching.
LONG_RUN_SECONDS = 10.0
#: Maximum columns of the terminal's title.
TITLE_COLUMNS = 60

#: Values of the variable TERM for terminals that have no title, or would print the escape sequences as text.
_WITHOUT = ("", "dumb", "linux", "unknown")

NOTIFY_OPTION = click.option(
    "--notify/--no-notify",
    envvar="BEDROCK_NOTIFY",
    default=True,
    help="Whether the bell rings and the window's title says so when the agent waits for you; also BEDROCK_NOTIFY=0.",
)


class Attention:
    """Controls the title and the bell of a terminal. `release` restores the previous title."""

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        enabled: bool = True,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to write to `stream`, or to stdout if it is None.

        Nothing is ever written unless the output is a terminal with a title and a bell, and `enabled` is true.
        """
        self._stream = stream or sys.stdout
        self._enabled = enabled and self._stream.isatty() and environ.get("TERM", "") not in _WITHOUT
        self._clock = clock
        self._title = ""
        self._asked: set[str] | None = None
        """The names of the approvals and questions that were open at the last update; None before the first update."""
        self._since: float | None = None
        """The time, by the given clock, when this object first saw the run in progress; None if there is no run."""

    def observe(self, view: ConversationView) -> None:
        """Set the title from a conversation's state.

        Ring the bell if a new question waits for the user, or a long run has ended.
        """
        if not view.slug:  # the first snapshot has not arrived yet
            return
        asked = {approval.name for approval in view.approvals} | {each.name for each in view.state.questions}
        opened = self._asked is not None and bool(asked - self._asked)
        over = not view.busy and self._since is not None and self._clock() - self._since >= LONG_RUN_SECONDS
        self._asked = asked
        self._since = (self._since if self._since is not None else self._clock()) if view.busy else None
        doing = "waits for you" if asked else "at work" if view.busy else ""
        self._show(" · ".join(filter(None, (doing, view.slug, "bedrock"))))
        if opened or over:
            self._write(SafeText("\a"))

    def release(self) -> None:
        """Restore the terminal's previous title. Called at the end, and before the program is suspended."""
        if self._title:
            self._write(SafeText("\x1b[23;2t"))
            self._title = ""

    def _show(self, title: str) -> None:
        title = one_line(title, TITLE_COLUMNS)
        if title == self._title:
            return
        saved = "" if self._title else "\x1b[22;2t"
        self._title = title
        self._write(SafeText(saved) + window_title(title))

    def _write(self, sequence: SafeText) -> None:
        if self._enabled:
            self._stream.write(sequence)
            self._stream.flush()
