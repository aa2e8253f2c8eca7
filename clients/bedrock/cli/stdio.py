"""Prepares the standard streams of the process, and detects when the reader of an output stream is gone."""

from __future__ import annotations

import errno
import io
import os
import select
import signal
import sys
import termios
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TextIO, TypeVar

T = TypeVar("T")

# Seconds between two checks of whether the terminal, or the reader of the pipe, still exists.
LOOK_SECONDS = 1.0


def prepare() -> None:
    """Decode input strictly, encode output leniently, and replace closed standard streams.

    Otherwise a file that is opened later would get the descriptor of a closed stream, and its output.
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
    """Check, without printing, that a stream can be written to. Raises BrokenPipeError (no reader) or OSError."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # the stream is not a file
        return
    os.write(descriptor, b"")
    poll = select.poll()
    poll.register(descriptor, 0)
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


async def until_closed(stream: TextIO) -> None:
    """Wait until a terminal is closed, or the reader of a pipe has closed it."""
    import asyncio  # noqa: PLC0415 -- most commands do not need it

    with suppress(OSError):
        while True:
            ensure_read(stream)
            await asyncio.sleep(LOOK_SECONDS)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of a command that prints while it waits.

    Ctrl-C, SIGTERM and SIGHUP cancel the coroutine and raise KeyboardInterrupt, unless they are ignored, as under
    `nohup`. Raises BrokenPipeError once standard output has no reader.
    """
    import asyncio  # noqa: PLC0415

    async def until_done_or_closed() -> T:
        working, looking = asyncio.create_task(work), asyncio.create_task(until_closed(sys.stdout))
        ends = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) == signal.SIG_DFL]
        try:
            with handling(dict.fromkeys(ends, working.cancel)):
                await asyncio.wait((working, looking), return_when=asyncio.FIRST_COMPLETED)
            closed = not working.done()
        finally:
            for task in (working, looking):
                task.cancel()
            await asyncio.gather(working, looking, return_exceptions=True)
        if closed:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        return working.result()

    try:
        return asyncio.run(until_done_or_closed())
    except asyncio.CancelledError:  # by SIGTERM or SIGHUP; asyncio itself raises KeyboardInterrupt for Ctrl-C
        raise KeyboardInterrupt from None


@contextmanager
def handling(handlers: Mapping[signal.Signals, Callable[[], object]]) -> Generator[None]:
    """Have the event loop call a handler for each of these signals in the ``with`` block."""
    import asyncio  # noqa: PLC0415

    loop = asyncio.get_running_loop()
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


async def read_line(stream: TextIO) -> str:
    """The next line; "" at the end of the input. Unlike `readline`, it can be cancelled at a terminal."""
    import asyncio  # noqa: PLC0415

    if not stream.isatty():  # the event loop cannot wait for a file
        return stream.readline()
    loop, typed = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(stream, typed.set)
    try:
        await typed.wait()
    finally:
        loop.remove_reader(stream)
    return stream.readline()


def discard_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def typing_ahead(stream: TextIO) -> Generator[None]:
    """Let the terminal buffer early input for the coming prompt, without echo.

    Otherwise Enter would reach the prompt as Ctrl-J, a new line. Ctrl-C still sends its signal.
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
    """Let the terminal edit and echo lines for a question; earlier input is dropped, because it is not an answer."""
    with _editing(stream, True, termios.TCSAFLUSH):
        yield


@contextmanager
def _editing(stream: TextIO, on: bool, when: int) -> Generator[None]:
    """Let the terminal edit and echo lines, or turn both off, until the end of the ``with`` block."""
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
