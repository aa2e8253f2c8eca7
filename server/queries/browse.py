"""BrowseDirectory: what is in a directory of this machine, for people who choose one. Blocks, on a reading thread."""

from __future__ import annotations

import heapq
import os
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from bedrock import v1

from actors.adapters.workspace.safe_read import beneath
from actors.core.errors import Reason
from server.contract.errors import MalformedRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from actors.ports import Workspace

ENTRIES = 1_000
"""Entries that are listed."""
LOOKED_AT = 100_000
"""Entries that are looked at to find the first ones; in a larger directory some may be missing."""


class NotBrowsableError(MalformedRequestError):
    """A path that cannot be shown."""

    reason = Reason.WORKING_DIRECTORY_INVALID.value

    def __init__(self, text: str) -> None:
        super().__init__(("path", text))


class DirectoryBrowser:
    """Lists directories, without what belongs to the server: nobody may work there. Any thread."""

    def __init__(self, workspace: Workspace, protected: Callable[[], Sequence[str]]) -> None:
        self._workspace = workspace
        self._protected = protected
        """Tells real paths, as they are now."""

    def browse(self, path: str) -> v1.BrowseDirectoryResponse:
        """List a directory. Raises NotBrowsableError."""
        try:
            real = self._workspace.check(path or _home())
            with os.scandir(real) as found:
                entries = list(islice(self._entries(real, found), LOOKED_AT))
        except ValueError as error:
            raise NotBrowsableError(str(error)) from None
        except PermissionError:
            raise NotBrowsableError("the user that the server runs as may not read it") from None
        except OSError as error:
            raise NotBrowsableError(f"it cannot be read: {(error.strerror or 'unknown error').lower()}") from None
        shown = [
            v1.BrowseDirectoryResponse.Entry(name=name, directory=not file)
            for file, name in heapq.nsmallest(ENTRIES, entries)
        ]
        return v1.BrowseDirectoryResponse(path=real, entries=shown, truncated=len(entries) > ENTRIES)

    def _entries(self, real: str, found: Iterator[os.DirEntry[str]]) -> Iterator[tuple[bool, str]]:
        """In the order in which they are listed: whether it is no directory, and the name."""
        protected = self._protected()
        for entry in found:
            path = os.path.join(real, entry.name)
            if _is_text(entry.name) and not _hidden(path, entry.is_symlink(), protected):
                yield not _is_directory(entry), entry.name


def _hidden(path: str, link: bool, protected: Sequence[str]) -> bool:
    if not protected:
        return False
    real = os.path.realpath(path) if link else path
    return any(beneath(real, folder) for folder in protected)


def _home() -> str:
    try:
        return str(Path.home())
    except RuntimeError:
        return "/"


def _is_directory(entry: os.DirEntry[str]) -> bool:
    """Whether it is one, or a link to one; a link in a circle is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_text(name: str) -> bool:
    """Whether it can be sent; names need not be UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
