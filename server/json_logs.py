"""Log output: one line per event on stderr, as JSON, or as text at a terminal. No message contents, no secrets."""

from __future__ import annotations

import contextlib
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
"""Exceptions whose texts come from the operating system. Texts of others may quote a message, so they are omitted."""


MOST_WAITING = 1_000
"""Maximum lines that wait for a stream that nobody reads; after that, logging blocks."""
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_encode = msgspec.json.Encoder().encode
_PLAIN = re.compile(r"[^\s\"=\\\x00-\x1f\x7f-\x9f]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters, which could change the terminal's state or break the line."""


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields passed as `extra`: ids, durations and the like."""
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}


class JsonFormatter(logging.Formatter):
    """Formats time, level, logger and message, the fields, and the classes and stack frames of exceptions."""

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
    """Return JSON in pure ASCII: the fast encoder does not escape other characters, and fails for lone surrogates."""
    with contextlib.suppress(UnicodeEncodeError, OverflowError):
        encoded = _encode(line)
        if encoded.isascii():
            return encoded.decode()
    return json.dumps(line)


@functools.lru_cache(maxsize=2)
def _utc(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


class TextFormatter(logging.Formatter):
    """Formats a record for people: local time, level, message, then the fields as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
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
    """Return the class of an exception and of its causes; its text only if it comes from the system."""
    texts: list[str] = []
    each: BaseException | None = error
    while each is not None and len(texts) < 5:
        name = type(each).__name__
        texts.append(f"{name}: {each.strerror or ''}" if isinstance(each, _TOLD) else name)
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return " from ".join(texts)


def _stack(error: BaseException) -> list[str]:
    """Return the stack frames, the innermost last."""
    frames = traceback.extract_tb(error.__traceback__)[-12:]
    return [f"{'/'.join(frame.filename.rsplit('/', 2)[-2:])}:{frame.lineno} {frame.name}" for frame in frames]


class SharedLines(logging.Handler):
    """Writes lines to a stream. While one thread writes, other threads only queue their lines for it.

    A lock around each write, as in `StreamHandler`, makes threads wait for one another: the writing thread releases the
    interpreter's lock, and waits to get it back while it holds the stream's lock. The order of lines is kept. A line
    is written when the call returns, or as soon as the current write ends.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: deque[str] = deque()
        self._writing = threading.Lock()

    def handle(self, record: logging.LogRecord) -> bool:
        """Write a record without the handler's lock."""
        accepted = bool(self.filter(record))
        if accepted:
            self.emit(record)
        return accepted

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; errors of formatting or of the stream go to `Handler.handleError`."""
        try:
            self._lines.append(self.format(record) + "\n")
            # Checked again after the release: a line that came just before it would be left.
            while self._lines and self._writing.acquire(blocking=len(self._lines) > MOST_WAITING):
                try:
                    self._write_all()
                finally:
                    self._writing.release()
        except Exception:  # noqa: BLE001 -- no line may disturb what it is about
            self.handleError(record)

    def flush(self) -> None:
        """Write the queued lines; called at the end of the process."""
        with self._writing:
            self._write_all()

    def _write_all(self) -> None:
        """Write the queued lines at once. The caller holds the lock."""
        lines: list[str] = []
        with contextlib.suppress(IndexError):
            while True:
                lines.append(self._lines.popleft())
        if lines:
            self._stream.write("".join(lines))
            self._stream.flush()


def set_up(level: str) -> None:
    """Log to stderr from `level` up; libraries only from WARNING up. Text if it is a terminal, else JSON."""
    # What no line shows is not looked up for each: the place in the code, the thread, the process.
    logging._srcfile = None  # as the HOWTO of logging has it
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    output = SharedLines(sys.stderr)
    output.setFormatter(TextFormatter() if sys.stderr.isatty() else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [output]
    root.setLevel(logging.WARNING)
    for ours in ("actors", "server"):
        logging.getLogger(ours).setLevel(level.upper())
