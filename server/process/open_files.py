"""Logs a warning when so many files are open that new clients are turned away. Use in the event loop only."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from actors.ports import machine

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
CALM = 0.9
"""A new warning is possible once the open files are below this share of the number that causes a warning."""


async def warn_when_crowded(connections: int, count: Callable[[], int] = machine.open_files) -> None:
    """Check the number of open files until cancelled, and log a warning each time that it reaches `connections`.

    `connections` is how many connections a listening address accepts; `count` returns the number of open files.
    """
    crowded = False
    while True:
        files = count()
        if files >= connections and not crowded:
            log.warning(
                "%d of the %d files that this server may have open are (ulimit -n): an address takes %d connections, "
                "and closes further ones at once",
                files,
                machine.max_open_files(),
                connections,
            )
        crowded = files >= (connections * CALM if crowded else connections)
        await asyncio.sleep(LOOK_SECONDS)
