"""A cache of conversations as API messages. All streams, lists and responses share them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from server.wire.conversations.conversation_messages import conversation

if TYPE_CHECKING:
    from bedrock import v1

    from actors.ports import ConversationRecord
    from server.wire.context import ConversionContext

KEPT = 256
"""The maximum number of cached conversations. Most take one or two KB."""
KEPT_BYTES = 64 * 1024
"""Conversations whose API message has more bytes than this are not cached."""


class _Encoded:
    """One version of a conversation: its record, its API message and, once needed, the encoded message."""

    __slots__ = ("message", "record", "window", "wire")

    def __init__(self, record: ConversationRecord, window: int, message: v1.Conversation) -> None:
        self.record = record
        self.window = window
        self.message = message
        self.wire: bytes | None = None


class EncodedConversations:
    """Caches the API messages of the conversations that were converted last. Use in the event loop only."""

    def __init__(self, conversion: ConversionContext) -> None:
        self._conversion = conversion
        self._latest: dict[str, _Encoded] = {}

    def message(self, record: ConversationRecord) -> v1.Conversation:
        """Return the API message of a conversation's record. The message is shared: copy it before you change it."""
        return self._encoded(record).message

    def wire(self, record: ConversationRecord) -> bytes:
        """Return the encoded API message of a conversation's record."""
        found = self._encoded(record)
        if found.wire is None:
            found.wire = found.message.SerializeToString()
        return found.wire

    def _encoded(self, record: ConversationRecord) -> _Encoded:
        known = self._latest.get(record.id)
        window = self._conversion.usable_window(record.model)
        if known is not None and known.record is record and known.window == window:
            return known
        made = _Encoded(record, window, conversation(self._conversion, record, _same_state(known, record)))
        self._latest.pop(record.id, None)
        if made.message.ByteSize() <= KEPT_BYTES:
            self._latest[record.id] = made
        if len(self._latest) > KEPT:
            del self._latest[next(iter(self._latest))]
        return made


def _same_state(known: _Encoded | None, record: ConversationRecord) -> v1.ConversationState | None:
    """Return the cached API message of a conversation's state; None if none is cached, or the state has changed."""
    if known is None or known.record.state is not record.state:
        return None
    return known.message.state if known.record.state_updated_at == record.state_updated_at else None
