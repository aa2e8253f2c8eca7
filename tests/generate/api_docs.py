"""Write docs/api/reference.md from the contract: `python -m tests.generate.api_docs`.

What stands above the marker is written by hand and left alone; everything below comes from protos/ and its comments.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tests.documents.pages import ROOT, anchor
from tests.generate.contract import Call, Enum, Field, File, Message, Service, read_contract

TARGET = ROOT / "docs" / "api" / "reference.md"
MARKER = "<!-- reference: everything below is written by `make api-docs` from protos/ -->\n"
REASONS = "RefusalReason"
EVENT = "Event"

_BULLET = re.compile(r"^\* ", re.MULTILINE)


class Reason(NamedTuple):
    """Why a call fails, as the `reason` of an ErrorInfo has it."""

    name: str
    code: str
    cause: str
    remedy: str


# --- reasons ----------------------------------------------------------------------------------------------------------


def reasons(files: Iterable[File]) -> list[Reason]:
    """The refusal reasons of the contract: their comments hold code and cause, and in a second paragraph the remedy."""
    found: list[Reason] = []
    for value in _reason_enum(files).values[1:]:
        first, remedy = (_line(part) for part in value.comment.split("\n\n"))
        code, cause = first.split(". ", 1)
        found.append(Reason(value.name.removeprefix("REFUSAL_REASON_"), code, cause, remedy))
    return found


def other_errors(files: Iterable[File]) -> list[Reason]:
    """Errors that are no refusals: a list in the comment of the enum. The last sentence of each is the remedy."""
    (listed,) = (part for part in _reason_enum(files).comment.split("\n\n") if part.startswith("* "))
    found: list[Reason] = []
    for entry in _BULLET.split(listed)[1:]:
        name, text = _line(entry).split(": ", 1)
        *cause, remedy = re.split(r"(?<=\.) (?=[A-Z])", text)
        found.append(Reason(name, name, " ".join(cause), remedy))
    return found


def _reason_enum(files: Iterable[File]) -> Enum:
    (enum,) = (enum for file in files for enum in file.enums if enum.name == REASONS)
    return enum


def _reason_tables(files: Sequence[File]) -> Iterator[str]:
    comment = _reason_enum(files).comment
    yield f"## {REASONS}"
    yield _prose("\n\n".join(comment.split("\n\n")[:3]))
    yield _table(("reason", "code", "cause", "what to do"), map(_reason_row, reasons(files)))
    yield "Errors that are no refusals carry the name of their code as the reason:"
    yield _table(("reason", "cause", "what to do"), ((f"`{name}`", *more) for name, _, *more in other_errors(files)))


def _reason_row(reason: Reason) -> tuple[str, ...]:
    return f"`{reason.name}`", reason.code, reason.cause, reason.remedy


# --- services, messages, enums ----------------------------------------------------------------------------------------


class _Page:
    """Renders a contract, linking its types."""

    def __init__(self, files: Sequence[File]) -> None:
        self._files = files
        self._top = {message.name: message for file in files for message in file.messages}
        calls = [call for file in files for service in file.services for call in service.calls]
        self._of_calls = {name for call in calls for name in (call.request, call.response)}

    def parts(self) -> Iterator[str]:
        yield from _reason_tables(self._files)
        services = [service for file in self._files for service in file.services]
        for service in sorted(services, key=lambda service: len(service.calls), reverse=True):
            yield from self._service(service)
        yield "## Messages and enums"
        for file in self._files:
            for message in file.messages:
                if message.name not in self._of_calls:
                    yield from self._message(message)
            for enum in file.enums:
                if enum.name != REASONS:
                    yield from _enum(enum)

    def _service(self, service: Service) -> Iterator[str]:
        yield f"## {service.name}"
        yield _prose(service.comment)
        rows = ((_link(call.name), "stream" if call.streams else "", _first(call.comment)) for call in service.calls)
        yield _table(("call", "", "what it does"), rows)
        for call in service.calls:
            yield from self._call(call)

    def _call(self, call: Call) -> Iterator[str]:
        yield f"### {call.name}"
        yield f"`rpc {call.name}({call.request}) returns ({'stream ' if call.streams else ''}{call.response})`"
        yield "Over HTTP: " + " or ".join(f"`{route}`" for route in call.routes)
        yield _prose(call.comment)
        for name in (call.request, call.response):
            message = self._top[name]
            yield f"**`{name}`.** " + _line(message.comment)
            if message.fields:
                yield self._fields(message.fields)
        for name in (call.request, call.response):
            yield from self._inner(self._top[name])

    def _message(self, message: Message) -> Iterator[str]:
        yield _heading(message.name)
        yield _prose(message.comment)
        if message.name == EVENT:
            yield self._fields([field for field in message.fields if not field.choice])
            yield "What happened is one of these kinds:"
            kinds = [field for field in message.fields if field.choice]
            yield _table(("kind", "", "holds", "what happened"), (self._kind(field) for field in kinds))
        elif message.fields:
            yield self._fields(message.fields)
        yield from self._inner(message)

    def _inner(self, message: Message) -> Iterator[str]:
        """What is defined inside of a message."""
        for inner in message.messages:
            yield from self._message(inner)
        for enum in message.enums:
            yield from _enum(enum)

    def _fields(self, fields: Iterable[Field]) -> str:
        return _table(("field", "type", "meaning"), (self._row(field) for field in fields))

    def _row(self, field: Field) -> tuple[str, ...]:
        choice = f"<br>one of `{field.choice}`" if field.choice else ""
        return f"`{field.name}`", _type(field) + choice, _cell(field.comment)

    def _kind(self, field: Field) -> tuple[str, ...]:
        kept, _, meaning = field.comment.partition(". ")
        return f"`{field.name}`", kept.lower(), _type(field), _cell(meaning)


def _enum(enum: Enum) -> Iterator[str]:
    yield _heading(enum.name)
    yield _prose(enum.comment)
    yield _table(("value", "meaning"), ((f"`{value.name}`", _cell(value.comment)) for value in enum.values))


def _heading(name: str) -> str:
    """Of a type; what is defined inside of another is one level lower."""
    return f"#### {name}" if "." in name else f"### {name}"


def _type(field: Field) -> str:
    if field.key:
        return f"map of `{field.key}` to {_link(field.type)}"
    return f"repeated {_link(field.type)}" if field.repeated else _link(field.type)


def _link(name: str) -> str:
    """The name of a type or a call; ours, which begin with a capital, lead to their headings."""
    return f"[{name}](#{anchor(name)})" if name[0].isupper() else f"`{name}`"


# --- text -------------------------------------------------------------------------------------------------------------


def _prose(comment: str) -> str:
    """A comment as Markdown: its headings, which would be too large, as bold lines."""
    return re.sub(r"^# (.*)$", r"**\1**", comment, flags=re.MULTILINE)


def _line(text: str) -> str:
    return " ".join(text.split())


def _first(comment: str) -> str:
    """The first sentence."""
    return re.split(r"(?<=\.) ", _line(comment.partition("\n\n")[0]))[0]


def _cell(comment: str) -> str:
    """A comment in one line of a table, which may have paragraphs and a list."""
    paragraphs = (_line(_BULLET.sub("<br>• ", part)) for part in comment.split("\n\n"))
    return "<br><br>".join(paragraphs).replace("<br><br><br>", "<br><br>").replace("|", "\\|")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def reference(files: Sequence[File]) -> str:
    """Everything below the marker."""
    return "\n" + "\n\n".join(_Page(files).parts()) + "\n"


def render(page: str) -> str:
    """The page with the reference as the contract is now."""
    guide, marker, _ = page.partition(MARKER)
    assert marker, f"there is no line {MARKER}"
    return guide + marker + reference(read_contract())


if __name__ == "__main__":
    TARGET.write_text(render(TARGET.read_text(encoding="utf-8")), encoding="utf-8")
