"""Logs: one JSON object per line on stderr, without message contents and without secrets."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback

_TOLD = (OSError,)
"""Exceptions whose texts come from the operating system. Texts of others may quote a message, so they are omitted."""


class JsonFormatter(logging.Formatter):
    """Formats time, level, logger and message, and the classes and stack frames of exceptions."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        seconds, milliseconds = divmod(int(record.created * 1000), 1000)
        line: dict[str, str | list[str]] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{milliseconds:03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line |= {"error": describe(record.exc_info[1]), "stack": _stack(record.exc_info[1])}
        return json.dumps(line)


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
    """Log to stderr from `level` up; libraries only from WARNING up."""
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [output]
    root.setLevel(logging.WARNING)
    for ours in ("actors", "server"):
        logging.getLogger(ours).setLevel(level.upper())
