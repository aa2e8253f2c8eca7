"""The filter of a watched list of conversations, which also notices when conversations no longer match."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from actors.ports.store.conditions import matches

if TYPE_CHECKING:
    from actors.ports import ConversationRecord
    from actors.ports.store.conditions import Condition


class ListVerdict(Enum):
    """What to send to a client about an existing conversation."""

    SHOW = "show"
    TAKE_OFF = "take_off"
    """Report the conversation as gone: it no longer matches, or the client may have it from an earlier list."""
    SAY_NOTHING = "say_nothing"


class ListFilter:
    """The filter of one client's watch of the list.

    It keeps track of what the client has been sent. Not thread-safe.
    """

    def __init__(self, condition: Condition, *, may_have_others: bool) -> None:
        """Begin with nothing sent.

        With `may_have_others`, the client may have conversations that this stream has not sent.
        """
        self._condition = condition
        self._default = may_have_others
        self._has: dict[str, bool] = {}
        """For each conversation that was sent or reported as gone, whether the client has it in its list."""

    def judge(self, record: ConversationRecord) -> ListVerdict:
        """Return what to send about a new or changed conversation, and record it as sent."""
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
