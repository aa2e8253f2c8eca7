"""Standard streams that replace the control characters in text, except in `SafeText`, which is safe for a terminal."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

from bedrock.cli.text.safe_text import SafeText, for_pipe, for_terminal, without_reordering

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable


class SafeStream:
    """A text stream that writes `SafeText` unchanged and sanitizes other text, e.g. of click, warnings and tracebacks.

    Bytes written to its `buffer` are not sanitized: prompt_toolkit writes its control sequences there.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._make_safe = _for_terminal if stream.isatty() else for_pipe

    def write(self, text: str) -> int:
        """Write the sanitized text; return the length of the original."""
        if not isinstance(text, str):
            raise TypeError(f"a text is written, not {type(text).__name__}")
        self._stream.write(self._make_safe(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Sanitize and write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _for_terminal(text: str) -> SafeText:
    return without_reordering(for_terminal(text))


def install() -> None:
    """Make standard output and standard error sanitize what is written to them, until the process ends."""
    sys.stdout, sys.stderr = _safe(sys.stdout), _safe(sys.stderr)


@contextmanager
def safe_streams() -> Generator[None]:
    """Make standard output and standard error sanitize what is written to them, within the ``with`` block."""
    before = sys.stdout, sys.stderr
    install()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _safe(stream: TextIO) -> TextIO:
    return stream if isinstance(stream, SafeStream) else cast("TextIO", SafeStream(stream))
