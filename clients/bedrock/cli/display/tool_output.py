"""Prints the output of tool calls as it streams in, and how each call ended."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bedrock.cli.display.labels import counted, for_people
from bedrock.cli.display.tool_calls import telling
from bedrock.cli.text.diff import diff_lines, extent
from bedrock.cli.text.line_wrap import LineFlow
from bedrock.cli.text.safe_text import SafeText
from bedrock.messages import ToolCall, ToolResult

if TYPE_CHECKING:
    from bedrock.cli.text.output import Write
    from bedrock.cli.text.style import Paint, Width

#: How many of the last lines of a tool's output are shown: they usually contain the result.
OUTPUT_LINES = 12
#: The number of latest outputs that are kept in full, so that the user can ask to see them.
KEPT = 20

HOW_TO_SEE = "Ctrl-O or /output shows all"


@dataclass(frozen=True, slots=True)
class Output:
    """A tool call and its whole output."""

    call: ToolCall | None
    text: SafeText


class ToolOutput:
    """Prints the outputs of the tools of one conversation, one tool after the other."""

    def __init__(self, paint: Paint, write: Write, width: Width | None, hint: str = "") -> None:
        """Prepare to print the outputs of one conversation.

        Args:
            paint: How to colour lines.
            write: Prints a line.
            width: Returns the maximum columns of a line; None for no limit.
            hint: Text that tells the user how to see omitted lines; "" for no such text.
        """
        self._paint = paint
        self._write = write
        self._width = None if width is None else lambda: max(width() - len("  │ "), 1)
        self._hint = f" ({hint})" if hint else ""
        self._kept: deque[Output] = deque(maxlen=KEPT)
        self._begin()

    def _begin(self) -> None:
        self._flow = LineFlow(self._width, self._paint.clean)
        self._latest: deque[SafeText] = deque(maxlen=OUTPUT_LINES)
        self._count = 0

    def unfinished(self, room: int) -> list[SafeText]:
        """Return the end of the output of the tool call that still runs, in at most `room` lines."""
        lines = [*self._latest, *self._flow.tail]
        total = self._count + len(self._flow.tail)
        return self._end(lines, total, room if total <= room else room - 1)

    def feed(self, piece: str) -> None:
        """Add a piece of the output of the tool call that runs."""
        lines = self._flow.feed(piece)
        self._latest.extend(lines)
        self._count += len(lines)

    def result(self, result: ToolResult, call: ToolCall | None, *, known: bool = False) -> None:
        """Print how a call ended, and the end of its output.

        With `known`, the output is only the reason why the call was denied. It was printed before, and is not repeated.
        """
        diff = result.display.get("diff")
        text = self._with_streamed(self._paint.clean(for_people(result)))
        self._kept.append(Output(call, text))
        if isinstance(diff, str) and diff:
            for line in diff_lines(diff, self._paint):
                self._write(self._paint.text(self._paint.dim("  │"), " ", line))
        elif self._flow.text or not known:
            self._whole(text)
        self._begin()
        tool = call.tool if call else "tool"
        if result.outcome == "ok":
            changed = f", {extent(diff)}" if isinstance(diff, str) and diff else ""
            took = f", {result.duration.total_seconds():.1f} s" if result.duration else ""
            self._write(self._paint.dim(f"  └ {tool}{changed}{took}"))
        else:
            self._write(self._paint.careful(f"  └ {tool}: {result.outcome}"))

    def beginning(self, text: str) -> None:
        """Print the first lines of a text, and how many more lines there are."""
        lines = _lines(self._paint.clean(text))
        for line in lines[:OUTPUT_LINES]:
            self._write(self._paint.dim(f"  │ {line}"))
        if len(lines) > OUTPUT_LINES:
            self._write(self._paint.dim(f"  │ … {counted(len(lines) - OUTPUT_LINES, 'more line')}"))

    def all(self, number: int, running: ToolCall | None) -> list[SafeText]:
        """Return a tool call and its whole output, as lines: `number` 1 is the latest call, which may still run.

        The list is empty if there is no call with this number, or its output is no longer kept.
        """
        kept = [*self._kept, *([Output(running, self._paint.clean(self._flow.text))] if self._flow.text else [])]
        if not 1 <= number <= len(kept):
            return []
        found = kept[-number]
        paint, call = self._paint, found.call
        first, *rest = paint.clean(telling(call.input, paint.clean, call.raw_input)).lines() if call else [SafeText()]
        return [
            paint.text(paint.name(f"● {call.tool if call else 'tool'}"), " ", first),
            *(paint.text("    ", line) for line in rest),
            *(paint.dim(f"  │ {line}") for line in _lines(found.text)),
        ]

    def _whole(self, text: SafeText) -> None:
        lines = _lines(text)
        for line in self._end(lines, len(lines), OUTPUT_LINES):
            self._write(line)

    def _with_streamed(self, text: SafeText) -> SafeText:
        """Return the output `text` of an ended call, preceded by its streamed output if `text` does not contain that.

        The result of a cancelled call, for example, does not contain the streamed output.
        """
        streamed = _lines(self._paint.clean(self._flow.text))
        complete = not streamed or streamed[-1] in _lines(text)
        return text if complete else self._paint.text(*(f"{line}\n" for line in streamed), text)

    def _end(self, lines: list[SafeText], total: int, room: int) -> list[SafeText]:
        """Return the last `room` lines, below a line that says how many of all `total` lines are hidden."""
        shown = lines[-room:] if room > 0 else []
        hidden = total - len(shown)
        above = [f"  │ … {counted(hidden, 'line')} above{self._hint}"] if hidden > 0 else []
        return [self._paint.dim(line) for line in (*above, *(f"  │ {line}" for line in shown))]


def _lines(text: SafeText) -> list[SafeText]:
    return SafeText(text.rstrip("\n")).lines() if text else []
