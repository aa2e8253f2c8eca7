"""Draw in docs/architecture.md the way of a message and of a cancel, as a server went it: `make message-ways`."""

import ast
import itertools
import json
import os
import signal
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider, held, says
from tests.support.patience import eventually
from tests.support.server_process import ServerProcess, provider

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
TIMES = 3
"""How often each way is recorded: what only some of them enter, such as a timer, is not on the way."""
THREADS = {
    "MainThread": "the event loop",
    "ConversationActor": "the conversation's actor",
    "store-writer": "the writer",
}


class Call(NamedTuple):
    """The call of a function of the server."""

    thread: str
    path: str
    function: str


class Way(NamedTuple):
    """A way through the server: the modules in the order in which they are entered, and the least changes of module."""

    stops: tuple[Call, ...]
    switches: int


class Ways(NamedTuple):
    """The ways that the page draws, and all modules that a short exchange enters, from its RPC until the run's end."""

    message: Way
    cancel: Way
    exchange: frozenset[str]


def record() -> Ways:
    """Have a server answer and cancel, and return how it did."""
    with tempfile.TemporaryDirectory() as made, FakeProvider() as fake:
        folder = Path(made)
        target = folder / "calls.json"
        server = ServerProcess(
            folder, program="tests.generate.recorded_server", BEDROCK_RECORD=str(target), **provider(fake.url)
        )

        def calls_of(act: Callable[[], object]) -> list[Call]:
            _written(server, target)
            act()
            return _written(server, target)

        try:
            with server.client() as client:
                chat = Chat(client, fake.part(), folder)
                chat.ask("What is done first only is no part of the way.")
                asked = [calls_of(lambda: chat.ask("Hello")) for _ in range(TIMES)]
                cancelled = []
                for _ in range(TIMES):
                    chat.part.then(play := held(says("Too late.")))
                    chat.send("Wait")
                    chat.part.next_reached(play)
                    cancelled.append(calls_of(chat.conversation.cancel))
        finally:
            server.stop()
    return Ways(
        _way([_between(calls, "SendMessage", "publish") for calls in asked]),
        _way([_between(calls, "CancelConversation", "publish") for calls in cancelled]),
        frozenset.intersection(*(frozenset(call.path for call in calls) for calls in asked)),
    )


def _written(server: ServerProcess, target: Path) -> list[Call]:
    """Return the calls since the last time."""
    target.unlink(missing_ok=True)
    os.kill(server.pid, signal.SIGUSR1)
    eventually(target.exists, "the calls are written")
    return [
        Call(thread.partition("-0")[0], path, function) for thread, path, function in json.loads(target.read_text())
    ]


def _between(calls: list[Call], first: str, last: str) -> list[Call]:
    """Return the calls from that of `first` to that of `last`, on the threads that take part."""
    functions = [call.function for call in calls]
    begin = functions.index(first)
    return [call for call in calls[begin : functions.index(last, begin) + 1] if call.thread in THREADS]


def _way(recorded: list[list[Call]]) -> Way:
    always = frozenset.intersection(*(frozenset(call.path for call in calls) for calls in recorded))
    ways = [[call for call in calls if call.path in always] for calls in recorded]
    stops = {call.path: call for call in reversed(ways[0])}
    switches = min(map(_switches, ways))
    return Way(tuple(call for call in dict.fromkeys(ways[0]) if stops[call.path] is call), switches)


def _switches(calls: list[Call]) -> int:
    threads = ([call.path for call in calls if call.thread == thread] for thread in THREADS)
    return sum(one != other for paths in threads for one, other in itertools.pairwise(paths))


def draw(way: Way) -> str:
    """Return the way as text: each module once, where it is entered first."""
    lines, thread = [], ""
    for stop in way.stops:
        if stop.thread != thread:
            thread = stop.thread
            lines.append(f"{THREADS[thread]}:")
        lines.append(f"  {stop.path:<42} {stop.function:<20} {_subject(stop.path)}".rstrip())
    return "\n".join(lines)


def _subject(path: str) -> str:
    """Return what the module is about: the first sentence of its docstring, as far as it fits a line."""
    text = " ".join((ast.get_docstring(ast.parse((ROOT / path).read_text(encoding="utf-8"))) or "").split())
    return textwrap.shorten(text.partition(". ")[0].rstrip("."), 70, placeholder="…")


def drawn(page: str, ways: Ways) -> str:
    """Return the page with these ways between their marks."""
    for name, way in (("message", ways.message), ("cancel", ways.cancel)):
        head, mark, rest = page.partition(f"<!-- way of a {name}: written by make message-ways -->\n")
        assert mark, name
        _, end, tail = rest.partition("```\n<!-- end -->")
        page = f"{head}{mark}```\n{draw(way)}\n{end}{tail}"
    return page


def main() -> None:
    """Write the page, and say how long the ways are."""
    ways = record()
    PAGE.write_text(drawn(PAGE.read_text(encoding="utf-8"), ways), encoding="utf-8")
    for name, way in (("message", ways.message), ("cancel", ways.cancel)):
        print(f"{name}: {len(way.stops)} modules, {way.switches} changes of module")
    print(f"exchange: {len(ways.exchange)} modules")


if __name__ == "__main__":
    main()
