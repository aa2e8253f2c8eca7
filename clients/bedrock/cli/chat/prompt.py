"""The prompt of a chat: its content, the lines printed above it, and the handling of input."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.styles import Style

from bedrock.cli.chat.input_history import ChatCompleter
from bedrock.cli.chat.prompt_renderer import PromptRenderer
from bedrock.cli.display.approval_prompt import Asked, parse_reply, question_title, replies
from bedrock.cli.display.question_form import QuestionForm
from bedrock.cli.display.transcript import USER_MARK
from bedrock.cli.text.output import print_line

if TYPE_CHECKING:
    from prompt_toolkit.buffer import Buffer
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings

    from bedrock.cli.chat.attention import Attention
    from bedrock.cli.chat.session import ChatSession
    from bedrock.cli.text.safe_text import SafeText
    from bedrock.cli.text.style import Paint

#: The lines of a pasted text that are shown; one of more lines is folded to one.
FOLD_LINES = 20
#: Seconds between updates of the status line.
TICK = 0.5
#: Seconds to wait after Esc for the rest of an escape sequence, or for the key pressed together with Alt.
ESCAPE_SECONDS = 0.05
#: Minimum seconds between redraws of the screen.
REDRAW_SECONDS = 0.03
#: The text or tool output that is streaming in is shown in at most TAIL_LINES lines, and in at most 1 / TAIL_SHARE of
#: the terminal's rows. If these lines were scrolled off the screen, they could not be erased any more; so there are few
#: enough to fit even when the terminal becomes half as wide and each of them takes two rows.
TAIL_LINES, TAIL_SHARE = 8, 4

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
    """The input prompt of one chat. If it ends before the chat, it is started again. Use it only on one event loop."""

    def __init__(self, session: ChatSession, paint: Paint, history: History, attention: Attention) -> None:
        """Connect the prompt to the session. Nothing is drawn before `run`."""
        self.session = session
        self._paint = paint
        self._attention = attention
        self._shown: Asked | None = None
        """The question that was drawn last; typed input answers it."""
        self._folded: dict[str, str] = {}
        """The pasted texts that are shown as one line, by that line."""
        self._begun_before = False
        """Whether the user began typing the present text before the question in `_shown` was drawn."""
        self._prompt: PromptSession[str] = PromptSession(
            message=self._message,
            bottom_toolbar=session.status,
            history=history,
            multiline=True,
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
        """The input buffer, which contains the text typed so far."""
        return self._prompt.default_buffer

    def use(self, keys: KeyBindings) -> None:
        """Add key bindings to prompt_toolkit's defaults, which are those of a shell."""
        self._prompt.key_bindings = keys

    def print(self, line: SafeText) -> None:
        """Print a line above the prompt."""
        if self._app.is_running:
            self._renderer.print_above(line)
            self._app.invalidate()
        else:
            print_line(line)

    async def run(self) -> None:
        """Read input until the chat is over. If the prompt ends earlier, e.g. after an interrupt, show it again."""
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
        """Return what is shown of a text that was pasted: one line in place of more than FOLD_LINES."""
        count = len(pasted.splitlines())
        if count <= FOLD_LINES:
            return pasted
        line = f"[paste {len(self._folded) + 1}: {count} lines]"
        self._folded[line] = pasted
        return line

    def deletable(self, before: str) -> int:
        """Return how many characters Backspace deletes before the cursor: all of a line in place of a pasted text."""
        return next((len(line) for line in self._folded if before.endswith(line)), 1)

    def enter(self, text: str) -> None:
        """Submit a text, with pasted texts as a whole, and clear the line.

        The prompt keeps running, so that no keystroke is lost.

        A text that the user began before the question was drawn does not answer it. If it could, it is kept in the
        history alone, so that an Enter that is held down does not answer either.
        """
        if self._folded:
            text = re.sub("|".join(map(re.escape, self._folded)), lambda line: self._folded[line[0]], text)
        asked = None if self._begun_before else self._shown
        if self._begun_before and parse_reply(text, self._shown) and self._shown:
            self.typed.reset(append_to_history=True)
            self._begun_before = False
            self.session.say(self._paint.careful("· that question came while you were typing: ↑ and Enter answer it"))
            return
        answers = isinstance(asked, QuestionForm) or (asked and parse_reply(text, asked))
        self.typed.text = text  # for the history
        self.typed.reset(append_to_history=not answers)
        self._folded.clear()
        self._begun_before = False
        self.session.enter(text, asked)

    def interrupt(self) -> None:
        """Handle Ctrl-C. While the agent is idle and there is typed text, clear the text.

        Otherwise the first Ctrl-C cancels the run, if there is one, and the second one ends the chat.
        """
        if self.typed.text and not self.session.view.busy:
            self.typed.reset()
        elif not self.session.interrupt() and self.session.view.busy:
            self._app.create_background_task(self.session.cancel())

    def suspend(self) -> None:
        """Handle Ctrl-Z: suspend this process group, as the terminal would; redraw the prompt when it continues."""

        def stop() -> None:
            self._attention.release()
            os.kill(0, signal.SIGTSTP)
            self._attention.observe(self.session.view)

        run_in_terminal(stop)

    def redraw(self) -> None:
        """Set up the terminal again after another program used it, and draw the prompt at the cursor.

        The terminal stays in raw mode. prompt_toolkit's `run_in_terminal` would leave it for a moment, in which keys
        are echoed and Enter becomes Ctrl-J, a new line.
        """
        if self._app.is_running:
            # This context manager is never left. When the prompt ends, it leaves its own one, which restores the
            # terminal's settings from before the chat.
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
        return ANSI(
            prompt_text(self.session, self._paint, min(self._app.output.get_size().rows // TAIL_SHARE, TAIL_LINES))
        )


def prompt_text(session: ChatSession, paint: Paint, room: int) -> SafeText:
    """Return the lines above the input, and the prompt mark; `room` limits the lines of text that is streaming in."""
    lines = [*session.agent_lines(), *session.transcript.unfinished(room)]
    asked, count = session.question, session.open_questions
    if asked is not None and count > 1:
        lines.append(paint.careful(f"{count} questions are open; this answers: {question_title(asked)}"))
    above = paint.text(*(part for line in lines for part in (line, "\n")))
    if asked is None:
        return above + paint.bold(USER_MARK)
    return above + replies(asked, paint, session.view.mode) + paint.bold(USER_MARK)
