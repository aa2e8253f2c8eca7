"""Lists a directory of this machine, for a person who chooses a working directory."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from actors.adapters.workspace.safe_read import is_inside
from actors.ports import DirectoryEntry, DirectoryListing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_ENTRIES = 100_000
"""Maximum number of entries in a listing. Which entries of a larger directory are missing is not defined."""


def list_entries(directory: str, hidden: Sequence[str], within: Sequence[str] | None = None) -> DirectoryListing:
    """Return the entries of a directory, given by its real path: directories first, each kind sorted by name.

    Entries at or in a `hidden` real path and links to such entries are omitted, as are links that lead out of the
    directories `within`. Raises ValueError with a readable text if the directory cannot be read.
    """
    try:
        with os.scandir(directory) as found:
            entries = list(islice(_visible(directory, found, hidden, within), MAX_ENTRIES + 1))
    except PermissionError:
        raise ValueError("the user that the server runs as may not read it") from None
    except OSError as error:
        raise ValueError(f"it cannot be read: {(error.strerror or 'unknown error').lower()}") from None
    listed = [DirectoryEntry(name, directory=not file) for file, name in sorted(entries[:MAX_ENTRIES])]
    return DirectoryListing(directory, tuple(listed), truncated=len(entries) > MAX_ENTRIES)


def home_directory() -> str:
    """Return the home directory of the server's user, "/" if there is none."""
    try:
        return str(Path.home())
    except RuntimeError:
        return "/"


def _visible(
    directory: str, found: Iterator[os.DirEntry[str]], hidden: Sequence[str], within: Sequence[str] | None
) -> Iterator[tuple[bool, str]]:
    """Yield a pair (is not a directory, name) for each visible entry; sorting the pairs puts directories first."""
    for entry in found:
        path = os.path.join(directory, entry.name)
        link = entry.is_symlink()
        if link and within is not None and not _leads_into(path, within):
            continue
        if _is_utf8(entry.name) and not _is_hidden(path, link, hidden):
            yield not _is_directory(entry), entry.name


def _is_hidden(path: str, link: bool, hidden: Sequence[str]) -> bool:
    if not hidden:
        return False
    real = os.path.realpath(path) if link else path  # `directory` is a real path, so only the entry can be a link
    return any(is_inside(real, folder) for folder in hidden)


def _leads_into(path: str, within: Sequence[str]) -> bool:
    real = os.path.realpath(path)
    return any(is_inside(real, root) for root in within)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a directory, or a link to a directory; False for circular links."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_utf8(name: str) -> bool:
    """Return whether a file name is valid UTF-8. Names that are not cannot be sent to clients."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
