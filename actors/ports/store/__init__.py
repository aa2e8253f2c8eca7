"""The Store port: durable storage of conversations, in parts, so that each user can depend on the part it needs."""

from __future__ import annotations

from typing import Protocol

from actors.ports.store.attachments import AttachmentStore
from actors.ports.store.audit import AuditStore
from actors.ports.store.log import LogReader
from actors.ports.store.maintenance import StoreMaintenance
from actors.ports.store.ownership import ConversationOwnership, NotOwnerError, Owner
from actors.ports.store.reader import ConversationReader
from actors.ports.store.store_errors import (
    CommandExistsError,
    DatabaseAwayError,
    DataDirectoryBusyError,
    FencedError,
    RevisionTooOldError,
    SlugTakenError,
    StoreDamagedError,
    StoreError,
    StoreUnavailableError,
    StoreUnusableError,
)
from actors.ports.store.writer import ConversationWriter


class StoreReader(ConversationReader, LogReader, Protocol):
    """All reads of conversations, except their attachments."""


class Store(
    StoreReader, ConversationWriter, ConversationOwnership, AttachmentStore, AuditStore, StoreMaintenance, Protocol
):
    """The whole store. Any thread. Reads see committed data only; they and the writes block."""

    @property
    def engine_version(self) -> str:
        """Version of the database engine, "" if there is none."""
        ...

    def close(self) -> None:
        """Finish accepted writes, then close every connection; idempotent."""
        ...


__all__ = [
    "AttachmentStore",
    "AuditStore",
    "CommandExistsError",
    "ConversationOwnership",
    "ConversationReader",
    "ConversationWriter",
    "DataDirectoryBusyError",
    "DatabaseAwayError",
    "FencedError",
    "LogReader",
    "NotOwnerError",
    "Owner",
    "RevisionTooOldError",
    "SlugTakenError",
    "Store",
    "StoreDamagedError",
    "StoreError",
    "StoreMaintenance",
    "StoreReader",
    "StoreUnavailableError",
    "StoreUnusableError",
]
