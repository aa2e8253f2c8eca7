"""How a chat looks and feels at a terminal: the prompt, the keys, the status line."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.patch_stdout import patch_stdout
from prompt_toolkit.styles import Style

from bedrock.cli.paint import Paint
from bedrock.cli.session import ChatSession
from bedrock.cli.text.safe_text import SafeText
from bedrock.cli.transcript import USER_MARK
from bedrock.cli.typed import ChatCompleter

#: How often the seconds of the status line are counted, in seconds.
TICK = 0.5
#: How long after Esc the rest of an escape sequence, or of Alt with a key, may come, in seconds.
ESCAPE_SECONDS = 0.05
#: How soon the screen may be drawn again, in seconds.
REDRAW_SECONDS = 0.03

_STYLE = {
    "bottom-toolbar": "noreverse fg:ansibrightblack",
    "completion-menu": "bg:default fg:default",
    "completion-menu.completion.current": "reverse",
    "completion-menu.meta.completion": "bg:default fg:ansibrightblack",
    "completion-menu.meta.completion.current": "bg:default fg:default",
    "scrollbar.background": "bg:default",
    "scrollbar.button": "bg:default",
}


async def chat_at_terminal(session: ChatSession, paint: Paint, history: History) -> None:
    """Chat until the person leaves or the conversation is gone."""
    prompt: PromptSession[str] = PromptSession(
        bottom_toolbar=session.status,
        key_bindings=_keys(session),
        history=history,
        multiline=True,
        completer=ChatCompleter(session),
        complete_while_typing=Condition(lambda: prompt.default_buffer.text.startswith("/")),
        prompt_continuation="  ",
        erase_when_done=True,  # what was typed comes back as a message, for everybody who watches
        refresh_interval=TICK,
        color_depth=None if paint.enabled else ColorDepth.DEPTH_1_BIT,
        style=Style.from_dict(_STYLE),
    )
    prompt.message = lambda: ANSI(_prompt(session, paint, prompt.app.output.get_size().rows // 2))
    prompt.app.ttimeoutlen = prompt.app.timeoutlen = ESCAPE_SECONDS
    prompt.app.min_redraw_interval = REDRAW_SECONDS
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
    """Let keys and events have their effects until the chat is over, whoever ends it."""
    does = (session.follow(), session.work(), session.learn_models(), prompt.prompt_async(handle_sigint=False))
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(each) for each in does]
    try:
        await session.over.wait()
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


def _is_being_chosen(typed: Buffer) -> bool:
    """Whether a menu is open that offers more than what it has put in already, or waits for what comes behind that."""
    menu = typed.complete_state
    if menu is None or menu.current_completion is None:
        return False
    return len(menu.completions) > 1 or typed.text.endswith(" ")


def _enter_text(session: ChatSession, typed: Buffer, text: str) -> None:
    """Hand on a text and clear the line. The prompt stays, so that no key is lost meanwhile."""
    typed.reset(append_to_history=True)
    session.enter(text)


def _prompt(session: ChatSession, paint: Paint, room: int) -> SafeText:
    """What stands above what is typed, and its mark; `room` is how many lines of an unfinished text are shown."""
    lines = [*session.agent_lines(), *session.transcript.tail[-room:]]
    above = paint.text(*(part for line in lines for part in (line, "\n")))
    if (asked := session.question) is not None:
        always = "" if asked.tool == "request_mode_upgrade" else " [a]lways "  # which is asked each time
        return above + paint.careful(f"[y]es  [n]o {always}") + paint.bold(USER_MARK)
    return above + paint.bold(USER_MARK)


def _keys(session: ChatSession) -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _enter(event: KeyPressEvent) -> None:
        typed = event.current_buffer
        if _is_being_chosen(typed):
            typed.complete_state = None  # it is chosen; the next Enter sends
        elif typed.document.text_before_cursor.endswith("\\"):
            typed.delete_before_cursor()
            typed.insert_text("\n")
        else:
            _enter_text(session, typed, typed.text)

    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("tab")
    def _queue(event: KeyPressEvent) -> None:
        typed = event.current_buffer
        if typed.text.startswith("/"):
            typed.complete_next() if typed.complete_state else typed.start_completion(insert_common_part=True)
        elif typed.text.strip():
            _enter_text(session, typed, f"/queue {typed.text}")

    @keys.add("escape")
    def _cancel(event: KeyPressEvent) -> None:
        if event.current_buffer.complete_state is not None:
            event.current_buffer.cancel_completion()
        elif session.view.busy:
            event.app.create_background_task(session.cancel())

    @keys.add("c-c")
    def _ctrl_c(event: KeyPressEvent) -> None:
        _interrupt(session, event.app)

    @keys.add("c-d")
    def _end(event: KeyPressEvent) -> None:
        if not event.current_buffer.text:
            session.over.set()

    return keys
