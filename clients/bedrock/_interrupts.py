"""Handles Ctrl-C while a program starts or exits: prints one line and ends the process immediately.

A KeyboardInterrupt during an import would print a traceback, or the imported module might swallow it.
"""

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# Exit code of a program that SIGINT (Ctrl-C) ended.
INTERRUPTED = 130
_LINE = b"error: interrupted\n"


def end_at_once() -> None:
    """Make SIGINT print a line and end the process without clean-up. Call only on the main thread."""
    signal.signal(signal.SIGINT, _end)


@contextmanager
def ending_at_once() -> Generator[None]:
    """Make SIGINT end the process as `end_at_once` does, in the ``with`` block. Use only on the main thread."""
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
    """Undo `end_at_once`, unless another handler is installed; no effect outside of the main thread."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def as_ctrl_c() -> Generator[None]:
    """Make SIGTERM and SIGHUP raise KeyboardInterrupt in the ``with`` block, unless they are ignored, as under `nohup`.

    No effect outside of the main thread.
    """
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        ends = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # not all on Windows
        before = {number: signal.getsignal(number) for number in ends if signal.getsignal(number) == signal.SIG_DFL}
    for number in before:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(_number: int, _frame: FrameType | None) -> None:
    try:
        os.write(2, _LINE)
    finally:
        os._exit(INTERRUPTED)
