"""Questions that an MCP server asks a person during a tool call (MCP elicitation).

A question is converted to a form that every client can show. The message, the form and the URL come from the server, so
their sizes are bounded, and questions that must not be asked in this way, such as questions for passwords, are refused.
Forms keep only the JSON Schema keywords that the protocol defines.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from actors.adapters.mcp.server_settings import McpServer, url_fault
from actors.common.json_schema import InvalidSchemaError, JsonSchema, parse_json, shortened
from actors.core.states import QuestionStatus
from actors.ports import PersonAnswer, PersonQuestion, TooManyQuestionsError

if TYPE_CHECKING:
    from mcp_types import ElicitRequestParams, ElicitResult, ErrorData

MESSAGE_CHARACTERS = 4_096

SCHEMA_BYTES = 16 << 10

MAX_FIELDS = 32

MAX_CHOICES = 2_048

URL_CHARACTERS = 2_048

_SHOWN = ("title", "description", "default")
_KEYWORDS: Mapping[str, tuple[str, ...]] = {
    "string": (*_SHOWN, "minLength", "maxLength", "format", "enum", "enumNames", "oneOf"),
    "number": (*_SHOWN, "minimum", "maximum"),
    "integer": (*_SHOWN, "minimum", "maximum"),
    "boolean": _SHOWN,
    "array": (*_SHOWN, "minItems", "maxItems", "items"),
}

# Matches the name (after `_words`) of a field that asks for a secret, which a form must not do.
_SECRET = re.compile(
    r"\b(password|passphrase|passwd|secret|api ?key|private ?key|(access|auth|bearer|refresh|api) token|credentials?"
    r"|credit card|card number|cvv|cvc)\b"
)

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class RefusedQuestionError(Exception):
    """A server's question must not be shown to a person; the message tells the server why."""


class TimedCall:
    """A running call and its time limit, which is suspended while a person is asked.

    Use only on the event loop's thread.
    """

    def __init__(self, ask: Callable[[PersonQuestion], Future[PersonAnswer]], seconds: float) -> None:
        self.ask = ask
        self.limit = asyncio.timeout(seconds)
        self._questions = 0
        # How many more seconds the call may run once its questions have been answered.
        self._remaining = 0.0

    @contextmanager
    def paused(self) -> Generator[None]:
        """Suspend the call's time limit during the `with` block, in which a person is asked."""
        now = asyncio.get_running_loop().time
        if not self._questions and (when := self.limit.when()) is not None:
            self._remaining = when - now()
            self._move(None)
        self._questions += 1
        try:
            yield
        finally:
            self._questions -= 1
            if not self._questions:
                self._move(now() + self._remaining)

    def _move(self, when: float | None) -> None:
        try:
            self.limit.reschedule(when)
        except RuntimeError:  # the call has ended
            self._remaining = 0.0


async def ask_person(
    server: McpServer, call: TimedCall | None, params: ElicitRequestParams
) -> ElicitResult | ErrorData:
    """Ask a person what a server wants to know; return an error if no call is running or the question is refused."""
    from mcp_types import ElicitResult  # noqa: PLC0415 -- any open connection has loaded this module

    if call is None:
        return _refusal("the user can be asked questions only while one of this server's tools is running")
    try:
        waiting = call.ask(question_of(server, params))
    except (RefusedQuestionError, TooManyQuestionsError) as refused:
        return _refusal(str(refused))
    with call.paused():
        answer = await asyncio.wrap_future(waiting)
    match answer.status:
        case QuestionStatus.ANSWERED:
            return ElicitResult(action="accept", content=json.loads(answer.content) if answer.content else None)
        case QuestionStatus.DECLINED:
            return ElicitResult(action="decline")
        case _:
            return ElicitResult(action="cancel")


def _refusal(text: str) -> ErrorData:
    from mcp_types import INVALID_PARAMS, ErrorData  # noqa: PLC0415 -- any open connection has loaded this

    return ErrorData(code=INVALID_PARAMS, message=f"Not asked: {text}.")


def question_of(server: McpServer, params: ElicitRequestParams) -> PersonQuestion:
    """Convert a server's request to the question that clients show. Raises RefusedQuestionError."""
    message, time = _clean(params.message)[:MESSAGE_CHARACTERS], round(server.question_seconds * 1000)
    if params.mode == "url":
        url = params.url
        if len(url) > URL_CHARACTERS or not url.isascii() or not url.isprintable() or " " in url:
            raise RefusedQuestionError(f"the URL must consist of at most {URL_CHARACTERS} printable ASCII characters")
        if "\\" in url:  # browsers treat a backslash as a slash and may visit a host other than the one shown
            raise RefusedQuestionError("the URL must not contain a backslash")
        if fault := url_fault(url):
            raise RefusedQuestionError(f"the URL {fault}")
        return PersonQuestion(server.name, message, time, url=url)
    return PersonQuestion(server.name, message, time, schema=form_of(params.requested_schema))


