"""`bedrock backup` of a server at work, `bedrock restore` elsewhere, and a server over what was restored."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from tests.support import server_process
from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider, says, streams
from tests.support.patience import PATIENCE
from tests.support.server_process import Servers, provider
from tests.support.watcher import Watcher

pytestmark = pytest.mark.one_server("it copies SQLite's file")

TALKERS = 3


def bedrock(folder: Path, *arguments: str | Path, **env: str) -> tuple[int, str]:
    """How the program ends, and what it says."""
    done = server_process.bedrock(folder, *arguments, **env)
    return done.returncode, done.stdout + done.stderr


def talk(chat: Chat, enough: Event) -> int:
    """Ask and be answered until it is enough; how often that was."""
    turns = 0
    while not enough.is_set():
        chat.part.then(says(f"Answer {turns}."))
        assert chat.ask(f"Question {turns}.") == f"Answer {turns}."
        turns += 1
    return turns


def test_a_server_at_work_is_backed_up_and_restored_elsewhere(
    start_server: Servers, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    here, there, file = tmp_path / "here", tmp_path / "there", tmp_path / "copy.db"
    here.mkdir()
    there.mkdir()
    server = start_server(here, **provider(fake_provider.url))
    enough = Event()
    with server.client() as client, ThreadPoolExecutor(TALKERS) as pool:
        streaming = Chat(client, fake_provider.part(says("Once."), streams), here)
        assert streaming.ask("Speak.") == "Once."
        watcher = Watcher(server, streaming.name)
        streaming.send("Talk for ever.")
        watcher.until("text_delta")
        talkers = [Chat(client, fake_provider.part(), here) for _ in range(TALKERS)]
        for chat in talkers:
            chat.part.then(says("Yes."))
            assert chat.ask("Are you there?") == "Yes."
        talking = [pool.submit(talk, chat, enough) for chat in talkers]
        try:
            code, text = bedrock(here, "backup", file, BEDROCK_DATA_DIR=str(server.data))
            assert (code, f"backed up {TALKERS + 1} conversations" in text) == (0, True), text
            code, text = bedrock(here, "backup", file, BEDROCK_DATA_DIR=str(server.data))
            assert (code, "already exists; choose another name, or use --force" in text) == (2, True), text
            code, text = bedrock(here, "restore", file, "--data-dir", server.data, "--force")
            assert (code, f"in use by process {server.pid}; stop the server first" in text) == (1, True), text
            code, text = bedrock(here, "restore", file, "--data-dir", there / "data")
            assert (code, "restored" in text) == (0, True), text
        finally:
            enough.set()
        assert all(turns.result(PATIENCE) > 0 for turns in talking)
        before = {chat.name: chat.said() for chat in talkers}
        streaming.conversation.cancel()
        watcher.close()
    assert server.token.encode() not in file.read_bytes()

    other = start_server(there, **provider(fake_provider.url))
    assert other.token != server.token
    found = {"BEDROCK_ADDRESS": other.address, "BEDROCK_TOKEN": other.token}
    code, text = bedrock(there, "verify", "--all", **found)
    assert (code, text.count(": ok")) == (0, TALKERS + 1), text
    with other.client() as client:
        for chat in talkers:
            again = client.conversation(chat.name)
            assert again.get().state.kind == "idle"
            said = [message.text for message in again.messages()]
            assert said[1] == "Yes."
            assert said == [text for _, text in before[chat.name]][: len(said)]
        cut = client.conversation(streaming.name)
        assert [message.text.split()[0] for message in cut.messages()] == ["Speak.", "Once.", "Talk"]
        streaming.part.then(says("Back again."))
        assert cut.send(f"Still there? {streaming.part.key}").answer() == "Back again."


def test_what_is_wrong_is_said_in_a_line_and_an_exit_code(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    code, text = bedrock(tmp_path, "backup", "copy.db", "--data-dir", data)
    assert (code, text) == (1, f"error: no backup was made: no database in {data}\n")
    code, text = bedrock(tmp_path, "restore", "copy.db", "--data-dir", data)
    assert (code, text) == (1, "error: nothing was restored: copy.db is not a regular file\n")
    code, text = bedrock(tmp_path, "backup", "copy.db", "--config", "missing.toml")
    assert (code, "missing.toml cannot be read" in text) == (2, True)
    assert bedrock(tmp_path, "backup")[0] == 2
    assert not list(tmp_path.iterdir())
