"""The server's log output on stderr: one line per log record, as JSON or, at a terminal, as text.

The lines contain neither message contents nor secrets.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
import traceback
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Any, TextIO

from pythonjsonlogger.core import RESERVED_ATTRS, merge_record_extra
from pythonjsonlogger.json import JsonFormatter

_PLAIN = re.compile(r"[^\s\"=\\\x00-\x1f\x7f-\x9f]+")
# Matches control characters, which could change the state of a terminal or break the line.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


# How many seconds a line may be delayed, so that one write covers many lines. A server that is killed loses delayed
# lines.
LATE_SECONDS = 0.1
# How many records may wait; beyond that, the caller writes them, so that a slow reader of stderr costs no memory.
MOST_WAITING = 10_000
# How many seconds a caller waits for another thread's write: a stderr that nobody reads must not keep the server alive.
STUCK_SECONDS = 1.0


class JsonLines(JsonFormatter):
    """Formats a record as JSON: time, level, logger, message, extra fields, and an exception's class and frames."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        names = {"asctime": "time", "levelname": "level", "name": "logger", "exc_info": "error"}
        super().__init__(["asctime", "levelname", "name", "message"], rename_fields=names)

    def formatException(self, ei: Any) -> str:  # noqa: N802 -- the name that logging uses
        """The classes of the exception, without its text, which may quote a conversation."""
        return describe(ei[1])

    def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
        super().add_fields(log_data, record, message_dict)
        log_data["level"] = record.levelname.lower()
        if record.exc_info:
            log_data["stack"] = _stack(record.exc_info[2])


class TextLines(logging.Formatter):
    """Formats a record as text: local time, level, message, then the extra fields as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        parts = [time.strftime("%H:%M:%S", time.localtime(record.created)), f"{record.levelname.lower():8}"]
        parts.append(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", record.getMessage()))
        parts += [f"{name}={_quoted(value)}" for name, value in merge_record_extra(record, {}, RESERVED_ATTRS).items()]
        if record.exc_info:
            parts.append(f"({describe(record.exc_info[1])}; {' < '.join(reversed(_stack(record.exc_info[2])))})")
        return " ".join(parts)


def _quoted(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def describe(error: BaseException | None) -> str:
    """The classes of an exception and up to four causes. Only OSErrors' texts are shown: others may quote a message."""
    texts: list[str] = []
    while error is not None and len(texts) < 5:
        name = type(error).__name__
        texts.append(f"{name}: {error.strerror or ''}" if isinstance(error, OSError) else name)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return " from ".join(texts)


def _stack(frames: TracebackType | None) -> list[str]:
    """At most 12 stack frames, innermost last, as "directory/file.py:line function"."""
    last = traceback.extract_tb(frames)[-12:]
    return [f"{'/'.join(frame.filename.rsplit('/', 2)[-2:])}:{frame.lineno} {frame.name}" for frame in last]


class LateLines(logging.StreamHandler[TextIO]):
    """Formats and writes records on a separate thread, at most LATE_SECONDS after they were logged.

    A warning or error is written before the call returns, with everything before it. When the process exits, `logging`
    closes its handlers, which writes the rest.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._records: deque[logging.LogRecord] = deque()
        self._some = threading.Event()
        self._writing = threading.RLock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None  # started by the first record, once the process has its CPUs

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)
        if record.levelno >= logging.WARNING or len(self._records) > MOST_WAITING:
            self.flush()
        elif not self._some.is_set():
            self._some.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="bedrock-log", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._some.wait()
            self._closing.wait(LATE_SECONDS)
            self._some.clear()
            self.flush()

    def close(self) -> None:
        self._closing.set()
        self._some.set()
        if self._thread is not None:
            self._thread.join(STUCK_SECONDS)
        super().close()

    def flush(self) -> None:
        if not self._writing.acquire(timeout=STUCK_SECONDS):
            return
        try:
            lines = [self._line(self._records.popleft()) for _ in range(len(self._records))]
            with suppress(OSError, ValueError):  # stderr is closed or no longer has a reader
                self.stream.write("".join(lines))
                self.stream.flush()
        finally:
            self._writing.release()

    def _line(self, record: logging.LogRecord) -> str:
        try:
            return self.format(record) + self.terminator
        except Exception:  # noqa: BLE001 -- a line that cannot be formatted must not end the thread
            self.handleError(record)
            return ""


def set_up(level: str) -> None:
    """Log to stderr, as text on a terminal, else as JSON: the server from `level` up, libraries from WARNING up."""
    output = LateLines(sys.stderr)
    output.setFormatter(TextLines() if sys.stderr.isatty() else JsonLines())
    logging._srcfile = None  # no line names its caller, so don't look for it (see logging's HOWTO)
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    root = logging.getLogger()
    root.handlers[:] = [output]
    root.setLevel(logging.WARNING)
    for ours in ("actors", "server"):
        logging.getLogger(ours).setLevel(level.upper())
