"""The program at a real (pseudo) terminal: keys in, screen out."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[3]
SECONDS = 30.0

#: Makes standard input the controlling terminal, so that Ctrl-C is a signal when it should be one.
AT_TERMINAL = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    "signal.signal(signal.SIGINT, signal.SIG_DFL);"  # whoever runs the tests in the background ignores it
    "os.execv(sys.argv[1], sys.argv[1:])"
)


class Terminal:
    """A program at a pseudo terminal."""

    def __init__(self, *arguments: str, environ: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, 100))
        search = os.pathsep.join([str(ROOT / "clients"), str(ROOT), *filter(None, sys.path)])
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-c", AT_TERMINAL, sys.executable, "-P", "-m", "bedrock.cli", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": search, "TERM": "xterm", "NO_COLOR": "1", **environ},
        )
        os.close(slave)
        self._seen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait(SECONDS)
        os.close(self._master)

    def shows(self, words: str) -> None:
        """Wait until something new on the screen has these words."""
        deadline = time.monotonic() + SECONDS
        while words not in (plain := re.sub(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|[=>])", "", self._seen)):
            left = deadline - time.monotonic()
            assert left > 0, f"{words!r} did not appear in {plain!r}"
            if select.select([self._master], [], [], left)[0]:
                self._seen += self._read()
        self._seen = ""

    def keys(self, text: str) -> None:
        os.write(self._master, text.encode())

    def ends(self) -> int:
        """Wait until the program has ended; returns its exit code."""
        deadline = time.monotonic() + SECONDS
        while self._child.poll() is None:
            assert time.monotonic() < deadline, f"still there: {self._seen!r}"
            if select.select([self._master], [], [], 0.1)[0]:
                self._seen += self._read()
        return self._child.returncode

    def _read(self) -> str:
        try:
            piece = os.read(self._master, 65536).decode(errors="replace")
        except OSError:  # how Linux says that nobody holds the other end any more
            return ""
        if "\x1b[6n" in piece:
            os.write(self._master, b"\x1b[1;1R")  # where the cursor is, as a terminal would say
        return piece
