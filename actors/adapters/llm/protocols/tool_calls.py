"""Tool calls between providers and the machine: unique ids in, valid JSON out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from actors.adapters.llm.protocols.json_text import replace_lone_surrogates
from actors.core.content import Content, ToolUse, distinct_calls

if TYPE_CHECKING:
    from actors.ports import ModelRequest

_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")
_NAME_CHARS = 64


def accepted(content: tuple[Content, ...], request: ModelRequest) -> tuple[Content, ...]:
    """Return an answer's content with calls that can be stored and echoed to every provider.

    Their ids are unique in the conversation; their inputs hold no lone surrogates.
    """
    taken = {block.id for turn in request.turns for block in turn.content if isinstance(block, ToolUse)}
    return distinct_calls(tuple(map(_repaired, content)), request.request_id, taken)


def _repaired(block: Content) -> Content:
    if not isinstance(block, ToolUse):
        return block
    return ToolUse(block.id, block.name, replace_lone_surrogates(block.input.encode("utf-8", "replace")).decode())


def name_of(call: ToolUse) -> str:
    """The call's name as every provider takes it.

    A model may call a tool that does not exist by any name; the call gets an error result, but providers refuse a
    history that holds such a name, for ever.
    """
    return _FOREIGN.sub("_", call.name[:_NAME_CHARS]) or "unnamed"


def arguments_of(call: ToolUse) -> bytes:
    """The call's input as the JSON text of an object, as the model wrote it wherever that is one.

    Invalid JSON, which got an error result, is wrapped, since providers refuse a history that holds it.
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
