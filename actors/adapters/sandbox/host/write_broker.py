"""Changes files beneath a program's working directory for the program: workspace mode adds this to restricted mode.

The program itself has the rights of restricted mode, so the kernel refuses all its changes outside its private
directory. The kernel reports those of its system calls that would change the file system to the process init (by
seccomp user notification). Init is not restricted, and its broker decides by the real path:

    beneath the working directory, not protected   the broker does it, and gives the program the descriptor or result
    anything else                                  the kernel continues the call with the program's own rights

The broker never relies on the arguments of a call that the kernel continues, so a program gains nothing by changing
them meanwhile; for its own work, the broker uses copies of the arguments. It serves one call at a time, so the program
can make no other change between a check and the change that was checked. Some changes are dangerous only in combination
with those of other tool calls, each of which has its own broker: new names that are parts of something protected,
links, and moves of directories and links. They are checked and made under a lock that all brokers of a workspace share.

These are protected: certain names (`.git`, `node_modules/.bin`) in every directory, in upper and lower case, whether
they exist or not; directories that git considers repositories although they have other names; the server's own paths;
and files with several hard links, because another link may be outside. Mount points beneath the working directory are
not changed.

Part of the tool host, the program that starts and ends a tool's processes (see toolhost.py).
"""

import errno
import fcntl
import os
import select
import stat
import sys
from contextlib import suppress

from actors.adapters.sandbox.host import kernel, reported_calls, writable_trees
from actors.adapters.sandbox.host.kernel import Opened
from actors.adapters.sandbox.host.reported_calls import AT_FDCWD, NotBrokeredError, SystemCall, read_times, signed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

NR_RENAMEAT2 = {"x86_64": 316, "aarch64": 276}
AT_SYMLINK_NOFOLLOW, AT_REMOVEDIR = 0x100, 0x200
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
SFD_NONBLOCK, SFD_CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC

# The permission bits that programs can set: all except set-user-id and set-group-id.
OWN_BITS = 0o1777

# System calls that Landlock does not restrict. In tier B, the kernel would carry them out anywhere, so the broker never
# leaves them to the kernel.
METADATA = frozenset(
    "chmod fchmodat fchmodat2 fchmod chown lchown fchownat fchown utime utimes futimesat utimensat".split()
)


