"""CPU time and calls by parts of the program, by a profiler on each thread (Python 3.11: later ones have one)."""

from __future__ import annotations

import cProfile
import functools
import threading
import time
from typing import Any

PARTS = (
    ("/actors/core/", "core"),
    ("/actors/adapters/store/", "store"),
    ("/peewee", "store"),
    ("/actors/adapters/llm/", "model requests"),
    ("/actors/adapters/telemetry/", "telemetry"),
    ("/logging/", "telemetry"),
    ("/actors/adapters/", "tools"),
    ("/actors/events/", "watchers"),
    ("/server/streams/", "watchers"),
    ("/server/wire/", "watchers"),
    ("/actors/", "actors"),
    ("/server/", "calls"),
    ("/grpc/", "gRPC and its loop"),
    ("/asyncio/", "gRPC and its loop"),
    ("/selectors.py", "gRPC and its loop"),
    ("/bedrock/v1/", "contract"),
    ("/google/protobuf/", "contract"),
    ("/threading.py", "locks and queues"),
    ("/queue.py", "locks and queues"),
    ("/pykka/", "locks and queues"),
)
"""The parts of the program, by what is in the paths of their files: the first one that fits."""
OTHER = "other libraries"


@functools.cache
def part_of(path: str) -> str:
    """Return the part of the program that a file belongs to."""
    return next((part for piece, part in PARTS if piece in path), OTHER)


CALLS = "calls of "
NAMES = tuple(dict.fromkeys([*(part for _, part in PARTS), OTHER]))


class Profilers:
    """A profiler for each thread that begins from now on, and one for this thread."""

    def __init__(self) -> None:
        self._all: list[cProfile.Profile] = []
        threading.setprofile(self._begin)
        self._begin()

    def _begin(self, *_: object) -> None:
        made = cProfile.Profile(time.thread_time, builtins=False)
        self._all.append(made)
        made.enable()  # in place of this function, which threading calls on a new thread

    def counts(self) -> dict[str, int]:
        """Return the microseconds of each part, and under CALLS and its name its calls, of those that have ended.

        Any thread.
        """
        seconds, calls = dict.fromkeys(NAMES, 0.0), dict.fromkeys(NAMES, 0)
        for profiler in list(self._all):
            for entry in profiler.getstats():
                code: Any = entry.code
                part = part_of(getattr(code, "co_filename", ""))
                seconds[part] += entry.inlinetime
                calls[part] += entry.callcount
        spent = {part: round(each * 1e6) for part, each in seconds.items()}
        return spent | {CALLS + part: count for part, count in calls.items()}
