"""The port for the store, which keeps conversations durably.

A class that needs only a part of the store can depend on the port of that part, such as StoreReader.
"""

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
    """All methods that read conversations, their messages and their logs, but not their attachments."""


class Store(
    StoreReader, ConversationWriter, ConversationOwnership, AttachmentStore, AuditStore, StoreMaintenance, Protocol
):
    """The whole store. Safe to call from any thread. Reads see only committed data; reads and writes block."""

    @property
    def engine_version(self) -> str:
        """The version of the database engine."""
        ...

    def close(self) -> None:
        """Finish accepted writes, then close every connection. Idempotent."""
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
