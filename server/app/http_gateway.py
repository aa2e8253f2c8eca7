"""Runs the HTTP gateway beside the server: as a process of its own, which is started again whenever it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from server.process.operating_system import bound
from server.settings.setting_values import Listen

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Iterator, Mapping

    from server.settings.config import Config, NewThread

log = logging.getLogger(__name__)

PASSED_ON = ("HOME", "LANG", "LC_", "PATH", "PYTHON", "TMPDIR", "TZ", "VIRTUAL_ENV")
"""The beginnings of the environment variables that the gateway gets: none with a key of a provider."""
LEAST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.1, 5.0
"""The bounds of the pause before a gateway that has ended is started again; each failure doubles the pause."""
WELL_SECONDS = 30.0
"""A gateway that has run for so long has not failed at its start, so the next pause is the least one."""
STOP_SECONDS = 5.0


class HttpGateway:
    """The gateway of a server. Its socket is bound here and outlives its process: callers wait for the next one.

    Use in the event loop only; `close` ends the process.
    """

    def __init__(self, config: Config, where: Listen, upstream: Listen, secret: str, token: str = "") -> None:
        """Bind the address. Raises CannotListenError, or ConfigError without the package extra `http`.

        `secret`: what the server knows the gateway by. `token`: what the browser that uses `link` signs in with; "" for
        no such link.
        """
        config.check_extra("http_listen", "http", "starlette", "uvicorn")
        self._listening = bound(where, "--http", " for HTTP")
        where = Listen(where.host, self._listening.getsockname()[1])
        self.url = f"{'https' if config.encrypted else 'http'}://{where}"
        """Where clients find the gateway."""
        code = secrets.token_urlsafe(24) if token else ""
        self.link = f"{self.url}/#link={code}" if token else ""
        """An address that signs a browser in, once within a minute of the start."""
        self._secret, self._first_words = secret, f" {code} {token}" if token else ""
        arguments = _arguments(config, where, upstream, self._listening.fileno())
        self._command = (sys.executable, "-m", "server.gateway", *arguments)
        self._environment = _environment(os.environ)
        self._process: Process | None = None
        self._running = asyncio.create_task(self._run())

    async def close(self) -> None:
        """End the process, after the responses that it still sends, and free the address."""
        self._running.cancel()
        await asyncio.wait({self._running})
        if (process := self._process) is not None:
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()
        self._listening.close()

    async def _run(self) -> None:
        loop, pause = asyncio.get_running_loop(), LEAST_PAUSE_SECONDS
        while True:
            began = loop.time()
            try:
                # The end of the pipe tells the gateway that this process has ended, however it has.
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.DEVNULL,
                    pass_fds=(self._listening.fileno(),),
                    env=self._environment,
                )
            except OSError as error:  # no process, memory or file descriptor is left
                log.error("the HTTP gateway cannot be started (%s); retry in %g s", error.strerror, pause)
            else:
                if self._process.stdin is not None:
                    self._process.stdin.write(f"{self._secret}{self._first_words}\n".encode())
                    self._first_words = ""
                code = await self._process.wait()
                pause = LEAST_PAUSE_SECONDS if loop.time() - began > WELL_SECONDS else pause
                log.warning("the HTTP gateway has ended (%d) and is started again in %g s; streams resume", code, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, MOST_PAUSE_SECONDS)


def _arguments(config: Config, where: Listen, upstream: Listen, descriptor: int) -> Iterator[str]:
    yield from (f"--listen={where}", f"--fd={descriptor}", f"--upstream={upstream}", "--until-eof")
    yield f"--log-level={config.log_level}"
    yield from (f"--allow-host={host}" for host in config.http.allow_hosts)
    yield from (f"--allow-origin={origin}" for origin in config.http.allow_origins)
    if thread := config.http.new_thread:
        yield f"--new-thread={_conversation(thread)}"
    if listener := config.encrypted:
        yield from (f"--tls-certificate={listener.certificate}", f"--tls-key={listener.key}")
        if listener.client_ca:
            yield f"--client-ca={listener.client_ca}"
    if config.behind_proxy:
        yield "--insecure-behind-proxy"


def _conversation(thread: NewThread) -> str:
    fields = {"workingDirectory": thread.working_directory, "mode": f"MODE_{thread.mode.name}"}
    if thread.model:
        fields["model"] = f"models/{thread.model}"
    if thread.approval_policy:
        fields["approvalPolicy"] = f"APPROVAL_POLICY_{thread.approval_policy.name}"
    return msgspec.json.encode(fields).decode()


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(PASSED_ON)}
