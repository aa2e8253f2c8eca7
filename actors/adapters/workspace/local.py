"""Checks working directories on this machine, and describes them for the system prompt.

Files may be written by other users. They are read without blocking, up to a limit, and only within allowed directories.
No program is run, because a repository can name programs that git would run.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from actors.ports import DirectoryEntry, DirectoryListing, GitState, Instructions, Workspace, WorkspaceContext
from actors.ports.workspace import EMPTY

UNREADABLE = "it cannot be read"


class ReadRefusedError(Exception):
    """The file exists but must not be read; the message says why."""


def is_inside(path: str, folder: str) -> bool:
    """Whether a real path is `folder` or inside it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def read_start(path: str, limit: int, refusal: Callable[[str], str]) -> tuple[bytes, int]:
    """The first `limit` bytes of a regular file, and its size.

    `refusal` returns why a real path must not be read, or "" if it may be. Raises FileNotFoundError or
    ReadRefusedError; for a file that must not be read, the latter contains only the reason from `refusal`.
    """
    # Opening with O_PATH has no effect on the file: a FIFO does not block, a device is not touched. A file that was
    # checked through this descriptor cannot be replaced before it is read.
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        if os.path.lexists(path):
            raise ReadRefusedError(refusal(os.path.realpath(path)) or UNREADABLE) from None
        raise FileNotFoundError(path) from None
    try:
        here = f"/proc/self/fd/{handle}"
        if why := refusal(os.readlink(here)):
            raise ReadRefusedError(why)
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise ReadRefusedError("it is not a regular file")
        return _read(here, limit), about.st_size
    except OSError:
        raise ReadRefusedError(UNREADABLE) from None
    finally:
        os.close(handle)


def _read(path: str, limit: int) -> bytes:
    # The file is known to be a regular file; the flags make doubly sure that opening it does not block.
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        data = b""
        while len(data) < limit and (part := os.read(file, limit - len(data))):
            data += part
        return data
    finally:
        os.close(file)


# Maximum number of entries in a listing. It is undefined which entries of a larger directory are left out.
MAX_ENTRIES = 100_000


def list_entries(directory: str, hidden: Sequence[str], within: Sequence[str] | None = None) -> DirectoryListing:
    """The entries of a directory (a real path), subdirectories first, by name. Raises ValueError if it is unreadable.

    Omits `hidden` paths, links to them, and links that lead out of `within`.
    """
    try:
        with os.scandir(directory) as found:
            entries = list(islice(_visible(directory, found, hidden, within), MAX_ENTRIES + 1))
    except PermissionError:
        raise ValueError("the server's user cannot read it") from None
    except OSError as error:
        raise ValueError(f"it cannot be read: {(error.strerror or 'unknown error').lower()}") from None
    listed = [DirectoryEntry(name, directory=not file) for file, name in sorted(entries[:MAX_ENTRIES])]
    return DirectoryListing(directory, tuple(listed), truncated=len(entries) > MAX_ENTRIES)


def home_directory() -> str:
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
        if link and within is not None and not _resolves_into(path, within):
            continue
        if _is_utf8(entry.name) and not _is_hidden(path, link, hidden):
            yield not _is_directory(entry), entry.name


def _is_hidden(path: str, link: bool, hidden: Sequence[str]) -> bool:
    if not hidden:
        return False
    real = os.path.realpath(path) if link else path  # `directory` is a real path, so only the entry can be a link
    return any(is_inside(real, folder) for folder in hidden)


