"""Carry out a program's changes beneath its working directory: what MODE_WORKSPACE adds to the restricted mode.

The program itself has the rights of the restricted mode, so that the kernel refuses every change of it outside of its
private directory. Its system calls that would change the file system are reported to init (seccomp user notification),
which is not restricted, and whose broker decides by the real path:

    beneath the working directory, not protected   the broker does it, and gives the program the descriptor or result
    anything else                                  the kernel continues the call, and refuses it as always

A call that is continued is never relied on, so nothing is won by changing its arguments meanwhile; what the broker does
is done with its own copies of them. It serves one call at a time, so no other change of the program comes between its
checks and what it does.

Protected are names (`.git`, `node_modules/.bin`) wherever they are, whatever their case, whether they exist or not, the
directories that git takes for a repository without that name, paths of the server's own, and files with several names,
because another of them may be outside. Mount points beneath the working directory belong to others.

Imports nothing of this project: it is part of the tool host, see toolhost.py.
"""

# ruff: noqa: SIM105 -- contextlib is one more import at every tool call

import array
import ctypes
import errno
import fcntl
import os
import select
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

NR_OPENAT2 = 437
NR_SECCOMP = {"x86_64": 317, "aarch64": 277}
NR_RENAMEAT2 = {"x86_64": 316, "aarch64": 276}
SECCOMP_SET_MODE_FILTER, NEW_LISTENER, WAIT_KILLABLE = 1, 1 << 3, 1 << 5
RECEIVE, SEND, ID_VALID, ADD_FILE = 0xC0502100, 0xC0182101, 0x40082102, 0x40182103
"""The ioctls of the listener: SECCOMP_IOCTL_NOTIF_*."""

CONTINUE, ADD_AND_SEND = 1, 2
NOTICE_BYTES = 80

RESOLVE_NO_XDEV, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 1, 2, 4, 8
RESOLVE_INSIDE = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV
DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
AT_FDCWD, AT_SYMLINK_NOFOLLOW, AT_REMOVEDIR = -100, 0x100, 0x200
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
SFD_NONBLOCK, SFD_CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC

MAX_PATH, MAX_LINKS = 4096, 40
MAX_MOVED = 100_000
"""Entries that are looked at before a directory is moved; one with more is not moved."""

OWN_FILES = b"/proc/self/fd/"

OWN_BITS = 0o1777
"""The bits of a mode that can be set: no set-user-id."""

GIT_PARTS = frozenset(("head", "commondir", "objects", "refs"))
"""The entries that make a directory a git repository, whatever its name is."""

libc = ctypes.CDLL(None, use_errno=True)


class RefusedError(Exception):
    """The broker does not carry out a call. The kernel continues it, with the rights of the restricted mode."""


