"""The errors of the store. A write that raises one of them has written nothing, unless its docstring says otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class StoreError(Exception):
    """The base class of the store's errors."""


class StoreUnavailableError(StoreError):
    """The disk is full, an I/O error occurred, or the store is closed; a later attempt may succeed."""


class DatabaseAwayError(StoreUnavailableError):
    """The database does not answer.

    The store itself logs the beginning and the end of such an outage; callers need not.
    """


class FencedError(StoreError):
    """The stored conversation has changed since it was read, or was deleted: the state in memory is out of date."""


class SlugTakenError(StoreError):
    """Another conversation of the principal has this slug."""


class CommandExistsError(StoreError):
    """A command with this request id was accepted before, for the same conversation or principal."""


class RevisionTooOldError(StoreError):
    """Events after the requested revision were pruned from the log."""

    def __init__(self, text: str = "", *, oldest: int = 0) -> None:
        super().__init__(text)
        self.oldest = oldest
        """The lowest revision after which all events are still stored."""


class StoreDamagedError(StoreError):
    """Stored data cannot be read: the file is corrupt, or a row differs from what was written."""


class StoreUnusableError(StoreError):
    """The store cannot be opened; the text says why, for example because it is read-only or has a newer schema."""


class DataDirectoryBusyError(StoreError):
    """Another process has locked the data directory."""

    def __init__(self, path: Path, pid: int) -> None:
        holder = f"process {pid}" if pid else "another process"
        super().__init__(f"the data directory {path} is in use by {holder}")
        self.path = path
        self.pid = pid
        """The id of the process that has locked the data directory; 0 if unknown."""
