"""Decides which paths to hide from tools, and which directories they may change in workspace mode."""

from __future__ import annotations

import ctypes
import os
import stat
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from actors.adapters.sandbox.host import writable_trees
from actors.ports.sandbox import WORKSPACE_PROTECTED

# A directory with this name, like `~/.config/bedrock`, is assumed to belong to the server.
OWN_NAME = "bedrock"

# The link through which Kubernetes replaces all files of a secret at once; a directory with it has only that secret.
REPLACED_TOGETHER = "..data"


class ServerFiles:
    """The files and directories that no tool may read or change, resolved for each call because links may change.

    Saving a file usually replaces it, so a file's directory is hidden, too, if only the server uses that directory.
    This is assumed if its name or layout suggests it or, outside the home directory, if other users have no permissions
    for it. It is never assumed if the directory contains the call's directory or the server's home, programs or
    temporary files. For a link, the target's directory is treated in the same way.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(sorted({os.path.abspath(path) for path in paths}))

    def real(self) -> tuple[str, ...]:
        return tuple(sorted({os.path.realpath(path) for path in self._paths}))

    def to_hide(self, needed: str) -> tuple[str, ...]:
        kept = (os.path.realpath(needed), *_shared())
        found: set[str] = set()
        for path in self._paths:
            real = os.path.realpath(path)
            found.add(real)
            if not os.path.isdir(real):
                found |= {each for each in _directories(path, real) if _apart(each, kept)}
        return tuple(outermost(found))

    def in_shared_directories(self) -> tuple[str, ...]:
        """The files whose directories are not hidden. If such a file is replaced, tools could see the new file."""
        hidden = self.to_hide("/")
        return tuple(path for path in hidden if not os.path.isdir(path))


def _directories(path: str, real: str) -> set[str]:
    """The directory of a file; for a link, the directories of the link and its target, and their parent directories."""
    named, target = os.path.realpath(os.path.dirname(path)), os.path.dirname(real)
    if os.path.join(named, os.path.basename(path)) == real:
        return {named}
    return {named, os.path.dirname(named), target, os.path.dirname(target)}


def _apart(folder: str, kept: Iterable[str]) -> bool:
    """Whether only the server uses the directory and it contains none of the paths `kept`."""
    if not os.path.isdir(folder) or any(within(each, folder) for each in kept):
        return False
    if os.path.basename(folder) == OWN_NAME or os.path.lexists(os.path.join(folder, REPLACED_TOGETHER)):
        return True
    home = os.path.expanduser("~")
    return (folder == home or not within(folder, home)) and not os.stat(folder).st_mode & stat.S_IRWXO


def own_programs() -> tuple[str, ...]:
    """The paths of the interpreter, its libraries and this package, which tools written in Python need."""
    package = str(Path(__file__).parents[2])  # not its parent, which in a checkout also has files that users edit
    found = (package, sys.prefix, sys.base_prefix, os.path.dirname(sys.executable), os.path.dirname(os.__file__))
    return tuple(sorted({*map(os.path.realpath, found)}))


def listed_by_programs() -> str:
    """The directory that holds this package, which Python must be able to list."""
    return os.path.realpath(Path(__file__).parents[3])


def _shared() -> tuple[str, ...]:
    home, source = os.path.expanduser("~"), str(Path(__file__).parents[3])
    places = (home, source, tempfile.gettempdir(), sys.prefix, sys.base_prefix, sys.executable)
    return tuple(map(os.path.realpath, places))


# Names that are protected whatever the settings say, because git runs programs that are named in files in `.git`.
ALWAYS = (".git",)

# Directories that cannot be workspaces themselves, although directories below them can.
OF_THE_SYSTEM = ("/bin", "/lib", "/lib64", "/run", "/sbin", "/usr", "/var")

# Directories that cannot be workspaces, nor can any directory below them.
OF_THE_SYSTEM_WITH_ALL = ("/boot", "/dev", "/etc", "/proc", "/sys")

# File systems, by magic number, in which files have second names, such as GIT~1 for .git, so that protecting one name
# is useless.
WITH_OTHER_NAMES = {
    0x4D44: "vfat", 0x2011BAB0: "exfat", 0x5346544E: "ntfs", 0x7366746E: "ntfs", 0xFF534D42: "cifs", 0xFE534D42: "smb",
    0x517B: "smb", 0x4244: "hfs", 0x482B: "hfs+",
}  # fmt: skip


class Workspaces:
    """Decides which directories can be workspaces, and describes them to the tool host. Thread-safe."""

    def __init__(self, names: Iterable[str] = WORKSPACE_PROTECTED) -> None:
        self._names = tuple(map(os.fsencode, dict.fromkeys((*ALWAYS, *names))))
        self._programs = str(Path(__file__).parents[3])

    def refusal(self, directory: str, denied: Iterable[str], unmasked: Iterable[str]) -> str:
        """Why a directory cannot be a workspace; "" if it can. `denied` are real paths that no tool can change.

        `unmasked` are paths that tools may not read and that no mount hides. In the directory of such a path, a tool
        can access only files that exist when the tool starts, so a workspace must not contain such paths.
        """
        root = os.path.realpath(directory)
        home = os.path.realpath(os.path.expanduser("~"))
        if root == "/" or root in OF_THE_SYSTEM or any(within(root, each) for each in OF_THE_SYSTEM_WITH_ALL):
            return f"{root} is a system directory; choose a project directory"
        if within(home, root):
            return f"{root} is or contains the home directory, which has startup files; choose a directory below it"
        if any(within(root, path) for path in (*denied, self._programs)):
            return f"{root} belongs to the server or contains keys; choose another directory"
        if inner := next((path for path in unmasked if within(path, root)), None):
            return f"{root} contains {inner}, which tools cannot read; choose another directory, or move that one"
        if kind := _other_names(root):
            return f"{root} is on a file system ({kind}) that gives files aliases, so .git cannot be protected"
        return writable_trees.why_not(os.fsencode(root), list(self._names))

    def describe(self, directory: str, private: str, denied: Iterable[str]) -> dict[str, Any]:
        """The `workspace` section of the launch message. `private` is the call's private directory."""
        kept = {
            *denied,
            self._programs,
            *(path for path in (sys.prefix, sys.base_prefix) if not within(directory, path)),
        }
        return {
            "root": os.fsencode(os.path.realpath(directory)),
            "names": list(self._names),
            "denied": sorted(os.fsencode(os.path.realpath(path)) for path in kept),
            "private": os.fsencode(private),
        }


def within(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def outermost(paths: Iterable[str]) -> list[str]:
    """The paths, sorted and without those below another path."""
    found = sorted(set(paths))
    return [path for path in found if not any(path != other and within(path, other) for other in found)]


class _FileSystem(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_long), ("rest", ctypes.c_char * 512))


def _other_names(path: str) -> str:
    found = _FileSystem()
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(path), ctypes.byref(found)) < 0:
        return ""
    return WITH_OTHER_NAMES.get(found.kind & 0xFFFFFFFF, "")
