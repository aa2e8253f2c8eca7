"""Starts a server as a child process, which ends when it is no longer used."""

from __future__ import annotations

import os
import re
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import IO, Self

from bedrock import Client
from bedrock._shared.settings import no_listener_error, resolve
from bedrock.cli import exit_codes as exits
from bedrock.errors import BedrockError, Misconfigured, PermissionDenied, ServerUnreachable, Unauthenticated

# Maximum seconds until a started server is ready.
START_SECONDS = 60.0
# Maximum seconds for a graceful shutdown of the server, which is killed after that.
STOP_SECONDS = 20.0
# Seconds to wait for a server that cannot be reached, for example because it is starting or stopping.
UNREACHABLE_SECONDS = 10.0
# Seconds that running work may continue while the server shuts down.
DRAIN_SECONDS = 1

_READY = re.compile(rb"\bready on (\S+)")
_GOES_ON = re.compile(rb"\bgoes on\b")


def server_answers(address: str | None) -> bool:
    """Whether a Bedrock server answers, even if it refuses the token.

    Raises Misconfigured; or ServerUnreachable, because an unreachable server keeps other servers out of the data
    directory.
    """
    try:
        target = resolve(address).target
        if not _accepts_connections(target):
            if not address and isinstance(unreachable := no_listener_error(target), ServerUnreachable):
                raise unreachable
            return False
        with Client(address, timeout=3.0) as client:
            client.server_info()
    except (Unauthenticated, PermissionDenied):
        return True
    except (Misconfigured, ServerUnreachable):
        raise
    except BedrockError:
        return False
    return True


class SpawnedServer:
    """A server as a child process.

    The server notices from its standard input that the ``with`` block or this process has ended. Unless `until_eof` is
    set, it then keeps running while another client is connected or a run is open.
    """

    def __init__(self, *arguments: str, environment: Mapping[str, str] | None = None, until_eof: bool = False) -> None:
        """`arguments` are added to the server's command.

        If `environment` is None, the server inherits this process's.
        """
        self.address = ""
        self._until = "--until-eof" if until_eof else "--until-unused"
        self._arguments = arguments
        self._environment = os.environ if environment is None else environment
        self._child: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def log(self) -> str:
        if self._log is None or self._log.closed:
            return ""
        return os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size, 0).decode(errors="replace")

    def kill(self) -> None:
        """Kill the server, as in a crash. `stop` still has to be called, to release resources."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def stop(self) -> None:
        """Stop the server and wait until it has exited; idempotent."""
        if self._child is not None:
            self._child.terminate()
            self._ended(self._child)

    def leave(self) -> bool:
        """Wait until the server has exited, unless it keeps running. Return whether it keeps running. Idempotent.

        Close this process's clients first: the server would keep running for them.
        """
        child = self._child
        if child is None:
            return False
        assert child.stdin is not None  # noqa: S101 -- Popen was called with stdin=PIPE
        child.stdin.close()
        goes_on = self._said(child, _GOES_ON, STOP_SECONDS) is not None
        if goes_on:
            child.returncode = 0  # so that Popen does not warn about a process that outlives this one
        self._ended(child)
        return goes_on

    def _ended(self, child: subprocess.Popen[bytes]) -> None:
        self._child = None
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        for stream in (child.stdin, child.stdout, self._log):
            if stream is not None:
                stream.close()

    def _start(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- `_ended` closes the file
        command = [sys.executable, "-P", "-m", "server", self._until]  # -P: import nothing from the current directory
        command += ["--drain-seconds", str(DRAIN_SECONDS), "--log-level", "warning"]
        if not self._environment.get("BEDROCK_LISTEN"):
            command += ["--listen", "none"]  # the server listens only on the Unix socket in its data directory
        self._child = subprocess.Popen(
            [*command, *self._arguments],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # so that Ctrl-C reaches only this process
        )
        if (ready := self._said(self._child, _READY, START_SECONDS)) is None:
            raise exits.CommandError(
                f"the server could not be started: {self._last_words()}", exit_code=exits.UNREACHABLE
            )
        self.address = ready[1].decode()

    def _said(
        self, child: subprocess.Popen[bytes], pattern: re.Pattern[bytes], seconds: float
    ) -> re.Match[bytes] | None:
        """Wait until the server has printed a match for `pattern`; return None if it exits or time runs out first."""
        assert child.stdout is not None  # noqa: S101 -- Popen was called with stdout=PIPE
        said, deadline = b"", time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0 and selector.select(left):
                piece = os.read(child.stdout.fileno(), 4096)
                said += piece
                if found := pattern.search(said):
                    return found
                if not piece:
                    break
        return None

    def _last_words(self) -> str:
        lines = self.log().strip().splitlines()
        if any("No module named server" in line for line in lines):
            return "it is not installed here; from a checkout, run `pip install ./clients .`"
        return lines[-1].removeprefix("error: ") if lines else "it printed nothing"


def spawn_if_missing(
    address: str | None,
    enter: Callable[[SpawnedServer], object],
    starting: Callable[[], object],
    *,
    insist: bool = False,
) -> SpawnedServer | None:
    """Start a server if no address is given and this user has no server running. Return None if none was started.

    With `insist`, also start a server if nothing answers at a given address. `starting` is called before `enter`, which
    enters the server's context. Raises CommandError, or what `server_answers` raises.
    """
    if ((address or os.environ.get("BEDROCK_ADDRESS")) and not insist) or _runs(address):
        return None
    starting()
    server = SpawnedServer()
    try:
        enter(server)
    except exits.CommandError:
        if _runs(address):  # another terminal has started one meanwhile
            return None
        raise
    return server


def _runs(address: str | None) -> bool:
    """Whether a server answers, after waiting for one on this machine that is starting or stopping."""
    deadline = time.monotonic() + UNREACHABLE_SECONDS
    while True:
        try:
            return server_answers(address)
        except ServerUnreachable:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def _accepts_connections(target: str) -> bool:
    try:
        if target.startswith("unix:"):
            with socket.socket(socket.AF_UNIX) as unix:
                unix.connect(target.removeprefix("unix:").removeprefix("//"))
            return True
        host, _, port = target.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), timeout=3):
            return True
    except (OSError, ValueError):
        return False