def form_of(given: Mapping[str, Any]) -> str:
    """The form's schema with only the keywords that forms may have.

    Raises RefusedQuestionError if it is invalid, too large, or asks for a secret.
    """
    properties = given.get("properties", {})
    if given.get("type", "object") != "object" or not isinstance(properties, dict):
        raise RefusedQuestionError("requestedSchema must be an object with properties")
    if len(properties) > MAX_FIELDS:
        raise RefusedQuestionError(f"a form may have at most {MAX_FIELDS} fields")
    required = given.get("required", [])
    if not _is_list_of_texts(required) or any(name not in properties for name in required):
        raise RefusedQuestionError("required must be a list of property names")
    schema = {
        "type": "object",
        "properties": {name: _field(name, field) for name, field in properties.items()},
        "required": list(dict.fromkeys(required)),
        "additionalProperties": False,
        "propertyOrder": list(properties),
    }
    try:
        text = json.dumps(schema, ensure_ascii=False)
        size = len(text.encode())
        if size <= SCHEMA_BYTES:
            JsonSchema(parse_json(text))  # also refuses numbers that no protobuf message can contain
    except (ValueError, RecursionError, InvalidSchemaError) as error:
        raise RefusedQuestionError(f"requestedSchema is not a valid form schema: {shortened(str(error))}") from None
    if size > SCHEMA_BYTES:
        raise RefusedQuestionError(f"requestedSchema is larger than {SCHEMA_BYTES} bytes")
    return text


def _field(name: str, given: Any) -> dict[str, Any]:
    """A field's schema with only the keywords that its type may have. Raises RefusedQuestionError."""
    kind = str(given.get("type")) if isinstance(given, dict) else ""
    if not name or len(name) > 128 or _CONTROLS.search(name) or kind not in _KEYWORDS:
        where = shortened(repr(name))
        raise RefusedQuestionError(f"the field {where} must be a string, number, integer, boolean, or list of choices")
    title = given.get("title", "")
    asked = f"{_words(name)} {_words(title) if isinstance(title, str) else ''}"
    if given.get("format") == "password" or given.get("writeOnly") is True or _SECRET.search(asked):
        raise RefusedQuestionError(f"the field {name!r} asks for a secret; use a URL for that")
    field = {"type": kind, **{key: given[key] for key in _KEYWORDS[kind] if key in given}}
    if kind == "array":
        field["items"] = _choices(name, given.get("items"))
    if "oneOf" in field:
        field["oneOf"] = _titled(name, field["oneOf"])
    texts = (*(field.get(key, "") for key in ("title", "description")),)
    lists = (*(field.get(key, []) for key in ("enum", "enumNames")),)
    if not all(isinstance(text, str) for text in texts) or not all(map(_is_list_of_texts, lists)):
        raise RefusedQuestionError(f"the field {name!r} has a title, description or choice that is not a string")
    return field


def _choices(name: str, given: Any) -> dict[str, Any]:
    if isinstance(given, dict) and given.get("type", "string") == "string" and _is_list_of_texts(given.get("enum")):
        return {"type": "string", "enum": given["enum"]}
    if isinstance(given, dict) and "anyOf" in given:
        return {"anyOf": _titled(name, given["anyOf"])}
    raise RefusedQuestionError(f"the field {name!r} is an array, but its items are not choices")


def _titled(name: str, given: Any) -> list[dict[str, str]]:
    if isinstance(given, list) and len(given) <= MAX_CHOICES and all(isinstance(each, dict) for each in given):
        choices = [{key: each[key] for key in ("const", "title") if key in each} for each in given]
        if all("const" in each and _is_list_of_texts([*each.values()]) for each in choices):
            return choices
    raise RefusedQuestionError(f"the choices of the field {name!r} must each have a const and, optionally, a title")


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MAX_CHOICES and all(isinstance(each, str) for each in value)


def _words(text: str) -> str:
    """A name as lower-case words: apiKey, api_key and API-Key all become "api key"."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text[:1_000])
    return re.sub(r"[\W_]+", " ", parted).lower()


def _clean(text: str) -> str:
    """Replace characters that cannot be stored or shown: control characters, and unpaired surrogates."""
    return _CONTROLS.sub("\ufffd", text[: 2 * MESSAGE_CHARACTERS])
