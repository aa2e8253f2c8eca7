"""The filter of a watched list, and what its watcher knows: so it is told when a conversation ceases to match."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from actors.ports.store.conditions import matches

if TYPE_CHECKING:
    from actors.ports import ConversationRecord
    from actors.ports.store.conditions import Condition


class ListVerdict(Enum):
    """What to tell a watcher about a conversation that exists."""

    SHOW = "show"
    TAKE_OFF = "take_off"
    """It does not match any more, or the watcher may have it from elsewhere."""
    SAY_NOTHING = "say_nothing"


class ListFilter:
    """The filter of one watcher. Not thread-safe."""

    def __init__(self, condition: Condition, *, may_have_others: bool) -> None:
        """Create it; `may_have_others`: whether the watcher may have conversations that it was not shown here."""
        self._condition = condition
        self._default = may_have_others
        self._has: dict[str, bool] = {}
        """Whether the watcher has a conversation, as far as it was told."""

    def judge(self, record: ConversationRecord) -> ListVerdict:
        """Return what to tell about a conversation that is new or has changed, and remember that it is told."""
        had = self._has.get(record.id, self._default)
        if matches(self._condition, record):
            self._has[record.id] = True
            return ListVerdict.SHOW
        if not had:
            return ListVerdict.SAY_NOTHING
        self._has[record.id] = False
        return ListVerdict.TAKE_OFF

    def forget(self, conversation_id: str) -> bool:
        """Return whether to tell that a conversation was deleted, and forget it."""
        return self._has.pop(conversation_id, self._default)
