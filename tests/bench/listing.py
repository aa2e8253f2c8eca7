"""ListConversations over 100,000 conversations, of which few match: how long it takes, and what others notice of it."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import msgspec
from bedrock import v1

from actors.adapters.store.sqlite.store import open_store
from actors.ports import Commit
from server.auth.principals import LOCAL
from tests.bench.figures import Report, rss_mib, spread
from tests.bench.running_server import running_server
from tests.bench.store import record_of

if TYPE_CHECKING:
    from actors.ports import ConversationRecord
    from tests.bench.running_server import RunningServer

CONVERSATIONS = 100_000
COMMITTED = 1_000
"""Conversations that are created at a time."""
RARE = CONVERSATIONS // 2
"""The conversation that the filters select, counted from the oldest."""
FILTERS = {
    "all, a page of 50": "",
    "a label, one match": "labels.rare = yes",
    "a part of the title, one match": 'title:"needle"',
    "at work, no match": "busy = true",
}
TIMES = 3


def run(report: Report) -> None:
    with tempfile.TemporaryDirectory(prefix="bedrock-bench-") as folder:
        data = Path(folder) / "data"
        _fill(data)
        with running_server(data=data) as server, grpc.insecure_channel(server.address) as channel:
            stub = v1.ConversationServiceStub(channel)
            before = rss_mib(server.process.pid)
            for name, text in FILTERS.items():
                _measure(report, name, stub, server, text)
            grown = rss_mib(server.process.pid) - before
            report.add("list: memory that the server took meanwhile", "MiB", value=round(grown, 1))


def _fill(data: Path) -> None:
    store = open_store(data)
    try:
        for first in range(0, CONVERSATIONS, COMMITTED):
            numbers = range(first, first + COMMITTED)
            store.commit(*(Commit(_record(number), 0, create=True) for number in numbers))
    finally:
        store.close()


def _record(number: int) -> ConversationRecord:
    rare = number == RARE
    return msgspec.structs.replace(
        record_of(f"c{number}"),
        principal=LOCAL,
        title="a needle" if rare else f"What is in the file number {number}?",
        labels={"team": "docs"} | ({"rare": "yes"} if rare else {}),
        created_at=number + 1,
        updated_at=number + 1,
    )


def _measure(report: Report, name: str, stub: v1.ConversationServiceStub, server: RunningServer, text: str) -> None:
    """Read a list to its end, or a page if nothing is filtered, while another client reads one conversation."""
    waits: list[float] = []
    over = threading.Event()
    other = threading.Thread(target=_read, args=(stub, server, waits, over))
    other.start()
    took, calls = [], 0
    for _ in range(TIMES):
        request = v1.ListConversationsRequest(filter=text)
        began, calls = time.perf_counter(), 0
        while True:
            page = stub.ListConversations(request, metadata=server.metadata, timeout=60)
            calls += 1
            request.page_token = page.next_page_token
            if not text or not page.next_page_token:
                break
        took.append((time.perf_counter() - began) * 1000)
    over.set()
    other.join()
    report.add(f"list: {name}", "ms", calls=calls, **spread(took))
    report.add(f"list: {name}, others' reads", "ms", **spread(waits))


def _read(stub: v1.ConversationServiceStub, server: RunningServer, took: list[float], over: threading.Event) -> None:
    request = v1.GetConversationRequest(name="conversations/c1")
    while not took or not over.wait(0.005):  # once at least: some lists take less than a pause
        began = time.perf_counter()
        stub.GetConversation(request, metadata=server.metadata, timeout=60)
        took.append((time.perf_counter() - began) * 1000)
