"""Real processes for the measurements: a provider, a server, and channels to it."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.figures import ROOT


@dataclass
class RunningServer:
    """A running server."""

    process: subprocess.Popen[str]
    address: str
    data: Path
    ready_seconds: float

    @property
    def token(self) -> str:
        return (self.data / "token").read_text().strip()

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"),)


@contextlib.contextmanager
def provider(
    pause: float = 0.0, flood: int = 0, *, first: float = 0.0, plain: bool = False, tls: Path | None = None
) -> Iterator[str]:
    """A model provider; yields its base URL. `flood`: its answers have no end, and so many pieces a second.

    `tls`: the file of the certificate and its key with which it serves over TLS.
    """
    command = [sys.executable, "-m", "tests.bench.provider", "--pause", str(pause), "--flood", str(flood)]
    command += ["--first", str(first)]
    command += ["--plain"] if plain else []
    command += ["--tls", str(tls)] if tls else []
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http{'s' if tls else ''}://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


@contextlib.contextmanager
def running_server(
    base_url: str = "",
    data: Path | None = None,
    module: str = "server",
    *,
    listen: str = "127.0.0.1:0",
    open_files: int = 0,
    **settings: str,
) -> Iterator[RunningServer]:
    """A server over `data`, or over a fresh data directory; asked to stop at the end.

    `module`: the program that serves; `open_files`: how many it may have open, 0: as many as this process; `settings`:
    variables for it.
    """
    with tempfile.TemporaryDirectory(prefix="bedrock-bench-") as folder:
        data = data or Path(folder) / "data"
        models = {"ANTHROPIC_API_KEY": "bench", "ANTHROPIC_BASE_URL": base_url} if base_url else {}
        environment = {**clean_environment(), **models, **settings, "BEDROCK_DATA_DIR": str(data)}
        began = time.perf_counter()
        process = subprocess.Popen(
            [*_limited(open_files), sys.executable, "-m", module, "--listen", listen],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "ready" in line, "the server did not start"
            took = time.perf_counter() - began
            address = line.partition(" and ")[2].partition(" (data ")[0]
            yield RunningServer(process, address, data, took)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
            assert process.stdout is not None
            process.stdout.close()


def _limited(open_files: int) -> list[str]:
    return ["sh", "-c", f'ulimit -n {open_files} && exec "$@"', "sh"] if open_files else []


def clean_environment() -> dict[str, str]:
    """Return what a process needs to run from this checkout."""
    kept = ("PATH", "HOME", "LANG", "TMPDIR")
    paths = os.pathsep.join([str(ROOT), str(ROOT / "clients")])
    return {name: os.environ[name] for name in kept if name in os.environ} | {"PYTHONPATH": paths}
