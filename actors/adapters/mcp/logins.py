"""Keeps the operator's logins to MCP servers: renews them, and rereads them when other programs change them."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from actors.ports.tools import LoginUnavailableError, McpLogin, McpLogins, McpLoginsError

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0

AGAIN_SECONDS = 30.0

# Seconds after a failed renewal during which calls do not try to renew the tokens again.
PAUSE_SECONDS = 5.0


class LoginTokens:
    """Provides access tokens from the stored logins. Use only on the event loop's thread.

    `urls` has the servers' URLs by name. `changed(name, logged_in)` is called when a login begins (True) or ends
    (False).
    """

    def __init__(
        self,
        stored: McpLogins,
        blocking: Callable[[Callable[[], Any]], Awaitable[Any]],
        urls: Mapping[str, str],
        changed: Callable[[str, bool], None],
    ) -> None:
        """Does not read the logins yet. `blocking` runs blocking work on another thread (see LoopThread)."""
        self._stored = stored
        self._blocking = blocking
        self._urls = urls
        self._changed = changed
        self._looking = asyncio.Lock()
        self._version: tuple[int, ...] | None = None
        self._logins: dict[str, McpLogin] = {}
        self._fault = ""
        self._renewing: dict[str, asyncio.Future[None]] = {}
        # By server name: when the last renewal of its login failed (in monotonic seconds), and why.
        self._failed: dict[str, tuple[float, str]] = {}
        self._storing = asyncio.Lock()
        # By server name: the outdated login that is still stored, because the renewed one could not be stored yet.
        self._unsaved: dict[str, McpLogin] = {}

    async def watch(self) -> None:
        """Reread the logins when other programs change them, and renew tokens, until this task is cancelled."""
        while True:
            await self._look()
            now = time.time() * 1000
            for name, login in list(self._logins.items()):
                due = login.renew_at if login.refresh_token else login.expires_at
                if due and now >= due and self._may_try(name, AGAIN_SECONDS):
                    self._renew(name, login)
            for name, spent in list(self._unsaved.items()):
                async with self._storing:
                    await self._store(name, spent, self._logins.get(name))
            await asyncio.sleep(LOOK_SECONDS)

    async def token(self, name: str) -> str:
        """A server's access token, renewed if it has expired; "" if there is no login. Raises LoginUnavailableError."""
        await self._look()
        login = self._logins.get(name)
        if login is not None and login.expires_at and time.time() * 1000 >= login.expires_at:
            return await self.another(name, login.access_token)
        if login is None and self._fault:
            raise LoginUnavailableError(self._fault)
        return login.access_token if login else ""

    async def another(self, name: str, refused: str) -> str:
        """A token other than `refused`; "" if the operator has to log in again. Raises LoginUnavailableError."""
        login = self._logins.get(name)
        if login is not None and login.access_token == refused:
            if not self._may_try(name, PAUSE_SECONDS):
                raise LoginUnavailableError(self._failed[name][1])
            await asyncio.shield(self._renew(name, login))
            login = self._logins.get(name)
        if login is not None and login.access_token == refused:
            raise LoginUnavailableError(self._failed.get(name, (0.0, self._fault))[1])
        return login.access_token if login else ""

    async def _look(self) -> None:
        """Reread the stored logins if they have changed; after an error, keep the logins that were read before."""
        async with self._looking:
            version = self._stored.version()
            if version == self._version:
                return
            first, self._version = self._version is None, version
            try:
                found = await self._blocking(self._stored.read)
            except McpLoginsError as error:
                log.warning("cannot reload MCP logins; using the earlier ones: %s", error)
                self._fault = str(error)
                return
            self._fault = ""
            self._use(found, notify=not first)

    def _use(self, found: Mapping[str, McpLogin], *, notify: bool = True) -> None:
        """Use the logins `found`, but keep renewed logins that could not be stored yet (see `_unsaved`).

        With `notify`, `changed` is called for each server whose login was added, replaced or removed.
        """
        before = self._logins
        self._unsaved = {name: spent for name, spent in self._unsaved.items() if found.get(name) == spent}
        kept = {name: login for name, login in before.items() if name in self._unsaved}
        found = {name: login for name, login in found.items() if name not in self._unsaved} | kept
        self._logins = {name: login for name, login in found.items() if self._urls.get(name) == login.url}
        for name in self._urls:
            old, new = before.get(name), self._logins.get(name)
            if (old.id if old else "") != (new.id if new else "") and notify:
                self._failed.pop(name, None)
                self._changed(name, new is not None)

    def _may_try(self, name: str, pause: float) -> bool:
        when, _ = self._failed.get(name, (float("-inf"), ""))
        return time.monotonic() - when >= pause

    def _renew(self, name: str, login: McpLogin) -> asyncio.Future[None]:
        under_way = self._renewing.get(name)
        if under_way is None:
            under_way = self._renewing[name] = asyncio.ensure_future(self._renewed(name, login))
            under_way.add_done_callback(lambda _: self._renewing.pop(name, None))
        return under_way

    async def _renewed(self, name: str, login: McpLogin) -> None:
        from actors.adapters.mcp.login_flow import RenewalFailedError, RenewalRefusedError, renewed, revoked  # noqa: PLC0415 -- loading takes a second; only MCP users pay

        after: McpLogin | None = None
        try:
            if login.refresh_token:
                after = await renewed(login)
        except RenewalRefusedError:
            log.warning("the login to MCP server %s has expired; run bedrock mcp login %s", name, name)
        except RenewalFailedError as error:
            log.warning("cannot renew the login to MCP server %s: %s", name, error)
            self._failed[name] = time.monotonic(), str(error)
            return
        self._failed.pop(name, None)
        async with self._storing:
            replaced = await self._store(name, login, after)
        if not replaced and after is not None:
            await revoked(after)  # a logout or a new login came first, so nobody will use the renewed tokens

    async def _store(self, name: str, login: McpLogin, after: McpLogin | None) -> bool:
        """Replace the stored `login` with `after`, or remove it if `after` is None. `watch` retries after failures.

        Returns False if a different login is stored.
        """
        spent = self._unsaved.get(name, login)
        try:
            replaced: bool = await self._blocking(functools.partial(self._stored.replace, name, spent, after))
        except McpLoginsError as error:
            now = self._logins.get(name)
            if now is not None and now.id != login.id:  # another login was stored just before
                return False
            if name not in self._unsaved:
                log.error("cannot save a renewed MCP login; will try again: %s", error)
            self._unsaved[name] = spent
            if after is not None:
                self._logins[name] = after
            elif self._logins.pop(name, None) is not None:
                self._changed(name, False)
            return True
        self._unsaved.pop(name, None)
        await self._look()
        return replaced
