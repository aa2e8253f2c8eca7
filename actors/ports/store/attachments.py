"""The part of the Store port for attachments: bytes that messages refer to by their content hash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from actors.ports.store.records import Attachment


class AttachmentStore(Protocol):
    """The attachments of conversations. Safe to call from any thread.

    Reads block briefly; writes block until the data is on disk.
    """

    def put_attachment(self, conversation_id: str, attachment: Attachment) -> None:
        """Store an attachment of a conversation. Idempotent.

        Raises StoreUnavailableError, NotOwnerError, or FencedError if the conversation does not exist.
        """
        ...

    def attachment(self, conversation_id: str, attachment_id: str) -> Attachment | None:
        """Return the attachment; None if the conversation has none with this id.

        Raises StoreUnavailableError or StoreDamagedError.
        """
        ...
