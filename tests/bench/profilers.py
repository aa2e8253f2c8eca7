"""CPU time by parts of the program, measured by a profiler on each thread. Python 3.11: later ones have one for all."""

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

    def spent(self) -> dict[str, int]:
        """Return the microseconds of each part, in calls that have ended. Any thread."""
        found = dict.fromkeys(NAMES, 0.0)
        for profiler in list(self._all):
            for entry in profiler.getstats():
                code: Any = entry.code
                found[part_of(getattr(code, "co_filename", ""))] += entry.inlinetime
        return {part: round(seconds * 1e6) for part, seconds in found.items()}
