"""Decides which directories programs may change in workspace mode, and which names in these are protected."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.adapters.sandbox.broker import protected_names
from actors.ports.sandbox.processes import WORKSPACE_PROTECTED

if TYPE_CHECKING:
    from collections.abc import Iterable

ALWAYS = (".git",)
"""Names that are always protected, whatever the settings: git runs programs whose names are in files in `.git`."""

OF_THE_SYSTEM = ("/bin", "/lib", "/lib64", "/run", "/sbin", "/usr", "/var")
"""Directories that cannot be a workspace themselves, although directories below them can."""

OF_THE_SYSTEM_WITH_ALL = ("/boot", "/dev", "/etc", "/proc", "/sys")
"""Directories that cannot be a workspace, nor can any directory below them."""

WITH_OTHER_NAMES = {
    0x4D44: "vfat", 0x2011BAB0: "exfat", 0x5346544E: "ntfs", 0x7366746E: "ntfs", 0xFF534D42: "cifs", 0xFE534D42: "smb",
    0x517B: "smb", 0x4244: "hfs", 0x482B: "hfs+",
}  # fmt: skip
"""File systems, by magic number, in which programs can use other names for a file, such as GIT~1 for .git.

In them it would be useless to protect a name.
"""


class Workspaces:
    """Decides whether a directory can be a workspace, and describes it to the tool host. Safe to call from any thread.

    `names` are the protected names, each one or several components separated by slashes.
    """

    def __init__(self, names: Iterable[str] = WORKSPACE_PROTECTED) -> None:
        self._names = tuple(map(os.fsencode, dict.fromkeys((*ALWAYS, *names))))
        self._programs = str(Path(__file__).parents[4])

    def refusal(self, directory: str, denied: Iterable[str], unmasked: Iterable[str]) -> str:
        """Return a readable reason why a directory cannot be a workspace; "" if it can.

        `denied` are real paths that no tool may change. `unmasked` are paths that tools may not read and that no mount
        hides. Tools get access only to files that are beside such a path when they start. A file that they create
        there would be unreadable, so a workspace must contain no such path.
        """
        root = os.path.realpath(directory)
        home = os.path.realpath(os.path.expanduser("~"))
        if root == "/" or root in OF_THE_SYSTEM or any(_within(root, each) for each in OF_THE_SYSTEM_WITH_ALL):
            return f"{root} belongs to the system: choose the directory of a project"
        if _within(home, root):
            return f"{root} is or contains the home directory, with what programs run at their start: choose one in it"
        if any(_within(root, path) for path in (*denied, self._programs)):
            return f"{root} belongs to the server itself, or keys are kept there"
        if within := next((path for path in unmasked if _within(path, root)), None):
            return f"{within} lies in it, which tools may not read: choose another directory, or move that elsewhere"
        if kind := _other_names(root):
            return f"files in {root} have further names there ({kind}), so that names like .git cannot be protected"
        return protected_names.why_not(os.fsencode(root), list(self._names))

    def describe(self, directory: str, private: str, denied: Iterable[str]) -> dict[str, Any]:
        """Return the description of a workspace for the tool host: the section `workspace` of its launch message.

        `private` is the private directory of the tool call. `denied` are paths that no tool may change.
        """
        kept = {
            *denied,
            self._programs,
            *(path for path in (sys.prefix, sys.base_prefix) if not _within(directory, path)),
        }
        return {
            "root": os.fsencode(os.path.realpath(directory)),
            "names": list(self._names),
            "denied": sorted(os.fsencode(os.path.realpath(path)) for path in kept),
            "private": os.fsencode(private),
        }


def _within(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


class _FileSystem(ctypes.Structure):
    """The beginning of the C struct statfs."""

    _fields_ = (("kind", ctypes.c_long), ("rest", ctypes.c_char * 512))


def _other_names(path: str) -> str:
    """Return the kind of the path's file system if it is one of WITH_OTHER_NAMES, else ""."""
    found = _FileSystem()
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(path), ctypes.byref(found)) < 0:
        return ""
    return WITH_OTHER_NAMES.get(found.kind & 0xFFFFFFFF, "")
