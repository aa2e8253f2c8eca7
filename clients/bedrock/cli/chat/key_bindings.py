"""The key bindings of a chat's prompt."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

from prompt_toolkit.filters import has_selection, is_searching
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.key_binding.defaults import load_key_bindings
from prompt_toolkit.keys import Keys

from bedrock.cli.chat.slash_commands import message_of

if TYPE_CHECKING:
    from prompt_toolkit.buffer import Buffer

    from bedrock.cli.chat.prompt import ChatPrompt


def is_being_chosen(typed: Buffer) -> bool:
    """Return whether Enter should accept the selected completion, instead of sending the text.

    It accepts the completion if there are several to choose from, or if the text ends with a blank, because then the
    command needs an argument.
    """
    menu = typed.complete_state
    if menu is None or menu.current_completion is None:
        return False
    return len(menu.completions) > 1 or typed.text.endswith(" ")


def _without_meaning() -> set[str]:
    """Return the printable characters that prompt_toolkit does not bind in combination with Alt."""
    bound = {
        each.keys[1] for each in load_key_bindings().bindings if each.keys[0] == Keys.Escape and len(each.keys) > 1
    }
    return {character for character in string.printable if character.isprintable()} - bound


def key_bindings(prompt: ChatPrompt) -> KeyBindings:
    """Return the key bindings of the chat.

    All other keys have prompt_toolkit's defaults, which are those of a shell.
    """
    keys = KeyBindings()
    _bind_typing(keys, prompt)
    _bind_session(keys, prompt)
    return keys


def _bind_typing(keys: KeyBindings, prompt: ChatPrompt) -> None:
    @keys.add("enter", filter=~is_searching)  # in a search, it takes what was found
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

    @keys.add("c-c", filter=~is_searching)  # in a search, it leaves that
    def _interrupt(_event: KeyPressEvent) -> None:
        prompt.interrupt()

    @keys.add("c-d")
    def _leave(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.delete()
        else:
            session.over.set()

    @keys.add("c-o")  # the default of Ctrl-O would end the prompt
    def _show_output(_event: KeyPressEvent) -> None:
        session.show_output()

    @keys.add("c-z")
    def _suspend(_event: KeyPressEvent) -> None:
        prompt.suspend()