class Broker:
    """Serves the system calls of one program and its descendants in the process init.

    `section` describes the workspace (see toolhost.py). `writable` has descriptors for the workspace's root and the
    private directory (-1 in tier A, where metadata in the private directory can be changed without the broker).
    `file_bytes` is the maximum file size, 0 for none.
    """

    def __init__(self, section: "dict[str, Any]", writable: "tuple[int, int]", file_bytes: int) -> None:
        self.file_bytes = file_bytes
        # Whether the kernel itself refuses forbidden metadata changes (METADATA), because the sandbox has namespaces.
        self.alone = writable[1] < 0
        private = None if self.alone else writable_trees.Root(section["private"], writable[1], False)
        root = writable_trees.Root(section["root"], writable[0], True)
        self.trees = writable_trees.WritableTrees(
            root, private, writable_trees.Names(section["names"]), section["denied"]
        )
        self.handlers: dict[int, tuple[str, Callable[[SystemCall, list[int]], None]]] = {}

    def register(self, numbers: "dict[str, int]") -> None:
        for name, handler in self.calls().items():
            if name in numbers:
                self.handlers[numbers[name]] = name, handler

    def calls(self) -> "dict[str, Callable[[SystemCall, list[int]], None]]":
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
            "fchmod": lambda call, a: self.chmod(call, a[0], None, a[1], 0),
            "chown": lambda call, a: self.chown(call, here, a[0], a[1:3], 0),
            "lchown": lambda call, a: self.chown(call, here, a[0], a[1:3], AT_SYMLINK_NOFOLLOW),
            "fchownat": lambda call, a: self.chown(call, signed(a[0]), a[1], a[2:4], a[4]),
            "fchown": lambda call, a: self.chown(call, a[0], None, a[1:3], 0),
            "utime": lambda call, a: self.times(call, here, a[0], (a[1], 16, 1), 0),
            "utimes": lambda call, a: self.times(call, here, a[0], (a[1], 32, 1000), 0),
            "futimesat": lambda call, a: self.times(call, signed(a[0]), a[1], (a[2], 32, 1000), 0),
            "utimensat": lambda call, a: self.times(call, signed(a[0]), a[1], (a[2], 32, 1), a[3]),
        }

    def serve(self, listener: int) -> None:
        notice = bytearray(reported_calls.NOTICE_BYTES)
        try:
            fcntl.ioctl(listener, reported_calls.RECEIVE, notice)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.EINTR}:
                return  # the caller was killed
            raise
        call = SystemCall(listener, notice)
        name, handler = self.handlers.get(call.number, ("", None))
        try:
            if handler is None:
                raise NotBrokeredError
            try:
                handler(call, call.arguments)
            except writable_trees.NotAloneError:
                with self.trees.lock:
                    handler(call, call.arguments)
        except NotBrokeredError:
            self.refuse(call, name)
        except OSError as error:
            call.answer(error.errno or errno.EPERM)
        except Exception:  # noqa: BLE001 -- whatever a program sends, init must not end
            call.answer(errno.EPERM)

    def refuse(self, call: SystemCall, name: str) -> None:
        """Let the kernel decide by the program's rights, but refuse METADATA in tier B, where it would be allowed."""
        if not self.alone and name in METADATA:
            call.answer(errno.EPERM)
        else:
            call.answer(flags=reported_calls.CONTINUE)

    # --- what each system call does -----------------------------------------------------------------------------------

    def open(self, call: SystemCall, directory: int, address: int, flags: int, mode: int) -> None:
        path = call.text(address)
        exclusive = flags & (os.O_CREAT | os.O_EXCL) == os.O_CREAT | os.O_EXCL
        if flags & os.O_TMPFILE == os.O_TMPFILE or flags & os.O_PATH or path.endswith(b"/"):
            raise NotBrokeredError
        with self.trees.find(call, directory, path, not exclusive and not flags & os.O_NOFOLLOW) as place:
            status = place.status()
            self.trees.check(place, new=bool(flags & os.O_CREAT))
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
        with Opened(file):
            writable_trees.check_single(os.fstat(file))
            if flags & os.O_TRUNC:
                os.ftruncate(file, 0)
            if not flags & os.O_NONBLOCK:
                os.set_blocking(file, True)
            call.give(file, flags & os.O_CLOEXEC)

    def mkdir(self, call: SystemCall, directory: int, address: int, mode: int) -> None:
        with self.trees.find(call, directory, call.text(address), follow=False) as place:
            self.trees.check(place, new=True)
            os.umask(call.umask())
            os.mkdir(place.name, mode & OWN_BITS, dir_fd=place.parent)
        call.answer()

    def remove(self, call: SystemCall, directory: int, address: int, flags: int) -> None:
        path = call.text(address)
        folder = bool(flags & AT_REMOVEDIR)
        if path.endswith(b"/") and not folder:
            raise NotBrokeredError
        with self.trees.find(call, directory, path, follow=False) as place:
            self.trees.check(place, above=True)
            (os.rmdir if folder else os.unlink)(place.name, dir_fd=place.parent)
        call.answer()

    def rename(self, call: SystemCall, old: tuple[int, int], new: tuple[int, int], flags: int) -> None:
        if flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE):
            raise NotBrokeredError
        places: list[writable_trees.TreeEntry] = []
        try:
            for base, address in (old, new):
                with suppress(NotBrokeredError):  # raised for a path outside the workspace
                    places.append(self.trees.find(call, base, call.text(address), follow=False))
            if not places:
                raise NotBrokeredError
            if len(places) < 2:
                raise OSError(errno.EXDEV, "only one of them is beneath the working directory")
            source, target = places
            self.trees.check(source, above=True)
            self.trees.check(target, new=True, above=True)
            self.trees.check_movable(source, target)
            if flags & RENAME_EXCHANGE:
                self.trees.check(source, new=True)
                self.trees.check_movable(target, source)
            number = NR_RENAMEAT2[os.uname().machine]
            kernel.checked(kernel.libc.syscall(number, source.parent, source.name, target.parent, target.name, flags))
        finally:
            for place in places:
                place.close()
        call.answer()

    def symlink(self, call: SystemCall, target: int, directory: int, address: int) -> None:
        content = call.text(target)
        with self.trees.find(call, directory, call.text(address), follow=False) as place:
            self.trees.check(place, new=True)
            self.trees.check_link(place.name)
            os.symlink(content, place.name, dir_fd=place.parent)
        call.answer()

    def truncate(self, call: SystemCall, address: int, length: int) -> None:
        if self.file_bytes and length > self.file_bytes:
            raise OSError(errno.EFBIG, "too long")
        with Opened(self.trees.open_entry(call, AT_FDCWD, address, os.O_WRONLY, follow=True, private=False)) as file:
            os.ftruncate(file, length)
        call.answer()

    def access(self, call: SystemCall, directory: int, address: int, wanted: int) -> None:
        with self.trees.find(call, directory, call.text(address), follow=True) as place:
            status = place.status()
            if status is None:
                raise OSError(errno.ENOENT, "no such file")
            if not self.trees.writable(place, status) or not os.access(place.name, wanted & 7, dir_fd=place.parent):
                raise OSError(errno.EACCES, "refused")
        call.answer()

    def entry(self, call: SystemCall, directory: int, address: "int | None", flags: int) -> int:
        """Open the file whose metadata is to change: the one at `address` or, if that is None, `directory` itself.

        Raises NotBrokeredError or OSError.
        """
        if flags & ~AT_SYMLINK_NOFOLLOW:
            raise NotBrokeredError
        if address is None:
            return self.trees.open_number(call, directory)
        return self.trees.open_entry(call, directory, address, os.O_PATH, follow=not flags & AT_SYMLINK_NOFOLLOW)

    def chmod(self, call: SystemCall, directory: int, address: "int | None", mode: int, flags: int) -> None:
        """Change permissions, but never set the set-user-id or set-group-id bit. Raises NotBrokeredError or OSError."""
        if mode & ~OWN_BITS & 0o7777:
            raise OSError(errno.EPERM, "file modes with these bits are not allowed")
        with Opened(self.entry(call, directory, address, flags)) as entry:
            check_no_link(entry)
            os.chmod(f"/proc/self/fd/{entry}", mode & 0o7777)
        call.answer()

    def chown(self, call: SystemCall, directory: int, address: "int | None", owner: "list[int]", flags: int) -> None:
        """Change a file's owner and group with the rights of the process init. Raises NotBrokeredError or OSError."""
        with Opened(self.entry(call, directory, address, flags)) as entry:
            check_no_link(entry)
            os.chown(f"/proc/self/fd/{entry}", signed(owner[0]), signed(owner[1]))
        call.answer()

    def times(self, call: SystemCall, directory: int, address: int, given: "tuple[int, int, int]", flags: int) -> None:
        """Change the times of the file at `address` or, if that is 0, of `directory`.

        `given` are arguments for `reported_calls.read_times`. Raises NotBrokeredError or OSError.
        """
        times = read_times(call, *given)
        if flags & ~AT_SYMLINK_NOFOLLOW:
            raise NotBrokeredError
        if not address:
            with Opened(self.trees.open_number(call, directory)) as file:
                kernel.checked(kernel.libc.utimensat(AT_FDCWD, b"/proc/self/fd/%d" % file, times, 0))
        else:
            follow = not flags & AT_SYMLINK_NOFOLLOW
            with self.trees.find(call, directory, call.text(address), follow, private=True) as place:
                self.trees.check(place)
                if (status := place.status()) is not None:
                    writable_trees.check_single(status)
                kernel.checked(kernel.libc.utimensat(place.parent, place.name, times, AT_SYMLINK_NOFOLLOW))
        call.answer()


