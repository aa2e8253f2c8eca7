"""`python -m server` as a process, and what a test wants to know of it."""

import json
import os
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import grpc
from bedrock import Client, v1

from tests.support import fork_server, processes
from tests.support.auditing import audit
from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[2]
API_KEY = "e2e-provider-key-0123456789abcdef"
"""What every server here shows its provider. It looks like no known kind of key, so nothing can tell by its form."""


def clean_environment(home: Path, **more: str) -> dict[str, str]:
    """What a process needs to run from this checkout, and nothing of the environment of the tests."""
    search = os.pathsep.join([str(ROOT), str(ROOT / "clients")])
    return {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": search, **more}


def tcp_address(ready: str) -> str:
    """Where a server says that it listens besides the socket of its data directory; the socket if nowhere."""
    return ready.partition(" ready on ")[2].partition(" (data ")[0].rpartition(" and ")[2]


class ServerProcess:
    """A running server. `stop`, or `kill` it; its folder can then be given to another one."""

    popen: ClassVar[type[subprocess.Popen[bytes]]] = subprocess.Popen
    """What starts its process."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        listen: str = "127.0.0.1:0",
        open_files: str = "",
        program: str = "server",
        within: str = "",
        **env: str,
    ) -> None:
        """`open_files`: its limit as `ulimit` takes it, e.g. "-n 256". `program`: the module that is run.

        `listen`: "" for what the settings file says. `within`: a command that runs the server; `env` if it must
        not be a fork.
        """
        self.folder = folder
        self.data = folder / "data"
        self.marker = f"e2e-{uuid.uuid4().hex}"
        """In the environment of the server and of all its tools."""
        self.foreseen = ""
        """What a test makes happen that the server takes for a fault: a part of its message in the log."""
        self._log = folder / f"{self.marker}.log"
        with self._log.open("wb") as log:
            self.process = self.popen(
                [
                    *within.split(),
                    *_limited(open_files),
                    sys.executable,
                    "-m",
                    program,
                    *(["--listen", listen] if listen else []),
                    *arguments,
                ],
                cwd=folder,
                env=clean_environment(
                    folder,
                    BEDROCK_DATA_DIR=str(self.data),
                    LC_BEDROCK_E2E=self.marker,
                    **({"BEDROCK_DRAIN_SECONDS": "1"} | env),
                ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        try:
            self.ready = self._await_ready()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            assert self.process.stdout is not None
            self.process.stdout.close()
        self.address = tcp_address(self.ready)
        self.socket = (self.data / "address").read_text().strip()
        self.token = (self.data / "token").read_text().strip()
        self.metadata = (("authorization", f"Bearer {self.token}"),)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def pids(self) -> set[int]:
        """The processes that serve calls, without hosts and tools."""
        return {self.pid}

    def _await_ready(self) -> str:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        line = self.process.stdout.readline() if ready else b""
        assert b"ready on" in line, f"the server did not start: {self.log_text()}"
        return line.decode()

    @property
    def way(self) -> dict[str, str]:
        """The variables that lead the program here."""
        return {"BEDROCK_ADDRESS": self.address, "BEDROCK_TOKEN": self.token}

    def client(self, address: str = "") -> Client:
        """A client of this server; to be closed."""
        return Client(address or self.address, token=self.token, timeout=PATIENCE)

    def channel(self) -> grpc.Channel:
        """A channel with a connection of its own; to be closed."""
        return grpc.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)])

    def log_text(self) -> str:
        return self._log.read_text()

    def faults(self) -> list[dict[str, Any]]:
        """What the log says that went wrong inside."""
        lines = [json.loads(line) for line in self.log_text().splitlines()]
        faults = [line for line in lines if line["level"] in {"error", "critical"} or "stack" in line]
        return [line for line in faults if not (self.foreseen and self.foreseen in line["message"])]

    def running(self) -> list[int]:
        """Processes that are left of this server: itself, tool hosts, tools."""
        return processes.running(self.marker)

    def stop(self) -> int:
        """Ask it to end; returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def dispose(self) -> None:
        """End it, whatever it takes, and its tools."""
        if self.process.poll() is None:
            self.kill()
        for pid in self.running():
            with suppress(ProcessLookupError):  # it was about to end
                os.kill(pid, signal.SIGKILL)


def _limited(open_files: str) -> list[str]:
    return ["sh", "-c", f'ulimit {open_files} && exec "$@"', "sh"] if open_files else []


class Servers:
    """Starts servers, and looks at each of them at the end: what it tells of its conversations agrees, it stops when
    asked to, and nothing went wrong inside."""

    usual: ClassVar[Callable[..., ServerProcess]] = ServerProcess
    """What starts them, if it is not said."""

    def __init__(self, start: Callable[..., ServerProcess] | None = None) -> None:
        self._servers: list[ServerProcess] = []
        self._start = start or Servers.usual

    def __call__(self, folder: Path, *arguments: str, **options: str) -> ServerProcess:
        server = self._start(folder, *arguments, **options)
        self._servers.append(server)
        return server

    def close(self) -> None:
        """Stop those that still run."""
        try:
            for server in self._servers:
                if server.process.poll() is None:
                    audit(server)
            codes = [server.stop() for server in self._servers if server.process.poll() is None]
            assert codes == [0] * len(codes), "a server did not stop as it should"
            faults = [fault for server in self._servers for fault in server.faults()]
            assert not faults, faults
        finally:
            for server in self._servers:
                server.dispose()


def provider(url: str) -> dict[str, str]:
    """The settings that make a fake provider that of a server, and its models the default."""
    return {"ANTHROPIC_API_KEY": API_KEY, "ANTHROPIC_BASE_URL": url}


def texts(messages: Sequence[v1.Message]) -> list[str]:
    """The plain text of each message."""
    return ["".join(block.text for block in message.content) for message in messages]


def token(config: Path, data: Path, *arguments: str, **env: str) -> str:
    """What `bedrock token` prints, with this configuration and data directory. It must end well."""
    done = bedrock(config.parent, "token", *arguments, f"--config={config}", f"--data-dir={data}", **env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


BEDROCK = (sys.executable, "-P", "-m", "bedrock.cli")


def bedrock(
    folder: Path, *arguments: str | Path, program: Sequence[str] = BEDROCK, stdin: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    """How the program ends that is run in a folder, its home, and what it prints."""
    command = [*program, *map(str, arguments)]
    pipe = subprocess.PIPE
    with fork_server.Popen(
        command, cwd=folder, env=clean_environment(folder, **env), stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        try:
            output, errors = process.communicate(stdin, PATIENCE)
        finally:
            process.kill()
    assert "Traceback" not in errors
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def http_url(server: ServerProcess) -> str:
    """Where a server that was started with --http says that its gateway is."""
    return server.ready.strip().rpartition(", ")[2].removesuffix(")")
