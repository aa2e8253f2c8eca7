"""Logs are one JSON object a line and hold no contents."""

from __future__ import annotations

import io
import json
import logging
import re

import pytest

from server.json_logs import JsonLines, TextLines


def line(error: BaseException | None = None, text: str = "saved %d rows", *arguments: object) -> dict[str, object]:
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    handler.setFormatter(JsonLines())
    logger = logging.Logger("actors.x")
    logger.addHandler(handler)
    logger.error(text, *(arguments or (3,)), exc_info=error)
    (one,) = output.getvalue().splitlines()
    found: dict[str, object] = json.loads(one)
    return found


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 -- any exception shall have a traceback
        return caught


def test_a_line_says_when_how_bad_where_and_what() -> None:
    found = line()
    assert (found["level"], found["logger"], found["message"]) == ("error", "actors.x", "saved 3 rows")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(found["time"]))


def test_text_with_line_breaks_and_broken_characters_stays_one_line() -> None:
    assert line(None, "%s", "a\nb\ud83d")["message"] == "a\nb\ud83d"


@pytest.mark.parametrize("error", [ValueError("what the user said"), KeyError("sk-secret")])
def test_an_exception_is_reported_by_class_and_place_without_its_text(error: BaseException) -> None:
    found = line(raised(error))
    assert found["error"] == type(error).__name__
    assert "test_logs.py" in str(found["stack"])
    assert "said" not in json.dumps(found)
    assert "sk-" not in json.dumps(found)


def test_what_the_system_says_is_reported() -> None:
    assert line(raised(FileNotFoundError(2, "No such file")))["error"] == "FileNotFoundError: No such file"


def test_causes_are_reported() -> None:
    error = ValueError("y")
    error.__cause__ = raised(KeyError("x"))
    assert line(raised(error))["error"] == "ValueError from KeyError"


def record(**fields: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "actors.x", "levelname": "INFO", "msg": "run ended"})
    made.__dict__.update(fields)
    return made


def test_fields_stand_beside_the_message() -> None:
    found = json.loads(JsonLines().format(record(conversation="c1", duration_ms=1.5)))
    assert found["message"] == "run ended"
    assert {name: found[name] for name in found.keys() - {"time", "level", "logger", "message"}} == {
        "conversation": "c1",
        "duration_ms": 1.5,
    }


def test_people_read_text_that_cannot_move_their_cursor() -> None:
    hostile = record(msg="a\x1b[2Jb", conversation="c1", peer='x "y"\n\x9b', stack=None)
    text = TextLines().format(hostile)
    assert text.endswith('a\ufffd[2Jb conversation=c1 peer="x \\"y\\"\\n\\u009b" stack=None')
    assert text.isprintable()


@pytest.mark.parametrize("text", ["caf\u00e9", "\u2028", "\ud83d", "\x9b2J"])
def test_a_line_is_ascii_and_says_what_was_said(text: str) -> None:
    shown = JsonLines().format(record(msg="%s", args=(text,), count=2**70))
    assert shown.isascii()
    assert shown.isprintable()
    assert json.loads(shown)["message"] == text
    assert json.loads(shown)["count"] == 2**70
