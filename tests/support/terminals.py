"""The program at a real (pseudo) terminal: keys in, screen out."""

import codecs
import os
import pty
import re
import select
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeAlias

import pyte

from tests.support import fork_server
from tests.support.processes import asleep

ROOT = Path(__file__).parents[2]
SECONDS = 60.0
DRAWING, DRAWN = b"\x1b[?25l", b"\x1b[?25h"
"""What is written around each drawing of a prompt: the cursor is hidden, and shown again."""

# Makes standard input the controlling terminal, so that Ctrl-C is a signal when it should be one.
AT_TERMINAL = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    "signal.signal(signal.SIGINT, signal.SIG_DFL);"  # a background process inherits that it is ignored
    "os.execv(sys.argv[1], sys.argv[1:])"
)


OWN = re.compile(f"COLUMNS$|LINES$|{fork_server.AT_START.pattern}")
"""Variables that a program gets from its test only."""

Cell: TypeAlias = pyte.screens.Char
_Row: TypeAlias = pyte.screens.StaticDefaultDict[int, Cell]


class _Emulator(pyte.HistoryScreen):
    """What the program writes, as a person would see it. Answers where the cursor is.

    With `reflow` it wraps lines again when it becomes narrower, as most terminals do: tmux, VTE, kitty, …; else it cuts
    them off, as xterm does. If it becomes lower, rows beneath the cursor go first, then upper ones are scrolled away.
    """

    def __init__(self, columns: int, rows: int, answer: Callable[[str], None], *, reflow: bool) -> None:
        self._answer = answer
        self._reflow = reflow
        super().__init__(columns, rows, history=10_000)

    def write_process_input(self, data: str) -> None:
        self._answer(data)

    def resize(self, lines: int | None = None, columns: int | None = None) -> None:
        lines, columns = lines or self.lines, columns or self.columns
        rows, cursor = self._broken(columns if self._reflow else max(columns, self.columns))
        while len(rows) > lines and len(rows) - 1 > cursor[0]:
            rows.pop()
        away = max(0, len(rows) - lines)
        self.history.top.extend(rows[:away])
        self.lines, self.columns = lines, columns
        self.buffer.clear()
        for y, row in enumerate(rows[away:]):
            self.buffer[y].update({x: cell for x, cell in row.items() if x < columns})
        self.cursor.y, self.cursor.x = cursor[0] - away, min(cursor[1], columns - 1)
        self.set_margins()

    def _broken(self, columns: int) -> tuple[list[_Row], tuple[int, int]]:
        """The rows of the screen, each broken to so many columns, and where the cursor is then."""
        used = max([self.cursor.y, *(y for y, row in self.buffer.items() if _text(row, self.columns))])
        rows: list[_Row] = []
        cursor = (0, 0)
        for y in range(used + 1):
            row, begin = self.buffer[y], len(rows)
            last = max([0, *(x for x in range(self.columns) if row[x].data.strip())])
            if y == self.cursor.y:
                last = max(last, self.cursor.x)
                cursor = (begin + self.cursor.x // columns, self.cursor.x % columns)
            for at in range(0, last + 1, columns):
                rows.append(_Row(self.default_char))
                rows[-1].update({x: row[at + x] for x in range(columns)})
        return rows, cursor


class Terminal:
    """A program at a pseudo terminal, and the screen of it."""

    def __init__(
        self,
        *arguments: str,
        environ: dict[str, str],
        rows: int = 24,
        columns: int = 100,
        cwd: Path | None = None,
        reflow: bool = False,
        inherit: bool = True,
        command: Sequence[str] = (sys.executable, "-P", "-m", "bedrock.cli"),
    ) -> None:
        """Start a program, ours if no `command` is given, at a terminal that breaks lines again if `reflow`.

        Without `inherit` it sees the variables of `environ` only.
        """
        self.environ = environ
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (rows, columns))
        self._emulator = _Emulator(columns, rows, self.keys, reflow=reflow)
        self._stream = pyte.ByteStream(self._emulator)
        inherited = {name: value for name, value in os.environ.items() if inherit and not OWN.match(name)}
        kind = {"VTE_VERSION": "7000"} if reflow else {}
        search = os.pathsep.join([str(ROOT / "clients"), str(ROOT), *filter(None, sys.path)])
        env = {**inherited, **kind, "PYTHONPATH": search, "TERM": "xterm", "NO_COLOR": "1", **environ}
        program = [*command, *arguments]
        if not fork_server.can_fork(program, env):
            program = [sys.executable, "-P", "-c", AT_TERMINAL, *program]
        self._child = fork_server.Popen(
            program, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, cwd=cwd, env=env
        )
        os.close(slave)
        self._seen = ""
        self._unshown = b""
        """What was read and is not on the screen yet."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait(SECONDS)
        if self._master >= 0:
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
    def cells(self) -> list[list[Cell]]:
        """Return all lines as cells with their colours, those that have scrolled away too."""
        every = [*self._emulator.history.top, *(self._emulator.buffer[row] for row in range(self._emulator.lines))]
        return [[row[column] for column in range(self._emulator.columns)] for row in every]

    @property
    def screen(self) -> list[str]:
        """What is on the screen now."""
        return [line.rstrip() for line in self._emulator.display]

    def colours(self, words: str) -> set[str]:
        """The colours, and "bold", of the last line that has these words."""
        line = next(row for row in reversed(self.cells) if words in "".join(cell.data for cell in row))
        at = "".join(cell.data for cell in line).index(words)
        cells = line[at : at + len(words)]
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

    def idles(self) -> None:
        """Wait until the status line says so; of one that changes, only the characters that differ are written."""
        self.until(lambda screen: any(row.startswith("idle ·") for row in screen))

    def wait(self, holds: Callable[[], object], what: str) -> None:
        """Wait until something holds that is not on the screen."""
        self._until(holds, what, step=0.05)

    def settle(self) -> None:
        """Wait until a prompt has just drawn itself, and draws again only at its next tick.

        What it draws for one size must not be read at another.
        """
        self.wait(lambda: not self._read(0) and asleep(self.pid), "all threads sleep")
        assert self._read(SECONDS), "the prompt does not tick"
        self.wait(lambda: not self._read(0) and asleep(self.pid) and not self._read(0), "all threads sleep again")

    def resize(self, columns: int, rows: int) -> None:
        """Give the terminal another size, and tell the program, as a window does."""
        termios.tcsetwinsize(self._master, (rows, columns))
        self._emulator.resize(rows, columns)

    @property
    def pid(self) -> int:
        return self._child.pid

    def hang_up(self) -> None:
        """Close the window: the other end of the terminal is closed."""
        os.close(self._master)
        self._master = -1

    def keys(self, text: str) -> None:
        self.send(text.encode())

    def send(self, keys: bytes) -> None:
        """Type bytes that need not be text."""
        os.write(self._master, keys)

    def ends(self) -> int:
        """Wait until the program has ended; returns its exit code."""
        deadline = time.monotonic() + SECONDS
        while self._child.poll() is None:
            assert time.monotonic() < deadline, f"still there: {self._seen!r}"
            time.sleep(0.01) if self._master < 0 else self._read(0.1)
        while self._master >= 0 and self._read(0):
            pass
        self._show(self._unshown)  # a drawing that the end has interrupted
        self._unshown = b""
        return self._child.returncode

    def _until(self, holds: Callable[[], object], what: str, step: float = SECONDS) -> None:
        deadline = time.monotonic() + SECONDS
        while not holds():
            left = deadline - time.monotonic()
            assert left > 0, f"{what} did not appear in {self._seen!r}; the screen is\n" + "\n".join(self.screen)
            self._read(min(left, step))

    def _read(self, seconds: float) -> bool:
        """Take what the program writes within that time, one drawing of the prompt at most; False if there is nothing.

        So a test sees each drawing, however many there were since it looked, and none that is half done.
        """
        if DRAWN not in self._unshown:
            if not select.select([self._master], [], [], seconds)[0]:
                return False
            try:
                piece = os.read(self._master, 65536)
            except OSError:  # how Linux says that the other end is closed
                return False
            self._unshown += piece
            if not piece:
                return False
        drawing, drawn, rest = self._unshown.partition(DRAWN)
        if drawn or DRAWING not in drawing:
            self._show(drawing + drawn)
            self._unshown = rest
        return True

    def _show(self, piece: bytes) -> None:
        self._seen += self._decoder.decode(piece)
        self._stream.feed(piece)


def _text(row: Mapping[int, pyte.screens.Char], columns: int) -> str:
    return "".join(row[column].data for column in range(columns)).rstrip()
