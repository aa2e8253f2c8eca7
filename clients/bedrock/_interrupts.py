"""Ctrl-C while a program starts or exits: print one line and end at once.

A KeyboardInterrupt during an import would print a traceback, or be swallowed by the module that is imported.
"""

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

#: Exit code of a program that SIGINT has ended.
INTERRUPTED = 130
_LINE = b"bedrock: interrupted\n"


def end_at_once() -> None:
    """Make SIGINT print a line and end the process without clean-up. Called in the main thread."""
    signal.signal(signal.SIGINT, _end)


@contextmanager
def ending_at_once() -> Generator[None]:
    """Do `end_at_once` within the block. Does nothing outside of the main thread, which alone handles signals."""
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
    """Make SIGINT raise KeyboardInterrupt, which is Python's default. Called in the main thread."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_number: int, _frame: FrameType | None) -> None:
    try:
        os.write(2, _LINE)
    finally:
        os._exit(INTERRUPTED)
