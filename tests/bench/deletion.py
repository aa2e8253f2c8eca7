"""A large family is deleted while another conversation writes: how long the answer takes, and how long others wait."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

import msgspec

from actors.adapters.store.sqlite.store import PeeweeStore, open_store
from actors.ports import Commit
from tests.bench.figures import Report, spread
from tests.bench.store import next_commit, record_of

SUB_AGENTS = 150
MESSAGES = 200
"""Of each; a family of 30,000 messages and log rows."""


def run(report: Report) -> None:
    with tempfile.TemporaryDirectory(prefix="bedrock-bench-") as folder:
        store = open_store(Path(folder) / "data")
        _family(store)
        took: list[float] = []
        over = threading.Event()
        writer = threading.Thread(target=_write, args=(store, took, over))
        writer.start()
        time.sleep(0.2)
        began = time.perf_counter()
        store.delete("parent")
        answered = (time.perf_counter() - began) * 1000
        while store._read(lambda session: session.run("SELECT 1 FROM deletions LIMIT 1").fetchone()):
            time.sleep(0.01)
        removed = time.perf_counter() - began
        over.set()
        writer.join()
        store.close()
    report.add("store: delete a family of 150, the answer", "ms", value=round(answered, 2))
    report.add("store: delete a family of 150, until removed", "s", value=round(removed, 2))
    report.add("store: delete a family of 150, others' commits", "ms", **spread(took))


def _family(store: PeeweeStore) -> None:
    parent = record_of("parent")
    store.commit(Commit(parent, 0, create=True))
    children = [
        msgspec.structs.replace(record_of(f"child{n}"), parent_conversation_id="parent", user_initiated=False)
        for n in range(SUB_AGENTS)
    ]
    for record in children:
        store.commit(Commit(record, 0, create=True))
    for _ in range(MESSAGES):
        commits = [next_commit(record) for record in children]
        store.commit(*commits)
        children = [commit.record for commit in commits]


def _write(store: PeeweeStore, took: list[float], over: threading.Event) -> None:
    record = record_of("other")
    store.commit(Commit(record, 0, create=True))
    while not over.is_set():
        commit = next_commit(record)
        began = time.perf_counter()
        store.commit(commit)
        took.append((time.perf_counter() - began) * 1000)
        record = commit.record
