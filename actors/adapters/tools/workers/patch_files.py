"""Changes one file atomically, relative to a descriptor of its directory, so that renames cannot redirect the write.

The new content is written to a temporary file in the same directory, which is then renamed over the old file. Readers
therefore see either the old or the new file, even after a crash. A crash may leave a file `.bedrock-patch-*.tmp` or an
empty new directory. The file is locked (flock) from the reading to the renaming, so that patches from other calls,
servers and machines wait and no changes are lost.
"""

import ctypes
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

MAX_FILE = 8 << 20


class PatchRefusedError(Exception):
    """A patch cannot be applied; the message tells the model why."""


RENAMEAT2 = {"x86_64": 316, "aarch64": 276}.get(os.uname().machine, -1)
RENAME_NOREPLACE = 1

MAX_LINKS = 40

DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC

LINK = DIRECTORY | os.O_NOFOLLOW


class PathEscapesError(Exception):
    """The path leads out of the root directory."""


_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


def rename_new(directory: int, old: str, new: str) -> None:
    """Rename `old` to `new`, both in `directory`. Raises FileExistsError if `new` exists, or another OSError."""
    names = os.fsencode(old), os.fsencode(new)
    if _syscall(RENAMEAT2, directory, names[0], directory, names[1], RENAME_NOREPLACE) == 0:
        return
    failure = ctypes.get_errno()
    if failure not in (errno.ENOSYS, errno.EINVAL):
        raise OSError(failure, os.strerror(failure), new)
    with suppress(FileNotFoundError):  # some file systems, such as NFS, cannot check and rename in one step
        os.stat(new, dir_fd=directory, follow_symlinks=False)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
    os.rename(old, new, src_dir_fd=directory, dst_dir_fd=directory)


def open_directory(root: int, path: str) -> int:
    """Open a directory component by component, never through an unchecked link. Raises PathEscapesError or OSError.

    `..` returns to the directory from which the walk came, so a directory that is moved meanwhile cannot lead the walk
    elsewhere.
    """
    passed = [os.open(".", DIRECTORY, dir_fd=root)]
    try:
        _walk(passed, path)
        return passed.pop()
    finally:
        for directory in passed:
            close_quietly(directory)


def close_quietly(directory: int) -> None:
    with suppress(OSError):
        os.close(directory)


def _walk(passed: list[int], path: str) -> None:
    if path.startswith("/"):
        raise PathEscapesError
    ahead = path.split("/")[::-1]
    links = 0
    while ahead:
        name = ahead.pop()
        if name in ("", "."):
            continue
        if name == "..":
            if len(passed) == 1:
                raise PathEscapesError
            close_quietly(passed.pop())
            continue
        target = _step(passed, name)
        if target is None:
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if target.startswith("/"):
            raise PathEscapesError
        ahead.extend(target.split("/")[::-1])


def _step(passed: list[int], name: str) -> str | None:
    """Enter the directory `name` and return None, or return the target if `name` is a symbolic link. Raises OSError."""
    try:
        passed.append(os.open(name, LINK, dir_fd=passed[-1]))
    except OSError as failed:
        if failed.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        if target := link_target(name, passed[-1]):
            return target
        raise
    return None


