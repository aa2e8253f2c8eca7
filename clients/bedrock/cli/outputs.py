"""What a tool did, as lines: its output as it is written, and how it ended."""

from __future__ import annotations

from bedrock.cli.diffs import diff_lines, extent
from bedrock.cli.flow import LineFlow
from bedrock.cli.paint import Paint, Width
from bedrock.cli.text.output import Write
from bedrock.cli.text.safe_text import SafeText
from bedrock.cli.words import for_people
from bedrock.messages import ToolCall, ToolResult

#: Lines of a tool's output that are shown.
OUTPUT_LINES = 12


class ToolOutput:
    """Prints what the tools of one conversation print, one tool after the other."""

    def __init__(self, paint: Paint, write: Write, width: Width | None) -> None:
        """Prepare; long lines are broken to keep them within `width`, unless it is None."""
        self._paint = paint
        self._write = write
        self._width = None if width is None else lambda: max(width() - len("  │ "), 1)
        self._flow = LineFlow(self._width, paint.clean)
        self._lines = 0

    def feed(self, piece: str) -> None:
        """Print what a tool has just written."""
        for line in self._flow.feed(piece):
            self._line(line)

    def result(self, result: ToolResult, call: ToolCall | None) -> None:
        """Print how a call ended, and its output as far as that was not printed while it was written."""
        diff = result.display.get("diff")
        if isinstance(diff, str) and diff:
            for line in diff_lines(diff, self._paint):
                self._write(self._paint.text(self._paint.dim("  │"), " ", line))
        elif self._lines or self._flow.tail:
            self._rest(for_people(result))
        elif result.outcome != "denied":  # which was told, with the reason
            self.whole(for_people(result))
        self._flow, self._lines = LineFlow(self._width, self._paint.clean), 0
        tool = call.tool if call else "tool"
        if result.outcome == "ok":
            changed = f", {extent(diff)}" if isinstance(diff, str) and diff else ""
            took = f", {result.seconds:.1f} s" if result.seconds else ""
            self._write(self._paint.dim(f"  └ {tool}{changed}{took}"))
        else:
            self._write(self._paint.careful(f"  └ {tool}: {result.outcome}"))

    def whole(self, text: str) -> None:
        """Print the beginning of a text that was not shown while it was written."""
        lines = self._paint.clean(text.rstrip("\n")).lines() if text else []
        for line in lines[:OUTPUT_LINES]:
            self._write(self._paint.dim(f"  │ {line}"))
        if len(lines) > OUTPUT_LINES:
            self._write(self._paint.dim(f"  │ … {len(lines) - OUTPUT_LINES} more lines"))

    def _rest(self, output: str) -> None:
        last = output.rstrip("\n").rpartition("\n")[2]  # how it ended, which is not streamed
        streamed = self._flow.text.rstrip("\n").endswith(last)  # an empty one ends everything
        for line in self._flow.finish():
            self._line(line)
        if not streamed:
            self._write(self._paint.dim(f"  │ {last}"))

    def _line(self, line: SafeText) -> None:
        self._lines += 1
        if self._lines <= OUTPUT_LINES:
            self._write(self._paint.dim(f"  │ {line}"))
        elif self._lines == OUTPUT_LINES + 1:
            self._write(self._paint.dim("  │ …"))
