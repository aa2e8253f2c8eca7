"""Finds the directory entry that a program's path leads to, and refuses entries that the program may not change.

Part of the tool host, the program that starts and ends a tool's processes (see toolhost.py).
"""

import array
import ctypes
import errno
import fcntl
import os
import stat
import time

from actors.adapters.sandbox.host import kernel
from actors.adapters.sandbox.host.reported_calls import AT_FDCWD, DIRECTORY, NotBrokeredError, SystemCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# The files and directories by which git recognises a repository, in lower case.
GIT_PARTS = frozenset(("head", "commondir", "objects", "refs"))


def folded(name: bytes) -> "set[str]":
    """The forms in which a file name is compared, because file systems may ignore case and some characters."""
    text = os.fsdecode(name)
    if text.isascii():
        return {text.lower()}
    import unicodedata  # noqa: PLC0415 -- few names need it

    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return {text, "".join(each for each in text if each.isascii())}


class Names:
    def __init__(self, patterns: "list[bytes]") -> None:
        self.patterns = [tuple(folded(part) for part in pattern.split(b"/")) for pattern in patterns]
        self.last = set[str]().union(*(pattern[-1] for pattern in self.patterns))
        several = [pattern for pattern in self.patterns if len(pattern) > 1]
        # The last components of protected names that have several components.
        self.ends = set[str]().union(*(pattern[-1] for pattern in several))
        # The other components of such names. No symbolic link may have these names, because its target could have any
        # name.
        self.inner = set[str]().union(*(part for pattern in several for part in pattern[:-1]))
        # Names that are harmless alone, but that several changes together could turn into something protected.
        self.joint = GIT_PARTS | self.ends | self.inner

    def cover(self, path: bytes) -> bool:
        parts = [folded(part) for part in path.split(b"/") if part]
        return any(self.end_at(parts[: length + 1]) for length, part in enumerate(parts) if part & self.last)

    def end_at(self, parts: "list[set[str]]") -> bool:
        return any(
            len(pattern) <= len(parts)
            and all(wanted & part for wanted, part in zip(pattern, parts[len(parts) - len(pattern) :], strict=True))
            for pattern in self.patterns
        )


def is_repository(folder: bytes, adding: str = "") -> bool:
    """Whether a directory would be a git repository if it also contained the name `adding` (in lower case)."""

    def has(name: bytes) -> bool:
        return name.decode().lower() == adding or os.path.lexists(folder + b"/" + name)

    return has(b"HEAD") and (has(b"commondir") or (has(b"objects") and has(b"refs")))


def within(path: bytes, folder: bytes) -> bool:
    return (path + b"/").startswith(folder.rstrip(b"/") + b"/")


def why_not(root: bytes, patterns: "list[bytes]") -> str:
    """Why a program may not change files beneath the real path `root`; "" if it may. `patterns` are protected names."""
    if Names(patterns).cover(root):
        return "it is, or is inside, a directory that tools may not change"
    path = root
    while path != b"/":
        if is_repository(path):
            return f"{os.fsdecode(path)} is the internal directory of a git repository"
        path = os.path.dirname(path)
    return ""


NR_OPENAT2 = 437

RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 1, 2, 4, 8
RESOLVE_INSIDE = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV
MAX_LINKS = 40
# Maximum number of entries in a directory that can be moved, because each of them is checked before the move.
MAX_MOVED = 100_000

# Maximum seconds to wait for the broker of another call, or for a program that has locked the directory.
LOCK_SECONDS = 5

OWN_FILES = b"/proc/self/fd/"


class NotAloneError(Exception):
    """Another call in the same directory could change the checked paths meanwhile; check again under the TreeLock."""


