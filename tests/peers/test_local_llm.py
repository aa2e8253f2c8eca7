"""`make local-llm`: everything that it starts ends with it."""

import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.peers import installed
from tests.support import processes
from tests.support.patience import eventually
from tests.support.server_process import clean_environment

SECONDS = 100.0


class Started:
    """`make local-llm` without a terminal and without make."""

    def __init__(self, folder: Path) -> None:
        self._marker = f"local-llm-{uuid.uuid4().hex}"
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.peers.local_llm", "--data-dir", str(folder / "data"), "-C", str(folder)],
                cwd=installed.ROOT,
                env=clean_environment(folder, LC_BEDROCK_E2E=self._marker),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def said(self) -> str:
        return self._log.read_text()

    def running(self) -> list[int]:
        """It, and all that it has started."""
        return processes.running(self._marker)

    def runs(self, module: str) -> bool:
        """Whether `python -m module` is among them."""
        for pid in self.running():
            with suppress(FileNotFoundError):  # it has ended meanwhile
                if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    return True
        return False


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    made = Started(tmp_path)
    yield made
    for pid in made.running():
        os.kill(pid, signal.SIGKILL)
    made.process.wait()


def test_without_a_terminal_one_conversation_is_played(started: Started) -> None:
    started.process.wait(SECONDS)
    assert started.process.returncode == 0, started.said
    assert "model smollm2" in started.said
    assert re.search(r'Completed\. To read it again: make local-llm ARGS="-r [a-z]+-[a-z]+-\w+"\n', started.said)
    assert "scripted demo model" not in started.said
    eventually(lambda: not started.running(), "nothing of it runs any more")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_the_model_does_not_outlive_who_started_it(how: signal.Signals, started: Started) -> None:
    eventually(lambda: started.runs("tests.peers.llama") and started.runs("server"), "model and server run")
    started.process.send_signal(how)
    eventually(lambda: not started.runs("tests.peers.llama"), "the model is gone")
    eventually(lambda: not started.running(), "nothing of it runs any more", SECONDS)
