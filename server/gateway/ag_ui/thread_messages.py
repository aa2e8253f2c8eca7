"""Converts messages of a conversation to those of AG-UI and back, and reads the input of a run. Pure."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from ag_ui import core
from bedrock import v1
from pydantic import ValidationError

from server.contract.errors import MalformedRequestError
from server.gateway.json_requests import decoded
from server.gateway.json_responses import as_json, encoded

if TYPE_CHECKING:
    from ag_ui.core import ContentPart, Context, Message


Content: TypeAlias = "str | list[ContentPart]"

CONTEXT = "\n\n[Context]\n"


def id_of(message: v1.Message) -> str:
    if message.llm_request_id:
        return slot_id(message.llm_request_id, message.attempt)
    return message.name.rpartition("/")[2]


def slot_id(llm_request_id: str, attempt: int) -> str:
    return f"{llm_request_id}.{attempt}"


def reasoning_id(message_id: str) -> str:
    return f"{message_id}.reasoning"


def result_id(message: v1.Message, result: v1.ToolResult) -> str:
    return f"{id_of(message)}.{result.tool_use_id}"


def text_of(message: v1.Message, *, reasoning: bool = False) -> str:
    return "".join(block.reasoning if reasoning else block.text for block in message.content)


def converted(history: Iterable[v1.Message], known: Collection[str]) -> Iterator[Message]:
    """Yield a conversation's messages for AG-UI, without the server's own.

    Calls without a result are left out unless they are `known`: events report such calls when they begin.
    """
    messages = tuple(history)
    begun = {*known, *(each.tool_result.tool_use_id for message in messages for each in message.content)}
    for message in messages:
        match message.role:
            case v1.ROLE_USER:
                yield core.UserMessage(
                    id=id_of(message), content=_parts(without_context(text_of(message)), _images(message))
                )
            case v1.ROLE_AGENT:
                yield from _agents(message, begun)
            case v1.ROLE_TOOL:
                for block in message.content:
                    if block.HasField("tool_result"):
                        yield _result(message, block.tool_result)
            case _:
                pass


def _agents(message: v1.Message, begun: Collection[str]) -> Iterator[Message]:
    if reasoning := text_of(message, reasoning=True):
        yield core.ReasoningMessage(id=reasoning_id(id_of(message)), content=reasoning)
    calls = [
        core.ToolCall(id=call.tool_use_id, function=core.FunctionCall(name=call.tool, arguments=arguments_of(call)))
        for call in calls_in(message)
        if call.tool_use_id in begun
    ]
    text = text_of(message)
    if text or calls:
        yield core.AssistantMessage(id=id_of(message), content=text or None, tool_calls=calls or None)


def _result(message: v1.Message, result: v1.ToolResult) -> core.ToolMessage:
    outcome = outcome_of(result)
    return core.ToolMessage(
        id=result_id(message, result),
        tool_call_id=result.tool_use_id,
        content=content_of(result),
        error=outcome or None,
    )


def outcome_of(result: v1.ToolResult) -> str:
    """How an unsuccessful call ended, such as `denied`; "" for success."""
    if result.outcome == v1.TOOL_OUTCOME_OK:
        return ""
    return v1.ToolOutcome.Name(result.outcome).removeprefix("TOOL_OUTCOME_").lower()


def content_of(result: v1.ToolResult) -> Content:
    return _parts(result.output, result.images)


def calls_in(message: v1.Message) -> list[v1.ToolCall]:
    return [block.tool_call for block in message.content if block.HasField("tool_call")]


def arguments_of(call: v1.ToolCall) -> str:
    """The arguments of a call as text, as in AG-UI."""
    return encoded(_whole(as_json(call.input))).decode() if call.HasField("input") else call.raw_input


def _whole(value: Any) -> Any:
    """The value with whole numbers as `int`: in a Struct, all numbers are floats."""
    match value:
        case dict():
            return {key: _whole(each) for key, each in value.items()}
        case list():
            return list(map(_whole, value))
        case float() if value.is_integer():
            return int(value)
        case _:
            return value


def _images(message: v1.Message) -> list[v1.Image]:
    return [block.image for block in message.content if block.HasField("image")]


def _parts(text: str, images: Sequence[v1.Image]) -> Content:
    if not images:
        return text
    linked = (core.UrlSource(value=f"/v1/{each.attachment}:download", mime_type=each.media_type) for each in images)
    return [*([core.TextPart(text=text)] if text else []), *(core.ImagePart(source=source) for source in linked)]


def said_by(message: core.UserMessage | core.ToolMessage, place: str) -> tuple[str, list[v1.Image], list[str]]:
    """Text and images of a message, and the kinds of unusable parts. Raises MalformedRequestError, about `place`."""
    if isinstance(message.content, str):
        return message.content, [], []
    texts: list[str] = []
    images: list[v1.Image] = []
    unused: list[str] = []
    for index, part in enumerate(message.content):
        match part:
            case core.TextPart(text=text):
                texts.append(text)
            case core.ImagePart(source=core.DataSource(value=value, mime_type=kind)):
                images.append(v1.Image(media_type=kind, data=_bytes(value, f"{place}.content[{index}].source.value")))
            case _:
                source = getattr(part, "source", None)
                unused.append(f"{place}.content[{index}]: {part.type} given as {source.type if source else 'text'}")
    return "\n".join(texts), images, unused


def _bytes(text: str, place: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise MalformedRequestError((place, "must be Base64")) from None


def with_context(text: str, context: Sequence[Context]) -> str:
    lines = (f"{each.description}: {each.value}" for each in context)
    return text + CONTEXT + "\n".join(lines) if context else text


def without_context(text: str) -> str:
    return text.partition(CONTEXT)[0]


_THREAD = re.compile(r"[A-Za-z0-9_.~:@+-]{1,128}")
MAX_ID_CHARS = 256


def input_from(body: bytes) -> core.RunAgentInput:
    """The input of a run; unknown fields are ignored, as AG-UI requires.

    Raises MalformedRequestError, which names the field.
    """
    given = decoded(body)
    try:
        found = core.RunAgentInput.model_validate(given, strict=True)
    except ValidationError as error:
        # A value that is neither a string nor an array causes two errors at the same place; the last one is kept.
        wrong = {_place(given, each["loc"]): _words(each["type"], each["msg"]) for each in error.errors()}
        raise MalformedRequestError(*wrong.items()) from None
    if not _THREAD.fullmatch(found.thread_id):
        _refuse("threadId", "must be the id or the slug of a conversation: 1 to 128 letters, digits and _.~:@+-")
    _check_ids("runId", [found.run_id])
    _check_ids("messages", [each.id for each in found.messages], "id")
    _check_ids("resume", [each.interrupt_id for each in found.resume or ()], "interruptId")
    _check_ids("tools", [each.name for each in found.tools or ()], "name")
    return found


def _check_ids(where: str, ids: Sequence[str], name: str = "") -> None:
    seen: set[str] = set()
    for index, each in enumerate(ids):
        place = f"{where}[{index}].{name}" if name else where
        if not 0 < len(each) <= MAX_ID_CHARS:
            _refuse(place, f"must have 1 to {MAX_ID_CHARS} characters")
        if each in seen:
            _refuse(place, "must not be given twice")
        seen.add(each)


def _place(given: Any, path: Iterable[Any]) -> str:
    """Where in the JSON an error is, without the names of types that pydantic puts into its path."""
    place, *rest = "", *path
    for part in rest:
        if isinstance(given, list) and isinstance(part, int):
            place, given = f"{place}[{part}]", given[part]
        elif isinstance(given, dict) and part in given:
            place, given = f"{place}.{part}", given[part]
        elif isinstance(given, dict) and part == rest[-1] and "[" not in str(part):
            place = f"{place}.{part}"
    return place.lstrip(".")


def _words(kind: str, text: str) -> str:
    if kind == "missing":
        return "is required"
    return text.replace("Input should be", "must be").replace("a valid dictionary or instance of", "an object:")


@dataclass
class News:
    said: list[tuple[int, core.UserMessage]] = field(default_factory=list)
    """Messages of the user, with their places in the input."""
    results: list[tuple[int, core.ToolMessage]] = field(default_factory=list)
    instructions: list[str] = field(default_factory=list)
    """The application's instructions for the agent, wherever they are in the input."""


def news_in(given: core.RunAgentInput, known: Collection[str], conversation_id: str) -> News:
    """The messages in the input after the last one that the conversation already has (`known`).

    Raises MalformedRequestError for an agent message that the agent never wrote. Discarded messages are accepted: a
    front end that was cut off may still have them.
    """
    last = max((index for index, each in enumerate(given.messages) if each.id in known), default=-1)
    news = News()
    for index, message in enumerate(given.messages):
        match message:
            case core.UserMessage() if index > last:
                news.said.append((index, message))
            case core.ToolMessage() if index > last and not _ours(message.id, conversation_id):
                news.results.append((index, message))
            case core.AssistantMessage() if index > last and not _ours(message.id, conversation_id):
                _refuse(
                    f"messages[{index}]",
                    "the agent never wrote this message; after the last stored message, only user messages "
                    "and tool results are allowed",
                )
            case _ if message.role in {"system", "developer"}:
                news.instructions.append(str(message.content))
            case _:
                pass
    return news


def _ours(message_id: str, conversation_id: str) -> bool:
    return bool(conversation_id) and message_id.startswith(f"{conversation_id}:")


def _refuse(place: str, text: str) -> NoReturn:
    raise MalformedRequestError((place, text))
