"""A process that commits until it is killed and reports what is durable: `python -m … DIRECTORY`, a line per commit.

Two threads commit to conversations of their own. A line `conversation step` is written to standard output once the
commit has returned; standard output is a pipe, and a line is one write.
"""

import os
import sys
import threading
from pathlib import Path

from actors.adapters.store.sqlite.store import PeeweeStore, open_store
from tests.support.commit_builder import CommitBuilder


def work(store: PeeweeStore, conversation_id: str) -> None:
    record = store.load(conversation_id)
    builder = CommitBuilder(conversation_id)
    if record is None:
        store.commit(builder.create())
    else:
        builder.record = record
    while True:
        store.commit(builder.next(messages=1 + builder.record.step % 2))
        os.write(1, f"{conversation_id} {builder.record.step}\n".encode())


def commit_for_ever(directory: str) -> None:
    store = open_store(Path(directory))
    os.write(1, b"ready 0\n")
    threads = [threading.Thread(target=work, args=(store, f"c{number}")) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    commit_for_ever(sys.argv[1])
