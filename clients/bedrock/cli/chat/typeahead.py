"""Handles input that the user types before the prompt is drawn, and questions that are asked before it."""

from __future__ import annotations

import termios
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def typing_ahead(stream: TextIO) -> Generator[None]:
    """Let the terminal buffer early input for the coming prompt, unmodified and without echo.

    Otherwise Enter would reach the prompt as Ctrl-J, which begins a new line. Ctrl-C stays a signal.
    """
    try:
        termios.tcgetattr(stream.fileno())
    except (OSError, ValueError, termios.error):  # not a terminal, or closed
        yield
        return
    with _editing(stream, False, termios.TCSANOW):
        yield


@contextmanager
def asking(stream: TextIO) -> Generator[None]:
    """Let the terminal edit and echo lines while a question is asked, as without `typing_ahead`.

    What was typed before the question is dropped, so that it is not taken for the answer.
    """
    with _editing(stream, True, termios.TCSAFLUSH):
        yield


@contextmanager
def _editing(stream: TextIO, on: bool, when: int) -> Generator[None]:
    """Let the terminal edit and echo lines, or neither, until the end of the context."""
    descriptor = stream.fileno()
    before, changed = termios.tcgetattr(descriptor), termios.tcgetattr(descriptor)
    for index, flags in ((0, termios.ICRNL), (3, termios.ECHO | termios.ICANON)):
        changed[index] = changed[index] | flags if on else changed[index] & ~flags
    termios.tcsetattr(descriptor, when, changed)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal may be closed
            termios.tcsetattr(descriptor, termios.TCSANOW, before)
