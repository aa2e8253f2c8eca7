"""A warning in the log when so many files are open that new clients are turned away. Event loop only."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from actors.ports.machine import resources

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
CALM = 0.9
"""The part of the bound below which it is over, and may be told of again."""


async def warn_when_crowded(connections: int, count: Callable[[], int] = resources.open_files) -> None:
    """Look until cancelled; log once each time that as many files are open as an address takes connections."""
    crowded = False
    while True:
        files = count()
        if files >= connections and not crowded:
            log.warning(
                "%d of the %d files that this server may have open are (ulimit -n): an address takes %d connections, "
                "and closes further ones at once",
                files,
                resources.max_open_files(),
                connections,
            )
        crowded = files >= (connections * CALM if crowded else connections)
        await asyncio.sleep(LOOK_SECONDS)
