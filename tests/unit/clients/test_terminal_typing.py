"""What is typed in a chat: kept for the next one unless it had better be forgotten, completed, of many lines."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from bedrock import Message, v1
from bedrock.cli.chat import completion as typed
from bedrock.cli.chat.completion import ChatCompleter, ChatHistory
from bedrock.cli.chat.prompt import is_being_chosen
from bedrock.cli.chat.session import ChatSession
from prompt_toolkit.buffer import Buffer, CompletionState
from prompt_toolkit.completion import CompleteEvent, Completion
from prompt_toolkit.document import Document

from tests.support.fake_server import FakeBedrock, says
from tests.support.terminals import Terminal
from tests.unit.clients.test_session import sent


def kept(path: Path) -> list[str]:
    return list(ChatHistory(path).load_history_strings())


def test_what_was_typed_is_kept_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "chat_history"
    history = ChatHistory(path)
    history.append_string("one")
    history.append_string("two\nlines")
    assert kept(path) == ["two\nlines", "one"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    ChatHistory(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "secret",
    [
        " a blank before it",
        "use sk-ant-api03-abcdefghijklmnop",
        "export OPENAI_API_KEY=abcdef123456",
        "password: hunter22",
        "curl -H 'Authorization: Bearer abcdefghijkl1234'",
        "git clone https://ada:hunter2@example.com/x",
        "-----BEGIN PRIVATE KEY-----",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    ],
)
def test_secrets_are_never_written(tmp_path: Path, secret: str) -> None:
    history = ChatHistory(tmp_path / "h")
    history.append_string(secret)
    assert history.get_strings() == [secret]
    assert kept(tmp_path / "h") == []


@pytest.mark.parametrize("text", ["what is a token?", "read https://example.com/a:b", "skip the api key check"])
def test_words_about_secrets_are_kept(tmp_path: Path, text: str) -> None:
    ChatHistory(tmp_path / "h").append_string(text)
    assert kept(tmp_path / "h") == [text]


def test_where_others_may_write_nothing_is_kept_and_the_null_device_stays_usable_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    null = tmp_path / "null"
    null.touch()
    null.chmod(0o666)
    monkeypatch.setattr(os, "devnull", str(null))
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert kept(tmp_path / "open" / "history") == []
    assert null.stat().st_mode & 0o777 == 0o666
    assert not (tmp_path / "open" / "history").exists()


def test_the_oldest_is_forgotten_once_there_is_a_lot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed, "HISTORY_BYTES", 200)
    history = ChatHistory(tmp_path / "h")
    for number in range(30):
        history.append_string(f"text {number}")
    found = kept(tmp_path / "h")
    assert 1 < len(found) < 10
    assert found == [f"text {number}" for number in range(29, 29 - len(found), -1)]


def test_without_a_place_for_it_nothing_is_kept_and_nothing_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    history = ChatHistory(tmp_path / "file" / "h")
    history.append_string("one")
    assert list(history.load_history_strings()) == []


def completions(text: str) -> list[str]:
    queued = Message.from_proto(v1.Message(name="conversations/c1/messages/q7"))
    session = SimpleNamespace(model_names=["demo/demo", "big"], view=SimpleNamespace(queue=[queued]))
    completer = ChatCompleter(cast("ChatSession", session))
    return [found.text for found in completer.get_completions(Document(text), CompleteEvent())]


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("/mo", ["/mode", "/model"]),
        ("/q", ["/queue", "/quit"]),
        ("/mode ", ["restricted", "workspace", "unrestricted"]),
        ("/model b", ["big"]),
        ("/effort h", ["high"]),
        ("/approvals ask", ["ask_writes", "ask_all"]),
        ("/withdraw ", ["q7"]),
        ("/queue some", []),
        ("no command", []),
    ],
)
def test_commands_and_their_arguments_are_completed(text: str, offered: list[str]) -> None:
    assert completions(text) == offered


def test_a_message_may_have_lines_and_comes_back_in_the_next_chat(address: str, fake: FakeBedrock) -> None:
    fake.answers.extend([says("First."), says("Second.")])
    for answer, keys in (("First.", "one\\\rtwo\x1b\rthree\r"), ("Second.", "\x1b[A\r")):
        with Terminal("chat", environ={"BEDROCK_ADDRESS": address}) as terminal:
            terminal.shows("idle · ")
            terminal.keys(keys)
            terminal.shows(answer)
            terminal.idles()  # a key that means something to a terminal is lost while lines are printed
            terminal.keys("\x04")
            assert terminal.ends() == 0
    assert [text for text, _ in sent(fake)] == ["one\ntwo\nthree"] * 2


def test_what_is_pasted_is_one_message(address: str, fake: FakeBedrock) -> None:
    fake.answers.append(says("I see."))
    with Terminal("chat", environ={"BEDROCK_ADDRESS": address}) as terminal:
        terminal.shows("idle · ")
        terminal.keys("\x1b[200~one\ntwo\n\x1b[201~")
        terminal.keys("\r")
        terminal.shows("I see.")
    assert [text for text, _ in sent(fake)] == ["one\ntwo\n"]


def test_a_long_text_that_is_pasted_is_folded_and_sent_whole(address: str, fake: FakeBedrock) -> None:
    fake.answers.extend([says("I see."), says("Again.")])
    short, long = "\n".join(map(str, range(20))), "\n".join(map(str, range(21)))
    with Terminal("chat", environ={"BEDROCK_ADDRESS": address}, rows=40) as terminal:
        terminal.shows("idle · ")
        terminal.keys(f"Look: \x1b[200~{long}\x1b[201~ and \x1b[200~{long}\x1b[201~")
        terminal.until(
            lambda screen: any("> Look: [paste 1: 21 lines] and [paste 2: 21 lines]" in row for row in screen)
        )
        terminal.keys("\x7f!\r")  # a backspace takes the second one away as a whole
        terminal.shows("I see.")
        terminal.until(lambda screen: any("… and 16 more lines" in row for row in screen))
        terminal.idles()
        terminal.keys(f"\x1b[200~{short}\x1b[201~")
        terminal.until(lambda screen: any(row.strip() == "19" for row in screen))
        terminal.keys("\x03")
        terminal.until(lambda screen: not any(row.strip() == "19" for row in screen))
        terminal.keys("\x1b[A")
        terminal.until(lambda screen: any(row.strip() == "20 and !" for row in screen))
        terminal.keys("\r")
        terminal.shows("Again.")
    assert [text for text, _ in sent(fake)] == [f"Look: {long} and !"] * 2


def test_ctrl_c_leaves_a_search_and_enter_takes_what_it_has_found(address: str, fake: FakeBedrock) -> None:
    def searches(screen: list[str]) -> bool:
        return any(row.startswith("I-search") for row in screen)

    fake.answers.extend([says("One."), says("Two.")])
    with Terminal("chat", environ={"BEDROCK_ADDRESS": address}) as terminal:
        terminal.shows("idle · ")
        terminal.keys("what is it?\r")
        terminal.shows("One.")
        terminal.idles()
        for key in ("\x03", "\r"):
            terminal.keys("\x12wha")
            terminal.until(searches)
            terminal.keys(key)
            terminal.until(lambda screen: not searches(screen))
        assert len(sent(fake)) == 1
        terminal.keys("\r")
        terminal.shows("Two.")
    assert [text for text, _ in sent(fake)] == ["what is it?"] * 2


def test_bytes_that_are_no_text_are_not_sent_and_do_not_end_the_chat(address: str, fake: FakeBedrock) -> None:
    fake.answers.append(says("I see."))
    with Terminal("chat", environ={"BEDROCK_ADDRESS": address}) as terminal:
        terminal.shows("idle · ")
        terminal.send(b"caf\xe9\r")
        terminal.shows("not sent: “caf\\udce9”")
        terminal.shows("set your terminal to UTF-8")
        terminal.keys("café\r")
        terminal.shows("I see.")
        terminal.keys("\x04")
        assert terminal.ends() == 0
    assert [text for text, _ in sent(fake)] == ["café"]


def test_tab_completes_a_command_and_enter_runs_the_only_one_at_once(address: str, fake: FakeBedrock) -> None:
    with Terminal("chat", environ={"BEDROCK_ADDRESS": address}) as terminal:
        terminal.shows("idle · ")
        terminal.keys("/with")
        terminal.until(lambda screen: any("take back the last queued message" in line for line in screen))
        terminal.keys("\t")
        terminal.until(lambda screen: any(line.startswith("> /withdraw") for line in screen))
        terminal.keys("\r")
        terminal.shows("the queue is empty")
        terminal.shows("idle · ")
        terminal.keys("\x04")
        assert terminal.ends() == 0


@pytest.mark.parametrize(
    ("offered", "chosen", "waits"),
    [(["/help"], 0, False), (["/mode "], 0, True), (["/queue", "/quit"], 1, True), (["/queue", "/quit"], None, False)],
)
def test_enter_closes_the_menu_first_where_there_is_something_to_choose(
    offered: list[str], chosen: int | None, waits: bool
) -> None:
    typed = Buffer(document=Document(offered[chosen or 0]))
    typed.complete_state = CompletionState(Document("/"), [Completion(text, -1) for text in offered], chosen)
    assert is_being_chosen(typed) is waits


def test_nothing_is_kept_or_read_where_others_may_enter(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "h").write_text("\n# 2026-11-22 00:00:00.000000\n+planted\n")
    history = ChatHistory(folder / "h")
    history.append_string("typed")
    assert list(history.load_history_strings()) == []
    assert "typed" not in (folder / "h").read_text()
