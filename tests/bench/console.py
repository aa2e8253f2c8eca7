"""The console in Chromium: how soon it is there with many conversations, and its frames while many of them stream."""

import json
import os
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from actors.adapters.store.sqlite.store import open_store
from actors.core.content import Message, MessageType, Text
from actors.core.notifications import MessageAdded
from actors.core.states import Idle, Ledger
from actors.ports import Commit, LogEntry
from server.auth.principals import LOCAL
from tests.bench.fairness import MODEL
from tests.bench.figures import Report, spread
from tests.bench.parked import STORED, store_parked
from tests.bench.running_server import RunningServer, provider, running_server
from tests.bench.store import EVENT, record_of
from tests.peers import install
from tests.peers.browser import chromium

LOADS = 5
STREAMING, PIECES = 100, 50
"""How many conversations stream, and how many pieces a second each."""
MESSAGES, PASSAGE = 10_000, "Some **words** of a [page](https://example.org), `code` and a list:\n\n- one\n- two\n\n"
"""How many messages the open conversation has, and what each of them says twice."""
LONG = "long".rjust(26, "0")
WATCH_SECONDS = 10
CYCLES, CYCLE_SECONDS = int(os.environ.get("CONSOLE_CYCLES", "6")), 5
"""How often the memory of the page is looked at; 720 cycles are an hour."""
MORE_SECONDS = 2 * CYCLES * CYCLE_SECONDS
"""What this part may take beside the time of any other: an hour of cycles is asked for seldom."""
ANYWHERE = "127.0.0.1:0"
TRACED = ["disabled-by-default-devtools.timeline", "devtools.timeline"]
FRAMES = """async (seconds) => {
  const found = [];
  let before = performance.now();
  const end = before + seconds * 1000;
  while (before < end) await new Promise((done) => requestAnimationFrame((now) => { found.push(now - before); before = now; done(); }));
  return found.slice(2);
}"""  # noqa: E501 -- a program of the page
READ_ALL = """async (most) => {
  const shown = () => document.querySelectorAll('ol.messages > li');
  const older = document.querySelector('button.older');
  while (shown().length < most) {
    const before = shown().length;
    older.click();
    while (shown().length === before) await new Promise((done) => setTimeout(done, 10));
  }
}"""
FIRST = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
BYTES = """() => performance.getEntriesByType('resource').filter((each) => each.name.includes('/console/'))
  .reduce((sum, each) => sum + each.encodedBodySize, 0)"""


def run(report: Report) -> None:
    install.browser()
    with chromium() as browser:
        with tempfile.TemporaryDirectory(prefix="bedrock-bench-") as folder:
            data = Path(folder) / "data"
            store_parked(data, [f"{number:026}" for number in range(STORED)])
            with running_server(data=data, BEDROCK_HTTP_LISTEN=ANYWHERE) as running:
                _loads(report, browser, running)
        with tempfile.TemporaryDirectory(prefix="bedrock-bench-") as folder, provider(flood=PIECES) as url:
            data = Path(folder) / "data"
            _store_long(data)
            with running_server(url, data, BEDROCK_HTTP_LISTEN=ANYWHERE) as running:
                _streams(report, browser, running)


def _store_long(data: Path) -> None:
    """Put a conversation of many messages at rest into a database."""
    store = open_store(data)
    record = msgspec.structs.replace(record_of(LONG), principal=LOCAL, model=MODEL)
    store.commit(Commit(record, 0, create=True))
    for step in range(1, MESSAGES + 1):
        who = MessageType.AGENT if step % 2 else MessageType.USER
        message = Message(f"{LONG}:1:{step}", step, who, (Text(PASSAGE * 2),), step)
        entry = LogEntry(step, step, EVENT, step, (MessageAdded(message),))
        after = msgspec.structs.replace(record, state=Idle(Ledger(seq=step)), step=step, revision=step, updated_at=step)
        store.commit(Commit(after, step - 1, (message,), (entry,)))
    store.close()