def link_target(name: str, directory: int) -> str | None:
    """The target of the symbolic link `name` in `directory`; None if it is not a link or does not exist."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as failed:
        if failed.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


TEMPORARY = ".bedrock-patch-"

READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

LOCK_SECONDS = 10

CHANGED = "another program has just changed it; read it again"

MOUNTED = "the file is a mount point, as in a container, and cannot be replaced; write into it with bash (`cat > file`)"

TOO_LARGE = f"the file is larger than {MAX_FILE >> 20} MiB; change it with bash"

KEPT_ATTRIBUTES = ("user.", "system.posix_acl_access")


class FileVersion(NamedTuple):
    """The content, status and attributes of a file when it was read."""

    content: bytes
    status: os.stat_result
    attributes: dict[str, bytes]


class FileLocation(NamedTuple):
    """The location of a file, which may not exist yet, after following symbolic links."""

    directory: int
    missing: tuple[str, ...]
    name: str


def change(path: str, protected: list[str], rewrite: Callable[[bytes | None], bytes]) -> None:
    """Replace the content of `path` with the result of `rewrite`, which gets the old content, or None for a new file.

    A relative path must not lead out of the current directory. Raises PatchRefusedError, OSError or what `rewrite`
    raises; the file is then unchanged.
    """
    with located(path) as place:
        check_protected(place, protected)
        with locked(place) as file:
            found = None if file is None else read(file)
            content = rewrite(None if found is None else found.content)
            if found is None or content != found.content:
                store(place, found, content, file)


# --- finding ----------------------------------------------------------------------------------------------------------


@contextmanager
def located(path: str) -> Generator[FileLocation]:
    """Yield the location of a file, with its directory open. Raises PatchRefusedError or OSError."""
    free = path.startswith("/")
    root = os.open("/" if free else ".", DIRECTORY)
    try:
        place = Finder(root, free).follow(path.lstrip("/"))
    except PathEscapesError:
        why = "it leads out of the working directory through a symbolic link or .."
        raise PatchRefusedError(f"{why}; if that is intended, give the absolute path") from None
    finally:
        close_quietly(root)
    try:
        yield place
    finally:
        close_quietly(place.directory)


class Finder:
    """Finds the location of a path relative to `root`. If `free`, the path may lead out of `root`."""

    def __init__(self, root: int, free: bool) -> None:
        self.root = root
        self.free = free

    def follow(self, path: str) -> FileLocation:
        """The location of `path`, after following links.

        Raises PatchRefusedError (a directory), PathEscapesError or OSError.
        """
        for _ in range(MAX_LINKS):
            before, _, name = path.rpartition("/")
            if name in ("", ".", ".."):
                raise PatchRefusedError("it is a directory")
            place = self.nearest(before, name)
            target = self.target(place)
            if target is None:
                return place
            path = f"{before}/{target}" if before and not target.startswith("/") else target
            if path.startswith("/"):
                path = self.from_top(path)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))

    def nearest(self, path: str, name: str) -> FileLocation:
        """The location of `name` in the directory `path`, of which a part may not exist yet."""
        missing: list[str] = []
        while True:
            try:
                return FileLocation(self.open(path), tuple(reversed(missing)), name)
            except FileNotFoundError:
                path, _, last = path.rpartition("/")
                if last == "..":
                    raise
                missing += [] if last in ("", ".") else [last]

    def open(self, path: str) -> int:
        if self.free:
            return os.open(path or ".", DIRECTORY, dir_fd=self.root)
        return open_directory(self.root, path)

    def target(self, place: FileLocation) -> str | None:
        """The target of the link at `place`; None if there is no link. Raises OSError.

        If there is a link, closes the directory of `place`.
        """
        target = None
        try:
            target = None if place.missing else link_target(place.name, place.directory)
        except OSError:
            close_quietly(place.directory)
            raise
        if target is not None:
            close_quietly(place.directory)
        return target

    def from_top(self, path: str) -> str:
        """An absolute path as a path relative to `root`. Raises PathEscapesError unless `free`."""
        if not self.free:
            raise PathEscapesError
        return path.lstrip("/")


# --- checks -----------------------------------------------------------------------------------------------------------


def check_protected(place: FileLocation, protected: list[str]) -> None:
    """Raise PatchRefusedError if the file is or lies in one of the `protected` paths, under any name or mount."""
    real = os.path.join(os.readlink(f"/proc/self/fd/{place.directory}"), *place.missing, place.name)
    within = any(real == path or real.startswith(path.rstrip("/") + "/") for path in protected)
    if within or not identities(protected).isdisjoint(passed(place)):
        raise PatchRefusedError("it belongs to the server itself (data, keys, settings), and no tool can change it")


def identities(paths: list[str]) -> set[tuple[int, int]]:
    found: set[tuple[int, int]] = set()
    for path in paths:
        with suppress(OSError):
            found.add(identity(os.stat(path)))
    return found


def identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def passed(place: FileLocation) -> Iterator[tuple[int, int]]:
    """Yield the identities of the file and all directories above it, as far as they can be inspected."""
    with suppress(OSError):
        yield identity(os.stat(place.name, dir_fd=place.directory, follow_symlinks=False))
    here = os.dup(place.directory)
    last = None
    try:
        while (one := identity(os.fstat(here))) != last:
            yield one
            last, above = one, os.open("..", DIRECTORY, dir_fd=here)
            close_quietly(here)
            here = above
    except PermissionError:
        return
    finally:
        close_quietly(here)


@contextmanager
def locked(place: FileLocation) -> Generator[int | None]:
    """Open and lock the file, within LOCK_SECONDS; None if it does not exist. Raises PatchRefusedError or OSError."""
    until, flags = time.monotonic() + LOCK_SECONDS, READ
    while not place.missing and (file := opened(place, flags)) is not None:
        try:
            failure = lock(file)
            if not failure and is_at(place, file):
                yield file
                return
        finally:
            close_quietly(file)
        if failure == errno.EBADF and flags == READ:
            flags = READ | os.O_RDWR  # NFS locks only files that are open for writing
        elif failure not in (0, errno.EAGAIN):
            raise OSError(failure, os.strerror(failure))
        elif time.monotonic() > until:
            raise PatchRefusedError("another program has it locked (flock); try again later")
        else:
            time.sleep(0.002)
    yield None


def opened(place: FileLocation, flags: int) -> int | None:
    """Open the file if it may be changed; None if it is missing. Never blocks. Raises PatchRefusedError or OSError."""
    try:
        check_changeable(os.stat(place.name, dir_fd=place.directory, follow_symlinks=False))
    except FileNotFoundError:
        return None
    if not os.access(place.name, os.W_OK, dir_fd=place.directory):
        raise PatchRefusedError("it is read-only; to change it anyway, use chmod first")
    return os.open(place.name, flags, dir_fd=place.directory)


def lock(file: int) -> int:
    """Lock a file without waiting; return 0, or the errno if that fails (EAGAIN if it is already locked)."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as failed:
        return failed.errno or errno.EIO
    return 0


