"""Runs the server from its start to its graceful shutdown, and the HTTP gateway as a separate process next to it."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from bedrock._interrupts import end_at_once, ending_at_once
from bedrock.local_server import TOKEN_FILE, NotPrivateError, read_believed
from msgspec.structs import replace

from actors.common import machine
from actors.conversation.supervisor import Supervisor
from actors.ports import SandboxReport, StoreError
from actors.ports.telemetry import Telemetry
from server import operating_system
from server.app.adapter_choice import CannotStartError, server_credentials
from server.app.sandbox_choice import sandbox_line
from server.app.wiring import Wiring, wire
from server.auth.tokens import TokenUnusableError
from server.local_endpoint import published
from server.operating_system import CannotListenError, bound, spare_what_stays
from server.services.grpc_server import GrpcServer, max_connections
from server.settings.config import Config, shown_database
from server.settings.setting_values import Listen, Listener
from server.streams.base import WatchSettings

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Iterator, Mapping

    from server.settings.config import Config, NewThread


log = logging.getLogger(__name__)

CROWDED_SECONDS = 5.0
# Another warning is logged only after the number of open files has fallen below this share of the threshold.
CALM = 0.9


async def warn_when_crowded(connections: int, count: Callable[[], int] = machine.open_files) -> None:
    """Log a warning whenever as many files are open as an address accepts connections (`connections`)."""
    crowded = False
    while True:
        files = count()
        if files >= connections and not crowded:
            log.warning(
                "%d of %d allowed file descriptors are in use (ulimit -n); each address accepts %d connections "
                "and closes further ones immediately",
                files,
                machine.max_open_files(),
                connections,
            )
        crowded = files >= (connections * CALM if crowded else connections)
        await asyncio.sleep(CROWDED_SECONDS)


class Deadline:
    """Ends the process if the shutdown takes longer than a time limit; the end of the `with` block disarms it."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def set(self, seconds: float) -> None:
        """Start the time limit, `seconds` from now. Call this at most once."""
        self._timer = threading.Timer(seconds, _give_up, (seconds,))
        self._timer.daemon = True
        self._timer.start()

    def __enter__(self) -> Deadline:
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _give_up(seconds: float) -> None:
    log.error("shutdown took longer than %s s; exiting now (the next start recovers all conversations)", seconds)
    os._exit(1)


# A shutdown may take this many seconds. After that, the process exits anyway, and the next start recovers all
# conversations.
STOP_SECONDS = 15.0
# How many seconds the "ready" line waits for an earlier server's conversations to become idle.
WAKING_SECONDS = 30.0

GOES_ON = b"bedrock goes on\n"
LOOK_SECONDS = 0.1
LOOKS_BEFORE_GOING_ON = 10
LOOP_SECONDS = 0.5


def run(
    config: Config,
    announce: Callable[[str], None],
    *,
    report: Future[SandboxReport] | None = None,
    until_eof: bool = False,
    until_unused: bool = False,
) -> None:
    """Serve until a signal requests the shutdown; call `announce` with a line once the server is ready.

    `report` comes from `probing`; if None, probe now. With `until_eof`, the server also stops when its standard input
    ends, which means that the program that started it has ended. With `until_unused`, the server then waits until no
    client is connected and no run is open before it stops. Raises CannotStartError or ConfigError.
    """
    with Deadline() as deadline, ending_at_once(), wire(config, report) as wired:
        try:
            restored = wired.supervisor.start()
        except StoreError as error:
            text = f"the conversations in {config.data_dir} cannot be recovered: {error}"
            raise CannotStartError(text) from None
        wired.housekeeper.start()
        if restored:
            what = "conversation" if len(restored) == 1 else "conversations"
            log.info("recovered %d %s after a restart", len(restored), what)
        try:
            with asyncio.Runner() as runner:
                runner.run(_serve(config, wired, announce, deadline, until_eof=until_eof, until_unused=until_unused))
        finally:
            end_at_once()  # installed once more, because the event loop has reset SIGINT's handler to Python's default
    log.info("stopped")