def _loads(report: Report, browser: Any, running: RunningServer) -> None:
    paints, lists = [], []
    for _ in range(LOADS):
        context = browser.new_context()
        page = context.new_page()
        page.goto(_link(running))
        page.wait_for_selector(".conversation-row")
        size = page.evaluate(BYTES)
        began = time.perf_counter()
        page.reload()
        page.wait_for_selector(".conversation-row")
        lists.append((time.perf_counter() - began) * 1000)
        paints.append(page.evaluate(FIRST))
        context.close()
    report.add(f"console, {STORED:,} stored: first paint", "ms", **spread(paints))
    report.add(f"console, {STORED:,} stored: list there", "ms", **spread(lists))
    report.add("console: files, packed", "KB", value=round(size / 1000, 1))


def _streams(report: Report, browser: Any, running: RunningServer) -> None:
    names = [f"conversations/{LONG}"]
    names += [
        _call(running, "conversations", {"workingDirectory": "/tmp"})["conversation"]["name"]
        for _ in range(STREAMING - 1)
    ]
    for name in names:
        _call(running, f"{name}:send", {"text": "go"})
    page = browser.new_context(viewport={"width": 1560, "height": 860}).new_page()
    page.goto(_link(running))
    page.wait_for_selector(".shell")
    page.goto(f"{_url(running)}/#/c/{LONG}")
    page.wait_for_selector(".live-text .markdown")
    page.evaluate(READ_ALL, MESSAGES)
    page.evaluate("document.querySelector('.transcript').scrollTop = 1e9")
    frames, tasks = _watched(browser, page)
    name = f"console: 100 conversations stream beside {MESSAGES:,} messages"
    report.add(f"{name}: from frame to frame", "ms", **spread(frames))
    report.add(f"{name}: CPU of a frame", "ms", **spread(tasks))
    heap = _heap(page, names)
    report.add(
        "console: heap after the last cycle", "MB", value=heap[-1], ratio=round(heap[-1] / heap[0], 3), cycles=CYCLES
    )
    page.context.close()
    for each in names:
        _call(running, f"{each}:cancel", {})


def _watched(browser: Any, page: Any) -> tuple[list[float], list[float]]:
    """Return the milliseconds between frames, and those of CPU of each task of the page's thread, by a trace."""
    browser.start_tracing(page=page, categories=TRACED)
    frames = page.evaluate(FRAMES, WATCH_SECONDS)
    events = json.loads(browser.stop_tracing())["traceEvents"]
    tasks = [each for each in events if each["name"] == "RunTask" and "tdur" in each]
    drawn = Counter((each["pid"], each["tid"]) for each in events if each["name"] == "FireAnimationFrame")
    thread = max(drawn, key=drawn.__getitem__)
    return frames, [each["tdur"] / 1000 for each in tasks if (each["pid"], each["tid"]) == thread]


def _heap(page: Any, names: list[str]) -> list[float]:
    """Return the MB that the page holds after each cycle: a conversation that streams is looked at and left."""
    devtools = page.context.new_cdp_session(page)
    found = []
    for cycle in range(CYCLES):
        for view in ("", "/timeline", "/log", "/usage"):
            page.goto(f"{page.url.partition('#')[0]}#/c/{names[1 + cycle % (len(names) - 1)].partition('/')[2]}{view}")
            page.wait_for_timeout(CYCLE_SECONDS * 250)
        page.goto(f"{page.url.partition('#')[0]}#/")
        page.locator(".home").wait_for()
        devtools.send("HeapProfiler.collectGarbage")
        found.append(round(devtools.send("Runtime.getHeapUsage")["usedSize"] / 1e6, 2))
    return found


def _url(running: RunningServer) -> str:
    return (running.data / "gateway").read_text().strip()


def _call(running: RunningServer, path: str, body: Any, beneath: str = "/v1/") -> Any:
    headers = {"Authorization": f"Bearer {running.token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{_url(running)}{beneath}{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def _link(running: RunningServer) -> str:
    return f"{_url(running)}/#link={_call(running, 'links', {}, '/console/')['link']}"
