"""The log of a running server's conversation, read out of its database as it grows: what streams are held against."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from actors.adapters.store.log_rows import events_of
from actors.adapters.store.sqlite.engine import FILE, sqlite3
from tests.support.patience import PATIENCE, eventually
from tests.support.watch_laws import Logged

if TYPE_CHECKING:
    from pathlib import Path

_ROWS = """
SELECT first_revision, at, notifications, step FROM log
WHERE conversation_id = ? AND step > ? AND count > 0 ORDER BY first_revision, step
"""
_PAUSE = 0.05
"""Between two looks, seconds; far below the shortest time that events are kept in a test."""


class LogTail:
    """Reads on a thread of its own while the context is open. It only reads, and never checkpoints."""

    def __init__(self, data: Path, conversation: str) -> None:
        self._path = data / FILE
        self._id = conversation.removeprefix("conversations/")
        self._log: list[Logged] = []
        self._step = 0
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE)
        if self._failure is not None:
            raise self._failure

    @property
    def head(self) -> int:
        """The newest revision there is."""
        return self._log[-1].event.revision if self._log else 0

    def up_to(self, revision: int) -> list[Logged]:
        """All there ever was, up to this revision at least."""
        eventually(lambda: self.head >= revision or not self._thread.is_alive(), f"revision {revision} in the database")
        return list(self._log)

    def _run(self) -> None:
        connection = sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, check_same_thread=False)
        try:
            while not self._over.wait(_PAUSE):
                self._read(connection)
        except BaseException as failure:  # noqa: BLE001 -- raised where the context ends
            self._failure = failure
        finally:
            connection.close()

    def _read(self, connection: sqlite3.Connection) -> None:
        """Take the new rows; those of one transition count as a commit."""
        for first, at, notifications, step in connection.execute(_ROWS, (self._id, self._step)).fetchall():
            for event in events_of([(first, at, notifications)], 0, 1_000_000):
                assert event.revision == self.head + 1, "events were pruned before they were read"
                self._log.append(Logged(event, step))
            self._step = step
