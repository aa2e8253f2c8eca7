"""Runs a chat at a terminal until it ends, and handles signals."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bedrock.cli import stdio as streams
from bedrock.cli.chat.key_bindings import key_bindings
from bedrock.cli.chat.prompt import ChatPrompt

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from prompt_toolkit.history import History

    from bedrock.cli.chat.attention import Attention
    from bedrock.cli.chat.session import ChatSession
    from bedrock.cli.text.style import Paint


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
    try:
        with _handling(handlers):
            await _converse(session, prompt)
    finally:
        session.tell_unsent()
        attention.release()


async def _converse(session: ChatSession, prompt: ChatPrompt) -> None:
    """Process keys and events until one of the tasks ends the chat.

    Raises:
        Exception: A task has failed unexpectedly, and the chat cannot continue without it.
    """
    does = (session.follow(), session.work(), session.learn_models(), prompt.run(), _until_closed(session))
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(each) for each in does]

    def ended(task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            session.over.set()

    for task in tasks:
        task.add_done_callback(ended)
    try:
        await session.over.wait()
    finally:
        failed = [task.exception() for task in tasks if task.done() and not task.cancelled()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for error in filter(None, failed):
        raise error


async def _until_closed(session: ChatSession) -> None:
    await streams.until_closed(sys.stdout)
    session.over.set()


@contextmanager
def _handling(handlers: Mapping[signal.Signals, Callable[[], object]]) -> Generator[None]:
    loop = asyncio.get_running_loop()
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
