"""A server process for tests: with data, a token, a socket and a provider of its own, and nothing of the machine's."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Self

from bedrock import AsyncClient, Client
from bedrock.cli.spawned_server import SpawnedServer
from bedrock.local_server import TOKEN_FILE
from bedrock.testing import processes
from bedrock.testing.model_server import ModelServer
from bedrock.testing.waiting import PATIENCE

_INHERITED = ("PATH", "PYTHONPATH", "LANG", "TMPDIR")


class PrivateServer:
    """A server and the provider of its model, for as long as the context is open.

    It has a Unix socket, no port, and ends with this process, however that ends.
    """

    def __init__(self, *arguments: str, **environment: str) -> None:
        """`arguments`: of ``bedrock serve``, such as ``"--config", path``. `environment`: variables besides ours."""
        self.provider = ModelServer()
        self._arguments = arguments
        self._more = environment
        self._marker = f"bedrock-test-{uuid.uuid4().hex}"
        self._folder = Path()
        self._process: SpawnedServer | None = None
        self._ended_by_test = False

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="bedrock-test-"))
        self.provider.__enter__()
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            try:
                self.provider.__exit__()
            finally:
                shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def data(self) -> Path:
        """The data directory."""
        return self._folder / "data"

    @property
    def address(self) -> str:
        """The address for clients: a Unix socket; the same after a restart. Empty before the first start."""
        return "" if self._process is None else self._process.address

    @property
    def token(self) -> str:
        """The token that every call must carry."""
        return (self.data / TOKEN_FILE).read_text().strip()

    @property
    def pid(self) -> int | None:
        """The process id; None while it does not run."""
        return self._process.pid if self._process is not None and self._process.alive else None

    @property
    def crashed(self) -> bool:
        """Whether it has ended although nobody asked it to."""
        return self.pid is None and not self._ended_by_test

    def start(self) -> None:
        """Start it, on the data that it had. Raises CommandError, which says why, if it cannot be started."""
        self.stop()
        self._ended_by_test = False
        self._process = SpawnedServer(*self._arguments, environment=self._environment())
        self._process.__enter__()

    def stop(self) -> None:
        """Let it shut down, and wait for that. What runs is interrupted."""
        self._ended_by_test = True
        if self._process is not None:
            self._process.stop()

    def kill(self) -> None:
        """End it as a crash does. `start` starts it again."""
        if self._process is not None:
            self._process.kill()
        self.stop()

    def restart(self) -> None:
        """Stop it and start it again; clients find it at the same address."""
        self.stop()
        self.start()

    def client(self) -> Client:
        """Return a new client of it; to be closed."""
        return Client(self.address, token=self.token, timeout=PATIENCE)

    def async_client(self) -> AsyncClient:
        """Return a new client of it for asyncio; to be closed."""
        return AsyncClient(self.address, token=self.token, timeout=PATIENCE)

    def log(self) -> str:
        """Return what it has logged since its start, warnings and worse."""
        return "" if self._process is None else self._process.log()

    def tool_processes(self) -> list[int]:
        """Return the processes of its tools, and of what they started."""
        return [pid for pid in processes.running(self._marker) if pid != self.pid]

    def _environment(self) -> dict[str, str]:
        return {
            **{name: os.environ[name] for name in _INHERITED if name in os.environ},
            "HOME": str(self._folder),
            "BEDROCK_DATA_DIR": str(self.data),
            "ANTHROPIC_API_KEY": "the-scripted-model-needs-none",
            "ANTHROPIC_BASE_URL": self.provider.url,
            "BEDROCK_SMALL_MODEL": "none",  # no requests besides those of conversations, such as for titles
            "LC_BEDROCK_TEST": self._marker,  # tools get variables of this name, so their processes have it as well
            **self._more,
        }
