"""A server that is killed and started again at another port and another socket: whoever watches finds it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from bedrock import AsyncClient, Client, Event, Run

from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider, says, stalls
from tests.support.patience import PATIENCE
from tests.support.server_process import ServerProcess
from tests.support.terminals import Terminal

pytestmark = pytest.mark.one_server("the server is restarted")


def told(run: Run) -> list[Event]:
    """All events of a run."""
    return list(run)


async def followed(name: str, words: str) -> list[Event]:
    """The events of a conversation up to the message with these words."""
    events: list[Event] = []
    async with asyncio.timeout(2 * PATIENCE), AsyncClient() as client:
        async for event in client.conversation(name).events():
            events.append(event)
            if event.role == "agent" and event.text == words:
                break
    return events


def revisions(events: list[Event]) -> list[int]:
    return [event.revision for event in events if event.revision]


def test_watchers_find_the_server_that_was_restarted(
    restart_elsewhere: Callable[[Path], ServerProcess],
    fake_provider: FakeProvider,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = restart_elsewhere(tmp_path)
    for name in ("BEDROCK_ADDRESS", "BEDROCK_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BEDROCK_DATA_DIR", str(server.data))
    again = "Here I am again."
    here = {"HOME": str(tmp_path)}
    with ThreadPoolExecutor(2) as pool, Client() as client:
        chat = Chat(client, fake_provider.part(stalls, says(again)), tmp_path)
        at_once = pool.submit(asyncio.run, followed(chat.name, again))
        with (
            Terminal("chat", "-r", chat.name, environ=here) as talk,
            Terminal("watch", chat.name, environ=here) as look,
        ):
            talk.shows("idle · ")
            run = pool.submit(told, chat.send("Hello."))
            talk.shows("word")
            look.shows("> Hello.")
            restart_elsewhere(tmp_path)
            interrupted = run.result(PATIENCE)
            assert interrupted[-1].kind == "run_stopped"
            for screen in (talk, look):
                screen.shows("interrupted")
            talk.keys(f"Are you there? {chat.part.key}\r")
            for screen in (talk, look):
                screen.shows(again)
        events = at_once.result(PATIENCE)
        for seen in (interrupted, events):
            assert revisions(seen) == list(range(revisions(seen)[0], revisions(seen)[-1] + 1))
        assert [text for role, text in chat.said() if role == "agent"] == [again]
