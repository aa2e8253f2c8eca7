"""The form of a running tool's question, which a person fills in at a terminal, one field after the other."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from bedrock.cli.text.safe_text import SafeText, literal
from bedrock.cli.text.style import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from bedrock.cli.text.style import Paint
    from bedrock.states import Question

#: The prefix of each line that contains the MCP server's own words.
INDENT = SafeText("    ")
#: Maximum columns of a title or a description of a field.
WORDS_COLUMNS = 100
NO_SECRETS = "these are the server's own words; give it no passwords or keys"
_YES = frozenset({"y", "yes", "true"})
_NO = frozenset({"n", "no", "false"})


def clock_time(when: datetime) -> str:
    """Return the time of day in the time zone of this machine, as HH:MM:SS."""
    return when.astimezone().strftime("%H:%M:%S")


class QuestionForm:
    """A tool's question, and the answers filled in so far."""

    def __init__(self, question: Question) -> None:
        self.question = question
        schema = question.requested_schema or {}
        fields: dict[str, dict[str, Any]] = schema.get("properties", {})
        order = [name for name in schema.get("propertyOrder", ()) if name in fields]
        self._fields = {name: fields[name] for name in dict.fromkeys((*order, *sorted(fields)))}
        self._required = frozenset(schema.get("required", ()))
        self.content: dict[str, Any] = {}
        """The values of the fields that are filled in."""
        self._place = 0

    @property
    def complete(self) -> bool:
        """Whether all fields were filled in or left out. A question without fields is complete after one Enter."""
        return self._place >= max(1, len(self._fields))

    @property
    def name(self) -> str:
        """The name of the field that is filled in next; "" if there is none."""
        return list(self._fields)[self._place] if self._place < len(self._fields) else ""

    def begin_again(self) -> None:
        """Forget all answers, and begin with the first field again."""
        self.content.clear()
        self._place = 0

    def lines(self, paint: Paint) -> list[SafeText]:
        """Return the lines that show the question in full; control characters are made visible."""
        asked = self.question
        tool = literal(asked.tool.removeprefix("tools/"))
        head = paint.text(
            "? the MCP server ",
            literal(asked.mcp_server),
            " asks you, for ",
            tool,
            f", until {clock_time(asked.deadline)}",
        )
        lines = [paint.careful(head), *(INDENT + line for line in literal(asked.message).lines())]
        if asked.url:
            lines.append(paint.text(INDENT, "open ", literal(asked.url)))
        return [*lines, paint.dim(INDENT + f"({NO_SECRETS})")]

    def prompt_line(self, paint: Paint) -> SafeText:
        """Return the line above the prompt: what the next Enter answers, how to decline, and the deadline."""
        return paint.text(
            paint.careful(self.prompt()), paint.dim(f"  /decline, until {clock_time(self.question.deadline)}")
        )

    def prompt(self) -> SafeText:
        """Return a line that says what the next Enter answers: a field with its description and what can be typed."""
        if self.question.url:
            return SafeText("Enter: I have opened it")
        if not self.name:
            return SafeText("Enter: yes")
        field, parts = self._fields[self.name], [one_line(literal(self.name), WORDS_COLUMNS)]
        if about := _about(self.name, field):
            parts.append(SafeText("\N{EN DASH} ") + one_line(literal(about), WORDS_COLUMNS))
        parts.append(SafeText("(") + SafeText(", ").join(self._expected(field)) + SafeText(")"))
        return SafeText(" ".join(parts))

    def enter(self, text: str) -> str:
        """Fill in the next field with the typed text; "" omits the field, or takes its default.

        Returns what is wrong with the text; "" if nothing is.
        """
        if name := self.name:
            field, text = self._fields[name], text.strip()
            if text:
                try:
                    self.content[name] = value_of(field, text)
                except ValueError as error:
                    return str(error)
            elif "default" in field:
                self.content[name] = field["default"]
            elif name in self._required:
                return "this one has to be filled in"
        elif text.strip().casefold() not in {"", *_YES}:
            return "this was not sent: press Enter alone to accept, or decline"
        self._place += 1
        return ""

    def _expected(self, field: Mapping[str, Any]) -> list[SafeText]:
        found = [SafeText(_KINDS.get(str(field.get("type")), "a text"))]
        if choices := choices_of(field):
            listed = (f"{number} {label}" for number, (_, label) in enumerate(choices, 1))
            several = "some of " if field.get("type") == "array" else ""
            found = [SafeText(several) + one_line(literal(" · ".join(listed)), 2 * WORDS_COLUMNS)]
        found += (literal(_bound(key, field[key])) for key in _BOUNDS if key in field)
        if field.get("format"):
            found.append(literal(str(field["format"])))
        if "default" in field:
            found.append(SafeText("Enter: ") + one_line(literal(_shown(field["default"])), WORDS_COLUMNS))
        elif self.name not in self._required:
            found.append(SafeText("Enter leaves it out"))
        return found


