"""The server's use of the operating system: limits, memory, CPUs, sockets, and its service manager.

Process-wide settings are made once at start, most of them before any thread is started.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import logging
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from server.settings.setting_values import Listen

# The stack size of threads. Only the used part takes memory. 256 KiB would be too little: decoding JSON nested as
# deeply as Python allows would overflow the stack.
STACK_BYTES = 1024 * 1024
MAX_OPEN_FILES = 65_536
FUTEX_SLOTS = 16_384
# The threshold of the garbage collector. With Python's default of 700, a model request takes 0.3 ms longer.
NEW_OBJECTS = 10_000
_PR_SET_DUMPABLE = 4
_PR_FUTEX_HASH = 78
_PR_FUTEX_HASH_SET_SLOTS = 1
_libc: Any = ctypes.CDLL(None, use_errno=True)


def tune_process() -> None:
    """Set the stack size, the limit of open files and kernel options, before threads are started."""
    threading.stack_size(STACK_BYTES)
    raise_open_files()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if sys.platform == "linux":
        _hide_memory()
        # On a thread, because the kernel takes 15 ms for this; modules are imported in the meantime.
        threading.Thread(target=_spread_futexes, name="bedrock-futexes").start()


def raise_open_files() -> None:
    """Raise this process's limit on open files to the highest that the system allows, at most `MAX_OPEN_FILES`.

    The usual limit is 1,024, but a thousand model requests need 2,000 files. Tools keep the usual limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # some systems have a further limit, which cannot be queried
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def collection_paused() -> Generator[None]:
    """Pause garbage collection during imports, and exclude the imported objects from later collections.

    They live as long as the process, and traversing them would take up to a tenth of the import time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def running_on(cpus: AbstractSet[int] | None) -> Generator[frozenset[int] | None]:
    """Run this thread, and threads that it starts, on `cpus` (None: all); yield the CPUs allowed before.

    Raises ValueError if this process may use none of these CPUs.
    """
    if cpus is None:
        yield None
        return
    before = os.sched_getaffinity(0)
    if not cpus & before:
        raise ValueError(f"not available: this process may use only CPUs {', '.join(map(str, sorted(before)))}")
    os.sched_setaffinity(0, cpus & before)
    try:
        yield frozenset(before)
    finally:
        os.sched_setaffinity(0, before)


def spare_what_stays() -> None:
    """Exclude existing objects from garbage collection, and collect less often, once the server is ready.

    Traversing them would stop all threads for some 20 ms in every full collection. Reference counting frees most later
    objects before a collection, unless the collection comes too early.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])


def _hide_memory() -> None:
    """Keep tools of the same user from reading this process's environment and memory, which contain keys."""
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _spread_futexes() -> None:
    """Request more hash slots for waiting threads: with the usual 16, waking thousands of threads is slow.

    Old kernels refuse.
    """
    _libc.prctl(_PR_FUTEX_HASH, _PR_FUTEX_HASH_SET_SLOTS, FUTEX_SLOTS, 0, 0)


log = logging.getLogger(__name__)

LOOK_SECONDS = 30.0
# Trim when resident memory has risen this much above its lowest value since the last trim. Trimming takes some
# milliseconds.
RISE_BYTES = 8 << 20
_RESIDENT = Path("/proc/self/statm")
_PAGE_BYTES = resource.getpagesize()
_malloc_trim = getattr(_libc, "malloc_trim", None)


class MallocTrimmer:
    """Trims the heap when this process has grown. A thread checks every LOOK_SECONDS.

    `resident` returns the resident memory in bytes, 0 if unknown; `give_back` makes the C library return free memory.
    """

    def __init__(self, resident: Callable[[], int], give_back: Callable[[], object]) -> None:
        self._resident, self._give_back = resident, give_back
        self._lowest = resident()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bedrock-freed-memory", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def look(self) -> bool:
        """Give free memory back to the system if the process has grown by RISE_BYTES. Return whether that was done."""
        now = self._resident()
        self._lowest = min(self._lowest, now)
        if now - self._lowest < RISE_BYTES:
            return False
        self._give_back()
        self._lowest = self._resident()
        log.debug("resident memory: %d MiB, %d MiB after trimming", now >> 20, self._lowest >> 20)
        return True

    def close(self) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            self.look()


