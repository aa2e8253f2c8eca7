"""How far a run is, for who waits at a terminal for its answer: what it does, and one line that says so now."""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self, TextIO

from bedrock.cli.display.connection_state import CONNECTED_AGAIN, TRYING_AGAIN, lost
from bedrock.cli.display.conversation_view import ConversationView
from bedrock.cli.display.transcript import Transcript
from bedrock.cli.text.live_block import LiveBlock
from bedrock.cli.text.style import Paint, columns

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from bedrock import Event
    from bedrock.conversations import ConversationInfo
    from bedrock.errors import BedrockError

#: How often the seconds are counted, in seconds.
TICK = 0.5


class Progress:
    """Prints what a run does but for the answer. At a terminal a status line stands beneath until the end."""

    def __init__(self, stream: TextIO, *, quiet: bool, plain: bool = False) -> None:
        """Prepare to print to `stream`; nothing at all if `quiet`."""
        self._width = columns(stream) if os.environ.get("TERM") != "dumb" else None
        self._paint = Paint.for_stream(stream, plain=plain)
        self._view = ConversationView()
        self._block = LiveBlock(stream)
        self._transcript = Transcript(self._paint, self._block.write, width=self._width)
        self._quiet = quiet
        self._lost = False
        """Whether the connection is."""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._ticking = threading.Thread(target=self._tick, name="progress", daemon=True)

    def __enter__(self) -> Self:
        return self

    def begin(self, read: Callable[[], ConversationInfo]) -> None:
        """Show the status line if anybody can see it; `read` tells how the conversation stands."""
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
        """Print what an event is to somebody who waits."""
        if self._quiet:
            return
        with self._lock:
            if self._lost:
                self._lost = False
                self._say(CONNECTED_AGAIN)
            self._view.observe(event, time.monotonic())
            if not _is_last_word(event):
                self._transcript.show(event)

    def disconnected(self, error: BedrockError, delay: float) -> None:
        """Take note that the events are cut off; the next one says that they are back."""
        if self._quiet or self._lost:
            return
        with self._lock:
            self._lost = True
            self._say(lost(error))

    def _say(self, text: str) -> None:
        self._block.write(self._paint.careful(f"· {text}"))

    def _tick(self) -> None:
        """Keep the line up to date, until the end."""
        while not self._over.wait(TICK):
            with self._lock:
                now = datetime.now(UTC)  # noqa: TID251 -- counts down on the reader's clock
                room = self._width() if self._width else None
                line = self._view.status(time.monotonic(), now, room, keys="Ctrl-C cancels")
                self._block.show([self._paint.dim(TRYING_AGAIN if self._lost else line)])


def _is_last_word(event: Event) -> bool:
    """Return whether an event is the prompt, the answer or the error, which the command prints itself."""
    message = event.message if event.kind == "message_added" else None
    if message is None:
        return event.kind == "run_stopped"
    return message.role in ("user", "error") or (message.role == "agent" and not message.tool_calls)
