"""Reads and answers the system calls that the kernel reports to the broker, by seccomp user notification.

Part of the tool host, the program that starts and ends a tool's processes (see toolhost.py).
"""

import array
import ctypes
import errno
import fcntl
import os
import sys

from actors.adapters.sandbox.host import kernel

NR_SECCOMP = {"x86_64": 317, "aarch64": 277}
SECCOMP_SET_MODE_FILTER, NEW_LISTENER, WAIT_KILLABLE = 1, 1 << 3, 1 << 5
# The ioctl requests for the descriptor that reports system calls; in C, their names begin with SECCOMP_IOCTL_NOTIF_.
RECEIVE, SEND, ID_VALID, ADD_FILE = 0xC0502100, 0xC0182101, 0x40082102, 0x40182103

CONTINUE, ADD_AND_SEND = 1, 2
NOTICE_BYTES = 80

DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
AT_FDCWD = -100

MAX_PATH = 4096


class NotBrokeredError(Exception):
    """The broker does not carry out a system call; the kernel continues it with the program's own restricted rights."""


def install(program: "ctypes.Structure") -> int:
    """Install a seccomp filter for this process and its descendants; return the descriptor that reports calls.

    Since Linux 5.19, only a fatal signal interrupts a call that was read from the descriptor. Raises OSError.
    """
    number = NR_SECCOMP[os.uname().machine]
    for flags in (NEW_LISTENER | WAIT_KILLABLE, NEW_LISTENER):
        listener = kernel.libc.syscall(number, SECCOMP_SET_MODE_FILTER, flags, ctypes.byref(program))
        if listener >= 0 or ctypes.get_errno() != errno.EINVAL:
            break
    return kernel.checked(listener)


class SystemCall:
    """A system call by a program (the caller), which waits until the broker answers."""

    def __init__(self, listener: int, notice: bytearray) -> None:
        self.listener = listener
        self.id = int.from_bytes(notice[0:8], sys.byteorder)
        self.thread = int.from_bytes(notice[8:12], sys.byteorder)
        self.number = int.from_bytes(notice[16:20], sys.byteorder)
        self.arguments = [int.from_bytes(notice[at : at + 8], sys.byteorder) for at in range(32, 80, 8)]

    def check_valid(self) -> None:
        """Raise OSError if the caller has ended, because another process may then have the caller's pid."""
        fcntl.ioctl(self.listener, ID_VALID, self.id.to_bytes(8, sys.byteorder))

    def opened(self, name: str, flags: int) -> int:
        """Open a file in the caller's /proc directory. Raises OSError, for example if the caller has ended."""
        file = os.open(f"/proc/{self.thread}/{name}", flags | os.O_CLOEXEC)
        try:
            self.check_valid()
        except OSError:
            os.close(file)
            raise
        return file

    def memory(self, address: int, size: int) -> bytes:
        with kernel.Opened(self.opened("mem", os.O_RDONLY)) as file:
            try:
                return os.pread(file, size, address)
            except OverflowError:
                raise OSError(errno.EFAULT, "no such address") from None

    def text(self, address: int) -> bytes:
        """A path in the caller's memory. Raises OSError, for example if the path is empty or too long."""
        path, end, _ = self.memory(address, MAX_PATH).partition(b"\0")
        if not end:
            raise OSError(errno.ENAMETOOLONG, "no end")
        if not path:
            raise OSError(errno.ENOENT, "no path")
        return path

    def umask(self) -> int:
        with kernel.Opened(self.opened("status", os.O_RDONLY)) as file:
            return int(os.read(file, 1 << 14).partition(b"\nUmask:")[2].split(None, 1)[0], 8)

    def base(self, directory: int) -> int:
        """Open the directory behind a descriptor of the caller (AT_FDCWD: its working directory). Raises OSError."""
        return self.opened("cwd" if directory == AT_FDCWD else f"fd/{directory}", DIRECTORY)

    def file(self, number: int) -> int:
        return self.opened(f"fd/{number}", os.O_PATH)

    def answer(self, error: int = 0, flags: int = 0) -> None:
        """Answer the call with the result 0 or an error; `flags` can make the kernel carry out the call instead."""
        words = (self.id, 0, (-error & 0xFFFFFFFF) | flags << 32)
        self.tell(SEND, b"".join(word.to_bytes(8, sys.byteorder) for word in words))

    def give(self, file: int, flags: int) -> None:
        """Answer the call with a copy of `file`. Raises OSError if the caller cannot have more descriptors."""
        words = (self.id, ADD_AND_SEND | file << 32, flags << 32)
        self.tell(ADD_FILE, b"".join(word.to_bytes(8, sys.byteorder) for word in words))

    def tell(self, request: int, content: bytes) -> None:
        try:
            fcntl.ioctl(self.listener, request, content)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise


def signed(word: int) -> int:
    word &= 0xFFFFFFFF
    return word - (1 << 32) if word >> 31 else word


def read_times(call: SystemCall, address: int, size: int, unit: int) -> "bytes | None":
    """The two times at an address in the caller's memory, as two C timespecs; None for address 0 (now).

    `size` is the size of both, in bytes; `unit` is the unit of their fractions, in nanoseconds. Raises OSError.
    """
    if not address:
        return None
    raw = call.memory(address, size)
    if len(raw) < size:
        raise OSError(errno.EFAULT, "no such address")
    words = list(array.array("q", raw))
    if len(words) == 2:
        words = [words[0], 0, words[1], 0]
    return array.array("q", (words[0], words[1] * unit, words[2], words[3] * unit)).tobytes()
