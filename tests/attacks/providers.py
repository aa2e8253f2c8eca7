"""Model providers that do harm: what each sends when it has read a request of Anthropic's Messages API."""

import gzip
import json
import time
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any, TypeAlias

from bedrock.testing.anthropic_stream import delta, ending, named, opening
from bedrock.testing.http_server import STREAM_HEAD, ServedConnection, chunked, whole

Hostile: TypeAlias = Callable[[ServedConnection], None]

MIB = b"x" * (1 << 20)
OPENING, ENDING = b"".join(named(*opening("Hello"))), b"".join(named(*ending("end_turn")))
PLAIN_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
FINE = STREAM_HEAD + chunked(OPENING + ENDING) + b"0\r\n\r\n"


def sends(*pieces: bytes) -> Hostile:
    """Sends these and closes the connection."""

    def play(connection: ServedConnection) -> None:
        for piece in pieces:
            connection.send(piece)

    return play


def forever(piece: bytes, *first: bytes) -> Hostile:
    """Sends `piece` again and again after `first`, as fast as it is read."""

    def play(connection: ServedConnection) -> None:
        for each in first:
            connection.send(each)
        many = piece * max(1, (1 << 16) // len(piece))
        while True:
            connection.send(many)

    return play


def slowly(piece: bytes, *first: bytes, seconds: float = 0.05) -> Hostile:
    """Sends `piece` byte by byte after `first`, again and again."""

    def play(connection: ServedConnection) -> None:
        for each in first:
            connection.send(each)
        for byte in repeat(piece):
            for position in range(len(byte)):
                connection.send(byte[position : position + 1])
                time.sleep(seconds)

    return play


def silent(*first: bytes) -> Hostile:
    """Sends `first` and then nothing more."""

    def play(connection: ServedConnection) -> None:
        for each in first:
            connection.send(each)
        connection.wait_for_close()

    return play


def body(*pieces: bytes) -> bytes:
    """An event stream whose chunks are these."""
    return STREAM_HEAD + b"".join(map(chunked, pieces)) + b"0\r\n\r\n"


def answers(*events: dict[str, Any]) -> Hostile:
    """Streams these events."""
    return sends(body(*named(*events)))


def raw_event(data: bytes, name: bytes = b"content_block_delta") -> bytes:
    return b"event: " + name + b"\ndata: " + data + b"\n\n"


def block(index: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": fields}


def calls(ids: Iterable[str]) -> list[dict[str, Any]]:
    """An answer that calls tools with these ids, without arguments."""
    events = opening()
    for index, id_ in enumerate(ids):
        events += [block(index, type="tool_use", id=id_, name="think", input={})]
        events += [{"type": "content_block_stop", "index": index}]
    return events + ending("tool_use")[1:]


def usage(**counts: Any) -> list[dict[str, Any]]:
    """An answer with these token counts."""
    events = opening("Hello") + ending("end_turn")
    events[0]["message"]["usage"] = events[-2]["usage"] = counts
    return events


def resets(connection: ServedConnection) -> None:
    connection.send(STREAM_HEAD + chunked(OPENING))
    connection.reset()


def deep(levels: int) -> bytes:
    return b'{"type":"ping","x":' + b"[" * levels + b"]" * levels + b"}"


KINDS: dict[str, Hostile] = {
    # The connection.
    "closes-at-once": sends(),
    "resets-at-once": lambda connection: connection.reset(),
    "says-nothing": silent(),
    "resets-in-the-answer": resets,
    "breaks-off": sends(STREAM_HEAD, chunked(OPENING)),
    "stalls": silent(STREAM_HEAD, chunked(OPENING)),
    # The head.
    "garbage": sends(bytes(range(256)) * 64),
    "garbage-forever": forever(bytes(range(128, 256))),
    "tls-alert": sends(b"\x15\x03\x03\x00\x02\x02\x28"),
    "http2": sends(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + b"\x00" * 18),
    "http-0.9": sends(OPENING, ENDING),
    "no-line-ends": forever(b"HTTP/1.1 200 OK "),
    "one-header-forever": forever(b"y" * 1000, b"HTTP/1.1 200 OK\r\nx: "),
    "headers-forever": forever(b"x-y: z\r\n", b"HTTP/1.1 200 OK\r\n"),
    "a-slow-head": slowly(b"x-y: z\r\n", b"HTTP/1.1 200 OK\r\n"),
    "continues-forever": forever(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "status-99999": sends(b"HTTP/1.1 99999 Much\r\n\r\n"),
    "status-negative": sends(b"HTTP/1.1 -1 Less\r\n\r\n"),
    "redirects": sends(whole(302, b"", location="http://127.0.0.1:1/elsewhere")),
    "redirects-to-a-file": sends(whole(307, b"", location="file:///etc/passwd")),
    "cookies": sends(PLAIN_HEAD + b"set-cookie: a=b; Domain=.com\r\n" * 90 + b"\r\n", OPENING, ENDING),
    # The body.
    "length-negative": sends(PLAIN_HEAD + b"content-length: -5\r\n\r\n", OPENING),
    "length-huge": silent(PLAIN_HEAD + b"content-length: 99999999999999999999\r\n\r\n", OPENING),
    "lengths-that-differ": sends(PLAIN_HEAD + b"content-length: 3\r\ncontent-length: 900\r\n\r\n", OPENING),
    "chunk-negative": sends(STREAM_HEAD, b"-5\r\nabcde\r\n"),
    "chunk-huge": forever(MIB[:4096], STREAM_HEAD, b"ffffffffffffffffffffffff\r\n"),
    "chunk-extension-forever": forever(b"y" * 1000, STREAM_HEAD, b"5;"),
    "chunks-of-one-byte": forever(b"1\r\n:\r\n", STREAM_HEAD),
    "trailers-forever": forever(b"x-y: z\r\n", STREAM_HEAD, chunked(OPENING + ENDING), b"0\r\n"),
    "a-second-answer": sends(FINE, whole(500, b"smuggled")),
    "gzip": sends(whole(200, gzip.compress(MIB * 64), "text/event-stream", content_encoding="gzip")),
    "not-a-stream": sends(whole(200, b"<html>Sign in</html>" * 50_000, "text/html")),
    "error-without-end": forever(MIB[:4096], b"HTTP/1.1 500 Oops\r\nconnection: close\r\n\r\n"),
    "retry-after": sends(whole(429, b"{}", retry_after="99999999999999999999")),
    "retry-after-negative": sends(whole(529, b"{}", retry_after="-1")),
    # Events.
    "comments-forever": forever(chunked(b": ping\n\n"), STREAM_HEAD),
    "empty-lines-forever": forever(chunked(b"\n" * 1000), STREAM_HEAD),
    "a-line-forever": forever(chunked(MIB[:8192]), STREAM_HEAD, chunked(b"data: ")),
    "data-lines-forever": forever(chunked(b"data: x\n"), STREAM_HEAD),
    "pings-forever": forever(chunked(raw_event(b'{"type":"ping"}', b"ping")), STREAM_HEAD, chunked(OPENING)),
    "unknown-events-forever": forever(chunked(raw_event(b'{"type":"what"}', b"what")), STREAM_HEAD, chunked(OPENING)),
    "slow-text": slowly(chunked(named(delta("x"))[0]), STREAM_HEAD, chunked(OPENING)),
    "text-forever": forever(chunked(named(delta("word " * 200))[0]), STREAM_HEAD, chunked(OPENING)),
    "tiny-texts-forever": forever(chunked(named(delta("x"))[0]), STREAM_HEAD, chunked(OPENING)),
    "invalid-utf-8": sends(body(OPENING, raw_event(b'{"type":"content_block_delta","delta":{"text":"\xff\xfe"}}'))),
    "not-json": sends(body(OPENING, raw_event(b"{'type': nothing}"))),
    "not-an-object": sends(body(OPENING, raw_event(b"[[[1]]]"))),
    "deep-json": sends(body(OPENING, raw_event(deep(1_000_000)), ENDING)),
    "huge-number": sends(
        body(raw_event(b'{"type":"message_start","message":{"usage":{"input_tokens":' + b"9" * 9000 + b"}}}"))
    ),
    "half-surrogates": answers(*opening(), block(0, type="text", text=""), delta("\ud800"), *ending("end_turn")),
    "control-characters": answers(*opening("\x00\x1b]0;\x07\u2028\u202e"), *ending("end_turn")),
    "error-event": answers(
        *opening("Hello"), {"type": "error", "error": {"type": "x" * 1000, "message": "y" * 200_000}}
    ),
    "nothing-begun": answers(*ending("end_turn")),
    "blocks-without-order": answers(
        *opening(), delta("x"), block(7, type="text"), block(-1, type="what"), *ending("?")
    ),
    "index-of-another-kind": answers(
        *opening(), block("0", type="text"), block(None), block(1e308), *ending("end_turn")
    ),
    "blocks-forever": forever(
        b"".join(map(chunked, named(block(1, type="text", text="")))), STREAM_HEAD, chunked(OPENING)
    ),
    # Calls and counts.
    "calls-5000": answers(*calls(f"call-{number}" for number in range(5000))),
    "calls-with-one-id": answers(*calls(["same"] * 50)),
    "ids-of-another-kind": answers(*calls(["", "../../x", "\x00", "y" * 100_000])),
    "arguments-forever": forever(
        chunked(
            raw_event(
                b'{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"[1,"}}'
            )
        ),
        STREAM_HEAD,
        chunked(b"".join(named(*opening(), block(0, type="tool_use", id="a", name="think", input={})))),
    ),
    "tokens-negative": answers(*usage(input_tokens=-5, output_tokens=-(10**15))),
    "tokens-huge": answers(*usage(input_tokens=10**18, output_tokens=10**18)),
    "tokens-of-another-kind": answers(*usage(input_tokens="many", output_tokens=[1], cache_read_input_tokens=1e400)),
    "reason-of-another-kind": answers(*opening("Hello"), *ending(json.dumps({"a": "b" * 10_000}))),
}
"""Each by the name of the model that gets it."""