def checked(result: int) -> int:
    """Return the result of a C function; raises OSError if it reports failure."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def install(program: "ctypes.Structure") -> int:
    """Install a filter for this process and its descendants; return the listener of its notifications. Raises OSError.

    On kernels that can (Linux 5.19), a signal does not interrupt a call that is being served.
    """
    number = NR_SECCOMP[os.uname().machine]
    for flags in (NEW_LISTENER | WAIT_KILLABLE, NEW_LISTENER):
        listener = libc.syscall(number, SECCOMP_SET_MODE_FILTER, flags, ctypes.byref(program))
        if listener >= 0 or ctypes.get_errno() != errno.EINVAL:
            break
    return checked(listener)


def open_place(root: int, path: bytes, resolve: int) -> int:
    """Open a directory for use as a place, not for reading. Raises OSError."""
    how = array.array("Q", (DIRECTORY, 0, resolve)).tobytes()
    return checked(libc.syscall(NR_OPENAT2, root, path, how, ctypes.c_size_t(len(how))))


# --- names ------------------------------------------------------------------------------------------------------------


def folded(name: bytes) -> "set[str]":
    """Return the forms of a name that a file system could take for the same: without case, and only its ASCII part."""
    text = os.fsdecode(name)
    if text.isascii():
        return {text.lower()}
    import unicodedata  # noqa: PLC0415 -- few names need it

    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return {text, "".join(each for each in text if each.isascii())}


class Names:
    """The protected names: each a sequence of names that may be anywhere in a path."""

    def __init__(self, patterns: "list[bytes]") -> None:
        self.patterns = [tuple(folded(part) for part in pattern.split(b"/")) for pattern in patterns]
        self.last = set[str]().union(*(pattern[-1] for pattern in self.patterns))

    def cover(self, path: bytes) -> bool:
        """Return whether an absolute path is protected, or beneath something that is."""
        parts = [folded(part) for part in path.split(b"/") if part]
        return any(self.end_at(parts[: length + 1]) for length, part in enumerate(parts) if part & self.last)

    def end_at(self, parts: "list[set[str]]") -> bool:
        """Return whether these names end with a protected sequence."""
        return any(
            len(pattern) <= len(parts)
            and all(wanted & part for wanted, part in zip(pattern, parts[len(parts) - len(pattern) :], strict=True))
            for pattern in self.patterns
        )


def is_repository(folder: bytes, adding: str = "") -> bool:
    """Return whether git takes a directory for a repository, or would with one more entry."""

    def has(name: bytes) -> bool:
        return name.decode().lower() == adding or os.path.lexists(folder + b"/" + name)

    return has(b"HEAD") and (has(b"commondir") or (has(b"objects") and has(b"refs")))


def within(path: bytes, folder: bytes) -> bool:
    """Return whether `path` is `folder` or below it."""
    return (path + b"/").startswith(folder.rstrip(b"/") + b"/")


def why_not(root: bytes, patterns: "list[bytes]") -> str:
    """Return why changes beneath this real path cannot be left to a program, for a person; "" if they can."""
    if Names(patterns).cover(root):
        return "it is, or lies in, a directory that tools may not change"
    path = root
    while path != b"/":
        if is_repository(path):
            return f"{os.fsdecode(path)} is the inside of a git repository"
        path = os.path.dirname(path)
    return ""


# --- one system call --------------------------------------------------------------------------------------------------


class Call:
    """A system call that waits for the broker."""

    def __init__(self, listener: int, notice: bytearray) -> None:
        self.listener = listener
        self.id = int.from_bytes(notice[0:8], sys.byteorder)
        self.thread = int.from_bytes(notice[8:12], sys.byteorder)
        self.number = int.from_bytes(notice[16:20], sys.byteorder)
        self.arguments = [int.from_bytes(notice[at : at + 8], sys.byteorder) for at in range(32, 80, 8)]

    def check_valid(self) -> None:
        """Raise OSError if the caller has ended: another process may have its number then."""
        fcntl.ioctl(self.listener, ID_VALID, self.id.to_bytes(8, sys.byteorder))

    def memory(self, address: int, size: int) -> bytes:
        """Return up to `size` bytes of the caller's memory. Raises OSError."""
        file = os.open(f"/proc/{self.thread}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.check_valid()
            return os.pread(file, size, address)
        except OverflowError:
            raise OSError(errno.EFAULT, "no such address") from None
        finally:
            os.close(file)

    def text(self, address: int) -> bytes:
        """Return a path in the caller's memory. Raises OSError."""
        path, end, _ = self.memory(address, MAX_PATH).partition(b"\0")
        if not end:
            raise OSError(errno.ENAMETOOLONG, "no end")
        if not path:
            raise OSError(errno.ENOENT, "no path")
        return path

    def umask(self) -> int:
        """Return the caller's umask. Raises OSError."""
        file = os.open(f"/proc/{self.thread}/status", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.check_valid()
            return int(os.read(file, 1 << 14).partition(b"\nUmask:")[2].split(None, 1)[0], 8)
        finally:
            os.close(file)

    def base(self, directory: int) -> int:
        """Open the directory that relative paths of this call start from. Raises OSError."""
        name = "cwd" if directory == AT_FDCWD else f"fd/{directory}"
        place = os.open(f"/proc/{self.thread}/{name}", DIRECTORY)
        try:
            self.check_valid()
        except OSError:
            os.close(place)
            raise
        return place

    def file(self, number: int) -> int:
        """Open what one of the caller's descriptors is of, as a place. Raises OSError."""
        place = os.open(f"/proc/{self.thread}/fd/{number}", os.O_PATH | os.O_CLOEXEC)
        try:
            self.check_valid()
        except OSError:
            os.close(place)
            raise
        return place

    def answer(self, error: int = 0, flags: int = 0) -> None:
        """End the call with 0 or an error, or let the kernel continue it."""
        words = (self.id, 0, (-error & 0xFFFFFFFF) | flags << 32)
        self.tell(SEND, b"".join(word.to_bytes(8, sys.byteorder) for word in words))

    def give(self, file: int, flags: int) -> None:
        """End the call with a copy of `file`. Raises OSError if the caller can have no more."""
        words = (self.id, ADD_AND_SEND | file << 32, flags << 32)
        self.tell(ADD_FILE, b"".join(word.to_bytes(8, sys.byteorder) for word in words))

    def tell(self, request: int, content: bytes) -> None:
        """Send to the kernel; no effect if the caller has ended."""
        try:
            fcntl.ioctl(self.listener, request, content)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise


def signed(word: int) -> int:
    """Return the lower half of an argument as a signed number."""
    word &= 0xFFFFFFFF
    return word - (1 << 32) if word >> 31 else word


class Root:
    """A directory beneath which changes are carried out: `path` as the program sees it, `place` where it is writable.

    `guarded`: whether it has protected names.
    """

    def __init__(self, path: bytes, place: int, guarded: bool) -> None:
        self.path = path
        self.place = place
        self.guarded = guarded


class Place:
    """Where an entry is, or may be made: in the directory `parent` (a descriptor to be closed) of a root."""

    def __init__(self, root: Root, parent: int, folder: bytes, name: bytes) -> None:
        self.root = root
        self.parent = parent
        self.folder = folder
        self.name = name

    @property
    def path(self) -> bytes:
        """The real path of the entry."""
        return self.folder if self.name == b"." else self.folder + b"/" + self.name

    def status(self) -> "os.stat_result | None":
        """Return the status of the entry itself, None if there is none. Raises OSError."""
        try:
            return os.stat(self.name, dir_fd=self.parent, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def close(self) -> None:
        """Close the directory."""
        os.close(self.parent)


# --- the broker -------------------------------------------------------------------------------------------------------


class Broker:
    """Serves the system calls of one program and its descendants, in init.

    section: {root, names [bytes], denied [bytes], private} of the launch. `writable`: descriptors of the root, and of
    the private directory where its metadata cannot be changed by the program itself (tier B), else -1.
    """

    def __init__(self, section: "dict[str, Any]", writable: "tuple[int, int]", file_bytes: int) -> None:
        self.root = Root(section["root"], writable[0], True)
        self.names = Names(section["names"])
        self.denied: list[bytes] = section["denied"]
        self.file_bytes = file_bytes
        self.alone = writable[1] < 0
        """Whether the kernel refuses changes of metadata, too, if a call is continued: tier A."""
        self.private = None if self.alone else Root(section["private"], writable[1], False)
        self.handlers: dict[int, tuple[str, Callable[[Call, list[int]], None]]] = {}

    def register(self, numbers: "dict[str, int]") -> None:
        """Know the system calls by their numbers on this architecture."""
        for name, handler in self.calls().items():
            if name in numbers:
                self.handlers[numbers[name]] = name, handler

    def calls(self) -> "dict[str, Callable[[Call, list[int]], None]]":
        """Return what carries out each system call, by its name."""
        here = AT_FDCWD
        return {
            "open": lambda call, a: self.open(call, here, a[0], a[1], a[2]),
            "openat": lambda call, a: self.open(call, signed(a[0]), a[1], a[2], a[3]),
            "creat": lambda call, a: self.open(call, here, a[0], os.O_CREAT | os.O_WRONLY | os.O_TRUNC, a[1]),
            "mkdir": lambda call, a: self.mkdir(call, here, a[0], a[1]),
            "mkdirat": lambda call, a: self.mkdir(call, signed(a[0]), a[1], a[2]),
            "rmdir": lambda call, a: self.remove(call, here, a[0], AT_REMOVEDIR),
            "unlink": lambda call, a: self.remove(call, here, a[0], 0),
            "unlinkat": lambda call, a: self.remove(call, signed(a[0]), a[1], a[2]),
            "rename": lambda call, a: self.rename(call, (here, a[0]), (here, a[1]), 0),
            "renameat": lambda call, a: self.rename(call, (signed(a[0]), a[1]), (signed(a[2]), a[3]), 0),
            "renameat2": lambda call, a: self.rename(call, (signed(a[0]), a[1]), (signed(a[2]), a[3]), signed(a[4])),
            "symlink": lambda call, a: self.symlink(call, a[0], here, a[1]),
            "symlinkat": lambda call, a: self.symlink(call, a[0], signed(a[1]), a[2]),
            "truncate": lambda call, a: self.truncate(call, a[0], a[1]),
            "access": lambda call, a: self.access(call, here, a[0], a[1]),
            "faccessat": lambda call, a: self.access(call, signed(a[0]), a[1], a[2]),
            "faccessat2": lambda call, a: self.access(call, signed(a[0]), a[1], a[2]),
            "chmod": lambda call, a: self.chmod(call, here, a[0], a[1], 0),
            "fchmodat": lambda call, a: self.chmod(call, signed(a[0]), a[1], a[2], 0),
            "fchmodat2": lambda call, a: self.chmod(call, signed(a[0]), a[1], a[2], a[3]),
            "fchmod": lambda call, a: self.chmod_file(call, a[0], a[1]),
            "chown": lambda call, a: self.chown(call, here, a[0], a[1:3], 0),
            "lchown": lambda call, a: self.chown(call, here, a[0], a[1:3], AT_SYMLINK_NOFOLLOW),
            "fchownat": lambda call, a: self.chown(call, signed(a[0]), a[1], a[2:4], a[4]),
            "fchown": lambda call, a: self.chown_file(call, a[0], a[1:3]),
            "utime": lambda call, a: self.times(call, here, a[0], (a[1], 16, 1), 0),
            "utimes": lambda call, a: self.times(call, here, a[0], (a[1], 32, 1000), 0),
            "futimesat": lambda call, a: self.times(call, signed(a[0]), a[1], (a[2], 32, 1000), 0),
            "utimensat": lambda call, a: self.times(call, signed(a[0]), a[1], (a[2], 32, 1), a[3]),
        }

    def serve(self, listener: int) -> None:
        """Receive one call and answer it. Raises OSError if nothing can be received."""
        notice = bytearray(NOTICE_BYTES)
        try:
            fcntl.ioctl(listener, RECEIVE, notice)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.EINTR}:
                return  # the caller was killed
            raise
        call = Call(listener, notice)
        name, handler = self.handlers.get(call.number, ("", None))
        try:
            if handler is None:
                raise RefusedError
            handler(call, call.arguments)
        except RefusedError:
            self.refuse(call, name)
        except OSError as error:
            call.answer(error.errno or errno.EPERM)
        except Exception:  # noqa: BLE001 -- whatever a program sends, init must live on
            call.answer(errno.EPERM)

    def refuse(self, call: Call, name: str) -> None:
        """Let the kernel refuse the call, or in tier B do that in its place where it would not."""
        if not self.alone and name in METADATA:
            call.answer(errno.EPERM)
        else:
            call.answer(flags=CONTINUE)

    # --- finding ------------------------------------------------------------------------------------------------------

    def find(self, call: Call, directory: int, path: bytes, follow: bool, *, private: bool = False) -> Place:
        """Return the place of a path, following links, the last one only if `follow`. Raises RefusedError or OSError.

        `private`: also in the private directory of tier B.
        """
        base = AT_FDCWD if path.startswith(b"/") else call.base(directory)
        try:
            for _ in range(MAX_LINKS):
                if base == AT_FDCWD and not path.startswith(b"/"):
                    raise RefusedError
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

    def nearest(self, base: int, path: bytes, private: bool) -> Place:
        """Return the place of a path whose last name is not followed. Raises RefusedError or OSError."""
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
            place = Place(root, parent, folder, name)
            if not os.path.samestat(os.fstat(visible), os.fstat(parent)):  # something is mounted over it, or was moved
                place.close()
                raise RefusedError
            return place
        finally:
            os.close(visible)

    def root_of(self, folder: bytes, private: bool) -> Root:
        """Return the root that contains a directory. Raises RefusedError."""
        if private and self.private is not None and within(folder, self.private.path):
            return self.private
        if within(folder, self.root.path):
            return self.root
        raise RefusedError

    # --- checks -------------------------------------------------------------------------------------------------------

    def check(self, place: Place, *, new: bool = False, above: bool = False) -> None:
        """Raise RefusedError for a protected place. `new`: it would be made; `above`: what is below would change."""
        if not place.root.guarded:
            return
        if any(within(place.path, path) for path in self.denied) or self.names.cover(place.path):
            raise RefusedError
        if above and any(within(path, place.path) for path in self.denied):
            raise RefusedError
        folder = place.folder
        while within(folder, place.root.path):
            if is_repository(folder):
                raise RefusedError
            folder = os.path.dirname(folder)
        if new:
            self.check_new(place)

    def check_new(self, place: Place) -> None:
        """Raise RefusedError if one more entry would make a directory a repository."""
        for part in folded(place.name) & GIT_PARTS:
            if is_repository(place.folder, adding=part):
                raise RefusedError

    def check_movable(self, place: Place, target: Place) -> None:
        """Raise RefusedError for a directory with something protected in it, where it is or at its new path."""
        status = place.status()
        if status is None or not stat.S_ISDIR(status.st_mode):
            return
        if is_repository(place.path):
            raise RefusedError
        for count, entry in enumerate(entries(place.path)):
            if count >= MAX_MOVED:
                raise RefusedError
            name = folded(os.path.basename(entry))
            moved = target.path + entry[len(place.path) :]
            if name & self.names.last and (self.names.cover(entry) or self.names.cover(moved)):
                raise RefusedError
            if "head" in name and is_repository(os.path.dirname(entry)):
                raise RefusedError

    # --- what the calls do --------------------------------------------------------------------------------------------

    def open(self, call: Call, directory: int, address: int, flags: int, mode: int) -> None:
        """Open or create a file. Raises RefusedError or OSError."""
        path = call.text(address)
        exclusive = flags & (os.O_CREAT | os.O_EXCL) == os.O_CREAT | os.O_EXCL
        if flags & os.O_TMPFILE == os.O_TMPFILE or flags & os.O_PATH or path.endswith(b"/"):
            raise RefusedError
        place = self.find(call, directory, path, not exclusive and not flags & os.O_NOFOLLOW)
        try:
            status = place.status()
            self.check(place, new=status is None)
            if status is not None:
                check_openable(status, exclusive)
            if flags & os.O_CREAT:
                os.umask(call.umask())
            file = os.open(
                place.name,
                flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC,
                mode & 0o777,
                dir_fd=place.parent,
            )
        finally:
            place.close()
        try:
            check_single(os.fstat(file))
            if flags & os.O_TRUNC:
                os.ftruncate(file, 0)
            if not flags & os.O_NONBLOCK:
                os.set_blocking(file, True)
            call.give(file, flags & os.O_CLOEXEC)
        finally:
            os.close(file)

    def mkdir(self, call: Call, directory: int, address: int, mode: int) -> None:
        """Make a directory. Raises RefusedError or OSError."""
        place = self.find(call, directory, call.text(address), follow=False)
        try:
            self.check(place, new=True)
            os.umask(call.umask())
            os.mkdir(place.name, mode & OWN_BITS, dir_fd=place.parent)
        finally:
            place.close()
        call.answer()

    def remove(self, call: Call, directory: int, address: int, flags: int) -> None:
        """Remove a file or an empty directory. Raises RefusedError or OSError."""
        path = call.text(address)
        folder = bool(flags & AT_REMOVEDIR)
        if path.endswith(b"/") and not folder:
            raise RefusedError
        place = self.find(call, directory, path, follow=False)
        try:
            self.check(place, above=True)
            (os.rmdir if folder else os.unlink)(place.name, dir_fd=place.parent)
        finally:
            place.close()
        call.answer()

    def rename(self, call: Call, old: tuple[int, int], new: tuple[int, int], flags: int) -> None:
        """Move an entry, or exchange two. Raises RefusedError or OSError."""
        if flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE):
            raise RefusedError
        places: list[Place] = []
        try:
            for base, address in (old, new):
                try:
                    places.append(self.find(call, base, call.text(address), follow=False))
                except RefusedError:
                    pass  # it is elsewhere
            if not places:
                raise RefusedError
            if len(places) < 2:
                raise OSError(errno.EXDEV, "only one of them is beneath the working directory")
            source, target = places
            self.check(source, above=True)
            self.check(target, new=True, above=True)
            self.check_movable(source, target)
            if flags & RENAME_EXCHANGE:
                self.check(source, new=True)
                self.check_movable(target, source)
            number = NR_RENAMEAT2[os.uname().machine]
            checked(libc.syscall(number, source.parent, source.name, target.parent, target.name, flags))
        finally:
            for place in places:
                place.close()
        call.answer()

    def symlink(self, call: Call, target: int, directory: int, address: int) -> None:
        """Make a symbolic link. Raises RefusedError or OSError."""
        content = call.text(target)
        place = self.find(call, directory, call.text(address), follow=False)
        try:
            self.check(place, new=True)
            os.symlink(content, place.name, dir_fd=place.parent)
        finally:
            place.close()
        call.answer()

    def truncate(self, call: Call, address: int, length: int) -> None:
        """Set the length of a file. Raises RefusedError or OSError."""
        if self.file_bytes and length > self.file_bytes:
            raise OSError(errno.EFBIG, "too long")
        file = self.open_entry(call, AT_FDCWD, address, os.O_WRONLY, follow=True, private=False)
        try:
            os.ftruncate(file, length)
        finally:
            os.close(file)
        call.answer()

    def access(self, call: Call, directory: int, address: int, wanted: int) -> None:
        """Say whether a file may be written. Raises RefusedError or OSError."""
        place = self.find(call, directory, call.text(address), follow=True)
        try:
            status = place.status()
            if status is None:
                raise OSError(errno.ENOENT, "no such file")
            if not self.writable(place, status) or not os.access(place.name, wanted & 7, dir_fd=place.parent):
                raise OSError(errno.EACCES, "refused")
        finally:
            place.close()
        call.answer()

    def writable(self, place: Place, status: os.stat_result) -> bool:
        """Return whether an entry is not protected. Raises OSError."""
        try:
            self.check(place)
            check_single(status)
        except RefusedError:
            return False
        return True

    def open_entry(
        self, call: Call, directory: int, address: int, flags: int, *, follow: bool, private: bool = True
    ) -> int:
        """Open an existing entry that may be changed. Raises RefusedError or OSError."""
        path = call.text(address)
        if private and follow and path.startswith(OWN_FILES):  # what the C library makes of a path and NOFOLLOW
            return self.open_number(call, number_in(path))
        place = self.find(call, directory, path, follow, private=private)
        try:
            if place.name == b".":
                raise RefusedError
            self.check(place, above=True)
            file = os.open(place.name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place.parent)
        finally:
            place.close()
        try:
            check_single(os.fstat(file))
        except BaseException:
            os.close(file)
            raise
        return file

    def open_number(self, call: Call, number: int) -> int:
        """Open what a descriptor of the program is of, at its place. Raises RefusedError or OSError.

        In tier A a file that the broker has opened has no path; the kernel decides by its mount, which is writable.
        """
        file = call.file(number & 0xFFFFFFFF)
        try:
            status = os.fstat(file)
            entry = self.open_path(path_of(file))
        except FileNotFoundError:
            raise RefusedError from None
        finally:
            os.close(file)
        try:
            check_single(status)
            if not os.path.samestat(status, os.fstat(entry)):
                raise RefusedError
        except BaseException:
            os.close(entry)
            raise
        return entry

    def open_path(self, path: bytes) -> int:
        """Open an existing entry that may be changed by its real path. Raises RefusedError or OSError."""
        if not path.startswith(b"/"):
            raise RefusedError
        place = self.nearest(AT_FDCWD, path, private=True)
        try:
            self.check(place, above=True)
            return os.open(place.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.parent)
        finally:
            place.close()

    def chmod(self, call: Call, directory: int, address: int, mode: int, flags: int) -> None:
        """Change the permissions of an entry. Raises RefusedError or OSError."""
        if flags & ~AT_SYMLINK_NOFOLLOW:
            raise RefusedError
        check_mode(mode)
        self.set_mode(
            call, self.open_entry(call, directory, address, os.O_PATH, follow=not flags & AT_SYMLINK_NOFOLLOW), mode
        )

    def chmod_file(self, call: Call, number: int, mode: int) -> None:
        """Change the permissions of an open file. Raises RefusedError or OSError."""
        check_mode(mode)
        self.set_mode(call, self.open_number(call, number), mode)

    def set_mode(self, call: Call, entry: int, mode: int) -> None:
        """Change the permissions of what is open, and close it. Raises RefusedError or OSError."""
        try:
            check_no_link(entry)
            os.chmod(f"/proc/self/fd/{entry}", mode & 0o7777)
        finally:
            os.close(entry)
        call.answer()

    def chown(self, call: Call, directory: int, address: int, owner: "list[int]", flags: int) -> None:
        """Change owner and group as far as the user may. Raises RefusedError or OSError."""
        if flags & ~AT_SYMLINK_NOFOLLOW:
            raise RefusedError
        self.set_owner(
            call, self.open_entry(call, directory, address, os.O_PATH, follow=not flags & AT_SYMLINK_NOFOLLOW), owner
        )

    def chown_file(self, call: Call, number: int, owner: "list[int]") -> None:
        """Change owner and group of an open file as far as the user may. Raises RefusedError or OSError."""
        self.set_owner(call, self.open_number(call, number), owner)

    def set_owner(self, call: Call, entry: int, owner: "list[int]") -> None:
        """Change the owner of what is open, and close it. Raises RefusedError or OSError."""
        try:
            check_no_link(entry)
            os.chown(f"/proc/self/fd/{entry}", signed(owner[0]), signed(owner[1]))
        finally:
            os.close(entry)
        call.answer()

    def times(self, call: Call, directory: int, address: int, given: "tuple[int, int, int]", flags: int) -> None:
        """Change the times of an entry, or of an open file if `address` is 0. Raises RefusedError or OSError.

        `given`: the address of both times, their bytes, and the nanoseconds of their smaller unit.
        """
        times = read_times(call, *given)
        if flags & ~AT_SYMLINK_NOFOLLOW:
            raise RefusedError
        if not address:
            file = self.open_number(call, directory)
            try:
                checked(libc.utimensat(AT_FDCWD, b"/proc/self/fd/%d" % file, times, 0))
            finally:
                os.close(file)
        else:
            place = self.find(call, directory, call.text(address), not flags & AT_SYMLINK_NOFOLLOW, private=True)
            try:
                self.check(place)
                if (status := place.status()) is not None:
                    check_single(status)
                checked(libc.utimensat(place.parent, place.name, times, AT_SYMLINK_NOFOLLOW))
            finally:
                place.close()
        call.answer()


METADATA = frozenset(
    "chmod fchmodat fchmodat2 fchmod chown lchown fchownat fchown utime utimes futimesat utimensat".split()
)
"""The system calls that Landlock does not restrict: in tier B the kernel must not continue them."""


def path_of(place: int) -> bytes:
    """Return the real path of what is open. Raises OSError."""
    return os.readlink(b"/proc/self/fd/%d" % place)


def link_target(place: Place) -> "bytes | None":
    """Return where the entry leads if it is a symbolic link. Raises OSError."""
    try:
        return os.readlink(place.name, dir_fd=place.parent)
    except OSError as error:
        if error.errno in {errno.EINVAL, errno.ENOENT}:
            return None
        raise


def entries(folder: bytes) -> "Iterator[bytes]":
    """Yield the paths of everything below a directory. Raises RefusedError if a part of it cannot be read."""
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as found:
                for entry in found:
                    yield entry.path
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except OSError as error:
            raise RefusedError from error


def check_single(status: os.stat_result) -> None:
    """Raise RefusedError for a file with several names: another one may be outside."""
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        raise RefusedError


def check_openable(status: os.stat_result, exclusive: bool) -> None:
    """Raise RefusedError or OSError unless an existing entry is a file that may be opened for writing."""
    if exclusive:
        raise OSError(errno.EEXIST, "it exists")
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, "it is a directory")
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "it is a link")
    if not stat.S_ISREG(status.st_mode):
        raise RefusedError
    check_single(status)


