"""Reads branch and commit of a git repository from its files.

git itself is never run, because a repository can make it run programs.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable

from actors.adapters.workspace.safe_read import ReadRefusedError, is_inside, read_start
from actors.ports import GitState

SMALL = 4096
"""Maximum bytes that are read of HEAD, of a ref, and of a `.git` file; each of them is one short line."""

PACKED_REFS = 4 << 20
"""Maximum bytes of packed-refs that are searched: some 50,000 refs."""

SHORT = 10
"""Number of digits of a commit id that are shown."""

_COMMIT = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_BRANCH = re.compile(rb"ref: refs/heads/([^\x00-\x20\x7f~^:?*\[\\]{1,255})")

Refusal = Callable[[str], str]


def repository_root(directory: str, allowed: Callable[[str], bool] = lambda _path: True) -> str:
    """Return the root of the repository that contains the directory, given by its real path; "" if there is none.

    A `.git` is ignored if `allowed` returns False for its path, or if it belongs to neither root, nor the server's
    user, nor the owner of the directory.
    """
    try:
        trusted = {0, os.geteuid(), os.stat(directory).st_uid}
    except OSError:
        return ""
    folder = directory
    while True:
        if allowed(os.path.join(folder, ".git")) and _is_root(folder, trusted):
            return folder
        if folder == "/":
            return ""
        folder = os.path.dirname(folder)


def git_state(root: str, refusal: Refusal) -> GitState:
    """Return branch and commit of the repository at `root`, each "" if it cannot be read.

    `refusal` takes the real path of a file, and returns the reason why the file must not be read, or "".
    """
    try:
        private = _private_directory(root, refusal)
    except (OSError, ReadRefusedError):
        return GitState(root)
    head = _line(private, "HEAD", refusal)
    if _COMMIT.fullmatch(head):
        return GitState(root, commit=head[:SHORT].decode())
    named = _BRANCH.fullmatch(head)
    if named is None or not all(_is_name(part) for part in named[1].split(b"/")):
        return GitState(root)
    ref = b"refs/heads/" + named[1]
    commit = _commit_of(ref, private, refusal)
    return GitState(root, branch=named[1].decode(errors="replace"), commit=commit)


def _is_root(folder: str, trusted: set[int]) -> bool:
    """Return whether `folder` has a `.git` of a repository that belongs to one of the user ids `trusted`."""
    try:
        about = os.stat(os.path.join(folder, ".git"))
    except OSError:
        return False
    if about.st_uid not in trusted:
        return False
    return stat.S_ISREG(about.st_mode) or os.path.lexists(os.path.join(folder, ".git", "HEAD"))


def _private_directory(root: str, refusal: Refusal) -> str:
    """Return the directory that contains HEAD: `.git`, or the target of a file `.git` (worktree, submodule)."""
    path = os.path.join(root, ".git")
    if not os.path.isdir(path):
        data, _ = read_start(path, SMALL, refusal)
        if not data.startswith(b"gitdir: "):
            raise ReadRefusedError("it leads nowhere")
        path = os.path.join(root, os.fsdecode(data.removeprefix(b"gitdir: ").rstrip(b"\r\n")))
    return _real(path)


def _commit_of(ref: bytes, private: str, refusal: Refusal) -> str:
    """Return the shortened commit id of the branch `ref`, from the branch's own file or from a line in packed-refs."""
    common = private
    if leads := _line(private, "commondir", refusal):
        try:
            common = _real(os.path.join(private, os.fsdecode(leads)))
        except OSError:
            return ""
    commit = _line(common, os.fsdecode(ref), refusal)
    if not commit:
        packed = b"\n" + _content(common, "packed-refs", PACKED_REFS, refusal)
        before, found, _ = packed.partition(b" " + ref + b"\n")
        commit = before.rpartition(b"\n")[2] if found else b""
    return commit[:SHORT].decode() if _COMMIT.fullmatch(commit) else ""


def _line(folder: str, name: str, refusal: Refusal) -> bytes:
    return _content(folder, name, SMALL, refusal).rstrip(b"\r\n")


def _content(folder: str, name: str, limit: int, refusal: Refusal) -> bytes:
    """Return the first `limit` bytes of the file `name` inside `folder`; b"" if it cannot or must not be read."""

    def why_not(real: str) -> str:
        return refusal(real) if is_inside(real, folder) else "it leads out of the repository"

    try:
        return read_start(os.path.join(folder, name), limit, why_not)[0]
    except (FileNotFoundError, ReadRefusedError):
        return b""


def _real(path: str) -> str:
    """Return the real path. Raises OSError if the path does not exist."""
    if "\0" in path:
        raise FileNotFoundError(path)
    return os.path.realpath(path, strict=True)


def _is_name(part: bytes) -> bool:
    return bool(part) and not part.startswith(b".") and not part.endswith(b".lock")
