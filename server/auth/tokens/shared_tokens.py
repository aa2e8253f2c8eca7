"""Keeps the principals' tokens of a shared database in memory; a thread reads them again periodically."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from actors.ports import StoreUnavailableError
from server.auth.local_token import TokenUnusableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from server.auth.tokens.principal_tokens import PrincipalTokens, Token

log = logging.getLogger(__name__)

FOLLOW_SECONDS = 0.5
"""Seconds between two reads of the tokens in the database.

A revoked token is refused at the latest after this time plus REFRESH_SECONDS of `server.auth.authentication`.
"""
PAUSE_SECONDS = 0.05
"""Minimum seconds between two reads of the tokens, even if many calls with unknown tokens arrive."""
PATIENCE_SECONDS = 2.0
"""Maximum seconds that a call with an unknown token waits until the tokens have been read again."""


class SharedTokens:
    """Reads the tokens in the database periodically, on a thread of its own. Use in the event loop only.

    While the database does not answer, the last known tokens stay valid; calls that need the database fail anyway.
    """

    def __init__(self, tokens: PrincipalTokens) -> None:
        """Read the tokens, and start the thread that reads them again.

        Raises TokenUnusableError or StoreUnavailableError if they cannot be read.
        """
        self._stored = tokens
        self._guard = threading.Lock()  # guards _tokens, _failure, _version and _waiting
        self._tokens, self._failure = tokens.read(), ""
        self._version = 0
        self._waiting: list[Callable[[], object]] = []
        self._wanted, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name="shared-tokens", daemon=True)
        self._thread.start()

    def version(self) -> object:
        """Return a number that grows whenever a read has found changed tokens."""
        with self._guard:
            return self._version

    def read(self) -> tuple[Token, ...]:
        """Return the tokens as of the last read. Raises TokenUnusableError if the database contains no valid list."""
        with self._guard:
            if self._failure:
                raise TokenUnusableError(self._failure)
            return self._tokens

    async def read_again(self) -> None:
        """Wait until the tokens have been read once more, but at most PATIENCE_SECONDS."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def end() -> None:
            if not done.done():  # already done if the wait has timed out
                done.set_result(None)

        def tell() -> None:
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(end)

        with self._guard:
            self._waiting.append(tell)
            self._wanted.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(done, PATIENCE_SECONDS)

    def close(self) -> None:
        """End the thread once a read in progress has finished. Blocks until then. May be called more than once."""
        self._closed.set()
        self._wanted.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._closed.wait(PAUSE_SECONDS):
            self._wanted.wait(FOLLOW_SECONDS)
            with self._guard:
                self._wanted.clear()
                waiting, self._waiting = self._waiting, []
            self._look()
            for tell in waiting:
                tell()

    def _look(self) -> None:
        """Read the tokens once, and keep the result for `read`.

        If the database does not answer, keep the old result.
        """
        try:
            found, failure = self._stored.read(), ""
        except StoreUnavailableError:
            return
        except TokenUnusableError as error:
            found, failure = (), str(error)
        with self._guard:
            if (found, failure) != (self._tokens, self._failure):
                self._tokens, self._failure = found, failure
                self._version += 1