def number_in(path: bytes) -> int:
    """Return the number of the descriptor that a path in OWN_FILES names. Raises RefusedError."""
    name = path[len(OWN_FILES) :]
    if not name.isdigit():
        raise RefusedError
    return int(name)


def check_mode(mode: int) -> None:
    """Raise OSError for a mode with a set-user-id bit, also of a file whose mode the kernel would let change."""
    if mode & ~OWN_BITS & 0o7777:
        raise OSError(errno.EPERM, "not such a mode")


def check_no_link(entry: int) -> None:
    """Raise RefusedError if what is open is a symbolic link, which has no permissions of its own."""
    if stat.S_ISLNK(os.fstat(entry).st_mode):
        raise RefusedError


def read_times(call: Call, address: int, size: int, unit: int) -> "bytes | None":
    """Return two struct timespec; None for the present. Raises OSError."""
    if not address:
        return None
    raw = call.memory(address, size)
    if len(raw) < size:
        raise OSError(errno.EFAULT, "no such address")
    words = list(array.array("q", raw))
    if len(words) == 2:
        words = [words[0], 0, words[1], 0]
    return array.array("q", (words[0], words[1] * unit, words[2], words[3] * unit)).tobytes()


# --- init -------------------------------------------------------------------------------------------------------------


class Service:
    """Serves a broker's calls while init waits for signals, which are blocked."""

    def __init__(self, broker: Broker, listener: int, signals: "tuple[int, ...]") -> None:
        self.broker = broker
        self.listener = listener
        bits = sum(1 << (number - 1) for number in signals)
        self.arrived = checked(libc.signalfd(-1, bits.to_bytes(128, sys.byteorder), SFD_NONBLOCK | SFD_CLOEXEC))
        self.poll = select.poll()
        self.poll.register(self.arrived, select.POLLIN)
        self.poll.register(listener, select.POLLIN)

    def wait(self) -> None:
        """Serve calls until a signal arrives."""
        while True:
            ready = dict(self.poll.poll())
            if self.arrived in ready:
                os.read(self.arrived, 1 << 12)
                return
            if ready.get(self.listener, 0) & select.POLLIN:
                self.broker.serve(self.listener)
            elif self.listener in ready:  # no process has the filter any more
                self.poll.unregister(self.listener)