def _resolves_into(path: str, within: Sequence[str]) -> bool:
    real = os.path.realpath(path)
    return any(is_inside(real, root) for root in within)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a directory or a link to one; False for circular links."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_utf8(name: str) -> bool:
    """Whether a file name is valid UTF-8. Other names cannot be sent to clients."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


# Maximum bytes that are read from HEAD, a ref or a `.git` file; each of them is one short line.
SMALL = 4096

# Maximum bytes of packed-refs that are searched. So many bytes contain some 50,000 refs.
PACKED_REFS = 4 << 20

# Number of digits of a commit id that are shown.
SHORT = 10

_COMMIT = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_BRANCH = re.compile(rb"ref: refs/heads/([^\x00-\x20\x7f~^:?*\[\\]{1,255})")

Refusal = Callable[[str], str]


def repository_root(directory: str, allowed: Callable[[str], bool] = lambda _path: True) -> str:
    """The root of the repository around a real directory; "" if there is none.

    A `.git` counts only if it is `allowed` and belongs to root, the server's user or the directory's owner.
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
    """A repository's branch and commit, each "" if unreadable; `refusal` says why a real path must not be read."""
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
    """Whether `folder` has a repository's `.git` that belongs to one of the user ids `trusted`."""
    try:
        about = os.stat(os.path.join(folder, ".git"))
    except OSError:
        return False
    if about.st_uid not in trusted:
        return False
    return stat.S_ISREG(about.st_mode) or os.path.lexists(os.path.join(folder, ".git", "HEAD"))


def _private_directory(root: str, refusal: Refusal) -> str:
    """The directory that contains HEAD: `.git` or (worktree, submodule) the directory that the file `.git` names."""
    path = os.path.join(root, ".git")
    if not os.path.isdir(path):
        data, _ = read_start(path, SMALL, refusal)
        if not data.startswith(b"gitdir: "):
            raise ReadRefusedError("it is a broken link")
        path = os.path.join(root, os.fsdecode(data.removeprefix(b"gitdir: ").rstrip(b"\r\n")))
    return _real(path)


def _commit_of(ref: bytes, private: str, refusal: Refusal) -> str:
    """The shortened commit id of the branch `ref`, from the branch's own file or from a line in packed-refs."""
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
    """The first `limit` bytes of the file `name` inside `folder`; b"" if it cannot or must not be read."""

    def why_not(real: str) -> str:
        return refusal(real) if is_inside(real, folder) else "it leads out of the repository"

    try:
        return read_start(os.path.join(folder, name), limit, why_not)[0]
    except (FileNotFoundError, ReadRefusedError):
        return b""


def _real(path: str) -> str:
    if "\0" in path:
        raise FileNotFoundError(path)
    return os.path.realpath(path, strict=True)


def _is_name(part: bytes) -> bool:
    return bool(part) and not part.startswith(b".") and not part.endswith(b".lock")


# Names of files with instructions for agents. In each directory, the first readable one is used.
NAMES = ("AGENTS.md", "CLAUDE.md")

# Maximum bytes read from one file with instructions.
FILE_BYTES = 32 * 1024

# Maximum bytes read from all files with instructions. The files nearest to the working directory are read first.
ALL_BYTES = 64 * 1024

# In a file with instructions, at most one in this many characters may be invalid UTF-8.
MOST_INVALID = 10

NOT_TEXT = "it is not UTF-8 text"

SHOWN = 200

# Maximum number of files with instructions that the prompt names. If there are more, those nearest to the working
# directory are named.
MAX_FILES = 16