def check_openable(status: os.stat_result, exclusive: bool) -> None:
    if exclusive:
        raise OSError(errno.EEXIST, "it exists")
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, "it is a directory")
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "it is a link")
    if not stat.S_ISREG(status.st_mode):
        raise NotBrokeredError
    writable_trees.check_single(status)


def check_no_link(entry: int) -> None:
    """Raise NotBrokeredError if `entry` is a descriptor of a symbolic link, which has no permissions of its own."""
    if stat.S_ISLNK(os.fstat(entry).st_mode):
        raise NotBrokeredError


class Service:
    """Lets the broker serve reported system calls while init waits for one of the blocked `signals`."""

    def __init__(self, broker: Broker, listener: int, signals: "tuple[int, ...]") -> None:
        self.broker = broker
        self.listener = listener
        bits = sum(1 << (number - 1) for number in signals)
        self.arrived = kernel.checked(
            kernel.libc.signalfd(-1, bits.to_bytes(128, sys.byteorder), SFD_NONBLOCK | SFD_CLOEXEC)
        )
        self.poll = select.poll()
        self.poll.register(self.arrived, select.POLLIN)
        self.poll.register(listener, select.POLLIN)

    def wait(self) -> None:
        while True:
            ready = dict(self.poll.poll())
            if self.arrived in ready:
                os.read(self.arrived, 1 << 12)
                return
            if ready.get(self.listener, 0) & select.POLLIN:
                self.broker.serve(self.listener)
            elif self.listener in ready:  # all processes with the seccomp filter have ended
                self.poll.unregister(self.listener)
