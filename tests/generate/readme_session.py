"""Write docs/session.svg, the session that README.md shows, from a chat at a terminal: `make readme-session`.

`make run` is played in a new home, in a folder with one file, and the final screen is drawn cell by cell. What differs
from run to run is replaced: the slug, the folder, durations and the share of the context.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from tests.documents.pages import ROOT
from tests.support.terminals import Cell, Terminal

TARGET = ROOT / "docs" / "session.svg"
FILE = "notes.txt"
COLUMNS, LINES = 100, 40
CELL_WIDTH, LINE_HEIGHT, MARGIN = 8, 18, 16
"""In pixels."""

_MASKS = (
    (r"\b[a-z]+-[a-z]+-[a-km-np-z2-9]{4}\b", "calm-brook-7xk2"),
    (r"/\S*/project\b", "/home/ada/project"),
    (r"\b\d+\.\d s\b", "0.1 s"),
    (r"(└ \w+) *$", r"\1, 0.1 s"),  # no duration is shown of what took less than a millisecond
    (r"\b\d+ process(es)? ended in \d+ ms", "1 process ended in 4 ms"),
    (r"context \d+%", "context 6%"),
)
_COLOURS = {
    "default": "#d4d4d4",
    "red": "#f48771",
    "green": "#89d185",
    "brown": "#e5c07b",
    "blue": "#6cb6ff",
    "magenta": "#d2a8ff",
    "cyan": "#56d4dd",
}
"""Of the terminal's names; every other colour is drawn as grey."""
_GREY = "#8b949e"


class Run(NamedTuple):
    """Adjacent cells of a line that look alike."""

    column: int
    text: str
    colour: str
    bold: bool


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a fresh clone: no server, no key, no setting."""
    search = os.pathsep.join([str(ROOT), str(ROOT / "clients")])
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    alone = {"BEDROCK_ADDRESS": "127.0.0.1:1", "BEDROCK_LISTEN": "127.0.0.1:0"}  # finds no other server of this machine
    return {"PATH": programs, "HOME": str(home), "PYTHONPATH": search, "LANG": "C.UTF-8", **alone}


def session() -> str:
    """Play the session and return it as SVG."""
    with tempfile.TemporaryDirectory(prefix="b-") as folder:  # a path that fits into one line
        home, work = Path(folder, "home"), Path(folder, "project")
        home.mkdir()
        work.mkdir()
        (work / FILE).write_text("buy milk\n", encoding="utf-8")
        environ = {**environment(home), "NO_COLOR": "", "TERM": "xterm-256color"}
        with Terminal(
            "chat", "--spawn", environ=environ, columns=COLUMNS, rows=LINES, cwd=work, inherit=False
        ) as terminal:
            _play(terminal)
            cells = terminal.cells
            terminal.keys("/quit\r")
            assert terminal.ends() == 0
    return drawn([list(runs(line)) for line in cells])


def _play(terminal: Terminal) -> None:
    """Ask for what the mode forbids, allow it, then cancel a command that runs."""
    terminal.until(_at_rest)
    terminal.keys("write todo.txt\r")
    terminal.until(lambda screen: any("[y]es" in line for line in screen))
    terminal.keys("y\r")
    terminal.until(lambda screen: any("Type help" in line for line in screen) and _at_rest(screen))
    terminal.keys("sleep 25\r")
    terminal.until(lambda screen: any("bash 1/1" in line for line in screen))
    terminal.keys("\x1b")
    terminal.until(lambda screen: any("ended in" in line for line in screen) and _at_rest(screen))


def _at_rest(screen: Sequence[str]) -> bool:
    return any(line.startswith("idle · ") for line in screen)


def runs(line: Sequence[Cell]) -> Iterator[Run]:
    """Split a line into runs, with what differs from session to session replaced."""
    column = 0
    for (colour, bold), group in groupby(line, key=lambda cell: (cell.fg, cell.bold)):
        text = "".join(cell.data for cell in group)
        for pattern, mask in _MASKS:
            text = re.sub(pattern, mask, text)
        if text.strip():
            yield Run(column, text.rstrip(), _COLOURS.get(colour, _GREY), bold)
        column += len(text)


def drawn(lines: Sequence[Sequence[Run]]) -> str:
    """Draw lines of runs as SVG; the text stays text, which can be searched and read aloud."""
    while lines and not lines[-1]:
        lines = lines[:-1]
    width, height = COLUMNS * CELL_WIDTH + 2 * MARGIN, len(lines) * LINE_HEIGHT + 2 * MARGIN
    return "".join((
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n',
        "<title>A chat at a terminal: a question, an approval, a cancel</title>\n",
        f'<rect width="{width}" height="{height}" rx="8" fill="#1e1e1e"/>\n',
        '<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13" xml:space="preserve">\n',
        *_texts(lines),
        "</g>\n</svg>\n",
    ))  # fmt: skip


def _texts(lines: Iterable[Iterable[Run]]) -> Iterator[str]:
    for number, line in enumerate(lines):
        y = MARGIN + number * LINE_HEIGHT + 13
        for run in line:
            lead = len(run.text) - len(run.text.lstrip())
            text = run.text[lead:]
            x = MARGIN + (run.column + lead) * CELL_WIDTH
            weight = ' font-weight="bold"' if run.bold else ""
            yield f'<text x="{x}" y="{y}" textLength="{len(text) * CELL_WIDTH}" fill="{run.colour}"{weight}>'
            yield f"{escape(text)}</text>\n"


if __name__ == "__main__":
    TARGET.write_text(session(), encoding="utf-8")
