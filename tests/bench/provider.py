"""A model provider for the workload: its own process, canned Anthropic streams, as fast as sockets go.

A request without a tool result gets 25 pieces of text and two calls of `think`; one with results gets 25 pieces of
text and the end of the turn. That is one turn: two requests, 50 pieces, two tools.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from typing import Any

PIECES = 25


def stream(*, tools: bool) -> list[bytes]:
    """The server-sent events of one answer."""
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
    for index in (1, 2) if tools else ():
        block = {"type": "tool_use", "id": f"toolu_{index}", "name": "think", "input": {}}
        thought = {"type": "input_json_delta", "partial_json": '{"thoughts": "on we go"}'}
        events += [
            ("content_block_start", {"index": index, "content_block": block}),
            ("content_block_delta", {"index": index, "delta": thought}),
            ("content_block_stop", {"index": index}),
        ]
    stop = {"stop_reason": "tool_use" if tools else "end_turn"}
    events += [("message_delta", {"delta": stop, "usage": {"output_tokens": 60}}), ("message_stop", {})]
    return [f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode() for kind, data in events]


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
CALLING, ENDING = stream(tools=True), stream(tools=False)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pause: float) -> None:
    """One request, one answer, one connection."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
        )
        body = json.loads(await reader.readexactly(length))
        last = body["messages"][-1]["content"]
        answered = isinstance(last, list) and any(block.get("type") == "tool_result" for block in last)
        writer.write(HEAD)
        for event in ENDING if answered else CALLING:
            if writer.is_closing():
                break
            writer.write(event)
            if pause and b"text_delta" in event:
                await asyncio.sleep(pause)
        await writer.drain()
    writer.close()


async def main() -> None:
    """Serve until standard input closes; the port is the first line printed."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--pause", type=float, default=0.0, help="seconds between pieces of text")
    pause = arguments.parse_args().pause
    server = await asyncio.start_server(lambda r, w: answer(r, w, pause), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
