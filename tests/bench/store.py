"""Durable transitions: all rows of a tool transition, FULL, from 1 and from 64 conversations at once."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

import msgspec

from actors.adapters.store.sqlite.store import PeeweeStore, open_store
from actors.core.content import Message, MessageType, ToolSuccess
from actors.core.context import Mode
from actors.core.fsm import ContextState
from actors.core.notifications import MessageAdded, StateChanged
from actors.core.states import Idle, Ledger
from actors.core.summary import StateSummary
from actors.ports import Commit, ConversationRecord, LogEntry
from tests.bench.figures import Report, spread

SECONDS = 4.0
EVENT = (
    b'{"type":"tool_complete","at":1,"tool_use_id":"toolu_01","execution_id":1,"result":{"output":"'
    + b"x" * 300
    + b'"}}'
)


def record_of(conversation_id: str) -> ConversationRecord:
    return ConversationRecord(
        id=conversation_id,
        slug=conversation_id,
        cwd="/tmp",
        state=Idle(),
        state_updated_at=1,
        created_at=1,
        updated_at=1,
        mode=Mode.UNRESTRICTED,
        model="demo",
        principal="bench",
        epoch=1,
    )


def next_commit(record: ConversationRecord) -> Commit:
    """A tool result: its message, the new state, a log row with two events."""
    step = record.step + 1
    message = Message(f"{record.id}:1:{step}", step, MessageType.TOOL, (ToolSuccess("toolu_01", "x" * 300),), step)
    changed = StateChanged(StateSummary("idle"), (ContextState.IDLE,))
    entry = LogEntry(step, step, EVENT, record.last_seq + 1, (MessageAdded(message), changed))
    state = Idle(Ledger(seq=step))
    after = msgspec.structs.replace(record, state=state, step=step, last_seq=record.last_seq + 2, updated_at=step)
    return Commit(after, record.step, (message,), (entry,))


def writer(store: PeeweeStore, name: str, until: float, took: list[float]) -> None:
    record = record_of(name)
    store.commit(Commit(record, 0, create=True))
    while time.perf_counter() < until:
        commit = next_commit(record)
        began = time.perf_counter()
        store.commit(commit)
        took.append((time.perf_counter() - began) * 1000)
        record = commit.record


def run(report: Report) -> None:
    for conversations in (1, 64):
        with tempfile.TemporaryDirectory(prefix="bedrock-bench-") as folder:
            store = open_store(Path(folder) / "data")
            took: list[float] = []
            until = time.perf_counter() + SECONDS
            threads = [
                threading.Thread(target=writer, args=(store, f"c{n}", until, took)) for n in range(conversations)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            store.close()
        name = f"store: durable transitions, {conversations} conversations"
        report.add(name, "1/s, ms", value=round(len(took) / SECONDS), **spread(took))
