"""Change one file, wholly or not at all, on descriptors of its directory: nobody can lead a write astray by renaming.

The new content is written beside the file and renamed over it: whoever reads, and whatever dies meanwhile, the file is
the old one or the new one. What a death leaves behind is a file `.bedrock-patch-*.tmp`, or an empty new directory.
"""

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from actors.adapters.tools.workers.patching import safe_open
from actors.adapters.tools.workers.patching.plan import MAX_FILE, Refused

TEMPORARY = ".bedrock-patch-"

READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

TOO_LARGE = f"the file is larger than {MAX_FILE >> 20} MiB; change it with bash"

KEPT_ATTRIBUTES = ("user.", "system.posix_acl_access")


class Found(NamedTuple):
    """A file as it was when it was read."""

    content: bytes
    status: os.stat_result
    attributes: dict[str, bytes]


class Place(NamedTuple):
    """Where a file is, or is to be: symbolic links have been followed."""

    directory: int
    missing: tuple[str, ...]
    #: Directories beneath `directory` that are to be made first.
    name: str


def change(path: str, protected: list[str], rewrite: Callable[[bytes | None], bytes]) -> None:
    """Let `rewrite` make the new content of `path` from its old one, None if there is no file.

    Relative paths stay beneath the current directory. Raises Refused, OSError or what `rewrite` raises; then nothing
    has changed.
    """
    with located(path) as place:
        check_protected(place, protected)
        found = None if place.missing else read(place)
        content = rewrite(None if found is None else found.content)
        if found is None or content != found.content:
            store(place, found, content)


# --- finding ----------------------------------------------------------------------------------------------------------


@contextmanager
def located(path: str) -> Generator[Place]:
    """Follow `path` to the directory of its file; raises Refused or OSError."""
    free = path.startswith("/")
    root = os.open("/" if free else ".", safe_open.DIRECTORY)
    try:
        place = Finder(root, free).follow(path.lstrip("/"))
    except safe_open.Escapes:
        why = "it leads out of the working directory, by a symbolic link or .."
        raise Refused(f"{why}; if that is meant, give the absolute path") from None
    finally:
        safe_open.close_quietly(root)
    try:
        yield place
    finally:
        safe_open.close_quietly(place.directory)


class Finder:
    """Finds the place of a path, which is relative to `root`; only a `free` one may be led out of it."""

    def __init__(self, root: int, free: bool) -> None:
        self.root = root
        self.free = free

    def follow(self, path: str) -> Place:
        """The place of `path`, through the symbolic links that its last component may be."""
        for _ in range(safe_open.MAX_LINKS):
            before, _, name = path.rpartition("/")
            if name in ("", ".", ".."):
                raise Refused("it is a directory")
            place = self.nearest(before, name)
            target = self.target(place)
            if target is None:
                return place
            path = f"{before}/{target}" if before and not target.startswith("/") else target
            if path.startswith("/"):
                path = self.from_top(path)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))

    def nearest(self, path: str, name: str) -> Place:
        """The deepest directory on the way to `path` that exists."""
        missing: list[str] = []
        while True:
            try:
                return Place(self.open(path), tuple(reversed(missing)), name)
            except FileNotFoundError:
                path, _, last = path.rpartition("/")
                if last == "..":
                    raise
                missing += [] if last in ("", ".") else [last]

    def open(self, path: str) -> int:
        if self.free:
            return os.open(path or ".", safe_open.DIRECTORY, dir_fd=self.root)
        return safe_open.open_directory(self.root, path)

    def target(self, place: Place) -> str | None:
        """What the link at this place says, and then the place is closed; None if there is none."""
        target = None
        try:
            target = None if place.missing else safe_open.link_target(place.name, place.directory)
        except OSError:
            safe_open.close_quietly(place.directory)
            raise
        if target is not None:
            safe_open.close_quietly(place.directory)
        return target

    def from_top(self, path: str) -> str:
        if not self.free:
            raise safe_open.Escapes
        return path.lstrip("/")


# --- judging ----------------------------------------------------------------------------------------------------------


def check_protected(place: Place, protected: list[str]) -> None:
    """Refuse what is the server's own, by whatever name and mount it was reached; raises Refused."""
    real = os.path.join(os.readlink(f"/proc/self/fd/{place.directory}"), *place.missing, place.name)
    within = any(real == path or real.startswith(path.rstrip("/") + "/") for path in protected)
    if within or not identities(protected).isdisjoint(passed(place)):
        raise Refused("it belongs to the server itself (data, keys, settings), and no tool may change that")


def identities(paths: list[str]) -> set[tuple[int, int]]:
    """What can be told of a file by any name, for those of the paths that exist."""
    found: set[tuple[int, int]] = set()
    for path in paths:
        with suppress(OSError):
            found.add(identity(os.stat(path)))
    return found


def identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def passed(place: Place) -> Iterator[tuple[int, int]]:
    """The identities of the file and of all directories above it, as far as they can be seen."""
    with suppress(OSError):
        yield identity(os.stat(place.name, dir_fd=place.directory, follow_symlinks=False))
    here = os.dup(place.directory)
    last = None
    try:
        while (one := identity(os.fstat(here))) != last:
            yield one
            last, above = one, os.open("..", safe_open.DIRECTORY, dir_fd=here)
            safe_open.close_quietly(here)
            here = above
    except PermissionError:
        return
    finally:
        safe_open.close_quietly(here)


def read(place: Place) -> Found | None:
    """The file at this place, None if there is none; raises Refused or OSError. Never waits for anybody."""
    try:
        check_changeable(os.stat(place.name, dir_fd=place.directory, follow_symlinks=False))
    except FileNotFoundError:
        return None
    if not os.access(place.name, os.W_OK, dir_fd=place.directory):
        raise Refused("it is read-only; if it is to be changed all the same, use chmod first")
    file = os.open(place.name, READ, dir_fd=place.directory)
    try:
        status = os.fstat(file)
        check_changeable(status)
        content = b""
        while len(content) <= MAX_FILE and (block := os.read(file, MAX_FILE)):
            content += block
        attributes = attributes_of(file)
    finally:
        os.close(file)
    if len(content) > MAX_FILE:
        raise Refused(TOO_LARGE)
    return Found(content, status, attributes)


def attributes_of(file: int) -> dict[str, bytes]:
    """Its extended attributes that are people's, access lists included; none where there are no such things."""
    try:
        return {name: os.getxattr(file, name) for name in os.listxattr(file) if name.startswith(KEPT_ATTRIBUTES)}
    except OSError:
        return {}


def check_changeable(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise Refused("it is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise Refused("it is not a regular file")
    if status.st_nlink > 1:
        raise Refused(
            f"the file has {status.st_nlink} names (hard links), which a patch would part; change it with bash (`cat > "
            "file` keeps them together), or give this name a copy of its own first"
        )
    if status.st_size > MAX_FILE:
        raise Refused(TOO_LARGE)


# --- writing ----------------------------------------------------------------------------------------------------------


def store(place: Place, found: Found | None, content: bytes) -> None:
    """Put `content` there; raises Refused or OSError, and then everything is as it was."""
    with ExitStack() as opened, ExitStack() as undo:
        directory = place.directory
        for name in place.missing:
            directory = enter_new(directory, name, opened, undo)
        temporary = f"{TEMPORARY}{os.urandom(8).hex()}.tmp"
        file = os.open(temporary, CREATE, 0o600 if found else 0o666, dir_fd=directory)
        undo.callback(quietly, os.unlink, temporary, directory)
        try:
            fill(file, content, found)
        finally:
            os.close(file)
        check_unchanged(directory, place.name, found)
        os.rename(temporary, place.name, src_dir_fd=directory, dst_dir_fd=directory)
        undo.pop_all()
        sync(directory)


def enter_new(parent: int, name: str, opened: ExitStack, undo: ExitStack) -> int:
    """Make a directory and open it; `undo` takes it away again."""
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:
        raise Refused(f"its directory {name} is a symbolic link that leads nowhere, or was made this moment") from None
    undo.callback(quietly, os.rmdir, name, parent)
    directory = os.open(name, safe_open.LINK, dir_fd=parent)
    opened.callback(safe_open.close_quietly, directory)
    sync(parent)
    return directory


def quietly(remove: Callable[..., None], name: str, directory: int) -> None:
    """Take something away if that is possible."""
    with suppress(OSError):
        remove(name, dir_fd=directory)


def fill(file: int, content: bytes, found: Found | None) -> None:
    """Write it to the disk, with owner, mode and attributes of the file that it replaces."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]
    if found is not None:
        dress(file, found)
    os.fsync(file)


def dress(file: int, found: Found) -> None:
    """Give the new file the owner, mode and attributes of the old one; an owner only as far as we may."""
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


def check_unchanged(directory: int, name: str, found: Found | None) -> None:
    """Refuse to undo what somebody else has done to the file since it was read."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        if found is None:
            return
    else:
        if found is not None and moment(status) == moment(found.status):
            return
    raise Refused("somebody else has changed it this moment; read it again")


def moment(status: os.stat_result) -> tuple[int, ...]:
    return (*identity(status), status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def sync(directory: int) -> None:
    """Let what the directory says reach the disk, where that can be asked for; it holds in any case."""
    with suppress(OSError):
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        try:
            os.fsync(readable)
        finally:
            os.close(readable)
