"""A bare group commit of the rows of a transition: the upper limit of a store with one writer that syncs.

The rows are those that the store has written, with other keys. Nothing encodes, hashes or checks them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from actors.adapters.store.models import Log, Messages, columns
from actors.adapters.store.query import Insert
from actors.adapters.store.rows import CHANGING
from actors.adapters.store.sqlite.engine import FILE, SqliteSession, open_writer, raw, sqlite3

Row: TypeAlias = Mapping[str, Any]

INSERT_MESSAGE, INSERT_LOG = (Insert(each).of(SqliteSession.dialect, 1)[0] for each in (Messages, Log))
UPDATE = f"UPDATE conversations SET {', '.join(f'{name} = ?' for name in (*CHANGING, 'log_hash'))} WHERE id = ?"


@dataclass(frozen=True)
class Transition:
    """The three rows that one transition writes."""

    conversation: Row
    message: Row
    entry: Row

    def next(self) -> Transition:
        """Return the transition that follows, of the same size."""
        step = self.conversation["step"] + 1
        name = self.conversation["id"]
        revision = self.entry["first_revision"] + self.entry["count"]
        return replace(
            self,
            conversation={**self.conversation, "step": step},
            message={**self.message, "id": f"{name}:1:{step}", "sequence_id": step},
            entry={**self.entry, "step": step, "first_revision": revision},
        )


def last_transition(connection: sqlite3.Connection, conversation_id: str) -> Transition:
    """Return the rows that the last transition of a stored conversation has written."""
    return Transition(
        _row(connection, "conversations", ("id", *CHANGING, "log_hash"), "id = ?", conversation_id),
        _row(
            connection, "messages", columns(Messages), "conversation_id = ? ORDER BY sequence_id DESC", conversation_id
        ),
        _row(connection, "log", columns(Log), "conversation_id = ? ORDER BY step DESC", conversation_id),
    )


def _row(connection: sqlite3.Connection, table: str, columns: tuple[str, ...], which: str, key: str) -> Row:
    found = connection.execute(f"SELECT {', '.join(columns)} FROM {table} WHERE {which} LIMIT 1", (key,)).fetchone()
    return dict(zip(columns, found, strict=True))


class GroupCommit:
    """One writer for many threads: it writes what waits in one transaction, and wakes those who wait for it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._arrived = threading.Condition()
        self._waiting: list[tuple[Transition, threading.Lock]] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def write(self, transition: Transition) -> None:
        """Return once it is durable. Any thread."""
        done = threading.Lock()
        done.acquire()
        with self._arrived:
            self._waiting.append((transition, done))
            self._arrived.notify()
        done.acquire()

    def close(self) -> None:
        with self._arrived:
            self._closing = True
            self._arrived.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._take():
            transitions = [transition for transition, _ in batch]
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(UPDATE, [(*list(each.conversation.values())[1:], each.conversation["id"])
                                                  for each in transitions])  # fmt: skip
            self._connection.executemany(INSERT_MESSAGE, [tuple(each.message.values()) for each in transitions])
            self._connection.executemany(INSERT_LOG, [tuple(each.entry.values()) for each in transitions])
            self._connection.execute("COMMIT")
            for _, done in batch:
                done.release()

    def _take(self) -> list[tuple[Transition, threading.Lock]]:
        with self._arrived:
            self._arrived.wait_for(lambda: self._waiting or self._closing)
            batch, self._waiting = self._waiting, []
            return batch


def committed(data: Path, names: list[str], seconds: float) -> int:
    """Return how many transitions the conversations of a store, one on each thread, commit in that time."""
    database = open_writer(data / FILE)
    with closing(database):
        connection = raw(database)
        commit = GroupCommit(connection)
        beginnings = [last_transition(connection, name) for name in names]
        counts = [0] * len(names)
        until = time.perf_counter() + seconds

        def work(place: int) -> None:
            transition = beginnings[place]
            while time.perf_counter() < until:
                transition = transition.next()
                commit.write(transition)
                counts[place] += 1

        threads = [threading.Thread(target=work, args=(place,)) for place in range(len(names))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        commit.close()
    return sum(counts)
