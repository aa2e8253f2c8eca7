"""The floor of the turn workload: bare threads and requests, no persistence, no events, no cancel."""

from __future__ import annotations

import argparse
import json
import resource
import threading
import time
from typing import TYPE_CHECKING, Any

import requests

if TYPE_CHECKING:
    from collections.abc import Iterator


def events(response: requests.Response) -> Iterator[dict[str, Any]]:
    """The answer's events as they arrive: iter_lines would read byte by byte, and not be a floor."""
    rest = b""
    while piece := response.raw.read1(65536):
        *whole, rest = (rest + piece).split(b"\n\n")
        for event in whole:
            yield json.loads(event.partition(b"data:")[2])


def ask(session: requests.Session, url: str, messages: list[dict[str, object]]) -> dict[str, object]:
    """One streamed answer, put together."""
    blocks: dict[int, dict[str, object]] = {}
    body = {"model": "bench", "max_tokens": 1000, "stream": True, "messages": messages}
    with session.post(url, json=body, stream=True, timeout=60) as response:
        for event in events(response):
            if event["type"] == "content_block_start":
                blocks[event["index"]] = dict(event["content_block"])
            elif event["type"] == "content_block_delta" and "text" in event["delta"]:
                block = blocks[event["index"]]
                block["text"] = str(block["text"]) + event["delta"]["text"]
            elif event["type"] == "content_block_delta":
                blocks[event["index"]]["input"] = json.loads(event["delta"]["partial_json"])
    return {"role": "assistant", "content": list(blocks.values())}


def turn(session: requests.Session, url: str, messages: list[dict[str, object]]) -> None:
    """A question, an answer with two tools, their results, the end."""
    messages.append({"role": "user", "content": [{"type": "text", "text": "go on"}]})
    answer = ask(session, url, messages)
    messages.append(answer)
    content = answer["content"]
    assert isinstance(content, list)
    calls = [block for block in content if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "Thought noted."} for call in calls]
    messages.append({"role": "user", "content": results})
    messages.append(ask(session, url, messages))


def conversation(url: str, turns: int, took: list[float]) -> None:
    with requests.Session() as session:
        session.trust_env = False
        messages: list[dict[str, object]] = []
        for _ in range(turns):
            began = time.perf_counter()
            turn(session, url, messages)
            took.append((time.perf_counter() - began) * 1000)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--url", required=True)
    arguments.add_argument("--conversations", type=int, required=True)
    arguments.add_argument("--turns", type=int, required=True)
    given = arguments.parse_args()
    took: list[float] = []
    threads = [
        threading.Thread(target=conversation, args=(given.url, given.turns, took)) for _ in range(given.conversations)
    ]
    began, cpu = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({"seconds": seconds, "cpu": time.process_time() - cpu, "took_ms": took, "rss_mib": peak}))


if __name__ == "__main__":
    main()
