"""Builds the stream events of a model's answer in Anthropic's Messages API."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import count
from typing import Any

_numbers = count(1)


def opening(*pieces: str, input_tokens: int = 10) -> list[dict[str, Any]]:
    """The first events of an answer. With `pieces`, the answer's text begins with these pieces."""
    usage = {"input_tokens": input_tokens, "output_tokens": 1}
    message = {"id": "msg", "type": "message", "role": "assistant", "content": [], "usage": usage}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    if pieces:
        block = {"type": "text", "text": ""}
        events += [{"type": "content_block_start", "index": 0, "content_block": block}, *map(delta, pieces)]
    return events


def delta(text: str) -> dict[str, Any]:
    """The event that adds a piece to the answer's text."""
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}


def tool_calls(wanted: Iterable[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The events for tool calls, given as (name, input) pairs.

    Content blocks begin at 1, because the text has index 0.
    """
    events: list[dict[str, Any]] = []
    for index, (name, arguments) in enumerate(wanted, start=1):
        block = {"type": "tool_use", "id": f"toolu_{next(_numbers)}", "name": name, "input": {}}
        partial = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
        events += [
            {"type": "content_block_start", "index": index, "content_block": block},
            {"type": "content_block_delta", "index": index, "delta": partial},
            {"type": "content_block_stop", "index": index},
        ]
    return events


def ending(reason: str) -> list[dict[str, Any]]:
    """The last events of an answer. `reason` is "end_turn", "tool_use", "max_tokens" or "refusal"."""
    return [
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]


def named(*events: dict[str, Any]) -> list[bytes]:
    """The bytes of each event as a server-sent event."""
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]
