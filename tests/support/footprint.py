"""What this process holds, to compare with before. What other tests have left may end meanwhile: less is no fault."""

from __future__ import annotations

import gc
import os
import threading
from typing import NamedTuple

from actors.adapters.sandbox.host import process_walk
from tests.support.patience import eventually


class Footprint(NamedTuple):
    """What this process has, apart from memory."""

    files: int
    threads: int
    children: int

    def within(self, before: Footprint) -> bool:
        """Whether there is no more of anything."""
        return all(now <= then for now, then in zip(self, before, strict=True))


def footprint() -> Footprint:
    """What this process has now. The fork server is among it once there has been a call."""
    gc.collect()
    return Footprint(
        len(os.listdir("/proc/self/fd")), threading.active_count(), len(process_walk.children(os.getpid()))
    )


def assert_nothing_left(before: Footprint) -> None:
    """Nothing is left, once the hosts of the calls that have just ended are reaped: calls do not wait for that."""
    eventually(lambda: footprint().within(before), f"no more than {before}")
