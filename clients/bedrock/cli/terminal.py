"""How a chat looks and feels at a terminal: the prompt, the keys, the status line."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app_or_none
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.patch_stdout import patch_stdout
from prompt_toolkit.styles import Style

from bedrock.cli.paint import Paint
from bedrock.cli.session import ChatSession
from bedrock.cli.transcript import USER_MARK

#: How often the seconds of the status line are counted, in seconds.
TICK = 0.5
#: How long after Esc the rest of an escape sequence may come, in seconds.
ESCAPE_SECONDS = 0.05


async def chat_at_terminal(session: ChatSession, paint: Paint) -> None:
    """Chat until the person leaves or the conversation is gone."""
    prompt: PromptSession[str] = PromptSession(
        message=lambda: ANSI(_prompt(session, paint)),
        bottom_toolbar=session.status,
        key_bindings=_keys(session),
        history=InMemoryHistory(),
        erase_when_done=True,  # what was typed comes back as a message, for everybody who watches
        refresh_interval=TICK,
        color_depth=ColorDepth.DEPTH_1_BIT if os.environ.get("NO_COLOR") else None,
        style=Style.from_dict({"bottom-toolbar": "noreverse fg:ansibrightblack"}),
    )
    prompt.app.ttimeoutlen = ESCAPE_SECONDS
    session.refresh = prompt.app.invalidate
    with patch_stdout(raw=True):
        tasks = [asyncio.create_task(session.follow()), asyncio.create_task(session.work())]
        leaving = asyncio.create_task(_leave(session))
        try:
            while not session.over.is_set():
                session.enter(await prompt.prompt_async())
        except (EOFError, KeyboardInterrupt):
            session.over.set()
        finally:
            for task in (*tasks, leaving):
                task.cancel()
            await asyncio.gather(*tasks, leaving, return_exceptions=True)


async def _leave(session: ChatSession) -> None:
    """Take the prompt away when the chat is over, whoever ended it."""
    await session.over.wait()
    app = get_app_or_none()
    if app is not None and app.is_running:
        with suppress(Exception):  # it was left at the same moment
            app.exit(exception=EOFError)


def _prompt(session: ChatSession, paint: Paint) -> str:
    tail = session.transcript.tail
    above = f"{tail}\n" if tail else ""
    if session.question is not None:
        return above + paint.careful("[y]es  [n]o  [a]lways ") + paint.bold(USER_MARK)
    return above + paint.bold(USER_MARK)


def _keys(session: ChatSession) -> KeyBindings:
    keys = KeyBindings()

    @keys.add("tab")
    def _queue(event: KeyPressEvent) -> None:
        text = event.current_buffer.text
        if text.strip():
            event.current_buffer.append_to_history()
            event.current_buffer.reset()
            session.enter(f"/queue {text}")

    @keys.add("escape", eager=True)
    def _cancel(event: KeyPressEvent) -> None:
        if session.view.busy:
            event.app.create_background_task(session.cancel())

    @keys.add("c-c")
    def _interrupt(event: KeyPressEvent) -> None:
        if event.current_buffer.text and not session.view.busy:
            event.current_buffer.reset()
        elif not session.interrupt() and session.view.busy:
            event.app.create_background_task(session.cancel())

    @keys.add("c-d")
    def _end(event: KeyPressEvent) -> None:
        if not event.current_buffer.text:
            session.over.set()

    return keys