def is_at(place: FileLocation, file: int) -> bool:
    """Whether the open file is still at this location; it is not if another patch, which held the lock, replaced it."""
    try:
        there = os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return identity(there) == identity(os.fstat(file))


def read(file: int) -> FileVersion:
    status = os.fstat(file)
    check_changeable(status)
    content = content_of(file)
    if len(content) > MAX_FILE:
        raise PatchRefusedError(TOO_LARGE)
    return FileVersion(content, status, attributes_of(file))


def content_of(file: int) -> bytes:
    """An open file's content, or at least MAX_FILE bytes plus one if it is larger. Raises OSError."""
    content = b""
    while len(content) <= MAX_FILE and (block := os.pread(file, MAX_FILE, len(content))):
        content += block
    return content


def attributes_of(file: int) -> dict[str, bytes]:
    try:
        return {name: os.getxattr(file, name) for name in os.listxattr(file) if name.startswith(KEPT_ATTRIBUTES)}
    except OSError:
        return {}


def check_changeable(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise PatchRefusedError("it is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise PatchRefusedError("it is not a regular file")
    if status.st_nlink > 1:
        raise PatchRefusedError(
            f"the file has {status.st_nlink} hard links, which a patch would break; edit it with bash (`cat > file` "
            "keeps them), or copy the file first"
        )
    if status.st_size > MAX_FILE:
        raise PatchRefusedError(TOO_LARGE)


# --- writing ----------------------------------------------------------------------------------------------------------


def store(place: FileLocation, found: FileVersion | None, content: bytes, file: int | None) -> None:
    """Write `content` to the file that was read as `found`, or to a new file.

    Raises PatchRefusedError or OSError; the file is then unchanged.
    """
    with ExitStack() as entered, ExitStack() as undo:
        directory = place.directory
        for name in place.missing:
            directory = enter_new(directory, name, entered, undo)
        temporary = f"{TEMPORARY}{os.urandom(8).hex()}.tmp"
        written = os.open(temporary, CREATE, 0o600 if found else 0o666, dir_fd=directory)
        undo.callback(quietly, os.unlink, temporary, directory)
        try:
            fill(written, content, found)
        finally:
            os.close(written)
        if found is None or file is None:
            create(directory, temporary, place.name)
        else:
            check_unchanged(directory, place.name, found, file)
            replace(directory, temporary, place.name)
        undo.pop_all()
        sync(directory)


def enter_new(parent: int, name: str, entered: ExitStack, undo: ExitStack) -> int:
    """Create a directory and open it; register its removal with `undo`. Raises PatchRefusedError or OSError."""
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:
        raise PatchRefusedError(f"its directory {name} is a broken symbolic link, or was just created") from None
    undo.callback(quietly, os.rmdir, name, parent)
    directory = os.open(name, LINK, dir_fd=parent)
    entered.callback(close_quietly, directory)
    sync(parent)
    return directory


def quietly(remove: Callable[..., None], name: str, directory: int) -> None:
    with suppress(OSError):
        remove(name, dir_fd=directory)


def fill(file: int, content: bytes, found: FileVersion | None) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]
    if found is not None:
        dress(file, found)
    os.fsync(file)


def dress(file: int, found: FileVersion) -> None:
    mode = stat.S_IMODE(found.status.st_mode)
    mine = os.fstat(file)
    if (mine.st_uid, mine.st_gid) != (found.status.st_uid, found.status.st_gid):
        try:
            os.fchown(file, found.status.st_uid, found.status.st_gid)
        except PermissionError:
            mode &= 0o777
    os.fchmod(file, mode)
    for name, value in found.attributes.items():
        with suppress(OSError):
            os.setxattr(file, name, value)


def create(directory: int, temporary: str, name: str) -> None:
    """Rename the file `temporary` to `name`, unless that exists by now. Raises PatchRefusedError or OSError."""
    try:
        rename_new(directory, temporary, name)
    except FileExistsError:
        raise PatchRefusedError(CHANGED) from None


def replace(directory: int, temporary: str, name: str) -> None:
    try:
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError as failed:
        if failed.errno != errno.EBUSY:
            raise
        raise PatchRefusedError(MOUNTED) from None


def check_unchanged(directory: int, name: str, found: FileVersion, file: int) -> None:
    """Raise PatchRefusedError if the open file has changed since it was read, or if another file now has its name."""
    with suppress(FileNotFoundError):
        same = content_of(file) == found.content  # two changes in one tick of the clock have the same time
        if same and moment(os.stat(name, dir_fd=directory, follow_symlinks=False)) == moment(found.status):
            return
    raise PatchRefusedError(CHANGED)


def moment(status: os.stat_result) -> tuple[int, ...]:
    return (*identity(status), status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def sync(directory: int) -> None:
    """Write a directory's entries to the disk; a failure is ignored, because the change is in effect anyway."""
    with suppress(OSError):
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        try:
            os.fsync(readable)
        finally:
            os.close(readable)
