"""The filter of a client's stream about the list of conversations.

It also notices when a conversation in the client's list does not match any more.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from actors.ports.store.conditions import matches

if TYPE_CHECKING:
    from actors.ports import ConversationRecord
    from actors.ports.store.conditions import Condition


class ListVerdict(Enum):
    """What to send to a client about a conversation that exists."""

    SHOW = "show"
    TAKE_OFF = "take_off"
    """Report the conversation as gone: it no longer matches, but it is in the client's list, or may be."""
    SAY_NOTHING = "say_nothing"


class ListFilter:
    """The filter of one client's stream about the list of conversations. Not thread-safe.

    It remembers which conversations are in the client's list.
    """

    def __init__(self, condition: Condition, *, may_have_others: bool) -> None:
        """Create the filter of a stream that has not sent any conversation yet.

        With `may_have_others`, the client may have conversations that this stream has not sent.
        """
        self._condition = condition
        self._default = may_have_others
        self._has: dict[str, bool] = {}
        """For each conversation that was sent or reported as gone: whether the client now has it in its list."""

    def judge(self, record: ConversationRecord) -> ListVerdict:
        """Return what to send about a new or changed conversation.

        Remembers whether the conversation is then in the client's list.
        """
        had = self._has.get(record.id, self._default)
        if matches(self._condition, record):
            self._has[record.id] = True
            return ListVerdict.SHOW
        if not had:
            return ListVerdict.SAY_NOTHING
        self._has[record.id] = False
        return ListVerdict.TAKE_OFF

    def forget(self, conversation_id: str) -> bool:
        """Forget a deleted conversation, and return whether the client must be told of the deletion."""
        return self._has.pop(conversation_id, self._default)
