"""MCP servers of the operator, from the settings to the model and back."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE

import pytest
from bedrock import AgentBusy, Client, InvalidArgument, McpHttp, McpServer, McpStdio, Question, Run
from bedrock.errors import McpNotAllowed, NotFound, UnknownOrDecided

from tests.support import processes
from tests.support.chat import Chat, question
from tests.support.fake_provider import FakeProvider, calls, says
from tests.support.login_server import LoginServer, opened
from tests.support.patience import PATIENCE, eventually, within
from tests.support.server_process import ROOT, ServerProcess, Servers, provider
from tests.support.terminals import Terminal

CANCELS = int(os.environ.get("BEDROCK_MCP_CANCELS", "10"))
"""Runs that are cancelled at a random moment of their calls."""

PROGRAM = ROOT / "tests" / "integration" / "mcp" / "program.py"
SECRET = processes.forever()
"""An operator's secret, which marks the processes of these MCP servers among all of the machine."""


def start(servers: Servers, folder: Path, fake_provider: FakeProvider, *ways: str, **env: str) -> ServerProcess:
    """A server whose settings have the tests' program as the MCP server `t`; `count` and `spawn` may change things."""
    command = [sys.executable, "-I", "-S", str(PROGRAM), *ways]
    settings = folder / "settings.toml"
    settings.write_text(
        f'[[mcp_servers]]\nname = "t"\ncommand = {command!r}\nread_only = ["echo", "picture"]\n'
        'environment = { TOKEN = "$SECRET_FOR_IT" }\n'
    )
    settings.chmod(0o600)
    secret = {"SECRET_FOR_IT": SECRET}
    return servers(folder, "--config", str(settings), **provider(fake_provider.url), **secret, **env)


def marked(server: ServerProcess) -> list[int]:
    """The processes of MCP servers: they have the operator's variable."""
    return [pid for pid in processes.running(SECRET) if pid not in server.pids]


def tool_question(run: Run) -> Question:
    """What a tool asks, which stays open until it is answered or the next event is read."""
    return within(lambda: next(event.question for event in run if event.question))


def tools_known(client: Client) -> None:
    eventually(lambda: bool(client.server_info().mcp_servers[0].tools), "its tools")


