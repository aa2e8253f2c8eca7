"""The progress of a run, for a user who waits at a terminal for the answer: printed events and a status line."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self, TextIO

from bedrock.cli.display.connection_state import CONNECTED_AGAIN, TRYING_AGAIN, lost
from bedrock.cli.display.conversation_view import ConversationView
from bedrock.cli.display.transcript import Transcript
from bedrock.cli.text.live_block import LiveBlock
from bedrock.cli.text.style import Paint, columns

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import TracebackType

    from bedrock import Event
    from bedrock.conversations import ConversationInfo
    from bedrock.errors import BedrockError

#: Seconds between updates of the status line.
TICK = 0.5


class Progress:
    """Prints the events of a run except the answer. At a terminal, a status line is shown below until the end."""

    def __init__(self, stream: TextIO, *, quiet: bool, plain: bool = False) -> None:
        """Prepare to print to `stream`; nothing at all if `quiet`."""
        self._width = columns(stream) if os.environ.get("TERM") != "dumb" else None
        self._paint = Paint.for_stream(stream, plain=plain)
        self._view = ConversationView()
        self._block = LiveBlock(stream)
        self._transcript = Transcript(self._paint, self._block.write, width=self._width)
        self._quiet = quiet
        self._lost = False
        """Whether the connection is lost."""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._ticking = threading.Thread(target=self._tick, name="progress", daemon=True)

    def __enter__(self) -> Self:
        return self

    def begin(self, read: Callable[[], ConversationInfo]) -> None:
        """Show the status line if the stream is a terminal; `read` returns the conversation's current fields."""
        if self._width is not None and not self._quiet:
            self._view.know(read())
            self._ticking.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._ticking.is_alive():
            self._ticking.join()
        with self._lock:
            self._block.show(())

    def show(self, event: Event) -> None:
        """Print an event, unless the command itself prints its content at the end."""
        if self._quiet:
            return
        with self._lock:
            if self._lost:
                self._lost = False
                self._say(CONNECTED_AGAIN)
            self._view.observe(event, time.monotonic())
            if not _is_last_word(event):
                self._transcript.show(event)

    @contextmanager
    def paused(self) -> Generator[None]:
        """Hide the status line and print nothing within the ``with`` block, so that other code can use the terminal."""
        with self._lock:
            self._block.show(())
            yield

    def disconnected(self, error: BedrockError, delay: float) -> None:
        """Record that the connection is lost; the next event shows that it is back."""
        if self._quiet or self._lost:
            return
        with self._lock:
            self._lost = True
            self._say(lost(error))

    def _say(self, text: str) -> None:
        self._block.write(self._paint.careful(f"· {text}"))

    def _tick(self) -> None:
        """Update the status line until the end. Runs on its own thread."""
        while not self._over.wait(TICK):
            with self._lock:
                now = datetime.now(UTC)  # noqa: TID251 -- the countdown uses this machine's clock
                room = self._width() if self._width else None
                line = self._view.status(time.monotonic(), now, room, keys="Ctrl-C cancels")
                self._block.show([self._paint.dim(TRYING_AGAIN if self._lost else line)])


def _is_last_word(event: Event) -> bool:
    """Return whether an event is the prompt, the answer or the error, which the command prints itself."""
    message = event.message if event.kind == "message_added" else None
    if message is None:
        return event.kind == "run_stopped"
    return message.role in ("user", "error") or (message.role == "agent" and not message.tool_calls)
