"""Tool calls between providers and the machine: unique ids in, valid JSON out."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable

import msgspec

from actors.core.content import ToolUse
from actors.ports import ModelRequest

#: What every provider takes, should the conversation change its model.
_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")
_NAME_CHARS = 64


def unique(calls: Iterable[ToolUse], request: ModelRequest) -> tuple[ToolUse, ...]:
    """`calls` with every empty, repeated or foreign-looking id replaced by "<request id>-<index>" (SEMANTICS §2.1).

    Repeated means: used before in this answer or in the request's turns.
    """
    seen = {block.id for turn in request.turns for block in turn.content if isinstance(block, ToolUse)}
    result = []
    for index, call in enumerate(calls):
        identity = call.id
        numbers = itertools.count(index)
        while identity in seen or not _ID.fullmatch(identity):
            identity = made_id(request.request_id, next(numbers))
        seen.add(identity)
        result.append(ToolUse(identity, call.name, call.input))
    return tuple(result)


def made_id(request_id: str, index: int) -> str:
    """A tool-call id that every provider accepts, the same for the same arguments."""
    text = _FOREIGN.sub("-", f"{request_id}-{index}")
    return text if len(text) <= 40 else "call-" + hashlib.sha256(f"{request_id}-{index}".encode()).hexdigest()[:32]


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
