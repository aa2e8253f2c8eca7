"""One call for a question and its answer, against a whole server."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import bedrock
import pytest
from bedrock import Approval, AsyncClient

from tests.support.patience import PATIENCE
from tests.support.server_process import ServerProcess, Servers


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the demo model."""
    servers = Servers()
    yield servers(tmp_path_factory.mktemp("server"))
    servers.close()


@pytest.fixture(autouse=True)
def _way(server: ServerProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environment names the server, and the current directory is a new one."""
    monkeypatch.setenv("BEDROCK_ADDRESS", server.address)
    monkeypatch.setenv("BEDROCK_TOKEN", server.token)
    monkeypatch.chdir(tmp_path)


def test_one_line_asks_and_knows_where_the_answer_came_from(server: ServerProcess) -> None:
    answer = bedrock.ask("run echo hello")
    assert "hello" in answer
    with server.client() as client:
        conversation = client.conversation(answer.conversation)
        (cycle,) = conversation.cycles(view="rounds")
        assert cycle.name == answer.run
        assert conversation.get().total_usage == answer.usage
        assert answer.usage.output_tokens == sum(done.usage.output_tokens for done in cycle.rounds if done.usage) > 0
        again = conversation.ask("run echo again")
    assert ("again" in again, again.conversation) == (True, answer.conversation)


def test_who_decides_about_approvals_is_said_by_the_caller(server: ServerProcess) -> None:
    asked: list[str] = []

    def decide(approval: Approval) -> bool:
        asked.append(approval.tool)
        return False

    with server.client() as client:
        for on_approval in (None, decide):
            refused = client.ask("run echo hello", approval_policy="ask_all", on_approval=on_approval)
            messages = client.conversation(refused.conversation).messages()
            assert [result.outcome for message in messages for result in message.tool_results] == ["denied"]
        assert asked == ["bash"]


def test_a_question_whose_time_is_up_is_cancelled(server: ServerProcess) -> None:
    async def ask() -> None:
        async with AsyncClient() as client, asyncio.timeout(PATIENCE):
            asking = asyncio.create_task(client.ask("run sleep 600"))
            async for entry in client.watch_conversations(changes_only=True):
                changed = entry.conversation_changed
                if changed and changed.state.kind == "tool_executing":
                    asking.cancel()
                    break
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert changed
            conversation = client.conversation(changed.name)
            assert not (await conversation.get()).state.busy
            (cycle,) = [cycle async for cycle in conversation.cycles()]
            assert cycle.stop_reason == "interrupted"

    asyncio.run(ask())
