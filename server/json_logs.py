"""Logs: one line per event on stderr, JSON or, at a terminal, text; without message contents and without secrets."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import traceback
from typing import Any

_TOLD = (OSError,)
"""Exceptions whose texts come from the operating system. Texts of others may quote a message, so they are omitted."""


_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_PLAIN = re.compile(r"[^\s\"=\\\x00-\x1f\x7f-\x9f]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Characters that a terminal could obey, or that would break the line."""


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return what was passed as `extra`: ids, durations and the like."""
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}


class JsonFormatter(logging.Formatter):
    """Formats time, level, logger and message, the fields, and the classes and stack frames of exceptions."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        seconds, milliseconds = divmod(int(record.created * 1000), 1000)
        line: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{milliseconds:03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        } | fields_of(record)
        if record.exc_info and record.exc_info[1] is not None:
            line |= {"error": describe(record.exc_info[1]), "stack": _stack(record.exc_info[1])}
        return json.dumps(line)


class TextFormatter(logging.Formatter):
    """Formats the same for people: local time, level, message, then the fields as name=value."""

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


def set_up(level: str) -> None:
    """Log to stderr from `level` up; libraries only from WARNING up. Text if it is a terminal, else JSON."""
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(TextFormatter() if sys.stderr.isatty() else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [output]
    root.setLevel(logging.WARNING)
    for ours in ("actors", "server"):
        logging.getLogger(ours).setLevel(level.upper())
