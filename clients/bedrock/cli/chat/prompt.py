"""The prompt of a chat: draws it at the bottom of the terminal, handles its keys, and rings the bell."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import string
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.filters import Condition, has_selection, is_searching
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.key_binding.defaults import load_key_bindings
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.renderer import Renderer
from prompt_toolkit.styles import Style

from bedrock.cli import stdio as streams
from bedrock.cli.chat.completion import ChatCompleter
from bedrock.cli.chat.session import ChatSession, message_of
from bedrock.cli.display.follower import ConversationView
from bedrock.cli.display.live_block import TICK, reflows, rows_taken, tail_room
from bedrock.cli.display.questions import Asked, QuestionForm, parse_reply, question_title, replies
from bedrock.cli.display.transcript import USER_MARK
from bedrock.cli.text.output import folding, print_line
from bedrock.cli.text.safe_text import SafeText, without_colours
from bedrock.cli.text.style import Paint, cells

if TYPE_CHECKING:
    from prompt_toolkit.application import Application
    from prompt_toolkit.buffer import Buffer
    from prompt_toolkit.data_structures import Size
    from prompt_toolkit.history import History
    from prompt_toolkit.layout import Layout
    from prompt_toolkit.output import Output
    from prompt_toolkit.styles import BaseStyle

# The bell rings at the end of a run that took at least this many seconds: the user may have stopped watching.
LONG_RUN_SECONDS = 10.0

# Values of the variable TERM for terminals that may have no bell.
_WITHOUT = ("", "dumb", "linux", "unknown")


class PromptRenderer(Renderer):
    """Draws a prompt, prints lines above it, and finds the prompt again after a resize.

    Lines are printed in raw mode, as part of drawing: prompt_toolkit's `patch_stdout` leaves raw mode for each line, so
    keys pressed in the meantime are echoed, and Enter, Ctrl-D and Ctrl-Z mean something else. Besides, `patch_stdout`
    erases only as many rows as were drawn, which is too few if the terminal has rewrapped them.
    """

    def __init__(self, style: BaseStyle, output: Output) -> None:
        self._above: list[SafeText] = []
        self._reflow = reflows()
        super().__init__(style, output)

    def print_above(self, line: SafeText) -> None:
        self._above.append(line)

    def take_above(self) -> list[SafeText]:
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
        """Erase the prompt and print lines in its place.

        Compute the rows left below, because asking the terminal is slow.
        """
        drawn = self._last_screen.height if self._last_screen is not None else 0
        room = max(self._min_available_height, drawn) if self._min_available_height else 0
        self.erase()
        for line in lines:
            self.output.write_raw(f"{line}\r\n")
        taken = rows_taken((cells(without_colours(line).expandtabs(8)) for line in lines), size.columns)
        self._min_available_height = max(1, room - taken) if room else 0

    def _rows_gained(self) -> int:
        """How many rows above the cursor the terminal has added by rewrapping lines when it became narrower."""
        drawn, before, now = self._last_screen, self._last_size, self.output.get_size()
        if drawn is None or before is None or not self._reflow or now.columns >= before.columns:
            return 0
        rows = [drawn.data_buffer[y] for y in range(self._cursor_pos.y)]
        widths = (max((x + 1 for x, cell in row.items() if cell.char.strip()), default=0) for row in rows)
        return rows_taken(widths, now.columns) - len(rows) + self._cursor_pos.x // max(1, now.columns)


# The maximum number of lines of pasted text that are shown; longer text is folded into one line.
FOLD_LINES = 20
# Seconds to wait after Esc for the rest of an escape sequence, or for the key pressed together with Alt.
ESCAPE_SECONDS = 0.05
# Minimum seconds between redraws of the screen.
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


class ChatPrompt:
    """The input prompt of one chat. If it ends before the chat, it is restarted. Use it only on one event loop."""

    def __init__(self, session: ChatSession, paint: Paint, history: History, attention: Attention) -> None:
        """Connect the prompt to the session. Nothing is drawn before `run`."""
        self.session = session
        self._paint = paint
        self._attention = attention
        self._shown: Asked | None = None
        """The question that was drawn last; typed input answers it."""
        self._folded: dict[str, str] = {}
        """Long pasted texts, by the single line that stands for each of them on the screen."""
        self._begun_before = False
        """Whether the user began typing the current text before the question in `_shown` was drawn."""
        self._prompt: PromptSession[str] = PromptSession(
            message=self._message,
            bottom_toolbar=session.status,
            history=history,
            multiline=True,
            enable_suspend=True,  # by Ctrl-Z; `redraw` is called afterwards
            completer=ChatCompleter(session),
            complete_while_typing=Condition(lambda: self.typed.text.startswith("/")),
            prompt_continuation="  ",
            erase_when_done=True,  # the message is printed when the server reports it in an event
            refresh_interval=TICK,
            color_depth=None if paint.enabled else ColorDepth.DEPTH_1_BIT,
            style=Style.from_dict(_STYLE),
        )
        self._app = self._prompt.app
        self._app.ttimeoutlen = self._app.timeoutlen = ESCAPE_SECONDS
        self._app.min_redraw_interval = REDRAW_SECONDS
        self._renderer = PromptRenderer(self._app.renderer.style, self._app.output)
        self._app.renderer = self._renderer
        session.refresh = self._refresh
        session.write = self.print
        session.clear_screen = self._renderer.clear

    @property
    def typed(self) -> Buffer:
        return self._prompt.default_buffer

    def use(self, keys: KeyBindings) -> None:
        self._prompt.key_bindings = keys

    def print(self, line: SafeText) -> None:
        if self._app.is_running:
            self._renderer.print_above(line)
            self._app.invalidate()
        else:
            print_line(line)

    async def run(self) -> None:
        text = ""
        while not self.session.over.is_set():
            try:
                text = await self._prompt.prompt_async(default=text, handle_sigint=False)
            except EOFError:  # the input is closed
                self.session.over.set()
            except KeyboardInterrupt:
                text = ""
            finally:
                for line in self._renderer.take_above():
                    print_line(line)

    def folded(self, pasted: str) -> str:
        """How to display a pasted text: as it is, or as one line if it has more than FOLD_LINES."""
        count = len(pasted.splitlines())
        if count <= FOLD_LINES:
            return pasted
        line = f"[paste {len(self._folded) + 1}: {count} lines]"
        self._folded[line] = pasted
        return line

    def deletable(self, before: str) -> int:
        """How many characters Backspace deletes: one, or the whole line that stands for a pasted text."""
        return next((len(line) for line in self._folded if before.endswith(line)), 1)

    def enter(self, text: str) -> None:
        """Submit the typed text, with pasted texts in full, and clear the line. No keystroke is lost.

        Text that the user began before the question was drawn does not answer it. If such text could be an answer, it
        only goes into the history, because a held-down Enter would otherwise answer the question.
        """
        if self._folded:
            text = re.sub("|".join(map(re.escape, self._folded)), lambda line: self._folded[line[0]], text)
        asked = None if self._begun_before else self._shown
        if self._begun_before and parse_reply(text, self._shown) and self._shown:
            self.typed.reset(append_to_history=True)
            self._begun_before = False
            self.session.say(self._paint.careful("· the question came up as you typed: press ↑ and Enter to answer"))
            return
        answers = isinstance(asked, QuestionForm) or (asked and parse_reply(text, asked))
        self.typed.text = text  # for the history
        self.typed.reset(append_to_history=not answers)
        self._folded.clear()
        self._begun_before = False
        self.session.enter(text, asked)

    def interrupt(self) -> None:
        """Handle Ctrl-C: clear typed text if the agent is idle, else cancel the run. A second Ctrl-C ends the chat."""
        if self.typed.text and not self.session.view.busy:
            self.typed.reset()
        elif not self.session.interrupt() and self.session.view.busy:
            self._app.create_background_task(self.session.cancel())

    def redraw(self) -> None:
        """Set up the terminal again after another program, and draw the prompt.

        The terminal stays in raw mode: `run_in_terminal` would leave that, so that keys would be echoed and Enter
        become Ctrl-J.
        """
        if self._app.is_running:
            # This context manager is never left. When the prompt ends, it leaves its own context manager, which
            # restores the terminal's settings from before the chat.
            self._app.input.raw_mode().__enter__()
            self._renderer.erase()
            self._renderer.request_absolute_cursor_position()
            self._app.invalidate()

    def _refresh(self) -> None:
        self._attention.observe(self.session.view)
        self._app.invalidate()

    def _message(self) -> ANSI:
        asked, before = self.session.question, self._shown
        self._begun_before = bool(self.typed.text) and (self._begun_before or asked != before)
        self._shown = asked
        size = self._app.output.get_size()
        return ANSI(prompt_text(self.session, self._paint, tail_room(size.rows), size.columns))


def prompt_text(session: ChatSession, paint: Paint, room: int, columns: int) -> SafeText:
    """The lines above the input, and the prompt mark; `room` limits the lines of text that is streaming in."""
    lines = [*session.agent_lines(), *session.transcript.unfinished(room)]
    say = folding(lines.append, lambda: columns)
    asked, count = session.question, session.open_questions
    if asked is not None and count > 1:
        say(paint.careful(f"{count} questions are open; this answers: {question_title(asked)}"))
    for line in replies(asked, paint, session.view.info.mode) if asked is not None else ():
        say(line, indent=len("[y] "))
    return paint.text(*(part for line in lines for part in (line, "\n"))) + paint.bold(USER_MARK)


def is_being_chosen(typed: Buffer) -> bool:
    """Whether Enter accepts the selected completion: there are several, or the text ends with a space."""
    menu = typed.complete_state
    if menu is None or menu.current_completion is None:
        return False
    return len(menu.completions) > 1 or typed.text.endswith(" ")


def _without_meaning() -> set[str]:
    """The printable characters that prompt_toolkit does not bind in combination with Alt."""
    bound = {
        each.keys[1] for each in load_key_bindings().bindings if each.keys[0] == Keys.Escape and len(each.keys) > 1
    }
    return {character for character in string.printable if character.isprintable()} - bound


def key_bindings(prompt: ChatPrompt) -> KeyBindings:
    """The key bindings of the chat. All other keys have prompt_toolkit's defaults, like those of a shell."""
    keys = KeyBindings()
    _bind_typing(keys, prompt)
    _bind_session(keys, prompt)
    return keys


