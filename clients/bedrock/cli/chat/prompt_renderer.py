"""Renders a prompt at the bottom of the terminal, and prints lines above it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prompt_toolkit.renderer import Renderer

from bedrock.cli.text.resize import reflows, rows_taken
from bedrock.cli.text.safe_text import SafeText, without_colours
from bedrock.cli.text.style import cells

if TYPE_CHECKING:
    from prompt_toolkit.application import Application
    from prompt_toolkit.data_structures import Size
    from prompt_toolkit.layout import Layout
    from prompt_toolkit.output import Output
    from prompt_toolkit.styles import BaseStyle


class PromptRenderer(Renderer):
    """Draws a prompt, prints lines above it, and finds it again after the terminal was resized.

    Lines are printed with the terminal in raw mode, as part of drawing. `patch_stdout` of prompt_toolkit is no
    substitute: it leaves raw mode for each line, so that keys pressed in that time are echoed, and Enter, Ctrl-D and
    Ctrl-Z mean something else. It also erases as many rows as were drawn, which is too few if the terminal became
    narrower and rewrapped them: the rest would stay in the scrollback.
    """

    def __init__(self, style: BaseStyle, output: Output, *, reflow: bool | None = None) -> None:
        """Prepare. `reflow` tells whether the terminal rewraps lines when it is resized; None to detect that."""
        self._above: list[SafeText] = []
        self._reflow = reflows() if reflow is None else reflow
        super().__init__(style, output)

    def print_above(self, line: SafeText) -> None:
        """Queue a line to be printed at the next draw of the prompt."""
        self._above.append(line)

    def take_above(self) -> list[SafeText]:
        """Return the lines that wait to be printed, and empty the queue."""
        above, self._above = self._above, []
        return above

    def render(self, app: Application[Any], layout: Layout, is_done: bool = False) -> None:
        """Print the queued lines, and draw the prompt below."""
        size = self.output.get_size()
        if self._last_size is not None and self._last_size != size:  # the resize signal has not arrived yet
            self.erase()
        if self._above:
            self._print(self.take_above(), size)
        super().render(app, layout, is_done)

    def erase(self, leave_alternate_screen: bool = True) -> None:
        """Erase the prompt, including rows that the terminal has added by rewrapping lines."""
        self.output.cursor_up(self._rows_gained())
        super().erase(leave_alternate_screen)

    def _print(self, lines: list[SafeText], size: Size) -> None:
        """Erase the prompt and print lines there. Compute how many rows remain below: asking the terminal is slow."""
        drawn = self._last_screen.height if self._last_screen is not None else 0
        room = max(self._min_available_height, drawn) if self._min_available_height else 0
        self.erase()
        for line in lines:
            self.output.write_raw(f"{line}\r\n")
        taken = rows_taken((cells(without_colours(line).expandtabs(8)) for line in lines), size.columns)
        self._min_available_height = max(1, room - taken) if room else 0

    def _rows_gained(self) -> int:
        """Return how many rows above the cursor the terminal has added by rewrapping lines when it became narrower."""
        drawn, before, now = self._last_screen, self._last_size, self.output.get_size()
        if drawn is None or before is None or not self._reflow or now.columns >= before.columns:
            return 0
        rows = [drawn.data_buffer[y] for y in range(self._cursor_pos.y)]
        widths = (max((x + 1 for x, cell in row.items() if cell.char.strip()), default=0) for row in rows)
        return rows_taken(widths, now.columns) - len(rows) + self._cursor_pos.x // max(1, now.columns)