async def _serve(
    config: Config,
    wired: Wiring,
    announce: Callable[[str], None],
    deadline: Deadline,
    *,
    until_eof: bool,
    until_unused: bool,
) -> None:
    stop, hurry, left = asyncio.Event(), asyncio.Event(), asyncio.Event()
    _on_signals(stop, hurry)
    if until_eof or until_unused:
        _on_eof(stop if until_eof else left)
    endpoint = GrpcServer(
        wired.services,
        wired.hub,
        wired.supervisor,
        wired.authentication,
        watching=WatchSettings(max_streams=config.max_streams),
        sqlite_version=wired.sqlite_version,
        reflection=config.reflection,
        behind_proxy=config.behind_proxy,
        reachable=config.reachable,
        access=wired.access,
        ends_when_unused=until_unused,
    )
    looking = [
        asyncio.create_task(_measure_loop(wired.services.telemetry)),
        asyncio.create_task(warn_when_crowded(max_connections())),
    ]
    gateway: HttpGateway | None = None
    try:
        where = _listen(endpoint, config, wired.socket)
        gateway = _gateway(config, wired, where[0].where)
        await endpoint.start()
        await asyncio.to_thread(wired.cluster.start)
        if not await asyncio.to_thread(wired.supervisor.wait_until_woken, WAKING_SECONDS):
            log.warning("the store is not responding; some of the previous run's conversations are not recovered yet")
        _tell_of(wired.services.sandbox.report, wired.exposed)
        with published(config.data_dir, Path(wired.socket.path), gateway.url if gateway else ""):
            if exposed := [each.target for each in where if each.insecure_behind_proxy and not each.where.local]:
                log.warning(
                    "insecure_behind_proxy: %s accepts calls without TLS; anyone on the network can read the tokens",
                    " and ".join(exposed),
                )
            announce(f"bedrock ready on {' and '.join(each.target for each in where)} ({_storage(config, gateway)})")
            if gateway is not None and gateway.link:
                announce(f"console: {gateway.link} (single use, valid for 1 minute; `bedrock console` opens a new one)")
            operating_system.notify(operating_system.READY)
            await asyncio.to_thread(_connect, wired)
            spare_what_stays()
            operating_system.trim()
            if until_unused:
                addresses = [each.where for each in where]
                used = partial(_is_used, wired.supervisor, addresses)
                looking.append(asyncio.create_task(_stop_unused(left, used, stop)))
            await stop.wait()
        log.info("stopping")
        operating_system.notify(operating_system.STOPPING)
    except (CannotListenError, TokenUnusableError) as error:
        raise CannotStartError(str(error)) from None
    finally:
        deadline.set(config.drain_seconds + STOP_SECONDS)
        for task in looking:
            task.cancel()
        await _stop(config, wired, endpoint, hurry)
        if gateway is not None:
            await gateway.close()


def _gateway(config: Config, wired: Wiring, upstream: Listen) -> HttpGateway | None:
    if not config.http_listen:
        return None
    token = _local_token(config) if os.isatty(1) else ""  # a sign-in link does not belong in a journal
    return HttpGateway(config, config.http_listen, upstream, wired.authentication.gateway_secret, token)


def _local_token(config: Config) -> str:
    try:
        return read_believed(config.data_dir / TOKEN_FILE, most=4096).decode().strip()
    except (OSError, NotPrivateError):
        return ""


def _storage(config: Config, gateway: HttpGateway | None) -> str:
    parts = [f"data {config.data_dir}"]
    if config.database:
        parts.append(f"database {shown_database(config.database)}")
    if config.cluster is not None:
        parts.append(f"node {config.cluster.name}")
    if gateway is not None:
        parts.append(gateway.url)
    return ", ".join(parts)


async def _measure_loop(telemetry: Telemetry) -> None:
    loop = asyncio.get_running_loop()
    while telemetry.measures:
        due = loop.time() + LOOP_SECONDS
        await asyncio.sleep(LOOP_SECONDS)
        telemetry.loop_delayed(loop.time() - due)


def _tell_of(report: SandboxReport, exposed: Sequence[str]) -> None:
    log.info("%s", sandbox_line(report))
    if report.restriction_available and not report.workspace_available:
        log.warning("workspace mode is unavailable on this machine: %s", report.workspace_reason)
    if report.separation_reason:
        log.warning("tools are disabled for principals: %s", report.separation_reason)
    if not report.hides_protected:
        log.warning("unrestricted tools can read the server's own files: mount namespaces are unavailable")
        return
    for path in exposed:
        log.warning(
            "%s is in a shared directory: if it is replaced while an unrestricted tool runs, the tool can read the new "
            "file; move it to a directory named bedrock, which is hidden entirely",
            path,
        )


def _connect(wired: Wiring) -> None:
    try:
        wired.connect()
    except (ImportError, OSError) as error:
        log.warning("MCP servers are unavailable: %s", error)


def _listen(endpoint: GrpcServer, config: Config, local: Listen) -> list[Listener]:
    """Listen on the configured addresses and the Unix socket. Return the listeners; the socket's comes first.

    The socket is bound last, so that no file remains if an address is in use. Raises CannotListenError or
    CannotStartError.
    """
    configured = [
        replace(each, where=endpoint.listen(each.where, server_credentials(each)))
        for each in config.listeners
        if each.where != local
    ]
    return [Listener(where=endpoint.listen(local)), *configured]