def _bind_typing(keys: KeyBindings, prompt: ChatPrompt) -> None:
    @keys.add("enter", filter=~is_searching)  # in a search, Enter accepts the match
    def _send(event: KeyPressEvent) -> None:
        typed = event.current_buffer
        if is_being_chosen(typed):
            typed.complete_state = None  # the completion is chosen; the next Enter sends
        elif typed.document.text_before_cursor.endswith("\\"):
            typed.delete_before_cursor()
            typed.insert_text("\n")
        else:
            prompt.enter(typed.text)

    @keys.add("escape", "enter")
    @keys.add("escape", "c-j")
    @keys.add("c-j")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add(Keys.BracketedPaste, filter=~is_searching)
    def _paste(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text(prompt.folded(event.data.replace("\r\n", "\n").replace("\r", "\n")))

    @keys.add("backspace", filter=~is_searching & ~has_selection)
    def _delete(event: KeyPressEvent) -> None:
        before = event.current_buffer.document.text_before_cursor
        event.current_buffer.delete_before_cursor(prompt.deletable(before))

    @keys.add("tab")
    def _queue_or_complete(event: KeyPressEvent) -> None:
        typed, message = event.current_buffer, message_of(event.current_buffer.text)
        if message is None or not prompt.session.view.busy:
            typed.complete_next() if typed.complete_state else typed.start_completion(insert_common_part=True)
        elif message.strip():
            prompt.enter(f"/queue {message}")

    @keys.add("escape", "#")  # the default of Alt-# would comment out the text and end the prompt
    def _nothing(_event: KeyPressEvent) -> None:
        pass

    for character in _without_meaning():  # otherwise Alt with the character would be read as Esc, which cancels the run
        keys.add("escape", character)(_nothing)
    keys.add("escape", "w", filter=~has_selection)(_nothing)


def _bind_session(keys: KeyBindings, prompt: ChatPrompt) -> None:
    session = prompt.session

    @keys.add("escape")
    def _cancel(event: KeyPressEvent) -> None:
        if event.current_buffer.complete_state is not None:
            event.current_buffer.cancel_completion()
        elif session.view.busy:
            event.app.create_background_task(session.cancel())

    keys.add("c-c", filter=~is_searching)(lambda _event: prompt.interrupt())  # in a search, Ctrl-C ends the search

    @keys.add("c-d")
    def _leave(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.delete()
        else:
            session.over.set()

    keys.add("c-o")(lambda _event: session.show_output())  # the default of Ctrl-O would end the prompt


class Attention:
    """Rings the bell of a terminal when the chat needs the user."""

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        enabled: bool = True,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to write to `stream`, or to stdout if it is None.

        Nothing is ever written unless the output is a terminal with a bell, and `enabled` is true.
        """
        self._stream = stream or sys.stdout
        self._enabled = enabled and self._stream.isatty() and environ.get("TERM", "") not in _WITHOUT
        self._clock = clock
        self._asked: set[str] | None = None
        """The names of the approvals and questions that were open at the last update; None before the first update."""
        self._since: float | None = None
        """The time by the given clock when this object first saw the run in progress; None if there is no run."""

    def observe(self, view: ConversationView) -> None:
        """Ring the bell if a new question waits for the user, or a long run has ended."""
        if not view.info.slug:  # the first snapshot has not arrived yet
            return
        asked = {approval.name for approval in view.approvals} | {each.name for each in view.state.questions}
        opened = self._asked is not None and bool(asked - self._asked)
        over = not view.busy and self._since is not None and self._clock() - self._since >= LONG_RUN_SECONDS
        self._asked = asked
        self._since = (self._since if self._since is not None else self._clock()) if view.busy else None
        if self._enabled and (opened or over):
            self._stream.write(SafeText("\a"))
            self._stream.flush()


async def chat_at_terminal(session: ChatSession, paint: Paint, history: History, attention: Attention) -> None:
    """Chat until the user exits, the terminal is closed, or the conversation is deleted."""
    prompt = ChatPrompt(session, paint, history, attention)
    prompt.use(key_bindings(prompt))
    handlers = {
        signal.SIGINT: prompt.interrupt,  # not Ctrl-C, which the prompt reads as a key, but `kill -INT`
        signal.SIGHUP: session.over.set,
        signal.SIGTERM: session.over.set,
        signal.SIGCONT: prompt.redraw,
    }
    with streams.handling(handlers):
        await _converse(session, prompt)


async def _converse(session: ChatSession, prompt: ChatPrompt) -> None:
    """Process keys and events until the chat is over. Raises what a task raises."""
    does = (session.follow(), session.work(), session.learn_models(), prompt.run(), _until_closed(session))
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in does]
            await session.over.wait()
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def _until_closed(session: ChatSession) -> None:
    await streams.until_closed(sys.stdout)
    session.over.set()