_KINDS = {"boolean": "y or n", "integer": "a whole number", "number": "a number", "string": "a text"}
_BOUNDS = {"minimum": "at least", "maximum": "at most", "minLength": "at least", "maxLength": "at most"}


def _bound(key: str, limit: Any) -> str:
    unit = f" character{'' if limit == 1 else 's'}" if key.endswith("Length") else ""
    return f"{_BOUNDS[key]} {limit}{unit}"


def _about(name: str, field: Mapping[str, Any]) -> str:
    """Return a field's title and description as one text. The title is omitted if it only repeats the name."""
    title, description = str(field.get("title") or ""), str(field.get("description") or "")
    told = "" if _letters(title) == _letters(name) else title
    return ": ".join(dict.fromkeys(words for words in (told, description) if words))


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()


def choices_of(field: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the values that a field offers, each with the label that people see; [] if it takes any value."""
    given = field.get("items", {}) if field.get("type") == "array" else field
    if "enum" in given:
        names = given.get("enumNames", [])
        return [(value, names[place] if place < len(names) else value) for place, value in enumerate(given["enum"])]
    titled = given.get("oneOf") or given.get("anyOf") or []
    return [(each["const"], each.get("title", each["const"])) for each in titled]


def value_of(field: Mapping[str, Any], text: str) -> Any:
    """Convert what the user entered to the value of a field. Raises ValueError, whose text says what is accepted."""
    choices = choices_of(field)
    match field.get("type"):
        case "array":
            return [_choice(choices, each.strip()) for each in text.split(",") if each.strip()]
        case "boolean":
            if text.lower() in _YES | _NO:
                return text.lower() in _YES
            raise ValueError("type y or n")
        case "integer":
            return _number(field, text, int, "type a whole number")
        case "number":
            return _number(field, text, float, "type a number")
        case _ if choices:
            return _choice(choices, text)
        case _:
            _check_bounds(field, "minLength", len(text), "maxLength")
            return text


def _number(field: Mapping[str, Any], text: str, kind: Callable[[str], float], otherwise: str) -> float:
    try:
        found = kind(text)
        if not isfinite(found):
            raise ValueError(otherwise)
    except (ValueError, OverflowError):
        raise ValueError(otherwise) from None
    _check_bounds(field, "minimum", found, "maximum")
    return found


def _check_bounds(field: Mapping[str, Any], least: str, value: float, most: str) -> None:
    """Raise ValueError if a value is less than the field's bound `least` or more than its bound `most`.

    The text of the error names the bound.
    """
    for key, beyond in ((least, value < field.get(least, value)), (most, value > field.get(most, value))):
        if beyond:
            raise ValueError(f"type {_bound(key, field[key])}")


def _choice(choices: list[tuple[str, str]], text: str) -> str:
    for number, (value, label) in enumerate(choices, 1):
        if text in (value, label, str(number)):
            return value
    raise ValueError(f"type one of the numbers 1 to {len(choices)}, or a name")


def _shown(default: Any) -> str:
    return {True: "y", False: "n"}[default] if isinstance(default, bool) else str(default)
