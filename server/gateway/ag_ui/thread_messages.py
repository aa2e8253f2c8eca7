"""Converts messages of a conversation to those of AG-UI, and back. Pure."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, TypeAlias

from ag_ui.core import (
    AssistantMessage,
    DataSource,
    FunctionCall,
    ImagePart,
    ReasoningMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UrlSource,
    UserMessage,
)
from bedrock import v1

from server.contract.errors import MalformedRequestError
from server.gateway.answers import as_json, encoded

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from ag_ui.core import ContentPart, Context, Message

Content: TypeAlias = "str | list[ContentPart]"

CONTEXT = "\n\n[Context]\n"
"""What separates the text of a message from the context that the page has sent with it, which it is not shown again."""


def id_of(message: v1.Message) -> str:
    """Return the id of a message in AG-UI; for that of a model, the one under which its text was streamed."""
    if message.llm_request_id:
        return slot_id(message.llm_request_id, message.attempt)
    return message.name.rpartition("/")[2]


def slot_id(llm_request_id: str, attempt: int) -> str:
    """Return the id of the message that an attempt of a model request becomes."""
    return f"{llm_request_id}.{attempt}"


def reasoning_id(message_id: str) -> str:
    """Return the id of the reasoning in a message."""
    return f"{message_id}.reasoning"


def result_id(message: v1.Message, result: v1.ToolResult) -> str:
    """Return the id of a tool result, which is a message of its own in AG-UI."""
    return f"{id_of(message)}.{result.tool_use_id}"


def text_of(message: v1.Message, *, reasoning: bool = False) -> str:
    """Return the text of a message, or its reasoning, as it was streamed."""
    return "".join(block.reasoning if reasoning else block.text for block in message.content)


def shown(history: Iterable[v1.Message], known: Collection[str]) -> Iterator[Message]:
    """Yield the messages of a conversation as AG-UI has them, without those that the server wrote.

    Calls without a result are left out, unless they are `known`, by their ids, to the front end: events tell of them
    when they begin.
    """
    messages = tuple(history)
    begun = {*known, *(each.tool_result.tool_use_id for message in messages for each in message.content)}
    for message in messages:
        match message.role:
            case v1.ROLE_USER:
                yield UserMessage(
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
        yield ReasoningMessage(id=reasoning_id(id_of(message)), content=reasoning)
    calls = [
        ToolCall(id=call.tool_use_id, function=FunctionCall(name=call.tool, arguments=arguments_of(call)))
        for call in calls_in(message)
        if call.tool_use_id in begun
    ]
    text = text_of(message)
    if text or calls:
        yield AssistantMessage(id=id_of(message), content=text or None, tool_calls=calls or None)


def _result(message: v1.Message, result: v1.ToolResult) -> ToolMessage:
    outcome = outcome_of(result)
    return ToolMessage(
        id=result_id(message, result),
        tool_call_id=result.tool_use_id,
        content=content_of(result),
        error=outcome or None,
    )


def outcome_of(result: v1.ToolResult) -> str:
    """Return how a call ended that did not succeed, such as `denied`; "" for success."""
    if result.outcome == v1.TOOL_OUTCOME_OK:
        return ""
    return v1.ToolOutcome.Name(result.outcome).removeprefix("TOOL_OUTCOME_").lower()


def content_of(result: v1.ToolResult) -> Content:
    """Return the content of a tool result."""
    return _parts(result.output, result.images)


def calls_in(message: v1.Message) -> list[v1.ToolCall]:
    """Return the tool calls in a message."""
    return [block.tool_call for block in message.content if block.HasField("tool_call")]


def arguments_of(call: v1.ToolCall) -> str:
    """Return the arguments of a call as text, as AG-UI has them."""
    return encoded(_whole(as_json(call.input))).decode() if call.HasField("input") else call.raw_input


def _whole(value: Any) -> Any:
    """Return JSON in which whole numbers are written as such: in a Struct all numbers are floats."""
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
    """Return text and images as one text, or as parts if there are images: links to what the gateway serves."""
    if not images:
        return text
    linked = (UrlSource(value=f"/v1/{each.attachment}:download", mime_type=each.media_type) for each in images)
    return [*([TextPart(text=text)] if text else []), *(ImagePart(source=source) for source in linked)]


def said_by(message: UserMessage | ToolMessage, place: str) -> tuple[str, list[v1.Image], list[str]]:
    """Return text and images of a message of the front end, and the kinds of those parts that cannot be used.

    Raises MalformedRequestError; `place` names the message.
    """
    if isinstance(message.content, str):
        return message.content, [], []
    texts: list[str] = []
    images: list[v1.Image] = []
    unused: list[str] = []
    for index, part in enumerate(message.content):
        match part:
            case TextPart(text=text):
                texts.append(text)
            case ImagePart(source=DataSource(value=value, mime_type=kind)):
                images.append(v1.Image(media_type=kind, data=_bytes(value, f"{place}.content[{index}].source.value")))
            case _:
                source = getattr(part, "source", None)
                unused.append(f"{place}.content[{index}]: {part.type} by {source.type if source else 'text'}")
    return "\n".join(texts), images, unused


def _bytes(text: str, place: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise MalformedRequestError((place, "must be Base64")) from None


def with_context(text: str, context: Sequence[Context]) -> str:
    """Return the text of a message with what the page says of itself, for the model."""
    lines = (f"{each.description}: {each.value}" for each in context)
    return text + CONTEXT + "\n".join(lines) if context else text


def without_context(text: str) -> str:
    """Return the text of a message as its user has written it."""
    return text.partition(CONTEXT)[0]
