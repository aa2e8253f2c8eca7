"""The standard streams of the process: one that is closed or broken is an error that can be told, like any other."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import select
import sys
from contextlib import suppress
from typing import TextIO

#: How often somebody looks whether a terminal or a reader is still there, in seconds.
LOOK_SECONDS = 1.0


def prepare() -> None:
    """Make the streams strict about what comes in and lenient about what goes out.

    In the place of one that is closed comes what reads as empty (standard input), what no write succeeds on (standard
    output), or what swallows all (standard error). So no file that is opened later gets its descriptor, and its words.
    """
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY), closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", closefd=False)
    for stream, errors in ((sys.stdin, "strict"), (sys.stdout, "replace"), (sys.stderr, "replace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def ensure_read(stream: TextIO) -> None:
    """Find out, without printing anything, whether what is printed would still get somewhere.

    Raises:
        BrokenPipeError: Whoever read it has gone.
        OSError: It is closed, or its disk is full.
    """
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # it is no file at all
        return
    os.write(descriptor, b"")
    poll = select.poll()
    poll.register(descriptor, 0)
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


async def until_gone(stream: TextIO) -> None:
    """Wait until nobody can see any more what is printed, whether or not a signal tells so."""
    with suppress(OSError):
        while True:
            ensure_read(stream)
            await asyncio.sleep(LOOK_SECONDS)


def give_up() -> None:
    """Forget what could not be printed: the interpreter would try again at its end, and complain."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