def test_a_call_goes_to_the_server_and_its_result_to_the_model(
    start_server: Servers, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    server = start(start_server, tmp_path, fake_provider)
    with server.client() as client:
        tools_known(client)
        (status,) = client.server_info().mcp_servers
        assert (status.name, status.state, status.error) == ("t", "ready", "")
        (echo,) = [tool for tool in client.tools() if tool.name == "tools/mcp__t__echo"]
        assert (echo.audience, echo.writes) == ("top_level", False)
        wanted = calls(("mcp__t__echo", {"text": "hello"}), ("mcp__t__picture", {}), ("mcp__t__extra", {}))
        part = fake_provider.part(wanted, says("Done."))
        chat = Chat(client, part, tmp_path)
        assert chat.ask("Use it.") == "Done."
        assert "mcp__t__echo" in part.exchanges[0].tools
        first, second, third = part.exchanges[1].results
        assert "echo hello" in str(first)
        assert "image" in str(second)
        assert "There is no tool" in str(third), "what is not offered is not called"
        chat.assert_valid()
        assert marked(server), "it stays for the next call"
        stored = [path for path in server.data.rglob("*") if path.is_file()]
        assert [path for path in stored if SECRET.encode() in path.read_bytes()] == []
        assert SECRET not in server.log_text()
        chat.conversation.delete()
        eventually(lambda: not marked(server), "its end with the conversation")


def test_a_tool_that_may_change_something_asks_and_needs_another_mode(
    start_server: Servers, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    server = start(start_server, tmp_path, fake_provider)
    with server.client() as client:
        tools_known(client)
        assert client.server_info().sandbox.restricted_available, "this machine keeps no restriction"
        part = fake_provider.part(calls(("mcp__t__count", {})), says("It is refused."))
        chat = Chat(client, part, tmp_path, mode="restricted", approval_policy="ask_writes")
        run = chat.send("Count.")
        asked = question(run)
        assert asked.tool == "mcp__t__count"
        chat.conversation.approve(asked)
        assert within(run.answer) == "It is refused."
        assert "request_mode_upgrade" in str(part.exchanges[1].results)
        part.then(calls(("mcp__t__echo", {})), says("One."))
        assert chat.ask("Now this.") == "One."
        chat.conversation.set_mode("unrestricted")
        part.then(says("Ready."), calls(("mcp__t__count", {})), says("Counted."))
        assert chat.ask("What changed?") == "Ready."
        notices = [message for message in chat.conversation.messages() if message.system_kind == "mcp_restarted"]
        assert len(notices) == 1
        assert " t." in notices[0].text
        assert "started again" in "".join(part.exchanges[-1].texts)
        chat.assert_valid()


def test_what_it_asks_is_answered_by_a_person_and_a_late_answer_says_why_it_is_too_late(
    start_server: Servers, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    server = start(start_server, tmp_path, fake_provider)
    with server.client() as client:
        tools_known(client)
        part = fake_provider.part(calls(*[("mcp__t__ask", {})] * 3))
        chat = Chat(client, part, tmp_path, mode="unrestricted")
        run = chat.send("Ask me.")
        first = tool_question(run)
        assert (first.tool, first.mcp_server, first.message) == ("tools/mcp__t__ask", "t", "Which branch?")
        assert first.requested_schema is not None
        assert first.requested_schema["required"] == ["branch"]
        assert [asked.name for asked in chat.state.questions] == [first.name]
        assert chat.conversation.tool_question(first.name) == first
        with client.conversation(chat.name).events() as events:
            snapshot = within(lambda: next(event.snapshot for event in events if event.snapshot))
        assert snapshot.pending_questions == (first,)
        with pytest.raises(InvalidArgument, match="branch"):
            chat.conversation.answer_question(first, {"branch": 7})
        assert chat.conversation.answer_question(first, {"branch": "main"}).status == "answered"
        with pytest.raises(UnknownOrDecided) as late:
            chat.conversation.answer_question(first, {"branch": "main"})
        assert late.value.metadata["cause"] == "answered"
        with pytest.raises(NotFound):
            chat.conversation.tool_question(first.name)
        second = tool_question(run)
        assert chat.conversation.decline_question(second.name.rpartition("/")[2]).status == "declined"
        third = tool_question(run)
        chat.conversation.cancel()
        chat.settle()
        with pytest.raises(UnknownOrDecided) as late:
            chat.conversation.decline_question(third)
        assert late.value.metadata["cause"] == "withdrawn"
        results = [result for message in chat.conversation.messages() for result in message.tool_results]
        assert ['"accept"' in results[0].output, '"decline"' in results[1].output] == [True, True]
        assert results[2].outcome == "cancelled"
        chat.assert_valid()
        part.then(calls(("mcp__t__echo", {"text": "on"})), says("On."))
        assert chat.ask("Go on.") == "On.", "the server goes on"
        part.then(calls(("mcp__t__ask", {}), ("mcp__t__ask", {})), says("Told."))
        contents = iter([{"branch": "main"}, None])
        asked_again = chat.send("Again.", on_question=lambda _: next(contents))
        assert within(asked_again.answer) == "Told.", "a function answers, and declines"
        *_, filled, declined = [each for message in chat.conversation.messages() for each in message.tool_results]
        assert ['"accept"' in filled.output, '"decline"' in declined.output] == [True, True]


def test_a_person_answers_it_in_a_chat_at_the_terminal(
    start_server: Servers, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    server = start(start_server, tmp_path, fake_provider)
    with server.client() as client:
        tools_known(client)
        part = fake_provider.part(calls(("mcp__t__ask", {})), says("It is done."))
        chat = Chat(client, part, tmp_path, mode="unrestricted")
        slug = chat.conversation.get().slug
        environ = {"BEDROCK_ADDRESS": server.address, "BEDROCK_TOKEN": server.token}
        with Terminal("chat", "-r", slug, environ=environ) as terminal:
            terminal.idles()  # the line above wraps where the directory has a long name
            chat.send("Ask me.")
            terminal.shows("? MCP server t needs your input for mcp__t__ask")
            asks = (
                "branch (text, at least 1 character)  /decline; answer by ",
                "force (y or n, Enter: n)  /decline; answer by ",
            )
            terminal.until(lambda screen: any(line.startswith(asks[0]) for line in screen))
            terminal.keys("main\r")
            terminal.until(lambda screen: any(line.startswith(asks[1]) for line in screen))
            terminal.keys("y\r")
            terminal.until(lambda screen: "It is done." in "\n".join(screen))
            terminal.keys("\x04")
            assert terminal.ends() == 0
        (result,) = [result for message in chat.conversation.messages() for result in message.tool_results]
        assert json.loads(result.output) == {"action": "accept", "content": {"branch": "main", "force": True}}


def test_a_cancel_ends_the_call_with_one_result_and_the_server_goes_on(
    start_server: Servers, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    server = start(start_server, tmp_path, fake_provider)
    with server.client() as client:
        tools_known(client)
        part = fake_provider.part(calls(("mcp__t__wait", {})))
        chat = Chat(client, part, tmp_path, mode="unrestricted")
        run = chat.send("Wait.")
        within(lambda: next(event for event in run if event.kind == "tool_output_delta"))
        before = marked(server)
        chat.conversation.cancel()
        chat.settle()
        results = [result for message in chat.conversation.messages() for result in message.tool_results]
        assert [result.outcome for result in results] == ["cancelled"]
        part.then(calls(("mcp__t__echo", {"text": "on"})), says("On."))
        assert chat.ask("Go on.") == "On."
        assert marked(server) == before, "the same process"
        chat.assert_valid()


def test_cancels_at_random_moments_leave_one_result_per_call_and_one_process(
    start_server: Servers, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    server = start(start_server, tmp_path, fake_provider)
    some = random.Random(11)
    with server.client() as client:
        tools_known(client)
        wait = calls(("mcp__t__echo", {}), ("mcp__t__wait", {}), ("mcp__t__echo", {}))
        part = fake_provider.part(calls(("mcp__t__count", {})), says("Ready."), otherwise=wait)
        chat = Chat(client, part, tmp_path, mode="unrestricted")
        assert chat.ask("Begin.") == "Ready."
        (process,) = marked(server)
        for _ in range(CANCELS):
            chat.send("Wait.")
            time.sleep(some.uniform(0, 0.06))
            chat.conversation.cancel()
            chat.settle()
        messages = list(chat.conversation.messages())
        called = [call.tool_use_id for message in messages for call in message.tool_calls]
        answered = [result.tool_use_id for message in messages for result in message.tool_results]
        assert answered == called, "each call has one result, in its order"
        part.then(calls(("mcp__t__echo", {"text": "on"})), says("On."))
        assert chat.ask("Go on.") == "On."
        assert marked(server) == [process]
        chat.assert_valid()
        chat.conversation.delete()
        eventually(lambda: not marked(server), "its end with the conversation")


def test_a_client_names_servers_for_its_conversation_and_a_fork_has_its_own(
    start_server: Servers, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text("[mcp_from_clients]\nprograms = true\n")
    server = start_server(tmp_path, "--config", str(settings), **provider(fake_provider.url))
    program = McpStdio((sys.executable, "-I", "-S", str(PROGRAM)), {"OF": "this-conversation"})

    def processes_of_it() -> list[int]:
        return processes.running("this-conversation")

    with server.client() as client:
        elsewhere = McpServer("web", http=McpHttp("http://169.254.169.254/"))
        with pytest.raises(McpNotAllowed):
            client.create(tmp_path, mcp_servers=[elsewhere])
        part = fake_provider.part(calls(("mcp__own__echo", {"text": "hi"}), ("mcp__own__count", {})), says("Done."))
        chat = Chat(client, part, tmp_path, mode="unrestricted", mcp_servers=[McpServer("own", program)])
        eventually(lambda: chat.conversation.get().mcp_servers[0].state == "ready", "its connection")
        (shown,) = chat.conversation.get().mcp_servers
        assert (shown.stdio, shown.tools[0]) == (program, "tools/mcp__own__echo")
        assert chat.ask("Use it.") == "Done."
        assert "echo hi" in str(part.exchanges[1].results)
        assert not any(tool.name.startswith("tools/mcp__") for tool in client.tools()), "only this conversation has it"
        fork = chat.conversation.fork()
        eventually(lambda: fork.get().mcp_servers[0].state == "ready", "the fork's own connection")
        part.then(calls(("mcp__own__count", {})), says("Counted."))
        assert within(fork.send(f"Count. {part.key}").answer) == "Counted."
        assert "'1'" in str(part.exchanges[-1].results), "its own process"
        fork.delete()
        part.then(calls(("mcp__own__wait", {})))
        run = chat.send("Wait.")
        within(lambda: next(event for event in run if event.kind == "tool_output_delta"))
        with pytest.raises(AgentBusy):
            chat.conversation.update(mcp_servers=())
        chat.conversation.cancel()
        chat.settle()
        chat.conversation.update(mcp_servers=())
        assert chat.conversation.get().mcp_servers == ()
        eventually(lambda: not processes_of_it(), "its end")
        part.then(says("Gone."))
        assert chat.ask("And now?") == "Gone."
        assert not any(name.startswith("mcp__") for name in part.exchanges[-1].tools)
        chat.assert_valid()


@pytest.mark.one_server("each node has its own logins at MCP servers")
def test_an_operator_logs_in_while_the_server_runs_and_the_tokens_are_nowhere_else(
    start_server: Servers, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    with LoginServer() as web:
        settings = tmp_path / "settings.toml"
        settings.write_text(f'[[mcp_servers]]\nname = "web"\nurl = "{web.url}"\nread_only = true\n')
        server = start_server(tmp_path, "--config", str(settings), **provider(fake_provider.url))

        def run(command: str) -> subprocess.Popen[str]:
            program = f"from server.auth import credential_commands; credential_commands.{command}()"
            where = ("--config", str(settings), "--data-dir", str(server.data))
            return subprocess.Popen(
                (sys.executable, "-c", program, "web", *where), stdout=PIPE, stderr=PIPE, text=True, cwd=ROOT
            )

        with server.client() as client:

            def state() -> tuple[str, str]:
                (status,) = client.server_info().mcp_servers
                return status.state, status.error

            eventually(lambda: state() == ("needs_login", "needs login: bedrock mcp login web"), "the state")
            with run("login") as logging_in:
                assert logging_in.stderr is not None
                address = next(line.strip() for line in logging_in.stderr if "/authorize?" in line)
                assert opened(web.browse(address))[0] == 200
                assert logging_in.communicate(timeout=PATIENCE)[0].startswith("logged in to web")
            eventually(lambda: state() == ("ready", ""), "its connection")
            part = fake_provider.part(calls(("mcp__web__add", {}), ("bash", {"command": "env"})), says("Done."))
            chat = Chat(client, part, tmp_path, mode="unrestricted")
            assert chat.ask("Use it.") == "Done."
            assert (web.calls, "secret" in str(part.exchanges[1].results)) == (1, False)
            shown = "".join(str(message.proto) for message in chat.conversation.messages())
            files = [path for path in server.data.rglob("*") if path.is_file()]
            assert [path.name for path in files if b"-secret-" in path.read_bytes()] == ["mcp-logins.json"]
            assert "-secret-" not in shown + server.log_text()
            assert len(web.refresh) == 1
            with run("logout") as logging_out:
                assert logging_out.communicate(timeout=PATIENCE) == ("logged out of web\n", "")
            assert not web.refresh, "the provider has been told"
            eventually(lambda: state()[0] == "needs_login", "the state")
            web.ways.registrations = 2
            with run("login") as logging_in:
                assert logging_in.stderr is not None
                addresses = (line.strip() for line in logging_in.stderr if "/authorize?" in line)
                first = next(addresses)
                assert web.registered == 1, "the client that was registered before is used again"
                opened(web.browse(first))
                opened(web.browse(next(addresses)))
                assert logging_in.communicate(timeout=PATIENCE)[0].startswith("logged in to web")
            assert web.registered == 2
            chat.assert_valid()
