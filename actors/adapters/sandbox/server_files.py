"""The server's own files: its data, its keys, its settings, and what has to be hidden so that they are."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

OWN_NAME = "bedrock"
"""A directory of this name is taken to be the server's, as `~/.config/bedrock` is."""

REPLACED_TOGETHER = "..data"
"""The link by which Kubernetes replaces all files of a secret at once: its directory holds nothing else."""


class ServerFiles:
    """Files and directories that no tool may read or change. Looked up for each call, since links may be turned.

    A file is replaced by another one of the same name when it is saved, so it is not enough to hide that which is
    there when a call begins. Therefore its directory is hidden, where that is nobody else's: it has a name or a form
    that says so, or it is outside of the home directory and others have no rights to it; and neither the call nor the
    server's home, programs or temporary files are in it. The same holds for the place of what it is a link to.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(sorted({os.path.abspath(path) for path in paths}))

    def real(self) -> tuple[str, ...]:
        """The real paths of what they are now."""
        return tuple(sorted({os.path.realpath(path) for path in self._paths}))

    def to_hide(self, needed: str) -> tuple[str, ...]:
        """Directories, and files in directories that others need, that are to be hidden from a call in `needed`."""
        kept = (os.path.realpath(needed), *_shared())
        found: set[str] = set()
        for path in self._paths:
            real = os.path.realpath(path)
            found.add(real)
            if not os.path.isdir(real):
                found |= {each for each in _directories(path, real) if _apart(each, kept)}
        return tuple(sorted(path for path in found if not any(_within(path, other) for other in found)))

    def in_shared_directories(self) -> tuple[str, ...]:
        """Files that are hidden only as what they are when a call begins: their directory is not the server's own."""
        hidden = self.to_hide("/")
        return tuple(path for path in hidden if not os.path.isdir(path))


def _directories(path: str, real: str) -> set[str]:
    """Where a file is; of a link also where that leads to, and what is above: both may be replaced by their like."""
    named, target = os.path.realpath(os.path.dirname(path)), os.path.dirname(real)
    if os.path.join(named, os.path.basename(path)) == real:
        return {named}
    return {named, os.path.dirname(named), target, os.path.dirname(target)}


def _apart(folder: str, kept: Iterable[str]) -> bool:
    """Whether nobody else needs this directory."""
    if not os.path.isdir(folder) or any(each == folder or _within(each, folder) for each in kept):
        return False
    if os.path.basename(folder) == OWN_NAME or os.path.lexists(os.path.join(folder, REPLACED_TOGETHER)):
        return True
    return not _within(folder, os.path.expanduser("~")) and not os.stat(folder).st_mode & stat.S_IRWXO


def _shared() -> tuple[str, ...]:
    """What the server, its programs and its tools need."""
    home, source = os.path.expanduser("~"), str(Path(__file__).parents[3])
    places = (home, source, tempfile.gettempdir(), sys.prefix, sys.base_prefix, sys.executable)
    return tuple(map(os.path.realpath, places))


def _within(path: str, folder: str) -> bool:
    return path != folder and path.startswith(folder.rstrip("/") + "/")
