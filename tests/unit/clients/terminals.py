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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

import pyte

ROOT = Path(__file__).parents[3]
SECONDS = 30.0

#: Makes standard input the controlling terminal, so that Ctrl-C is a signal when it should be one.
AT_TERMINAL = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    "signal.signal(signal.SIGINT, signal.SIG_DFL);"  # whoever runs the tests in the background ignores it
    "os.execv(sys.argv[1], sys.argv[1:])"
)


class _Emulator(pyte.HistoryScreen):
    """What the program writes, as a person would see it. Answers where the cursor is."""

    def __init__(self, columns: int, rows: int, answer: Callable[[str], None]) -> None:
        super().__init__(columns, rows, history=10_000)
        self._answer = answer

    def write_process_input(self, data: str) -> None:
        self._answer(data)


class Terminal:
    """A program at a pseudo terminal, and the screen of it."""

    def __init__(
        self, *arguments: str, environ: dict[str, str], rows: int = 24, columns: int = 100, cwd: Path | None = None
    ) -> None:
        self.environ = environ
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (rows, columns))
        self._emulator = _Emulator(columns, rows, self.keys)
        self._stream = pyte.ByteStream(self._emulator)
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        search = os.pathsep.join([str(ROOT / "clients"), str(ROOT), *filter(None, sys.path)])
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-c", AT_TERMINAL, sys.executable, "-P", "-m", "bedrock.cli", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            cwd=cwd,
            env={**inherited, "PYTHONPATH": search, "TERM": "xterm", "NO_COLOR": "1", **environ},
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

    @property
    def rows(self) -> list[str]:
        """All lines, those that have scrolled away too, without what is empty at the end."""
        above = [_text(row, self._emulator.columns) for row in self._emulator.history.top]
        rows = [*above, *self.screen]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    @property
    def screen(self) -> list[str]:
        """What is on the screen now."""
        return [line.rstrip() for line in self._emulator.display]

    def colours(self, words: str) -> set[str]:
        """The colours, and "bold", of the last line that has these words."""
        every = [*self._emulator.history.top, *(self._emulator.buffer[row] for row in range(self._emulator.lines))]
        line = next(row for row in reversed(every) if words in _text(row, self._emulator.columns))
        at = _text(line, self._emulator.columns).index(words)
        cells = [line[column] for column in range(at, at + len(words))]
        return {cell.fg for cell in cells} | {"bold" for cell in cells if cell.bold}

    def shows(self, words: str) -> None:
        """Wait until these words have been written, behind those that were waited for before."""
        self._until(lambda: words in self._words(), repr(words))
        self._seen = self._words().partition(words)[2]

    def _words(self) -> str:
        """What was written and not waited for yet, without what moves the cursor or colours."""
        return re.sub(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|[=>])", "", self._seen)

    def until(self, holds: Callable[[list[str]], object]) -> None:
        """Wait until something holds for the screen."""
        self._until(lambda: holds(self.screen), "what was waited for")

    def wait(self, holds: Callable[[], object], what: str) -> None:
        """Wait until something holds that is not on the screen."""
        self._until(holds, what, step=0.05)

    def resize(self, columns: int, rows: int) -> None:
        """Give the terminal another size, and tell the program, as a window does."""
        self._emulator.resize(rows, columns)
        termios.tcsetwinsize(self._master, (rows, columns))

    def keys(self, text: str) -> None:
        os.write(self._master, text.encode())

    def ends(self) -> int:
        """Wait until the program has ended; returns its exit code."""
        deadline = time.monotonic() + SECONDS
        while self._child.poll() is None:
            assert time.monotonic() < deadline, f"still there: {self._seen!r}"
            self._read(0.1)
        while self._read(0):
            pass
        return self._child.returncode

    def _until(self, holds: Callable[[], object], what: str, step: float = SECONDS) -> None:
        deadline = time.monotonic() + SECONDS
        while not holds():
            left = deadline - time.monotonic()
            assert left > 0, f"{what} did not appear in {self._seen!r}; the screen is\n" + "\n".join(self.screen)
            self._read(min(left, step))

    def _read(self, seconds: float) -> bool:
        """Take what the program writes within that time; False if there is nothing."""
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            piece = os.read(self._master, 65536)
        except OSError:  # how Linux says that nobody holds the other end any more
            return False
        self._seen += piece.decode(errors="replace")
        self._stream.feed(piece)
        return bool(piece)


def _text(row: Mapping[int, pyte.screens.Char], columns: int) -> str:
    return "".join(row[column].data for column in range(columns)).rstrip()
