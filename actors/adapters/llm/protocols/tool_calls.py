"""Converts tool calls between providers and the core: makes ids unique, and inputs valid JSON."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from actors.adapters.llm.protocols.lenient_json import object_text, replace_lone_surrogates
from actors.core.content import Content, ToolUse, distinct_calls

if TYPE_CHECKING:
    from actors.ports import ModelRequest

_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")
_NAME_CHARS = 64


def accepted(content: tuple[Content, ...], request: ModelRequest) -> tuple[Content, ...]:
    """Return an answer's content with calls that can be stored and sent to every provider.

    The ids of the calls are unique in the conversation, and their inputs contain no lone surrogates. An input that is
    encoded twice is decoded once.
    """
    view = request.view
    recent = {block.id for turn in view.turns[view.settled :] for block in turn.content if isinstance(block, ToolUse)}
    return distinct_calls(tuple(map(_repaired, content)), request.request_id, recent, view.settled_calls)


def _repaired(block: Content) -> Content:
    if not isinstance(block, ToolUse):
        return block
    return replace(block, input=replace_lone_surrogates(object_text(block.input)))


def name_of(call: ToolUse) -> str:
    """Return the call's name in a form that every provider accepts.

    A model may invent a tool with any name. Such a call gets an error result, but providers would refuse every later
    request with that name in its history.
    """
    return _FOREIGN.sub("_", call.name[:_NAME_CHARS]) or "unnamed"


def arguments_of(call: ToolUse) -> bytes:
    """Return the call's input as the JSON text of an object; unchanged if it is an object already.

    An invalid input, for which the call got an error result, is wrapped in an object, because providers refuse a
    history that contains invalid JSON.
    """
    raw = call.input.encode("utf-8", "replace")
    if not raw.strip():
        return b"{}"
    try:
        if isinstance(msgspec.json.decode(raw), dict):
            return raw
    except (msgspec.DecodeError, RecursionError):
        pass
    return msgspec.json.encode({"INVALID_JSON": call.input})
