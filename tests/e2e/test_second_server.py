"""A second server on the same data or the same port is refused in one line, and the first goes on."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.fake_provider import begins, finishes, says
from tests.support.patience import PATIENCE, only
from tests.support.server_process import ServerProcess, clean_environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.chat import Chat
    from tests.support.watcher import Watcher

pytestmark = pytest.mark.one_server("it is about one data directory")


def refused(folder: Path, data: Path, listen: str) -> tuple[int, str]:
    """Run a server that must not start; its exit code and what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "server", "--listen", listen],
        cwd=folder,
        env=clean_environment(folder, BEDROCK_DATA_DIR=str(data)),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, only(done.stderr.splitlines())


def test_a_second_server_is_refused_and_the_first_goes_on(
    server: ServerProcess, open_chat: Callable[..., Chat], watch: Callable[..., Watcher], tmp_path: Path
) -> None:
    chat = open_chat(begins("One, ", finishes("two.")), says("Three."))
    watcher = watch(chat.name)
    run = chat.send("Count.")
    watcher.until("text_delta")

    code, line = refused(tmp_path, server.data, "127.0.0.1:0")
    assert code == 1
    assert f"data directory {server.data} is in use by process {server.pid}" in line

    code, line = refused(tmp_path, tmp_path / "other", server.address)
    assert code == 1
    assert f"cannot listen on {server.address}: address already in use" in line

    chat.part.next().go.set()
    assert run.answer() == "One, two."
    assert watcher.code is None
    assert (server.data / "address").read_text().strip() == server.socket
    assert chat.ask("Go on.") == "Three."
