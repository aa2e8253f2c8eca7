"""A fork with many images, and a process that is killed while it writes one: `DIRECTORY TRANSACTION`."""

import os
import signal
import sys
from pathlib import Path

from msgspec.structs import replace

from actors.adapters.store.sqlite.store import open_store
from actors.core.notifications import RunStop, StopReason
from actors.core.states import Idle, Ledger
from actors.ports import Attachment, Commit, ForkedHistory, LogEntry, StoppedRun, Store
from tests.support.commit_builder import CommitBuilder, message_of

SIZE = 600_000
"""Bytes of an image."""
IMAGES = tuple(f"sha256-{number}" for number in range(5))
TRANSACTIONS = 1 + len(IMAGES) + 1
"""The fork is begun, its images are copied, and it is finished."""


def grown_origin(store: Store) -> Commit:
    """Create the conversation "c1" with its images; return the commit that forks it as "f"."""
    draft = CommitBuilder("c1")
    store.commit(draft.create(), draft.next(messages=2))
    for number, image in enumerate(IMAGES):
        store.put_attachment("c1", Attachment(image, "image/png", bytes([number]) * SIZE, 1, 2))
    history = ForkedHistory("c1", 2, (StoppedRun(2, 5, RunStop("f:1", StopReason.COMPLETED), 2),), IMAGES)
    record = replace(draft.record, id="f", slug="f", state=Idle(Ledger(run=1, seq=2)), step=1, revision=2)
    entry = LogEntry(1, 1, b'{"type":"test"}', 3, ())
    return Commit(record, 0, (message_of(1), message_of(2)), (entry,), create=True, fork=history)


def assert_whole(store: Store) -> None:
    """The fork is there with all that it has."""
    assert store.load("f") is not None
    assert store.messages("f", limit=9) == (message_of(1), message_of(2))
    assert all(store.attachment("f", image) == store.attachment("c1", image) for image in IMAGES)
    assert store.verify("f") == ()


class KilledAt:
    """Fault points that kill the process at a transaction, just before its commit."""

    def __init__(self, transaction: int) -> None:
        self.left = transaction

    def hit(self, point: str) -> None:
        if point == "store.before_commit":
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    faults = KilledAt(0)
    store = open_store(Path(sys.argv[1]), faults)
    fork = grown_origin(store)
    faults.left = int(sys.argv[2])
    store.commit(fork)


if __name__ == "__main__":
    main()
