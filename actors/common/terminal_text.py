"""Renders program output that was written for a terminal as the text that the terminal would finally show.

Models are shown this text, without colours, hyperlinks and other escape sequences, and with only the last state of a
progress bar. There is no width: no line is wrapped, and sequences that address a place on the screen begin a new line
instead. Sequences that clear the screen have no effect, so that no text is lost. Other control characters are kept.
"""

from __future__ import annotations

import re
import unicodedata

# The number of lines above the last one that the cursor can reach, as on a screen.
ROWS = 100

# Only this many columns, at the end of a line, can be overwritten.
COLUMNS = 4096

# The column up to which the cursor can be moved beyond the end of a line.
RIGHT_EDGE = 200

_EFFECTIVE = "ABCDEFGHJKX`fsu"
_PARAMETERS, _BETWEEN = "[0-?]{0,256}", "[ -/]{0,256}"
_CONTROL = f"(?:\x1b\\[|\x9b)({_PARAMETERS}){_BETWEEN}"
_STRING = "\x1b[\\]PX^_][^\a\x0e\x1b\x9b\x9c\n]{0,8192}"
_STRING_END = "(?:\a|\x1b\\\\|\x9c)"

_SPECIAL = re.compile("[\a\x0e\x0f]+|\b+|\r+|\x1b|\x9b")
_SEQUENCE = re.compile(f"{_CONTROL}([@-~])|{_STRING}{_STRING_END}")
# Matches a control sequence (such as a colour) or string (such as a hyperlink) that has no effect on the text.
_WITHOUT_EFFECT = re.compile(f"{_CONTROL}(?![{_EFFECTIVE}])[@-~]|{_STRING}{_STRING_END}")
# Matches the beginning of an escape sequence.
_UNFINISHED = re.compile(f"\x1b{_BETWEEN}|{_CONTROL}|{_STRING}\x1b?")
_ESCAPE = re.compile(f"\x1b(?:{_BETWEEN}([0-~]))?|\x9b")
_ANY = re.compile(f"{_SEQUENCE.pattern}|{_ESCAPE.pattern}")


