"""What was freed goes back to the machine, and nothing is done while there is nothing to give."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from server.process import operating_system as freed_memory
from server.process.operating_system import RISE_BYTES, MallocTrimmer

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[3]
PATIENCE = 60.0


def test_memory_is_given_back_once_the_process_has_grown() -> None:
    resident = [100 << 20]
    given: list[int] = []

    def give_back() -> None:
        given.append(resident[0])
        resident[0] = 101 << 20

    memory = MallocTrimmer(lambda: resident[0], give_back)
    assert not memory.look()
    resident[0] += RISE_BYTES - 1
    assert not memory.look()
    resident[0] += 1
    assert memory.look()
    assert given == [(100 << 20) + RISE_BYTES]
    assert not memory.look(), "it counts from what was left"
    resident[0] = 50 << 20
    assert not memory.look()
    resident[0] += RISE_BYTES
    assert memory.look(), "it counts from the least there was"


def test_it_looks_by_itself_until_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_memory, "LOOK_SECONDS", 0.001)
    looks = threading.Semaphore(0)

    def resident() -> int:
        looks.release()
        return 0

    memory = MallocTrimmer(resident, lambda: None)
    memory.start()
    for _ in range(4):
        assert looks.acquire(timeout=PATIENCE)
    memory.close()
    memory.close()
    assert not memory._thread.is_alive()


def test_what_many_threads_freed_is_really_given_back() -> None:
    """Small pieces between what is kept: the C library returns those only when it is told."""
    program = """
import ctypes
from server.process import operating_system as freed_memory
memory = freed_memory.heap_trimmer()
if memory is None:
    print("not needed")
    raise SystemExit
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
pieces = [libc.malloc(60_000) for _ in range(1_000)]
for piece in pieces:
    ctypes.memset(piece, 1, 60_000)
full = freed_memory._resident()
for piece in pieces[:-1]:
    libc.free(piece)
print(memory.look(), full - freed_memory._resident() > 50_000_000)
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout in ("True True\n", "not needed\n")
