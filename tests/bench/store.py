"""Durable transitions: all rows of a tool transition, FULL, from 1 and from 64 conversations at once.

Beside them, in the same file and at the same time of the day, a bare group commit of the same rows.
"""

import tempfile
import threading
import time
from pathlib import Path

import msgspec

from actors.adapters.store.sqlite.store import PeeweeStore, open_store
from actors.core.content import Message, MessageType, ToolSuccess
from actors.core.context import Mode
from actors.core.notifications import MessageAdded, StateChanged
from actors.core.states import Idle, Ledger
from actors.core.summary import ContextState, StateSummary
from actors.ports import Commit, ConversationRecord, LogEntry
from tests.bench.figures import Report, spread
from tests.bench.group_commit import committed
from tests.bench.results import ROUNDS, middle

SECONDS = 2.0
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
    entry = LogEntry(step, step, EVENT, record.revision + 1, (MessageAdded(message), changed))
    state = Idle(Ledger(seq=step))
    after = msgspec.structs.replace(record, state=state, step=step, revision=record.revision + 2, updated_at=step)
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
        took: list[float] = []
        rates, bare = [], []
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory(prefix="bedrock-bench-") as folder:
                names = [f"c{number}" for number in range(conversations)]
                found = _committed(Path(folder) / "data", names)
                rates.append(len(found) / SECONDS)
                bare.append(committed(Path(folder) / "data", names, SECONDS) / SECONDS)
                took += found
        report.add(
            f"store: durable transitions, {conversations} conversation{'s' if conversations > 1 else ''}",
            "1/s, ms",
            value=round(middle(rates)),
            bare=round(middle(bare)),
            of_bare=middle([one / other for one, other in zip(rates, bare, strict=True)]),
            **spread(took),
        )


def _committed(data: Path, names: list[str]) -> list[float]:
    """Return the milliseconds of each transition of some conversations, one on each thread."""
    store = open_store(data)
    took: list[float] = []
    until = time.perf_counter() + SECONDS
    threads = [threading.Thread(target=writer, args=(store, name, until, took)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    return took
