"""Tracks whether a conversation has settled: whether nothing in it will change until somebody gives input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.notifications import Fate, QueueChanged, StateChanged
from actors.core.states import TERMINAL, AwaitingToolApproval, Error, Idle, ToolExecuting

if TYPE_CHECKING:
    from actors.ports import ConversationRecord, StoredEvent

AT_REST = frozenset(str(kind.__struct_config__.tag) for kind in (Idle, Error, *TERMINAL))
QUESTION = str(AwaitingToolApproval.__struct_config__.tag)


class SettledTracker:
    """Follows a conversation's events. Its truth value is whether the conversation has settled.

    A conversation has settled if it waits for a person's answer, or if it is idle, failed or ended and no follow-up is
    queued. The truth value is only valid between commits: within a commit, a conversation may be idle for a moment.
    """

    def __init__(self, record: ConversationRecord) -> None:
        self._kind = str(type(record.state).__struct_config__.tag)
        self._asks = isinstance(record.state, ToolExecuting) and bool(record.state.questions)
        self._since = record.last_seq
        self._follow_ups = {queued.message_id for queued in record.state.ledger.follows}

    def take(self, event: StoredEvent) -> None:
        """Apply an event. An event that the record given to the constructor already includes has no effect."""
        if event.revision <= self._since:
            return
        match event.notification:
            case StateChanged(state=summary):
                self._kind, self._asks = summary.kind, bool(summary.questions)
            case QueueChanged(input=queued, delivery="follow_up", fate=fate):
                if fate is Fate.QUEUED:
                    self._follow_ups.add(queued.message_id)
                else:
                    self._follow_ups.discard(queued.message_id)
            case _:
                pass

    def __bool__(self) -> bool:
        return self._kind == QUESTION or self._asks or (self._kind in AT_REST and not self._follow_ups)
