"""Decides which paths to hide from tools, in order to protect the server's own files (data, keys, settings)."""

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
"""A directory of this name is assumed to belong to the server, like `~/.config/bedrock`."""

REPLACED_TOGETHER = "..data"
"""The link by which Kubernetes replaces all files of a secret at once; its directory contains only this secret."""


class ServerFiles:
    """The files and directories that no tool may read or change.

    Paths are resolved for each call, because links may change.

    Saving a file usually replaces it with another file of the same name, so hiding the current file is not enough.
    Therefore the directory of a file is hidden if only the server uses that directory. That is assumed if the
    directory's name or layout indicates it, or if the directory is outside the home directory and other users have no
    permissions, provided that it contains neither the call's directory nor the server's home, programs or temporary
    files. For a link, the directory of its target is treated in the same way.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(sorted({os.path.abspath(path) for path in paths}))

    def real(self) -> tuple[str, ...]:
        """Return the real paths, with all links resolved as they are now."""
        return tuple(sorted({os.path.realpath(path) for path in self._paths}))

    def to_hide(self, needed: str) -> tuple[str, ...]:
        """Return the paths to hide from a call that needs the directory `needed`."""
        kept = (os.path.realpath(needed), *_shared())
        found: set[str] = set()
        for path in self._paths:
            real = os.path.realpath(path)
            found.add(real)
            if not os.path.isdir(real):
                found |= {each for each in _directories(path, real) if _apart(each, kept)}
        return tuple(sorted(path for path in found if not any(_within(path, other) for other in found)))

    def in_shared_directories(self) -> tuple[str, ...]:
        """Return the files that are hidden without their directory: tools could see a new file that replaces one."""
        hidden = self.to_hide("/")
        return tuple(path for path in hidden if not os.path.isdir(path))


def _directories(path: str, real: str) -> set[str]:
    """Return the directory of a file; for a link, the directories of link and target, and their parent directories."""
    named, target = os.path.realpath(os.path.dirname(path)), os.path.dirname(real)
    if os.path.join(named, os.path.basename(path)) == real:
        return {named}
    return {named, os.path.dirname(named), target, os.path.dirname(target)}


def _apart(folder: str, kept: Iterable[str]) -> bool:
    """Return whether the directory is used by the server only, and contains none of the paths `kept`."""
    if not os.path.isdir(folder) or any(each == folder or _within(each, folder) for each in kept):
        return False
    if os.path.basename(folder) == OWN_NAME or os.path.lexists(os.path.join(folder, REPLACED_TOGETHER)):
        return True
    return not _within(folder, os.path.expanduser("~")) and not os.stat(folder).st_mode & stat.S_IRWXO


def own_programs() -> tuple[str, ...]:
    """Return the real paths of the interpreter, its libraries and this package, which tools written in Python need."""
    package = str(Path(__file__).parents[2])  # not its parent, where a checkout also has files that users edit
    found = (package, sys.prefix, sys.base_prefix, os.path.dirname(sys.executable), os.path.dirname(os.__file__))
    return tuple(sorted({*map(os.path.realpath, found)}))


def listed_by_programs() -> str:
    """Return the real path of the directory that holds this package: Python must be able to list it."""
    return os.path.realpath(Path(__file__).parents[3])


def _shared() -> tuple[str, ...]:
    home, source = os.path.expanduser("~"), str(Path(__file__).parents[3])
    places = (home, source, tempfile.gettempdir(), sys.prefix, sys.base_prefix, sys.executable)
    return tuple(map(os.path.realpath, places))


def _within(path: str, folder: str) -> bool:
    return path != folder and path.startswith(folder.rstrip("/") + "/")
