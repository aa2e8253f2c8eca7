"""Reads the input of an AG-UI run: what in it is new to the conversation, and what is wrong with it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from ag_ui.core import AssistantMessage, RunAgentInput, ToolMessage, UserMessage
from pydantic import ValidationError

from server.contract.errors import MalformedRequestError
from server.gateway.json_requests import decoded

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

_THREAD = re.compile(r"[A-Za-z0-9_.~:@+-]{1,128}")
MAX_ID_CHARS = 256


def input_from(body: bytes) -> RunAgentInput:
    """Return the input in a body. Raises MalformedRequestError, which names the field.

    Fields that AG-UI does not know are left alone, as it demands.
    """
    given = decoded(body)
    try:
        found = RunAgentInput.model_validate(given, strict=True)
    except ValidationError as error:
        # Of a text or a list that is neither, two errors tell: what comes last is about the kind that was tried.
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
    """Raise MalformedRequestError if an id is empty, too long, or there twice."""
    seen: set[str] = set()
    for index, each in enumerate(ids):
        place = f"{where}[{index}].{name}" if name else where
        if not 0 < len(each) <= MAX_ID_CHARS:
            _refuse(place, f"must have 1 to {MAX_ID_CHARS} characters")
        if each in seen:
            _refuse(place, "is there twice")
        seen.add(each)


def _place(given: Any, path: Iterable[Any]) -> str:
    """Return where in the JSON an error is, without the names of types that pydantic puts into its path."""
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
        return "is missing"
    return text.replace("Input should be", "must be").replace("a valid dictionary or instance of", "an object:")


@dataclass
class News:
    """What the messages of an input add to a conversation."""

    said: list[tuple[int, UserMessage]] = field(default_factory=list)
    """Messages of the user, with their places in the input."""
    results: list[tuple[int, ToolMessage]] = field(default_factory=list)
    """Results of the front end's tools."""
    instructions: list[str] = field(default_factory=list)
    """What the application tells the agent, wherever in the input it stands."""


def news_in(given: RunAgentInput, known: Collection[str], conversation_id: str) -> News:
    """Return what follows the last message that the conversation has: those in `known`, by their ids.

    Raises MalformedRequestError if there is a message of the agent that it has never written. One whose text was
    streamed and then discarded is not refused: a front end that was cut off could not know.
    """
    last = max((index for index, each in enumerate(given.messages) if each.id in known), default=-1)
    news = News()
    for index, message in enumerate(given.messages):
        match message:
            case UserMessage() if index > last:
                news.said.append((index, message))
            case ToolMessage() if index > last and not _ours(message.id, conversation_id):
                news.results.append((index, message))
            case AssistantMessage() if index > last and not _ours(message.id, conversation_id):
                _refuse(
                    f"messages[{index}]",
                    "the agent has not written this message: after the last one that this thread has, only "
                    "messages of the user and results of tools may follow",
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