class TreeLock:
    """A context manager that excludes the brokers of all other calls whose workspace is in, or contains, `root`.

    It uses only locks (flock) on directories, which leave nothing behind: one on `root`, and shared locks on the
    directories above it. Entering raises OSError (EAGAIN) after LOCK_SECONDS, because any program that can read a
    directory can lock it.
    """

    def __init__(self, root: bytes) -> None:
        self.held = False
        self.places: list[int] = []
        parts = [part for part in root.split(b"/") if part]
        folders = [b"/" + b"/".join(parts[:count]) for count in range(len(parts) + 1)]
        for folder in folders:
            try:
                self.places.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            except OSError:  # an unreadable directory is not another call's workspace
                self.complete = False
            else:
                self.complete = True

    def __enter__(self) -> None:
        until = time.monotonic() + LOCK_SECONDS
        try:
            for number, place in enumerate(self.places, 1):
                lock(place, fcntl.LOCK_SH if number < len(self.places) else fcntl.LOCK_EX, until)
            if not self.complete:
                raise OSError(errno.EACCES, "the workspace cannot be locked")
        except BaseException:
            self.__exit__()
            raise
        self.held = True

    def __exit__(self, *_: object) -> None:
        self.held = False
        for place in self.places:
            fcntl.flock(place, fcntl.LOCK_UN)


