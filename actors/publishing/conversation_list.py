"""Publishes changes to the conversation list to watchers, which are clients with an open stream of that list.

Each watcher has a cursor. Every change gets a number and replaces the previous change of its conversation. The memory
used is therefore limited by the number of conversations, even with slow watchers, and the cost of a change does not
depend on the number of watchers. While there are no watchers, nothing is kept.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from actors.ports import ConversationRecord

log = logging.getLogger(__name__)

# How many changes are kept after all watchers have read them, because dropping them one by one would cost more.
SPARE = 256


class ListChange:
    """The latest change of one conversation. The first watcher that sends the change adds its encoded form."""

    __slots__ = ("deleted", "elsewhere", "id", "number", "outdated", "record", "wire")

    def __init__(
        self, number: int, conversation_id: str, record: ConversationRecord, *, deleted: bool, elsewhere: bool
    ) -> None:
        self.number = number
        self.id = conversation_id
        self.record = record
        """The conversation's record; for a deleted sub-agent, that of its parent, which has the same principal."""
        self.deleted = deleted
        self.elsewhere = elsewhere
        """Whether the change happened on another server that shares the store."""
        self.outdated = False
        self.wire: bytes | None = None
        """The encoded response, which all watchers share; set by the first watcher that sends the change."""

    @property
    def sub_agent(self) -> bool:
        return not self.record.user_initiated or self.record.id != self.id


class ListWatch:
    """One watcher's position among the changes. `read` runs on the watcher's thread, `wake` on a publisher's."""

    def __init__(self, feed: ListFeed, after: int, wake: Callable[[], None]) -> None:
        self._feed = feed
        self.after = after
        self.wake = wake

    def read(self) -> list[ListChange]:
        """All changes since the last read, oldest first. Never blocks for long."""
        return self._feed.read(self)

    def close(self) -> None:
        self._feed.detach(self)


class ListFeed:
    """The changes of all conversations. Thread-safe; never blocks for long.

    The lock is not held while watchers are woken, because they may call this object then.
    """

    def __init__(self) -> None:
        # May be read without the lock: a new watcher attaches before it reads the store, so it finds changes there that
        # were not published to it.
        self.watched = False
        self._lock = threading.Lock()
        self._watches: set[ListWatch] = set()
        # The watchers to wake at the next change: those that have read since they were last woken.
        self._unwoken: set[ListWatch] = set()
        # The latest change of each conversation by the conversation's id, ordered by the changes' numbers.
        self._latest: dict[str, ListChange] = {}
        self._number = 0
        # As soon as more changes than this are kept, the changes that all watchers have read are dropped.
        self._drop_at = SPARE

    def attach(self, wake: Callable[[], None]) -> ListWatch:
        """Watch the list. `wake` runs on a publisher's thread, at most once between two reads; it must not block."""
        with self._lock:
            watch = ListWatch(self, self._number, wake)
            self._watches.add(watch)
            self._unwoken.add(watch)
            self.watched = True
        return watch

    def detach(self, watch: ListWatch) -> None:
        """Remove a watch; when the last watch is removed, all changes are dropped. Idempotent."""
        with self._lock:
            self._watches.discard(watch)
            self._unwoken.discard(watch)
            if not self._watches:
                self.watched = False
                self._latest.clear()

    def changed(self, record: ConversationRecord) -> None:
        """Publish a new or changed conversation. For one conversation, call this in the order of the changes."""
        self._put(record.id, record, deleted=False)

    def deleted(self, conversation_id: str, record: ConversationRecord) -> None:
        """Publish that a conversation was deleted. `record` is its last record, or for a sub-agent its parent's."""
        self._put(conversation_id, record, deleted=True)

    def changed_elsewhere(self, conversation_id: str, record: ConversationRecord, *, deleted: bool) -> None:
        """Publish a change from another server; ignored if a later change to the conversation is known here."""
        self._put(conversation_id, record, deleted=deleted, elsewhere=True)

    def read(self, watch: ListWatch) -> list[ListChange]:
        """The changes that this watcher has not read, oldest first."""
        with self._lock:
            unread: list[ListChange] = []
            for change in reversed(self._latest.values()):
                if change.number <= watch.after:
                    break
                unread.append(change)
            watch.after = self._number
            if watch in self._watches:
                self._unwoken.add(watch)
        unread.reverse()
        return unread

    def _put(self, conversation_id: str, record: ConversationRecord, *, deleted: bool, elsewhere: bool = False) -> None:
        with self._lock:
            if not self._watches:
                return
            before = self._latest.get(conversation_id)
            if before is not None:
                if elsewhere and (before.deleted or (not deleted and before.record.step > record.step)):
                    return
                before.outdated = True
                del self._latest[conversation_id]
            self._number += 1
            change = ListChange(self._number, conversation_id, record, deleted=deleted, elsewhere=elsewhere)
            self._latest[conversation_id] = change
            if len(self._latest) > self._drop_at:
                self._drop_read()
            to_wake, self._unwoken = self._unwoken, set()
        for watch in to_wake:
            try:
                watch.wake()
            except Exception:  # a failing watcher must affect neither the other watchers nor the publisher
                log.exception("a watcher of the conversation list could not be notified")

    def _drop_read(self) -> None:
        read = min(watch.after for watch in self._watches)
        for conversation_id, change in list(self._latest.items()):
            if change.number > read:
                break
            del self._latest[conversation_id]
        # The limit is doubled, because otherwise every change would search all kept changes while one watcher does not
        # read.
        self._drop_at = 2 * len(self._latest) + SPARE
