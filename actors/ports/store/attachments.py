"""Attachments: bytes that messages refer to by content hash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from actors.ports.store.records import Attachment


class AttachmentStore(Protocol):
    """Attachments of conversations. Any thread; blocks briefly, a write until it is on disk."""

    def put_attachment(self, conversation_id: str, attachment: Attachment) -> None:
        """Store an attachment; idempotent.

        Raises StoreUnavailableError, NotOwnerError, or FencedError without such a conversation.
        """
        ...

    def attachment(self, conversation_id: str, attachment_id: str) -> Attachment | None:
        """Return the attachment, or None. Raises StoreUnavailableError or StoreDamagedError."""
        ...
