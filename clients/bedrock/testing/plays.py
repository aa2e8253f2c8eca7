"""Makes plays: functions that answer one model request in a test.

Pass plays, or other functions that take an `Exchange`, to `Script.then`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bedrock.testing.anthropic_stream import delta, ending, opening, tool_calls
from bedrock.testing.exchange import Exchange, Gate, Play
from bedrock.testing.http_server import whole

_KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Told:
    """A play, i.e. a function that answers a model request, with a description for error messages."""

    words: str
    play: Callable[[Exchange], None]

    def __call__(self, exchange: Exchange) -> None:
        self.play(exchange)


def words_of(play: Play) -> str:
    """A description of a function that answers a model request (a play), for error messages."""
    return play.words if isinstance(play, Told) else getattr(play, "__qualname__", repr(play))


def says(*pieces: str | Gate, input_tokens: int = 10, stop: str = "end_turn") -> Play:
    """Answer with a text, streamed in pieces; at a gate among them, wait until the test opens it.

    `input_tokens` is the request's reported size; `stop` is "end_turn", "max_tokens" or "refusal".
    """

    def play(exchange: Exchange) -> None:
        exchange.begin()
        events = opening(*([""] if pieces else []), input_tokens=input_tokens)
        for piece in pieces:
            if isinstance(piece, Gate):
                exchange.send(events)
                events = []
                piece.hold(exchange)
            else:
                events.append(delta(piece))
        exchange.end([*events, *ending(stop)])

    return Told(f"answers({', '.join(map(repr, pieces))})", play)


def calls(*wanted: tuple[str, dict[str, Any]], text: str = "") -> Play:
    """Answer with `text`, if there is one, and then with tool calls: pairs of name and input."""

    def play(exchange: Exchange) -> None:
        exchange.stream([*(opening(text) if text else opening()), *tool_calls(wanted), *ending("tool_use")])

    return Told(f"calls({', '.join(f'{name}({json.dumps(given)})' for name, given in wanted)})", play)


def refuses(status: int, kind: str = "", message: str = "not now", retry_after: float | None = None) -> Play:
    """Answer with an HTTP error.

    `kind` is the provider's name for the error, by default the usual name for `status`. After `retry_after` seconds,
    the server may try again.
    """
    error = {"type": kind or _KINDS.get(status, "api_error"), "message": message}
    body = json.dumps({"type": "error", "error": error}).encode()
    headers = {} if retry_after is None else {"retry_after": str(retry_after)}
    return Told(f"fails({status})", lambda exchange: exchange.send_raw(whole(status, body, **headers)))


def breaks_off(*pieces: str) -> Play:
    """Answer with `pieces` of a text, or with nothing, and break the connection."""

    def play(exchange: Exchange) -> None:
        if pieces:
            exchange.begin(*pieces)
        exchange.reset()

    return Told(f"breaks_off({', '.join(map(repr, pieces))})", play)


def echoes(exchange: Exchange) -> None:
    """Answer with "re: " and the last text of the conversation."""
    says("re: ", exchange.question)(exchange)
