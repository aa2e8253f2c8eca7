"""Logs: one JSON object a line on stderr, without what people and models said and without secrets."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback

_TOLD = (OSError,)
"""Exceptions whose texts come from the system. What others say may quote a message, so it is left out."""


class JsonFormatter(logging.Formatter):
    """Time, level, logger, message; for exceptions their classes and where they were raised."""

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
    """Where it was raised, the innermost frame last."""
    frames = traceback.extract_tb(error.__traceback__)[-12:]
    return [f"{'/'.join(frame.filename.rsplit('/', 2)[-2:])}:{frame.lineno} {frame.name}" for frame in frames]


def set_up(level: str) -> None:
    """Send everything from `level` up to stderr; libraries only from warnings up."""
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [output]
    root.setLevel(logging.WARNING)
    for ours in ("actors", "server"):
        logging.getLogger(ours).setLevel(level.upper())