def lock(place: int, how: int, until: float) -> None:
    while True:
        try:
            fcntl.flock(place, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(0.001)
        else:
            return


def open_place(root: int, path: bytes, resolve: int) -> int:
    """Open the directory `path` relative to `root` with O_PATH; `resolve` has flags for openat2. Raises OSError."""
    how = array.array("Q", (DIRECTORY, 0, resolve)).tobytes()
    return kernel.checked(kernel.libc.syscall(NR_OPENAT2, root, path, how, ctypes.c_size_t(len(how))))


class Root:
    """A directory beneath which the broker changes files; the program sees it at `path`.

    `place` is a writable descriptor. With `guarded`, protected names beneath it must not be changed.
    """

    def __init__(self, path: bytes, place: int, guarded: bool) -> None:
        self.path = path
        self.place = place
        self.guarded = guarded


class TreeEntry:
    """A directory entry, which may not exist yet: `name` in the open directory `parent`, whose path is `folder`."""

    def __init__(self, root: Root, parent: int, folder: bytes, name: bytes) -> None:
        self.root = root
        self.parent = parent
        self.folder = folder
        self.name = name

    @property
    def path(self) -> bytes:
        return self.folder if self.name == b"." else self.folder + b"/" + self.name

    def status(self) -> "os.stat_result | None":
        try:
            return os.stat(self.name, dir_fd=self.parent, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def close(self) -> None:
        os.close(self.parent)

    def __enter__(self) -> "TreeEntry":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class WritableTrees:
    """The trees in which a program may change files: its workspace and, in tier B, its private directory."""

    def __init__(self, root: Root, private: "Root | None", names: Names, denied: "list[bytes]") -> None:
        self.root = root
        self.private = private
        self.names = names
        self.denied = denied
        self.lock = TreeLock(root.path)
        # Whether the workspace has a link with a name in `names.inner` that was made without a broker; None if not
        # known yet.
        self.linked: bool | None = None

    def find(self, call: SystemCall, directory: int, path: bytes, follow: bool, *, private: bool = False) -> TreeEntry:
        """The entry at a path relative to the caller's `directory`; a final link is followed only if `follow`.

        With `private`, the entry may also be in the private directory. Raises NotBrokeredError for an entry outside the
        trees, or OSError.
        """
        base = AT_FDCWD if path.startswith(b"/") else call.base(directory)
        try:
            for _ in range(MAX_LINKS):
                if base == AT_FDCWD and not path.startswith(b"/"):
                    raise NotBrokeredError
                place = self.nearest(base, path, private)
                try:
                    target = link_target(place) if follow else None
                except OSError:
                    place.close()
                    raise
                if target is None:
                    return place
                place.close()
                head = path.rstrip(b"/").rpartition(b"/")[0]
                path = target if target.startswith(b"/") or not head else head + b"/" + target
            raise OSError(errno.ELOOP, "too many links")
        finally:
            if base != AT_FDCWD:
                os.close(base)

    def nearest(self, base: int, path: bytes, private: bool) -> TreeEntry:
        """The entry at `path` relative to `base`; a final link is not followed. Raises NotBrokeredError or OSError."""
        head, slash, name = path.rstrip(b"/").rpartition(b"/")
        whole = name in {b"", b".", b".."}
        visible = open_place(base, path if whole else head + slash or b".", RESOLVE_NO_MAGICLINKS)
        try:
            folder = path_of(visible)
            if whole and folder == self.root.path:
                name = b"."
            elif whole:
                name = os.path.basename(folder)
                above = open_place(visible, b"..", 0)
                os.close(visible)
                visible = above
                folder = path_of(visible)
            root = self.root_of(folder, private)
            parent = open_place(root.place, folder[len(root.path) :].lstrip(b"/") or b".", RESOLVE_INSIDE)
            place = TreeEntry(root, parent, folder, name)
            # If the descriptors refer to different directories, a mount hides the entry's directory from the program,
            # or the directory has moved.
            if not os.path.samestat(os.fstat(visible), os.fstat(parent)):
                place.close()
                raise NotBrokeredError
            return place
        finally:
            os.close(visible)

    def root_of(self, folder: bytes, private: bool) -> Root:
        if private and self.private is not None and within(folder, self.private.path):
            return self.private
        if within(folder, self.root.path):
            return self.root
        raise NotBrokeredError

    # --- checks -------------------------------------------------------------------------------------------------------

    def check(self, place: TreeEntry, *, new: bool = False, above: bool = False) -> None:
        """Raise NotBrokeredError if `place` is protected.

        With `new`, also raises NotBrokeredError if creating `place` would make its directory a git repository; with
        `above`, also if one of the `denied` paths lies below `place`.
        """
        if not place.root.guarded:
            return
        if any(within(place.path, path) for path in self.denied) or self.covers(place.path):
            raise NotBrokeredError
        if above and any(within(path, place.path) for path in self.denied):
            raise NotBrokeredError
        folder = place.folder
        while within(folder, place.root.path):
            if is_repository(folder):
                raise NotBrokeredError
            folder = os.path.dirname(folder)
        if new:
            self.check_new(place)

    def covers(self, path: bytes) -> bool:
        if self.names.cover(path):
            return True
        parts = path[len(self.root.path) :].split(b"/")
        return any(folded(part) & self.names.ends for part in parts) and self.has_link()

    def has_link(self) -> bool:
        """Whether the workspace has a link with a name in `names.inner`, or is too large to tell."""
        if self.linked is None:
            found = (
                folder + b"/" + name
                for folder, folders, files in os.walk(self.root.path)
                for name in (*folders, *files)
            )
            self.linked = any(
                count >= MAX_MOVED or (folded(os.path.basename(path)) & self.names.inner and os.path.islink(path))
                for count, path in enumerate(found)
            )
        return self.linked

    def check_alone(self) -> None:
        if not self.lock.held:
            raise NotAloneError

    def check_link(self, name: bytes) -> None:
        """Raise NotBrokeredError if a symbolic link must not have this name, NotAloneError if the lock is not held."""
        self.check_alone()
        if folded(name) & self.names.inner:
            raise NotBrokeredError

    def check_new(self, place: TreeEntry) -> None:
        """Raise NotBrokeredError if `place` would complete a repository, NotAloneError if checking needs the lock."""
        if folded(place.name) & self.names.joint:
            self.check_alone()
        for part in folded(place.name) & GIT_PARTS:
            if is_repository(place.folder, adding=part):
                raise NotBrokeredError

    def check_movable(self, place: TreeEntry, target: TreeEntry) -> None:
        """Raise NotBrokeredError if moving a directory would move or create a protected file.

        Also raises NotBrokeredError for more than MAX_MOVED entries, and for a link with a forbidden name. Raises
        NotAloneError for a directory or a link if the lock is not held.
        """
        status = place.status()
        if status is not None and stat.S_ISLNK(status.st_mode):
            self.check_link(target.name)
        if status is None or not stat.S_ISDIR(status.st_mode):
            return
        self.check_alone()
        if is_repository(place.path):
            raise NotBrokeredError
        for count, entry in enumerate(entries(place.path)):
            if count >= MAX_MOVED:
                raise NotBrokeredError
            name = folded(os.path.basename(entry))
            moved = target.path + entry[len(place.path) :]
            if name & self.names.last and (self.covers(entry) or self.covers(moved)):
                raise NotBrokeredError
            if "head" in name and is_repository(os.path.dirname(entry)):
                raise NotBrokeredError

    # --- opening ------------------------------------------------------------------------------------------------------

    def writable(self, place: TreeEntry, status: os.stat_result) -> bool:
        """Whether the broker may change a file: it must not be protected or have several hard links. Raises OSError."""
        try:
            self.check(place)
            check_single(status)
        except NotBrokeredError:
            return False
        return True

    def open_entry(
        self, call: SystemCall, directory: int, address: int, flags: int, *, follow: bool, private: bool = True
    ) -> int:
        """Open the existing file at `address`, if it may be changed. Raises NotBrokeredError or OSError."""
        path = call.text(address)
        # The C library passes a path in /proc/self/fd to the kernel when it implements AT_SYMLINK_NOFOLLOW itself.
        if private and follow and path.startswith(OWN_FILES):
            return self.open_number(call, number_in(path))
        with self.find(call, directory, path, follow, private=private) as place:
            if place.name == b".":
                raise NotBrokeredError
            self.check(place, above=True)
            file = os.open(place.name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place.parent)
        try:
            check_single(os.fstat(file))
        except BaseException:
            os.close(file)
            raise
        return file

    def open_number(self, call: SystemCall, number: int) -> int:
        """Open the file behind a program's descriptor for changes. Raises NotBrokeredError or OSError.

        In tier A, a file that the broker opened for the program has no path here. NotBrokeredError is then raised, and
        the kernel continues the call, which the file's writable mount allows.
        """
        with kernel.Opened(call.file(number & 0xFFFFFFFF)) as file:
            try:
                status = os.fstat(file)
                entry = self.open_path(path_of(file))
            except FileNotFoundError:
                raise NotBrokeredError from None
        try:
            check_single(status)
            if not os.path.samestat(status, os.fstat(entry)):
                raise NotBrokeredError
        except BaseException:
            os.close(entry)
            raise
        return entry

    def open_path(self, path: bytes) -> int:
        """Open the existing file with this real path, if it may be changed. Raises NotBrokeredError or OSError."""
        if not path.startswith(b"/"):
            raise NotBrokeredError
        with self.nearest(AT_FDCWD, path, private=True) as place:
            self.check(place, above=True)
            return os.open(place.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.parent)


def path_of(place: int) -> bytes:
    return os.readlink(b"/proc/self/fd/%d" % place)


def link_target(place: TreeEntry) -> "bytes | None":
    try:
        return os.readlink(place.name, dir_fd=place.parent)
    except OSError as error:
        if error.errno in {errno.EINVAL, errno.ENOENT}:
            return None
        raise


def entries(folder: bytes) -> "Iterator[bytes]":
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as found:
                for entry in found:
                    yield entry.path
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except OSError as error:
            raise NotBrokeredError from error


def check_single(status: os.stat_result) -> None:
    """Raise NotBrokeredError for a file with several hard links, because another link may be outside the workspace."""
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        raise NotBrokeredError


def number_in(path: bytes) -> int:
    name = path[len(OWN_FILES) :]
    if not name.isdigit():
        raise NotBrokeredError
    return int(name)
