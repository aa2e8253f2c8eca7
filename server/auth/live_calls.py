"""Ends running calls whose token is revoked, rotated or reduced in rights, or whose token or certificate expires.

Use in the event loop only.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

    from server.auth.authentication import Authentication
    from server.auth.principals import Caller

CHECK_SECONDS = 1.0
"""Seconds between two checks of the tokens and certificates of running calls."""


class CallRevokedError(Exception):
    """The token or the certificate of a running call is no longer valid."""


class LiveCalls:
    """The running calls whose token or certificate can become invalid, each with the task that serves it."""

    def __init__(self, authentication: Authentication) -> None:
        self._authentication = authentication
        self._tasks: dict[asyncio.Task[object], Caller] = {}
        self._revoked: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def serving(self, caller: Caller) -> Generator[None]:
        """Check the caller's token and certificate every CHECK_SECONDS while the `with` block runs.

        When they have become invalid, the current task is cancelled, and the block raises CallRevokedError.
        """
        task = asyncio.current_task()
        if task is None or not caller.ends:
            yield
            return
        self._tasks[task] = caller
        if self._timer is None:
            self._check_later()
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._revoked:
                raise
            task.uncancel()
            raise CallRevokedError from None
        finally:
            self._tasks.pop(task, None)
            self._revoked.discard(task)

    def _check_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check)

    def _check(self) -> None:
        """Cancel the calls whose caller's token or certificate is no longer valid. Runs once per CHECK_SECONDS."""
        self._timer = None
        for task, caller in self._tasks.items():
            if task not in self._revoked and not self._authentication.accepts(caller):
                self._revoked.add(task)
                task.cancel()
        if self._tasks:
            self._check_later()
