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
        descriptor = stream.fileno()
        before = termios.tcgetattr(descriptor)
    except (OSError, ValueError, termios.error):  # not a terminal, or closed
        yield
        return
    changed = termios.tcgetattr(descriptor)
    changed[0] &= ~termios.ICRNL
    changed[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(descriptor, termios.TCSANOW, changed)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal may be closed
            termios.tcsetattr(descriptor, termios.TCSANOW, before)


@contextmanager
def asking(stream: TextIO) -> Generator[None]:
    """Let the terminal edit and echo lines while a question is asked, as without `typing_ahead`.

    What was typed before the question is dropped, so that it is not taken for the answer.
    """
    descriptor = stream.fileno()
    before = termios.tcgetattr(descriptor)
    changed = termios.tcgetattr(descriptor)
    changed[0] |= termios.ICRNL
    changed[3] |= termios.ECHO | termios.ICANON
    termios.tcsetattr(descriptor, termios.TCSAFLUSH, changed)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal may be closed
            termios.tcsetattr(descriptor, termios.TCSANOW, before)
