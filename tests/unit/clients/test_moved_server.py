"""A server that was started again at another address, with another token, is found by what it wrote for its clients."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from bedrock import AsyncClient, Client, Event, v1
from bedrock.cli import exit_codes as exits
from bedrock.cli.app import bedrock
from bedrock.errors import Misconfigured, ServerNotRunning, Unauthenticated
from click.testing import CliRunner

from tests.support.fake_server import NAME, FakeBedrock, FakeServer, Refusal, uses_tool


class Moving:
    """A server of this machine that moves when it is told to."""

    def __init__(self, fake: FakeBedrock, data: Path) -> None:
        self._fake, self._data = fake, data
        self._server: FakeServer | None = None

    def start(self, token: str) -> None:
        """Listen, and write down where."""
        self._server = FakeServer(self._fake, f"unix:{self._data}/{token}.sock")
        (self._data / "address").write_text(self._server.address)
        (self._data / "token").write_text(token)

    def move(self) -> None:
        """Start again at another socket, with another token."""
        self.stop()
        self.start("second")

    def answer(self, error: Exception, delay: float) -> None:
        """Let the tool call run that waits, when its watcher has lost the server."""
        self._fake.resolve(f"{NAME}/approvals/t1", v1.APPROVAL_DECISION_APPROVE)

    def stop(self) -> None:
        """End, and take back what was written down."""
        (self._data / "address").unlink(missing_ok=True)
        if self._server is not None:
            self._server.stop()


@pytest.fixture
def stopped(fake: FakeBedrock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Moving]:
    """A server that was not started yet."""
    with tempfile.TemporaryDirectory(prefix="bedrock-") as folder:  # short enough for a socket
        monkeypatch.setenv("BEDROCK_DATA_DIR", folder)
        server = Moving(fake, Path(folder))
        yield server
        server.stop()


@pytest.fixture
def moving(fake: FakeBedrock, stopped: Moving) -> Moving:
    """The same, started; its agent asks once."""
    stopped.start("first")
    fake.answers.append(uses_tool("ls", "x", "Done.", ask=True))
    return stopped


def test_a_watcher_finds_a_server_that_has_moved(fake: FakeBedrock, moving: Moving) -> None:
    events: list[Event] = []
    with Client(on_disconnect=moving.answer) as client:
        for event in client.conversation("c1").send("Hi"):
            events.append(event)
            if event.approval:
                moving.move()
        assert client.conversation("c1").get().name == NAME
    assert events[-1].kind == "run_stopped"
    assert {metadata["authorization"] for metadata in fake.metadata} == {"Bearer first", "Bearer second"}


def test_a_call_finds_a_server_that_has_moved(moving: Moving) -> None:
    with Client() as client:
        assert client.conversation("c1").get().name == NAME
        moving.move()
        assert client.conversation("c1").get().name == NAME


def test_a_token_that_was_exchanged_is_read_again(fake: FakeBedrock, moving: Moving) -> None:
    """Though the connection was never missed: the server is where it was."""
    with Client() as client:
        assert client.conversation("c1").get().name == NAME
        Path(os.environ["BEDROCK_DATA_DIR"], "token").write_text("exchanged")
        fake.refuse("GetConversation", Refusal(grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED", "a valid token …"))
        assert client.conversation("c1").get().name == NAME
        assert fake.metadata[-1]["authorization"] == "Bearer exchanged"
        fake.refuse("GetConversation", Refusal(grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED", "a valid token …"))
        with pytest.raises(Unauthenticated):
            client.conversation("c1").get()


def test_a_server_that_is_not_running_is_said_and_found_as_soon_as_it_runs(stopped: Moving) -> None:
    with Client() as client:
        with pytest.raises(ServerNotRunning, match="no Bedrock server is running on this machine"):
            client.server_info()
        assert client.address == ""
        stopped.start("first")
        assert client.server_info().version
        stopped.stop()
        with pytest.raises(ServerNotRunning, match="no Bedrock server is running"):
            client.server_info()


async def test_so_it_is_said_with_asyncio(stopped: Moving) -> None:
    async with AsyncClient() as client:
        with pytest.raises(ServerNotRunning, match="no Bedrock server is running on this machine"):
            await client.server_info()
        with pytest.raises(ServerNotRunning):
            await anext(client.watch_conversations())
        stopped.start("first")
        assert (await client.server_info()).version


def test_a_directory_that_was_opened_to_others_is_not_believed_any_more(moving: Moving) -> None:
    with Client() as client:
        client.server_info()
        moving.stop()
        Path(os.environ["BEDROCK_DATA_DIR"]).chmod(0o777)
        with pytest.raises(Misconfigured, match="others may have put files"):
            client.server_info()
        with pytest.raises(Misconfigured, match="others may have put files"):
            Client()


@pytest.mark.parametrize("command", ["list", "doctor", "ask Hello?", "show x", "watch x"])
def test_every_command_that_starts_no_server_says_that_none_is_running(stopped: Moving, command: str) -> None:
    result = CliRunner().invoke(bedrock, command.split())
    assert result.exit_code == exits.UNREACHABLE
    assert "no Bedrock server is running on this machine" in result.output
    assert "bedrock serve" in result.output
    assert "Set BEDROCK_TOKEN" not in result.output
