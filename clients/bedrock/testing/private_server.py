"""A server process for tests, with its own data directory, token, socket and model provider."""

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
    """A server with a Unix socket and no port, and its model provider. Both run while the ``with`` block does."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        """`arguments` are for ``bedrock serve``; `environment` adds variables."""
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
        return self._folder / "data"

    @property
    def address(self) -> str:
        """The address for clients, a Unix socket; unchanged by restarts. Empty before the first start."""
        return "" if self._process is None else self._process.address

    @property
    def token(self) -> str:
        """The bearer token that every call to the server must carry."""
        return (self.data / TOKEN_FILE).read_text().strip()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.alive else None

    @property
    def crashed(self) -> bool:
        """Whether the server has ended without being stopped."""
        return self.pid is None and not self._ended_by_test

    def start(self) -> None:
        """Start the server with the data that it had before. Raises CommandError if it cannot start."""
        self.stop()
        self._ended_by_test = False
        self._process = SpawnedServer(*self._arguments, environment=self._environment(), until_eof=True)
        self._process.__enter__()

    def stop(self) -> None:
        """Stop the server in an orderly way and wait for its exit. Running work is interrupted."""
        self._ended_by_test = True
        if self._process is not None:
            self._process.stop()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
        self.stop()

    def restart(self) -> None:
        """Stop the server and start it again; clients find it at the same address."""
        self.stop()
        self.start()

    def client(self) -> Client:
        """A new client of the server. The caller must close the client."""
        return Client(self.address, token=self.token, timeout=PATIENCE)

    def async_client(self) -> AsyncClient:
        """A new asyncio client of the server. The caller must close the client."""
        return AsyncClient(self.address, token=self.token, timeout=PATIENCE)

    def log(self) -> str:
        """The server's log since its start: warnings and errors."""
        return "" if self._process is None else self._process.log()

    def tool_processes(self) -> list[int]:
        """The ids of all processes that the server's tools have started, directly or indirectly."""
        return [pid for pid in processes.running(self._marker) if pid != self.pid]

    def _environment(self) -> dict[str, str]:
        return {
            **{name: os.environ[name] for name in _INHERITED if name in os.environ},
            "HOME": str(self._folder),
            "BEDROCK_DATA_DIR": str(self.data),
            "ANTHROPIC_API_KEY": "the-scripted-model-needs-none",
            "ANTHROPIC_BASE_URL": self.provider.url,
            "BEDROCK_SMALL_MODEL": "none",  # no side queries, such as for titles, because no script expects them
            "LC_BEDROCK_TEST": self._marker,  # the server passes LC_… on to tools, so this marks their processes
            **self._more,
        }