async def _stop(config: Config, wired: Wiring, endpoint: GrpcServer, hurry: asyncio.Event) -> None:
    """Shut down: refuse new work, let runs finish until the drain time ends or `hurry` is set, and interrupt the rest.

    Once no agent runs, other nodes may take over the conversations.
    """
    supervisor = wired.supervisor
    await endpoint.withdraw()
    # The threads of `asyncio.to_thread` may all be busy with calls that wait for a provider.
    with ThreadPoolExecutor(1, "bedrock-stop") as own:
        on_own_thread = partial(asyncio.get_running_loop().run_in_executor, own)
        await on_own_thread(_leave, wired.cluster.retire)
        stopped = on_own_thread(supervisor.stop, config.drain_seconds)
        hurried = asyncio.create_task(hurry.wait())
        await asyncio.wait((stopped, hurried), return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        supervisor.skip_drain()
        try:
            await stopped
            await on_own_thread(_leave, wired.cluster.drain)
        finally:
            await endpoint.stop()


def _leave(step: Callable[[], None]) -> None:
    """Run one step of leaving the cluster, and log a failure: others then take over when this node's lease ends."""
    try:
        step()
    except StoreError as error:
        log.warning("cannot release the conversations; other nodes take over when this node's lease expires: %s", error)


def _on_signals(stop: asyncio.Event, hurry: asyncio.Event) -> None:
    """Stop the server at the first SIGTERM, SIGINT or SIGHUP. A second SIGTERM or SIGINT ends the drain time."""

    def received() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, received)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup makes programs ignore SIGHUP
        loop.add_signal_handler(signal.SIGHUP, stop.set)  # a closed terminal may send SIGHUP more than once


def _is_used(supervisor: Supervisor, addresses: Sequence[Listen]) -> bool:
    return not supervisor.idle() or operating_system.connections(addresses) > 0


async def _stop_unused(left: asyncio.Event, used: Callable[[], bool], stop: asyncio.Event) -> None:
    """Once the starting program has `left`, stop as soon as the server is unused.

    If that takes a while, say so on stdout.
    """
    await left.wait()
    looks = 0
    while used():
        looks += 1
        if looks == LOOKS_BEFORE_GOING_ON:  # by now, the connections of the program that started this server are closed
            with suppress(OSError):  # the starting program has been killed
                os.write(1, GOES_ON)
        await asyncio.sleep(LOOK_SECONDS)
    stop.set()


def _on_eof(stop: asyncio.Event) -> None:
    """Set `stop` when standard input ends.

    Raises CannotStartError if standard input is not a pipe, socket or terminal.
    """
    loop = asyncio.get_running_loop()
    source = 0

    def readable() -> None:
        if not os.read(source, 4096):
            loop.remove_reader(source)
            stop.set()

    try:
        loop.add_reader(source, readable)
    except OSError:
        raise CannotStartError("--until-eof and --until-unused require standard input to be a pipe") from None


# Prefixes of the environment variables that are passed to the gateway. No such variable contains a provider's key.
PASSED_ON = ("HOME", "LANG", "LC_", "PATH", "PYTHON", "TMPDIR", "TZ", "VIRTUAL_ENV")
# The shortest and the longest pause before an exited gateway is restarted. Each failure doubles the pause.
LEAST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.1, 5.0
# If a gateway has run for this many seconds, it did not fail at its start: the next pause is the shortest one.
WELL_SECONDS = 30.0
GATEWAY_STOP_SECONDS = 5.0


class HttpGateway:
    """Runs a server's HTTP gateway in a child process. Use only on the event loop; `close` ends the child process.

    This process binds the socket, which outlives the child: while none is running, callers wait for the next one.
    """

    def __init__(self, config: Config, where: Listen, upstream: Listen, secret: str, token: str = "") -> None:
        """Bind the address. Raises CannotListenError, or ConfigError without the extra `http`.

        The server recognises the gateway by `secret`. `token` is for the browser that uses `link`; "" for no link.
        """
        config.check_extra("http_listen", "http", "starlette", "uvicorn")
        self._listening = bound(where, "--http", " for HTTP")
        where = Listen(where.host, self._listening.getsockname()[1])
        self.url = f"{'https' if config.encrypted else 'http'}://{where}"
        code = secrets.token_urlsafe(24) if token else ""
        self.link = f"{self.url}/#link={code}" if token else ""
        """A URL that signs a browser in, once, within a minute of the start."""
        self._secret, self._first_words = secret, f" {code} {token}" if token else ""
        arguments = _arguments(config, where, upstream, self._listening.fileno())
        self._command = (sys.executable, "-m", "server.gateway.command", *arguments)
        self._environment = _environment(os.environ)
        self._process: Process | None = None
        self._running = asyncio.create_task(self._run())

    async def close(self) -> None:
        """End the gateway's process once it has sent its responses, and free the address."""
        self._running.cancel()
        await asyncio.wait({self._running})
        if (process := self._process) is not None:
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), GATEWAY_STOP_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()
        self._listening.close()

    async def _run(self) -> None:
        loop, pause = asyncio.get_running_loop(), LEAST_PAUSE_SECONDS
        while True:
            began = loop.time()
            try:
                # The end of the pipe tells the gateway that this process has ended, for whatever reason.
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.DEVNULL,
                    pass_fds=(self._listening.fileno(),),
                    env=self._environment,
                )
            except OSError as error:  # no process, memory or file descriptor is left
                log.error("the HTTP gateway cannot be started (%s); retrying in %g s", error.strerror, pause)
            else:
                if self._process.stdin is not None:
                    self._process.stdin.write(f"{self._secret}{self._first_words}\n".encode())
                    self._first_words = ""
                code = await self._process.wait()
                pause = LEAST_PAUSE_SECONDS if loop.time() - began > WELL_SECONDS else pause
                log.warning(
                    "the HTTP gateway exited with code %d; restarting it in %g s (streams then resume)", code, pause
                )
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
