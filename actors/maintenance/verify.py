"""Verifies a stored conversation: its rows with the store's checks, its events with the state machine's invariants.

The store is only read; nothing is repaired. Other threads may write to the store during the check: events are read only
up to the revision that the conversation had at the beginning, and are read again if the oldest of them were pruned
during the check.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from actors.core.invariants import InvariantChecker
from actors.core.notifications import MessageAdded
from actors.ports import ConversationRecord, RevisionTooOldError, StoreDamagedError, StoredEvent, StoreReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from actors.core.content import Message

PAGE = 200
"""The number of events or messages that are read at a time."""
MAX_FINDINGS = 100
"""The maximum number of findings that are reported."""
TRIES = 3
"""The maximum number of attempts to check the events; an attempt fails if the oldest events are pruned during it."""


def findings(store: StoreReader, record: ConversationRecord) -> tuple[str, ...]:
    """Return the defects of a stored conversation up to the revision of `record`, as text; () if there are none.

    The events are not checked if the log is pruned during each of TRIES attempts. Raises StoreUnavailableError.
    """
    found = dict.fromkeys(store.verify(record.id))
    for _ in range(TRIES):
        try:
            found.update(dict.fromkeys(islice(_violations(store, record), MAX_FINDINGS)))
            break
        except RevisionTooOldError:
            continue
        except StoreDamagedError:
            found["what the log tells cannot be read to its end"] = None
            break
    return tuple(found)[:MAX_FINDINGS]


def _violations(store: StoreReader, record: ConversationRecord) -> Iterator[str]:
    """Yield a text for each event that breaks an invariant, and for each way in which `record` contradicts the events.

    Raises RevisionTooOldError or StoreDamagedError.
    """
    checker, begins = InvariantChecker(record.id), _beginning(store, record)
    if begins:
        checker.begin_mid_log()
    complete = begins == 0
    for event in _events(store, record, begins):
        if isinstance(event.notification, MessageAdded) and not complete:
            complete = True
            for message in _messages(store, record, event.notification.message.sequence):
                yield from checker.preload(message)
        yield from checker.check(event.notification)
    if not complete:
        for message in _messages(store, record, record.state.ledger.seq + 1):
            yield from checker.preload(message)
    yield from checker.check_end(record.state, record.mode)


def _beginning(store: StoreReader, record: ConversationRecord) -> int:
    """Return the lowest revision after which all events are still stored; 0 if no event is missing."""
    try:
        store.events(record.id, after=0, limit=1)
    except RevisionTooOldError as error:
        return error.oldest
    return 0


def _events(store: StoreReader, record: ConversationRecord, after: int) -> Iterator[StoredEvent]:
    while after < record.last_seq:
        page = store.events(record.id, after=after, limit=min(PAGE, record.last_seq - after))
        if not page:
            return
        yield from page
        after = page[-1].revision


def _messages(store: StoreReader, record: ConversationRecord, before: int) -> Iterator[Message]:
    after = 0
    while page := store.messages(record.id, after=after, before=before, limit=PAGE):
        yield from page
        after = page[-1].sequence
