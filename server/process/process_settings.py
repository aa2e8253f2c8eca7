"""Process-wide settings of the server, made once at start, most of them before any thread is started."""

from __future__ import annotations

import gc
import os
import resource
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator
    from collections.abc import Set as AbstractSet

STACK_BYTES = 1024 * 1024
"""Stack size of each thread in bytes. Only the used part takes memory.

256 KiB is too little: decoding JSON nested as deeply as Python allows would overflow the stack and end the process.
"""
MAX_OPEN_FILES = 65_536
FUTEX_SLOTS = 16_384
NEW_OBJECTS = 10_000
"""How many new container objects start a garbage collection.

With Python's default of 700, a request to a model and its answer take 0.3 ms longer.
"""
_PR_SET_DUMPABLE = 4
_PR_FUTEX_HASH = 78
_PR_FUTEX_HASH_SET_SLOTS = 1


def tune_process() -> None:
    """Set the stack size of threads, the limit of open files and kernel options.

    Call this before threads are started.
    """
    threading.stack_size(STACK_BYTES)
    raise_open_files()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if sys.platform == "linux":
        _hide_memory()
        # On a thread, because the kernel takes 15 ms for this; modules are imported in the meantime.
        threading.Thread(target=_spread_futexes, name="bedrock-futexes", args=(_libc(),)).start()


def raise_open_files() -> None:
    """Raise the limit of open files to the machine's maximum, at most `MAX_OPEN_FILES`.

    Shells and service managers start programs with a limit of 1,024, but a thousand model requests need 2,000 files.
    The limit of the programs that tools run stays the same.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # some systems have another limit, which cannot be queried
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def collection_paused() -> Generator[None]:
    """Pause garbage collection while modules are imported, and exclude their objects from later collections.

    These objects live as long as the process. Traversing the growing number of them again and again would take up to a
    tenth of the time of the imports.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def running_on(cpus: AbstractSet[int] | None) -> Generator[frozenset[int] | None]:
    """Run this thread, and the threads that it starts, only on those of `cpus` that exist; on all CPUs if None.

    Yields the CPUs that were allowed before, so that child processes can use them again; None if there is no
    restriction. Raises ValueError if this process may use none of `cpus`.
    """
    if cpus is None:
        yield None
        return
    before = os.sched_getaffinity(0)
    if not cpus & before:
        raise ValueError(f"this process may use the CPUs {', '.join(map(str, sorted(before)))}")
    os.sched_setaffinity(0, cpus & before)
    try:
        yield frozenset(before)
    finally:
        os.sched_setaffinity(0, before)


def spare_what_stays() -> None:
    """Exclude the present objects from garbage collection, and collect more rarely. Call this once the server is ready.

    These objects live as long as the process, and traversing them would stop all threads for some 20 ms in every full
    collection. Later objects are rarely in reference cycles: reference counting frees most of them before a collection
    looks at them, unless collections come too early.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])


def _hide_memory() -> None:
    """Keep tools of the same user from reading this process's environment and memory, which contain keys."""
    _libc().prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _spread_futexes(libc: Any) -> None:
    """Give this process more hash slots for waiting threads: with the kernel's default of 16, waking thousands is slow.

    Older kernels return an error, which is ignored.
    """
    libc.prctl(_PR_FUTEX_HASH, _PR_FUTEX_HASH_SET_SLOTS, FUTEX_SLOTS, 0, 0)


def _libc() -> Any:
    import ctypes  # noqa: PLC0415 -- only needed here

    return ctypes.CDLL(None, use_errno=True)
