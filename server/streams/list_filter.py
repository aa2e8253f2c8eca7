"""The filter of a watched list. It tracks what its watcher was sent, to report conversations that no longer match."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from actors.ports.store.conditions import matches

if TYPE_CHECKING:
    from actors.ports import ConversationRecord
    from actors.ports.store.conditions import Condition


class ListVerdict(Enum):
    """What to send to a watcher about an existing conversation."""

    SHOW = "show"
    TAKE_OFF = "take_off"
    """Report the conversation as gone: it no longer matches, or the watcher may have it from an earlier list."""
    SAY_NOTHING = "say_nothing"


class ListFilter:
    """The filter of one watcher. Not thread-safe."""

    def __init__(self, condition: Condition, *, may_have_others: bool) -> None:
        """`may_have_others`: whether the watcher may know conversations that this stream has not sent."""
        self._condition = condition
        self._default = may_have_others
        self._has: dict[str, bool] = {}
        """For each conversation that was sent: whether the watcher has it in its list."""

    def judge(self, record: ConversationRecord) -> ListVerdict:
        """Return what to send about a new or changed conversation, and remember it as sent."""
        had = self._has.get(record.id, self._default)
        if matches(self._condition, record):
            self._has[record.id] = True
            return ListVerdict.SHOW
        if not had:
            return ListVerdict.SAY_NOTHING
        self._has[record.id] = False
        return ListVerdict.TAKE_OFF

    def forget(self, conversation_id: str) -> bool:
        """Return whether to report the deletion of a conversation, and forget the conversation."""
        return self._has.pop(conversation_id, self._default)