class TerminalText:
    """Renders output piece by piece, as it arrives. Not thread-safe."""

    def __init__(self) -> None:
        self._rows: list[str | list[str]] = [[]]
        """The last rows, each as text or as a list of columns. The second column of a wide character is ""."""
        self._row = self._column = 0
        self._saved = 0, 0
        self._pending = ""
        """An escape sequence that may not be complete yet."""
        self._passed: list[str] = []
        self.altered = False

    @property
    def live_text(self) -> str:
        """The text that may still change."""
        return "\n".join(map("".join, self._rows))

    def feed(self, text: str) -> str:
        """Render the next piece of the output; return the text that can no longer change."""
        self._render(self._pending + text)
        return self._drain()

    def finish(self) -> str:
        """Return all remaining text. An unfinished escape sequence at the end becomes text."""
        self._render(self._pending, last=True)
        self._pass(len(self._rows) - 1)
        self._passed.append(self.live_text)
        self._rows[:], self._column = [[]], 0
        return self._drain()

    def _drain(self) -> str:
        text = "".join(self._passed)
        self._passed.clear()
        return text

    def _render(self, text: str, *, last: bool = False) -> None:
        self._pending = ""
        text = text.replace("\r\n", "\n")
        self.altered = self.altered or _SPECIAL.search(text) is not None
        if "\x1b" in text:
            # A mark replaces each sequence without effect, so that the text around it does not form another sequence.
            marked = _WITHOUT_EFFECT.sub("\x0e", text)
            text = marked if "\x1b" in marked or "\x9b" in marked else re.sub("[\a\x0e\x0f]", "", marked)
        position = 0
        while found := _SPECIAL.search(text, position):
            self._write(text[position : found.start()])
            position = found.end()
            match found[0][0]:
                case "\r":
                    self._column = 0
                case "\b":
                    self._column = max(0, self._column - len(found[0]))
                case "\x1b" | "\x9b":
                    if (sequence := _SEQUENCE.match(text, found.start())) is not None:
                        self._control(sequence[2] or "", sequence[1] or "")
                    elif not last and _UNFINISHED.fullmatch(text, found.start()):
                        self._pending = text[found.start() :]
                        return
                    elif (sequence := _ESCAPE.match(text, found.start())) is not None:
                        self._escape(sequence[1] or "")
                    position = position if sequence is None else sequence.end()
                case _:
                    pass
        self._write(text[position:])

    # --- writing ------------------------------------------------------------------------------------------------------

    def _write(self, text: str) -> None:
        while text:
            line, newline, text = text.partition("\n")
            self._put(line)
            if newline:
                self._new_line()
            if newline and self._row == len(self._rows) - 1 and not self._rows[-1]:
                text = self._write_lines(text)

    def _write_lines(self, text: str) -> str:
        """Write whole lines below all others, which overwrites nothing; return the unfinished line at the end."""
        above, *lines = text.rsplit("\n", ROWS + 1)
        if len(lines) > ROWS:
            self._pass(len(self._rows) - 1)
            self._passed.append(f"{above}\n")
        else:
            lines.insert(0, above)
        for line in lines[:-1]:
            if len(line) <= COLUMNS // 2:
                self._rows[-1:] = [line, []]
                self._row += 1
            else:
                self._put(line)
                self._new_line()
        self._pass(len(self._rows) - 1 - ROWS)
        return lines[-1]

    def _put(self, text: str) -> None:
        row = self._cells()
        if text:
            self._column = _put_in(row, self._column, text)
        if len(row) > COLUMNS:
            self._pass(self._row)
            passed = (len(row) - 1) // COLUMNS * COLUMNS
            self._passed.append("".join(row[:passed]))
            del row[:passed]
            self._column -= passed

    def _cells(self) -> list[str]:
        row = self._rows[self._row]
        if isinstance(row, str):
            text, row = row, []
            _put_in(row, 0, text)
            self._rows[self._row] = row
        return row

    def _new_line(self) -> None:
        self._row, self._column = self._row + 1, 0
        if self._row == len(self._rows):
            self._rows.append([])
            self._pass(len(self._rows) - 1 - ROWS)

    def _pass(self, count: int) -> None:
        """Pass on the first rows, which the cursor can no longer reach."""
        if count > 0:
            self._passed += (f"{''.join(row)}\n" for row in self._rows[:count])
            del self._rows[:count]
            self._row -= count
            self._saved = max(0, self._saved[0] - count), self._saved[1]

    # --- moving -------------------------------------------------------------------------------------------------------

    def _control(self, final: str, parameters: str) -> None:
        """Carry out a control sequence; an unknown one has no effect."""
        first = parameters.partition(";")[0]
        if first and not first.isdecimal():
            return
        number = min(int(first or 0), COLUMNS)
        match final:
            case "J" | "K" | "X":
                self._erase(final, number)
            case "s" | "u":
                self._escape("7" if final == "s" else "8")
            case _:
                self._move(final, number or 1)

    def _move(self, final: str, count: int) -> None:
        width = max(len(self._cells()), RIGHT_EDGE)
        match final:
            case "A" | "F":
                self._row = max(0, self._row - count)
            case "B" | "E":
                self._row = min(self._row + count, len(self._rows) - 1)
            case "C":
                self._column = min(self._column + count, max(self._column, width))
            case "D":
                self._column = max(0, self._column - count)
            case "G" | "`":
                self._column = min(count - 1, width)
            case "H" | "f":
                self._row = len(self._rows) - 1
                if self._rows[-1]:
                    self._new_line()
            case _:
                pass
        if final in ("E", "F", "H", "f"):
            self._column = 0

    def _erase(self, final: str, number: int) -> None:
        row, column = self._cells(), self._column
        match final, number:
            case "J", 0:
                del row[column:], self._rows[self._row + 1 :]
            case "K", 0:
                del row[column:]
            case "K", 2:
                row.clear()
            case ("K", 1) | ("X", _):
                erased = slice(0, column + 1) if final == "K" else slice(column, column + (number or 1))
                row[erased] = " " * len(row[erased])
            case _:
                pass

    def _escape(self, final: str) -> None:
        """Carry out an escape sequence without parameters; an unknown one has no effect."""
        match final:
            case "7":
                self._saved = self._row, self._column
            case "8":
                self._row, self._column = min(self._saved[0], len(self._rows) - 1), self._saved[1]
            case "D" | "E":
                self._new_line()
            case "M":
                self._row = max(0, self._row - 1)
            case _:
                pass


def _put_in(row: list[str], column: int, text: str) -> int:
    """Overwrite a row with text, starting at a column; return the column after the text."""
    row += " " * (column - len(row))
    if text.isascii():
        row[column : column + len(text)] = text
        return column + len(text)
    for character in text:
        if column and unicodedata.category(character) in ("Mn", "Me", "Cf"):  # an accent or similar
            row[column - 1] += character
            continue
        cells = [character, ""] if unicodedata.east_asian_width(character) in "WF" else [character]
        row[column : column + len(cells)] = cells
        column += len(cells)
    return column


def rendered(text: str) -> str:
    """A whole text as a terminal would finally show it."""
    if _SPECIAL.search(text) is None:
        return text
    terminal = TerminalText()
    return terminal.feed(text) + terminal.finish()


def without_escapes(text: str) -> str:
    """Render text that contains escape sequences; return any other text unchanged.

    The result is never longer than the text: if rendering would make it longer, the sequences are only removed.
    """
    if "\x1b" not in text:
        return text
    shown = rendered(text)
    return shown if len(shown) <= len(text) else _ANY.sub("", text)
