"""How a chat looks and feels at a terminal: the prompt, the keys, the status line."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.application import Application
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
    loop = asyncio.get_running_loop()
    # Ctrl-C is a key while the prompt is there, and a signal while something is printed above it.
    loop.add_signal_handler(signal.SIGINT, lambda: _interrupt(session, prompt.app))
    try:
        with patch_stdout(raw=True):
            await _converse(session, prompt)
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _converse(session: ChatSession, prompt: PromptSession[str]) -> None:
    """Take lines until the chat is over, whoever ends it."""
    over = asyncio.create_task(session.over.wait())
    tasks: list[asyncio.Task[Any]] = [over, asyncio.create_task(session.follow()), asyncio.create_task(session.work())]
    try:
        while not session.over.is_set():
            asked = asyncio.create_task(prompt.prompt_async(handle_sigint=False))
            tasks.append(asked)
            await asyncio.wait((asked, over), return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                session.enter(asked.result())
                tasks.remove(asked)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _interrupt(session: ChatSession, app: Application[str]) -> None:
    """Ctrl-C: clears what is typed at rest; else the first one cancels and the second one leaves."""
    typed = app.current_buffer
    if typed.text and not session.view.busy:
        typed.reset()
    elif not session.interrupt() and session.view.busy:
        app.create_background_task(session.cancel())


def _prompt(session: ChatSession, paint: Paint) -> str:
    lines = [*session.agent_lines(), *filter(None, [session.transcript.tail])]
    above = "".join(f"{line}\n" for line in lines)
    if (asked := session.question) is not None:
        always = "" if asked.tool == "request_mode_upgrade" else " [a]lways "  # which is asked each time
        return above + paint.careful(f"[y]es  [n]o {always}") + paint.bold(USER_MARK)
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
    def _ctrl_c(event: KeyPressEvent) -> None:
        _interrupt(session, event.app)

    @keys.add("c-d")
    def _end(event: KeyPressEvent) -> None:
        if not event.current_buffer.text:
            session.over.set()

    return keys
