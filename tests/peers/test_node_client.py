"""The Node client's chat against a real server: it asks, cancels, and shows everything once whatever breaks."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from bedrock import Client, Conversation

from tests.peers.conftest import Node
from tests.peers.node_chat import CHAT, NodeChat
from tests.support.fake_provider import FakeProvider, begins, dribbles, finishes, says, stalls
from tests.support.patience import only, within
from tests.support.proxy import Proxy
from tests.support.server_process import ServerProcess, Servers, provider

WORLD = "wörld 🌍🌎"
"""Code points beyond what a UTF-16 unit holds: offsets must not count units."""
CUTS = 8
HEAD = """
const child = require('node:child_process').spawn(process.execPath, process.argv.slice(1), {
  stdio: ['ignore', 'pipe', 'inherit'],
});
child.stdout.once('data', () => child.stdout.destroy());
child.on('exit', (code) => process.exit(code));
"""
"""Runs a program of Node, reads the beginning of its output and no more, and ends as it does."""

Start = Callable[..., NodeChat]


@pytest.fixture
def start(node: Node, tmp_path: Path) -> Iterator[Start]:
    """Starts chats with a server, at another address if one is given."""
    with ExitStack() as opened:

        def chat(server: ServerProcess, *arguments: str, address: str = "") -> NodeChat:
            environment = {"BEDROCK_DATA_DIR": str(server.data)}
            if address:
                environment |= {"BEDROCK_ADDRESS": address, "BEDROCK_TOKEN": server.token}
            made = NodeChat(node, tmp_path, environment, *arguments)
            opened.callback(made.close)
            return made

        yield chat


def settle(conversation: Conversation) -> None:
    """Wait until nothing happens by itself any more."""
    within(lambda: [event.kind for event in conversation.events(until_settled=True)])


def assert_told_once(events: list[dict[str, Any]], answer: str) -> None:
    """Durable events without gap or duplicate, and deltas that add up to the answer."""
    revisions = [event["revision"] for event in events if event["revision"]]
    assert revisions == list(range(revisions[0], revisions[0] + len(revisions)))
    deltas = [event["textDelta"] for event in events if event["event"] == "textDelta"]
    assert "".join(delta["text"] for delta in deltas) == answer
    assert [delta["offset"] for delta in deltas] == [
        sum(len(before["text"]) for before in deltas[:index]) for index in range(len(deltas))
    ]
    said = [event["messageAdded"] for event in events if (event.get("messageAdded") or {}).get("role") == "ROLE_AGENT"]
    assert ["".join(block.get("text", "") for block in message["content"]) for message in said] == [answer]
    assert events[-1]["event"] == "runStopped"


# --- with the demo model ----------------------------------------------------------------------------------------------


def test_it_finds_the_server_and_chats(node: Node, server: ServerProcess, client: Client, tmp_path: Path) -> None:
    """By the files in the usual place: neither address nor token is told."""
    state = tmp_path / ".local" / "state"
    state.mkdir(parents=True)
    (state / "bedrock").symlink_to(server.data)
    done = node.run(CHAT, "--yes", "--ask", "ask_all", "run echo it works", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    name = re.search(r"conversations/\w+", done.stderr)
    assert name
    said = [message.text for message in client.conversation(name[0]).messages() if message.role == "agent"]
    assert done.stdout == "".join(f"{text}\n" for text in said)
    assert "it works" in done.stdout
    assert "? bash echo it works [y/n]\n" in done.stderr
    assert done.stderr.endswith("[done]\n")


@pytest.mark.parametrize(("typed", "outcome"), [("y", "ok"), ("n", "denied")])
def test_a_person_is_asked(typed: str, outcome: str, server: ServerProcess, client: Client, start: Start) -> None:
    chat = start(server, "--ask", "ask_all")
    chat.type("run echo asked")
    chat.noted.until(r"\? bash echo asked \[y/n\]")
    chat.type(typed)
    chat.noted.until(r"\[done\]")
    assert chat.leave() == 0
    results = [result for message in client.conversation(chat.name).messages() for result in message.tool_results]
    assert only(results).outcome == outcome


def test_an_approval_without_an_answer_ends_it(node: Node, server: ServerProcess, tmp_path: Path) -> None:
    """Standard input has ended before the question, as it has in a script."""
    done = node.run(
        CHAT, "--ask", "ask_all", "run echo asked", folder=tmp_path, env={"BEDROCK_DATA_DIR": str(server.data)}
    )
    assert done.returncode == 3
    assert "? bash echo asked [y/n]\n[standard input has ended, so you cannot answer" in done.stderr


def test_input_that_ends_behind_a_question_ends_it(server: ServerProcess, start: Start) -> None:
    chat = start(server, "--ask", "ask_all", "run echo asked")
    chat.noted.until(r"\? bash echo asked \[y/n\]")
    assert chat.leave() == 3
    assert "you cannot answer" in chat.noted.text


def test_ctrl_c_cancels_and_the_chat_goes_on(server: ServerProcess, client: Client, start: Start) -> None:
    chat = start(server)
    chat.type("count")
    chat.said.until("I will count")
    chat.interrupt()
    chat.noted.until(r"\[the text of this attempt is discarded\]\n\[stopped\]")
    assert client.conversation(chat.name).get().state.kind == "idle"
    chat.type("run echo again")
    chat.noted.until(r"\[done\]")
    assert chat.leave() == 0
    assert "again" in chat.said.text


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_of_its_output_that_leaves_ends_it_and_the_run(
    node: Node, server: ServerProcess, client: Client, tmp_path: Path, options: list[str]
) -> None:
    """As `| head` does."""
    done = node.run("-e", HEAD, CHAT, *options, "count", folder=tmp_path, env={"BEDROCK_DATA_DIR": str(server.data)})
    assert done.returncode == 141, done.stderr
    name = re.search(r"conversations/\w+", done.stderr)
    assert name
    assert "EPIPE" not in done.stderr
    settle(client.conversation(name[0]))
    assert only(list(client.conversation(name[0]).cycles())).stop_reason == "interrupted"


# --- whatever breaks --------------------------------------------------------------------------------------------------


def test_a_cut_connection_is_bridged(scripted: ServerProcess, fake_provider: FakeProvider, start: Start) -> None:
    part = fake_provider.part(begins(f"Hello, {WORLD}", finishes(" and all.")))
    with Proxy(scripted.address) as proxy:
        chat = start(scripted, "--json", f"Hi. {part.key}", address=proxy.address)
        exchange = part.next_reached()
        chat.said.until("Hello")
        proxy.cut()
        chat.noted.until("disconnected")
        exchange.go.set()
        chat.noted.until(r"\[done\]")
        assert chat.leave() == 0
    assert_told_once(chat.events, f"Hello, {WORLD} and all.")


def test_streams_that_break_at_any_moment_add_up(
    scripted: ServerProcess, fake_provider: FakeProvider, start: Start
) -> None:
    words = [f"{WORLD} {number} " for number in range(60)]
    part = fake_provider.part(dribbles(*words, seconds=0.02))
    with Proxy(scripted.address) as proxy:
        chat = start(scripted, "--json", f"Hi. {part.key}", address=proxy.address)
        for number in range(CUTS):
            chat.said.until(f" {number * 5} ")
            proxy.cut()
        chat.noted.until(r"\[done\]")
        assert chat.leave() == 0
    assert_told_once(chat.events, "".join(words))


def test_a_server_that_is_killed_and_restarted_meanwhile_is_bridged(
    start_server: Servers, fake_provider: FakeProvider, start: Start, tmp_path: Path
) -> None:
    """What was said while nobody could hear it is shown once, from the store of another process."""
    first = start_server(tmp_path, **provider(fake_provider.url))
    part = fake_provider.part(begins(f"Hello, {WORLD}", finishes(" and all.")))
    with Proxy(first.address) as proxy:
        chat = start(first, "--json", f"Hi. {part.key}", address=proxy.address)
        exchange = part.next_reached()
        chat.said.until("Hello")
        proxy.freeze()
        proxy.cut()
        exchange.go.set()
        with first.client() as client:
            settle(client.conversation(chat.name))
        first.kill()
        start_server(tmp_path, listen=first.address, **provider(fake_provider.url))
        proxy.thaw()
        chat.noted.until(r"\[done\]")
        assert chat.leave() == 0
    assert "disconnected" in chat.noted.text
    assert_told_once(chat.events, f"Hello, {WORLD} and all.")


def test_a_server_that_comes_back_somewhere_else_is_found_and_the_chat_goes_on(
    restart_elsewhere: Callable[[Path], ServerProcess], fake_provider: FakeProvider, start: Start, tmp_path: Path
) -> None:
    first = restart_elsewhere(tmp_path)
    part = fake_provider.part(stalls, says("Here I am again."))
    chat = start(first)
    chat.type(f"Hi. {part.key}")
    chat.said.until("word ")
    restart_elsewhere(tmp_path)
    chat.noted.until(r"\[the text of this attempt is discarded\]\n\[stopped: restart\]")
    chat.type("Are you there?")
    chat.noted.until(r"\[done\]")
    assert chat.leave() == 0
    assert chat.said.text == "word Here I am again.\n"
