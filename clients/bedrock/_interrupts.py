"""What Ctrl-C means while a program is on its way up or down: the end, at once, with a line.

An exception in the middle of an import would be a traceback, or be swallowed by whatever is being imported.
"""

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

#: As of a program that SIGINT ends.
INTERRUPTED = 130
_LINE = b"bedrock: interrupted\n"


def end_at_once() -> None:
    """From now on SIGINT prints a line and ends the process, without any clean-up (main thread)."""
    signal.signal(signal.SIGINT, _end)


@contextmanager
def ending_at_once() -> Generator[None]:
    """`end_at_once` for the time of the block; nothing in other threads than the main one, where no signal arrives."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    end_at_once()
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def raise_again() -> None:
    """From now on SIGINT raises KeyboardInterrupt, as Python does by itself (main thread)."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_number: int, _frame: FrameType | None) -> None:
    try:
        os.write(2, _LINE)
    finally:
        os._exit(INTERRUPTED)
