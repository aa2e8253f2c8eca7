"""The server's log output on stderr: one line per log record, as JSON or, at a terminal, as text.

The lines contain neither message contents nor secrets.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import sys
import threading
import time
import traceback
from collections import deque
from typing import Any, TextIO

import msgspec

_TOLD = (OSError,)
"""Exceptions whose texts are logged, because they come from the operating system.

Texts of other exceptions may quote a user's message.
"""


MOST_WAITING = 1_000
"""How many lines may wait while another thread writes. Beyond that, a thread that logs waits until it can write."""
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_encode = msgspec.json.Encoder().encode
_PLAIN = re.compile(r"[^\s\"=\\\x00-\x1f\x7f-\x9f]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Matches control characters, which could change the state of a terminal or break the line."""


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a record that were passed to the logging call as `extra`, such as ids and durations."""
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}


class JsonFormatter(logging.Formatter):
    """Formats a record as JSON: time, level, logger, message, extra fields, and an exception's class and frames."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        seconds, milliseconds = divmod(int(record.created * 1000), 1000)
        line: dict[str, Any] = {
            "time": f"{_utc(seconds)}.{milliseconds:03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        } | fields_of(record)
        if record.exc_info and record.exc_info[1] is not None:
            line |= {"error": describe(record.exc_info[1]), "stack": _stack(record.exc_info[1])}
        return _json(line)


def _json(line: dict[str, Any]) -> str:
    """Return JSON in pure ASCII, by the fast encoder if possible.

    The fast encoder does not escape characters beyond ASCII, and fails for lone surrogates.
    """
    try:
        encoded = _encode(line)
    except (UnicodeEncodeError, OverflowError):
        return json.dumps(line)
    return encoded.decode() if encoded.isascii() else json.dumps(line)


@functools.lru_cache(maxsize=2)
def _utc(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


class TextFormatter(logging.Formatter):
    """Formats a record as text: local time, level, message, then the extra fields as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of text."""
        parts = [time.strftime("%H:%M:%S", time.localtime(record.created)), f"{record.levelname.lower():8}"]
        parts.append(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", record.getMessage()))
        parts += [f"{name}={_shown(value)}" for name, value in fields_of(record).items()]
        if record.exc_info and record.exc_info[1] is not None:
            parts.append(f"({describe(record.exc_info[1])}; {' < '.join(reversed(_stack(record.exc_info[1])))})")
        return " ".join(parts)


def _shown(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def describe(error: BaseException) -> str:
    """Return the class names of an exception and its causes, at most five, and the texts of those that are OSErrors."""
    texts: list[str] = []
    each: BaseException | None = error
    while each is not None and len(texts) < 5:
        name = type(each).__name__
        texts.append(f"{name}: {each.strerror or ''}" if isinstance(each, _TOLD) else name)
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return " from ".join(texts)


def _stack(error: BaseException) -> list[str]:
    """Return at most 12 stack frames of an exception, the innermost last, as "directory/file.py:line function"."""
    frames = traceback.extract_tb(error.__traceback__)[-12:]
    return [f"{'/'.join(frame.filename.rsplit('/', 2)[-2:])}:{frame.lineno} {frame.name}" for frame in frames]


class SharedLines(logging.Handler):
    """Writes lines to a stream. While one thread writes, other threads only queue their lines for that thread.

    With a lock around each write, as in `StreamHandler`, threads wait for one another: the writing thread releases the
    interpreter's lock, and waits to get it back while it holds the stream's lock. The order of lines is kept. When
    the call returns, a line has been written, or another thread that is writing will write it next.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: deque[str] = deque()
        self._writing = threading.Lock()

    def handle(self, record: logging.LogRecord) -> bool:
        """Write a record. Return whether the filters accept the record.

        Does not take the lock that `logging.Handler` would take.
        """
        accepted = bool(self.filter(record))
        if accepted:
            self.emit(record)
        return accepted

    def emit(self, record: logging.LogRecord) -> None:
        """Format and write a record. Errors go to `Handler.handleError`."""
        try:
            self._lines.append(self.format(record) + "\n")
            # Just before this thread releases the lock, another thread may still queue a line: check the queue again.
            while self._lines and self._writing.acquire(blocking=len(self._lines) > MOST_WAITING):
                try:
                    self._write_all()
                finally:
                    self._writing.release()
        except Exception:  # noqa: BLE001 -- a log line must not disturb the code that logs
            self.handleError(record)

    def flush(self) -> None:
        """Write the queued lines. Called at the end of the process."""
        with self._writing:
            self._write_all()

    def _write_all(self) -> None:
        lines: list[str] = []
        while self._lines:
            lines.append(self._lines.popleft())
        if lines:
            self._stream.write("".join(lines))
            self._stream.flush()


def set_up(level: str) -> None:
    """Set up logging to stderr: the server's own records from `level` up, those of libraries from WARNING up.

    The lines are text if stderr is a terminal, otherwise JSON.
    """
    # Switch off what logging collects for each record although no line shows it: source file and line, thread, process.
    logging._srcfile = None  # recommended by Python's logging HOWTO
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    output = SharedLines(sys.stderr)
    output.setFormatter(TextFormatter() if sys.stderr.isatty() else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [output]
    root.setLevel(logging.WARNING)
    for ours in ("actors", "server"):
        logging.getLogger(ours).setLevel(level.upper())
