"""The console in Chromium: how soon it is there with many conversations, and its frames while many of them stream."""

from __future__ import annotations

import json
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.bench.figures import Report, spread
from tests.bench.parked import STORED, store_parked
from tests.bench.running_server import RunningServer, provider, running_server
from tests.peers import install
from tests.peers.browser import chromium

LOADS = 5
STREAMING, PIECES = 100, 50
"""How many conversations stream, and how many pieces a second each."""
WATCH_SECONDS = 10
ANYWHERE = "127.0.0.1:0"
FRAMES = """async (seconds) => {
  const found = [];
  let before = performance.now();
  const end = before + seconds * 1000;
  while (before < end) await new Promise((done) => requestAnimationFrame((now) => { found.push(now - before); before = now; done(); }));
  return found.slice(2);
}"""  # noqa: E501 -- a program of the page
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
        with provider(flood=PIECES) as url, running_server(url, BEDROCK_HTTP_LISTEN=ANYWHERE) as running:
            _streams(report, browser, running)


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
    names = []
    for _ in range(STREAMING):
        made = _call(running, "conversations", {"workingDirectory": "/tmp"})["conversation"]["name"]
        _call(running, f"{made}:send", {"text": "go"})
        names.append(made)
    page = browser.new_context().new_page()
    page.goto(_link(running))
    page.wait_for_selector(".shell")
    page.goto(f"{_url(running)}/#/c/{names[0].partition('/')[2]}")
    page.wait_for_selector(".live-text .markdown")
    report.add("console: frames while 100 conversations stream", "ms", **spread(page.evaluate(FRAMES, WATCH_SECONDS)))
    page.context.close()
    for each in names:
        _call(running, f"{each}:cancel", {})


def _url(running: RunningServer) -> str:
    return (running.data / "gateway").read_text().strip()


def _call(running: RunningServer, path: str, body: Any, beneath: str = "/v1/") -> Any:
    headers = {"Authorization": f"Bearer {running.token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{_url(running)}{beneath}{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def _link(running: RunningServer) -> str:
    return f"{_url(running)}/#link={_call(running, 'links', {}, '/console/')['link']}"