class LocalWorkspace(Workspace):
    def __init__(self, protected: Callable[[], Sequence[str]] = tuple) -> None:
        self._protected = protected

    def check(self, path: str, within: Sequence[str] | None = None) -> str:
        """See ports.Workspace.

        Raises ValueError, with a message for users, unless the path is absolute, exists and is allowed.
        """
        if "\0" in path:
            raise ValueError("it contains a NUL character")
        if not path.startswith("/"):
            raise ValueError("it must be an absolute path")
        if not _is_within(path, within):
            raise ValueError(f"it is outside this principal's directories: {', '.join(within or ())}")
        try:
            real = str(Path(path).resolve(strict=True))
        except (OSError, RuntimeError):
            raise ValueError(f"directory not found on the server: {_printable(path)}") from None
        if not os.path.isdir(real):
            raise ValueError("it is not a directory")
        if not _is_text(real):
            raise ValueError("its real path is not valid UTF-8")
        if self._is_protected(real):
            raise ValueError("it contains the server's data or private keys; choose another one")
        return real

    def list_directory(self, path: str, within: Sequence[str] | None = None) -> DirectoryListing:
        """See ports.Workspace. Raises ValueError as `check` does, or if the directory cannot be read."""
        first = home_directory() if within is None else next(iter(within), "")
        return list_entries(self.check(path or first, within), self._protected(), within)

    def surroundings(self, directory: str, within: Sequence[str] | None = None) -> WorkspaceContext:
        """The git state and instruction files of a checked directory; anything unreadable is omitted."""
        if not _is_within(directory, within):
            return WorkspaceContext(directory)
        root = repository_root(directory, lambda path: _is_within(path, within))

        def refusal(real: str) -> str:
            return self._refusal(real) if _is_within(real, within) else "it belongs to another principal"

        git = git_state(root, refusal) if root else None
        found, unnamed = self._instructions(directory, root or directory)
        return WorkspaceContext(directory, git, found, unnamed)

    def _instructions(self, directory: str, top: str) -> tuple[tuple[Instructions, ...], int]:
        """The MAX_FILES instruction files nearest to `directory`, from `top` down, and how many were left out."""
        found: list[Instructions] = []
        left, unnamed = ALL_BYTES, 0
        for folder in _upwards(directory, top):
            for name in NAMES:
                path = os.path.join(folder, name)
                if len(found) >= MAX_FILES:
                    unnamed += os.path.lexists(path)
                elif (one := self._read(path, min(left, FILE_BYTES), top)) is not None:
                    found.append(one)
                    left -= one.shown_bytes
                    if not one.left_out:
                        break
        return tuple(reversed(found)), unnamed

    def _read(self, path: str, limit: int, top: str) -> Instructions | None:
        """An instruction file, with a reason instead of content if it cannot be read; None if it does not exist."""

        def why_not(real: str) -> str:
            return self._refusal(real) if is_inside(real, top) else "it leads out of the repository"

        try:
            data, size = read_start(path, limit, why_not)
        except FileNotFoundError:
            return None
        except ReadRefusedError as refused:
            return Instructions(path, left_out=str(refused))
        # A character that the limit cuts in two is omitted; other invalid UTF-8 is replaced.
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(data, final=len(data) >= size)
        text = text.removeprefix("\ufeff")
        cut = max(0, size - len(data))
        if "\0" in text or text.count("\ufffd") * MOST_INVALID > len(text):
            return Instructions(path, left_out=NOT_TEXT)
        if not cut and not text.strip():
            return Instructions(path, left_out=EMPTY)
        return Instructions(path, text, shown_bytes=len(data), cut_bytes=cut)

    def _refusal(self, real: str) -> str:
        return "tools cannot read it" if self._is_protected(real) else ""

    def _is_protected(self, real: str) -> bool:
        return any(is_inside(real, folder) for folder in self._protected())


def _is_within(path: str, within: Sequence[str] | None) -> bool:
    """Whether a path, with its links resolved, is in one of the directories `within`; None allows all paths."""
    if within is None:
        return True
    try:
        real = os.path.realpath(path)
        return any(is_inside(real, root) for root in within)
    except (OSError, ValueError):
        return False


def _upwards(directory: str, top: str) -> Iterator[str]:
    """Yield `directory` and the directories above it, up to and including `top`."""
    folder = directory
    while folder != top:
        yield folder
        folder = os.path.dirname(folder)
    yield top


def _printable(path: str) -> str:
    """A path for an error message: printable, and shortened in the middle if it is long."""
    if len(path) > SHOWN:
        path = f"{path[: SHOWN // 2]}…{path[-SHOWN // 2 :]}"
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in path)


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
