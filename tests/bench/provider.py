"""A model provider for the workload: its own process, canned Anthropic streams, as fast as sockets go.

A request without a tool result gets 25 pieces of text and two calls of `think`; one with results gets 25 pieces of
text and the end of the turn. That is one turn: two requests, 50 pieces, two tools. A sub-agent's turn ends with its
result. A message "bash" gets two calls of `bash` instead, and "spawn N" a call that starts so many sub-agents.
"""

import argparse
import asyncio
import contextlib
import json
import ssl
import sys
import time
from dataclasses import dataclass
from typing import Any

import msgspec

PIECES = 25


THINK = ("think", {"thoughts": "on we go"})
BASH = ("bash", {"cmd": ":"})


def chunk(data: bytes) -> bytes:
    """Return data as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream(*calls: tuple[str, dict[str, Any]]) -> list[bytes]:
    """The server-sent events of one answer: text, then calls of tools."""
    start = {"id": "m", "role": "assistant", "content": [], "usage": {"input_tokens": 100, "output_tokens": 1}}
    events: list[tuple[str, dict[str, Any]]] = [
        ("message_start", {"message": start}),
        ("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
        *(
            ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": f"piece {n:02} "}})
            for n in range(PIECES)
        ),
        ("content_block_stop", {"index": 0}),
    ]
    for index, (name, arguments) in enumerate(calls, start=1):
        block = {"type": "tool_use", "id": f"toolu_{index}", "name": name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
        events += [
            ("content_block_start", {"index": index, "content_block": block}),
            ("content_block_delta", {"index": index, "delta": delta}),
            ("content_block_stop", {"index": index}),
        ]
    stop = {"stop_reason": "tool_use" if calls else "end_turn"}
    events += [("message_delta", {"delta": stop, "usage": {"output_tokens": 60}}), ("message_stop", {})]
    return [f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode() for kind, data in events]


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
PLAIN_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
END = b"0\r\n\r\n"
NO_LIST = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
"""Answers a question for the list of models."""
CALLING, RUNNING, ENDING = stream(THINK, THINK), stream(BASH, BASH), stream()
FLOOD, FLOOD_TEXT = ENDING[2], "piece 00 "
"""A piece of text, again and again."""
FLOOD_SECONDS = 0.002
"""Between two bursts of a flood."""
SUBMITTING = stream(("submit_result", {"result": "all is well"}))


def events_for(body: dict[str, Any]) -> list[bytes]:
    """Return the events of the answer to a request."""
    last = body["messages"][-1]["content"]
    blocks = [{"type": "text", "text": last}] if isinstance(last, str) else last
    if any(block["type"] == "tool_result" for block in blocks):
        return SUBMITTING if any(tool["name"] == "submit_result" for tool in body.get("tools", ())) else ENDING
    word, _, count = blocks[-1].get("text", "").partition(" ")
    if word == "spawn":
        return stream(("spawn_sub_agent", {"tasks": [{"task": "go on"}] * int(count)}))
    return RUNNING if word == "bash" else CALLING


class _Outline(msgspec.Struct):
    """What an answer depends on; to decode all messages of a long history would cost more than the server does."""

    messages: list[msgspec.Raw]
    tools: list[dict[str, Any]] = []


_OUTLINE = msgspec.json.Decoder(_Outline)


async def request(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Return the last message of the next request and its tools, {} without a body.

    Raises IncompleteReadError at the end of the connection.
    """
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    if not (body := await reader.readexactly(next(lengths, 0))):
        return {}
    outline = _OUTLINE.decode(body)
    return {"messages": [msgspec.json.decode(outline.messages[-1])], "tools": outline.tools}


@dataclass
class Provider:
    """Serves connections. On one event loop."""

    pause: float = 0.0
    """Seconds between pieces of text."""
    first: float = 0.0
    """Seconds before the first piece of an answer."""
    whole: bool = False
    """Each answer in one piece, so that nothing depends on when its parts arrive."""
    plain: bool = False
    """Bodies of a known length, the least work for every client, instead of the chunks that real providers send."""
    asked: int = 0
    """Requests so far."""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection, one after the other, until the client closes it."""
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while not writer.is_closing():
                if not (body := await request(reader)):
                    writer.write(NO_LIST)
                    continue
                self.asked += 1
                if self.first:
                    await asyncio.sleep(self.first)
                for piece in self._pieces(events_for(body)):
                    if writer.is_closing():
                        break
                    writer.write(piece)
                    if self.pause and b"text_delta" in piece:
                        await asyncio.sleep(self.pause)
                await writer.drain()

    def _pieces(self, events: list[bytes]) -> list[bytes]:
        """Return an answer as it is sent, piece by piece."""
        if self.plain:
            return [PLAIN_HEAD % sum(map(len, events)), *events]
        pieces = [HEAD, *map(chunk, events), END]
        return [b"".join(pieces)] if self.whole else pieces


async def drown(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rate: int) -> None:
    """One request, and an answer without an end."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        await request(reader)
        writer.write(HEAD + b"".join(map(chunk, ENDING[:2])))
        began, sent = time.perf_counter(), 0
        while not writer.is_closing():
            due = int((time.perf_counter() - began) * rate)
            writer.write(chunk(FLOOD) * (due - sent))
            sent = due
            await writer.drain()
            await asyncio.sleep(FLOOD_SECONDS)
    writer.close()


async def main() -> None:
    """Serve until standard input closes; the port is the first line printed."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--pause", type=float, default=0.0, help="seconds between pieces of text")
    arguments.add_argument("--first", type=float, default=0.0, help="seconds before the first piece of an answer")
    arguments.add_argument("--whole", action="store_true", help="each answer in one piece")
    arguments.add_argument("--plain", action="store_true", help="bodies of a known length, not chunks")
    arguments.add_argument("--tls", help="file of a certificate and its key, to serve over TLS")
    arguments.add_argument("--flood", type=int, default=0, help="pieces of text a second, in answers without an end")
    given = arguments.parse_args()
    serving = Provider(given.pause, given.first, whole=given.whole, plain=given.plain)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await (drown(reader, writer, given.flood) if given.flood else serving.answer(reader, writer))

    tls = None
    if given.tls:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(given.tls)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024, ssl=tls)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