def heap_trimmer() -> MallocTrimmer | None:
    """A trimmer for this process; None if the C library is not glibc: only glibc needs trimming."""
    return MallocTrimmer(_resident, trim) if _malloc_trim is not None and _RESIDENT.exists() else None


def trim() -> None:
    """Return free memory to the system now, if the C library is glibc."""
    if _malloc_trim is not None:
        _malloc_trim(0)


def _resident() -> int:
    with suppress(OSError):  # no file descriptor is left
        return int(_RESIDENT.read_bytes().split()[1]) * _PAGE_BYTES
    return 0


BACKLOG = 1_024
# The table in /proc/net and the state of each kind of connected socket.
_CONNECTED = frozenset({("unix", "03"), ("tcp", "01"), ("tcp6", "01")})
# The table and state of each kind of socket that listens on a port.
_LISTENS = frozenset({("tcp", "0A"), ("tcp6", "0A")})


class _Socket(NamedTuple):
    kind: tuple[str, str]
    where: str
    """The path of a Unix socket, or the port of a TCP socket in hexadecimal digits."""
    inode: str


def connections(addresses: Iterable[Listen]) -> int:
    wanted = {each.path or f"{each.port:04X}" for each in addresses}
    return sum(each.where in wanted and each.kind in _CONNECTED for each in _sockets())


def listener(port: int) -> str:
    """The process that listens on a TCP port, as "process 17 (nginx)"; "" if unknown."""
    wanted = f"{port:04X}"
    links = {f"socket:[{each.inode}]" for each in _sockets() if each.where == wanted and each.kind in _LISTENS}
    found: dict[int, str] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process belongs to another user, or has ended
            if any(os.readlink(file) in links for file in (process / "fd").iterdir()):
                started = int((process / "stat").read_text().rpartition(")")[2].split()[19])
                found[started] = f"process {process.name} ({(process / 'comm').read_text().strip()})"
    return found[min(found)] if found else ""  # the oldest, as children inherit sockets


class CannotListenError(Exception):
    """The program cannot listen on an address. The message is one line with the reason and the remedy.

    `purpose`, such as " for metrics", is empty for the main service.
    """

    def __init__(self, where: Listen, why: str, purpose: str = "") -> None:
        super().__init__(f"cannot listen on {where}{purpose}: {why}")


@contextmanager
def listening(where: Listen, option: str, purpose: str = "", more: str = "") -> Generator[None]:
    """Convert an OSError to CannotListenError; `option` is the flag that sets the address, `more` a further remedy."""
    try:
        yield
    except OSError as error:
        why = (error.strerror or "unknown host").partition(" (while ")[0].lower()  # create_server adds the address
        if error.errno == errno.EADDRINUSE:
            by = f" by {holder}" if (holder := listener(where.port)) else ""
            why += f"{by}; choose another port with {option}, such as {option} {Listen(where.host)} for any free one"
            why += more
        raise CannotListenError(where, why, purpose) from None


def bound(where: Listen, option: str = "--listen", purpose: str = "") -> socket.socket:
    """A socket that listens on a host and a port. Raises CannotListenError; see `listening`."""
    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    with listening(where, option, purpose):
        return socket.create_server((where.host, where.port), family=family, backlog=BACKLOG)


def _sockets() -> Iterator[_Socket]:
    for table in ("unix", "tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/net/{table}", encoding="utf-8", errors="replace") as rows:  # no IPv6
            for row in rows:
                fields = row.split()
                if table != "unix":
                    yield _Socket((table, fields[3]), fields[1].rpartition(":")[2], fields[9])
                elif len(fields) > 7:
                    yield _Socket((table, fields[5]), fields[7], fields[6])


READY = "READY=1"
STOPPING = "STOPPING=1"


def notify(*lines: str) -> None:
    """Send lines such as READY to the service manager, if any. Thread-safe; never blocks; a failure is only logged."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # an abstract address, which is not in the file system
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.connect(address)
            sender.send("\n".join(lines).encode())
    except OSError as error:
        log.warning("the service manager could not be notified: %s", error.strerror)
