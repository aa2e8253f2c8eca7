"""Changes of the list of conversations, for those who watch it: of each conversation the latest only.

A watcher is a cursor here too. Every change gets a number and takes the place of the change before of the same
conversation, so what is kept is bounded by the number of conversations, however slow a watcher is, and a change costs
the same however many watch. Nothing is kept while nobody does.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.ports import ConversationRecord

log = logging.getLogger(__name__)

SPARE = 256
"""Changes kept although every watcher has read them: looking through them each time would cost more."""


class Listed:
    """The latest change of one conversation, and the bytes it becomes on the wire once somebody has made them."""

    __slots__ = ("deleted", "id", "number", "outdated", "record", "wire")

    def __init__(self, number: int, conversation_id: str, record: ConversationRecord, *, deleted: bool) -> None:
        self.number = number
        self.id = conversation_id
        self.record = record
        """Of a deleted sub-agent that of its parent: it tells whose it was."""
        self.deleted = deleted
        self.outdated = False
        """A later change of the same conversation has taken its place."""
        self.wire: bytes | None = None

    @property
    def sub_agent(self) -> bool:
        return not self.record.user_initiated or self.record.id != self.id


class ListWatch:
    """One watcher's place in the changes. `read` on the watcher's thread, `wake` on a publisher's."""

    def __init__(self, feed: ListFeed, after: int, wake: Callable[[], None]) -> None:
        self._feed = feed
        self.after = after
        self.wake = wake

    def read(self) -> list[Listed]:
        """All changes since the last look, the oldest first. Never blocks."""
        return self._feed.read(self)

    def close(self) -> None:
        """Stop watching; idempotent."""
        self._feed.detach(self)


class ListFeed:
    """Any thread; never blocks for long; wakes outside of its lock."""

    def __init__(self) -> None:
        self.watched = False
        """Whether anybody is there. May be read without the lock: who is just coming reads the store first."""
        self._lock = threading.Lock()
        self._watches: set[ListWatch] = set()
        self._asleep: set[ListWatch] = set()
        self._latest: dict[str, Listed] = {}
        """By conversation, in the order of their numbers."""
        self._number = 0
        self._tidy_at = SPARE

    def attach(self, wake: Callable[[], None]) -> ListWatch:
        """Watch. `wake` runs on a publisher's thread, once until the next read; it must not block."""
        with self._lock:
            watch = ListWatch(self, self._number, wake)
            self._watches.add(watch)
            self._asleep.add(watch)
            self.watched = True
        return watch

    def detach(self, watch: ListWatch) -> None:
        with self._lock:
            self._watches.discard(watch)
            self._asleep.discard(watch)
            if not self._watches:
                self.watched = False
                self._latest.clear()

    def changed(self, record: ConversationRecord) -> None:
        """A conversation is new, or is as in `record` now. Changes of one come in their order."""
        self._put(record.id, record, deleted=False)

    def deleted(self, conversation_id: str, record: ConversationRecord) -> None:
        """A conversation is gone; `record` is its last one, or that of the conversation it was a sub-agent of."""
        self._put(conversation_id, record, deleted=True)

    def read(self, watch: ListWatch) -> list[Listed]:
        with self._lock:
            fresh: list[Listed] = []
            for listed in reversed(self._latest.values()):
                if listed.number <= watch.after:
                    break
                fresh.append(listed)
            watch.after = self._number
            if watch in self._watches:
                self._asleep.add(watch)
        fresh.reverse()
        return fresh

    def _put(self, conversation_id: str, record: ConversationRecord, *, deleted: bool) -> None:
        with self._lock:
            if not self._watches:
                return
            self._number += 1
            before = self._latest.pop(conversation_id, None)
            if before is not None:
                before.outdated = True
            self._latest[conversation_id] = Listed(self._number, conversation_id, record, deleted=deleted)
            if len(self._latest) > self._tidy_at:
                self._tidy()
            to_wake, self._asleep = self._asleep, set()
        for watch in to_wake:
            try:
                watch.wake()
            except Exception:
                log.exception("a watcher of the list could not be woken")

    def _tidy(self) -> None:
        """Forget what everybody has read."""
        read = min(watch.after for watch in self._watches)
        for conversation_id, listed in list(self._latest.items()):
            if listed.number > read:
                break
            del self._latest[conversation_id]
        self._tidy_at = 2 * len(self._latest) + SPARE
