"""Changes of the list of conversations for its watchers: the latest change of each conversation only.

Each watcher has a cursor. Every change gets a number and replaces the previous change of its conversation. So the
number of conversations limits the memory, even with slow watchers, and the cost of a change does not depend on the
number of watchers. Without watchers nothing is kept.
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
"""Changes kept after all watchers have read them: dropping them one by one would cost more."""


class ListChange:
    """The latest change of one conversation, and its encoding once a watcher has needed it."""

    __slots__ = ("deleted", "elsewhere", "id", "number", "outdated", "record", "wire")

    def __init__(
        self, number: int, conversation_id: str, record: ConversationRecord, *, deleted: bool, elsewhere: bool
    ) -> None:
        self.number = number
        self.id = conversation_id
        self.record = record
        """The record; for a deleted sub-agent that of its parent, which has the same principal."""
        self.deleted = deleted
        self.elsewhere = elsewhere
        """Whether it happened at another server that shares the store."""
        self.outdated = False
        """Whether a later change of the same conversation has replaced it."""
        self.wire: bytes | None = None
        """The encoded response, shared by all watchers; set by the first one that sends it."""

    @property
    def sub_agent(self) -> bool:
        """Whether the conversation is a sub-agent."""
        return not self.record.user_initiated or self.record.id != self.id


class ListWatch:
    """One watcher's position in the changes. `read` on the watcher's thread, `wake` on a publisher's."""

    def __init__(self, feed: ListFeed, after: int, wake: Callable[[], None]) -> None:
        self._feed = feed
        self.after = after
        self.wake = wake

    def read(self) -> list[ListChange]:
        """Return all changes since the last read, the oldest first. Never blocks for long."""
        return self._feed.read(self)

    def close(self) -> None:
        """Stop watching; idempotent."""
        self._feed.detach(self)


class ListFeed:
    """The changes of all conversations. Any thread; never blocks for long.

    Watchers are woken without holding the lock, because they may call this object when woken.
    """

    def __init__(self) -> None:
        self.watched = False
        """Whether there is a watcher. May be read without the lock: a watcher reads the store after it has attached, so
        it finds changes there that were published meanwhile."""
        self._lock = threading.Lock()
        self._watches: set[ListWatch] = set()
        self._unwoken: set[ListWatch] = set()
        """Watchers to wake at the next change: they have read since they were last woken."""
        self._latest: dict[str, ListChange] = {}
        """The latest change of each conversation by its id, in the order of their numbers."""
        self._number = 0
        self._drop_at = SPARE
        """Number of changes at which those that all watchers have read are dropped."""

    def attach(self, wake: Callable[[], None]) -> ListWatch:
        """Watch the list. `wake` runs on a publisher's thread, once until the next read; it must not block."""
        with self._lock:
            watch = ListWatch(self, self._number, wake)
            self._watches.add(watch)
            self._unwoken.add(watch)
            self.watched = True
        return watch

    def detach(self, watch: ListWatch) -> None:
        """Remove a watch; without watches, all changes are dropped. Idempotent."""
        with self._lock:
            self._watches.discard(watch)
            self._unwoken.discard(watch)
            if not self._watches:
                self.watched = False
                self._latest.clear()

    def changed(self, record: ConversationRecord) -> None:
        """Publish a new or changed conversation. Calls for one conversation must be in order."""
        self._put(record.id, record, deleted=False)

    def deleted(self, conversation_id: str, record: ConversationRecord) -> None:
        """Publish that a conversation was deleted; `record` is its last one, or that of a sub-agent's parent."""
        self._put(conversation_id, record, deleted=True)

    def changed_elsewhere(self, conversation_id: str, record: ConversationRecord, *, deleted: bool) -> None:
        """Publish what happened at another server, unless a later change is known: the conversation may have moved."""
        self._put(conversation_id, record, deleted=deleted, elsewhere=True)

    def read(self, watch: ListWatch) -> list[ListChange]:
        """Return the changes that a watch has not read, the oldest first."""
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
            except Exception:  # a failing watcher must affect neither the others nor the publisher
                log.exception("a watcher of the list could not be woken")

    def _drop_read(self) -> None:
        """Drop the changes that all watchers have read."""
        read = min(watch.after for watch in self._watches)
        for conversation_id, change in list(self._latest.items()):
            if change.number > read:
                break
            del self._latest[conversation_id]
        # Doubled, because otherwise a watcher that never reads would cause a search through all changes at each change.
        self._drop_at = 2 * len(self._latest) + SPARE
