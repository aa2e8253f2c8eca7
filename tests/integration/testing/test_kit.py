"""The test kit: what a test tells the model happens on a real server, and what a test leaves behind is found."""

import asyncio
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from bedrock import RunFailed
from bedrock.events import Event
from bedrock.testing import Bedrock, Exchange, Gate, PrivateServer
from bedrock.testing.plays import calls, echoes

from tests.documents.pages import ROOT, code

pytest_plugins = ["bedrock.testing.plugin", "pytester"]

EXAMPLES = code((ROOT / "clients" / "README.md").read_text(), "py")


def test_the_model_says_what_the_test_tells_it(bedrock: Bedrock, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    bedrock.model.calls("bash", cmd="ls")
    bedrock.model.answers("One: ", "notes.txt.")
    conversation = bedrock.client.create(tmp_path, title="Files")
    assert conversation.ask("Which files are here?") == "One: notes.txt."
    first, second = bedrock.model.requests
    assert (first.question, "bash" in first.tools, first.results) == ("Which files are here?", True, [])
    assert "notes.txt" in str(second.results)
    assert str(tmp_path) in first.system
    assert (first.model, len(second.messages)) == (second.model, 3)
    bedrock.model.otherwise(echoes)
    assert conversation.ask("Again?") == "re: Again?"


def test_failures_are_retried_as_the_server_does(bedrock: Bedrock, tmp_path: Path) -> None:
    bedrock.model.breaks_off("Half a ")
    bedrock.model.answers("Whole.")
    assert bedrock.client.ask("Hi.", working_directory=tmp_path) == "Whole."
    bedrock.model.fails(401, "no such key")
    with pytest.raises(RunFailed, match="no such key"):
        bedrock.client.ask("Hi.", working_directory=tmp_path)
    assert len(bedrock.model.requests) == 3


def test_gates_are_where_a_test_acts(bedrock: Bedrock, tmp_path: Path) -> None:
    conversation = bedrock.client.create(tmp_path)
    bedrock.model.answers("Never heard.")
    with bedrock.model.held() as gate:
        conversation.send("First.")
        assert gate.wait().question == "First."
        assert bedrock.wait_for_state(conversation, "llm_requesting").run
        conversation.cancel()
        bedrock.wait_for_state(conversation.name, "idle")
    gate = Gate()
    bedrock.model.answers("Hello ", gate, "world")
    run = conversation.send("Second.")
    gate.wait()
    assert bedrock.wait_for_event(conversation, "text_delta").text == "Hello "
    gate.open()
    assert run.answer() == "Hello world"


def test_a_wait_says_what_it_saw(bedrock: Bedrock, tmp_path: Path) -> None:
    conversation = bedrock.client.create(tmp_path)

    def never(event: Event) -> bool:
        if event.kind == "caught_up":
            conversation.delete()
        return False

    with pytest.raises(AssertionError, match="ended, but: snapshot idle, caught_up, deleted"):
        bedrock.wait_for_event(conversation, never)
    other = bedrock.client.create(tmp_path)
    with pytest.raises(AssertionError, match=rf"no retrying in {other.name} within 0\.01 s, but: "):
        bedrock.wait_for_event(other, "retrying", timeout=0.01)


def test_conversations_can_have_scripts_of_their_own(bedrock: Bedrock, tmp_path: Path) -> None:
    task = {"tasks": [{"task": "Count the tests."}]}
    bedrock.model.then(calls(("spawn_sub_agent", task), text="Let me ask."))
    bedrock.model.answers("There are three.")
    counting = bedrock.model.when("Count the tests.")
    counting.calls("submit_result", result="Three.")
    assert bedrock.client.ask("How many tests?", working_directory=tmp_path) == "There are three."
    assert counting.next() is counting.requests[0]
    assert len(bedrock.model.requests) == 2


def test_the_client_for_asyncio_and_a_second_server(bedrock: Bedrock, tmp_path: Path) -> None:
    async def ask() -> str:
        async with bedrock.async_client() as client:
            return await client.ask("Hi.", working_directory=tmp_path)

    bedrock.model.answers("Yes.")
    assert asyncio.run(ask()) == "Yes."


def test_a_server_can_be_killed_and_another_one_started(
    bedrock: Bedrock, start_bedrock: Callable[..., Bedrock], tmp_path: Path
) -> None:
    other = start_bedrock(BEDROCK_DEFAULT_MODEL="claude-haiku-4-5")
    assert [model.name for model in other.client.models() if model.default] == ["models/claude-haiku-4-5"]
    bedrock.model.answers("One.")
    bedrock.model.answers("Two.")
    conversation = bedrock.client.create(tmp_path)
    assert conversation.ask("First.") == "One."
    address = bedrock.server.address
    bedrock.server.kill()
    assert bedrock.server.pid is None
    bedrock.server.start()
    assert bedrock.server.address == address
    assert conversation.ask("Second.") == "Two."
    assert list(other.client.conversations()) == []


def test_what_a_test_has_left_is_named_and_ended(bedrock_server: PrivateServer, tmp_path: Path) -> None:
    bedrock = Bedrock(bedrock_server)
    assert list(bedrock.client.conversations()) == []
    runs, jobs = (bedrock.client.create(tmp_path, slug=slug, mode="unrestricted") for slug in ("runs", "jobs"))
    bedrock.model.calls("bash", cmd="sleep 1000", wait_seconds=0)
    bedrock.model.answers("Started.")
    assert jobs.ask("Start it.") == "Started."
    bedrock.model.then(raises)
    with pytest.raises(RunFailed):
        jobs.ask("More.")
    gate = Gate()
    bedrock.model.answers(gate)
    runs.send("Run.")
    gate.wait()
    bedrock.model.answers("Not asked for.")
    assert bedrock_server.tool_processes()
    left = {re.sub(r"conversations/\S+", "…", problem) for problem in bedrock.close()}
    assert left == {
        "a run is in progress in runs (Run): … (llm_requesting); wait for it or cancel it",
        "job b-1 is still running in jobs (Start it); end it with cancel(kill_jobs=True) or delete()",
        "the play raises raised ValueError('wrong')",
        "the model never got a request for: answers('Not asked for.')",
    }
    assert not bedrock_server.tool_processes()


def test_a_request_that_is_not_in_the_script_and_a_server_that_ends(
    bedrock_server: PrivateServer, tmp_path: Path
) -> None:
    bedrock = Bedrock(bedrock_server)
    with pytest.raises(RunFailed, match="the script of the test has no answer for this request"):
        bedrock.client.ask("Hi.", working_directory=tmp_path)
    assert bedrock_server._process is not None
    bedrock_server._process.kill()
    ended, unexpected = bedrock.close()
    assert ended.startswith("the server exited unexpectedly")
    assert unexpected.endswith("which said last: 'Hi.'")
    assert bedrock_server.pid, "it is there for the next test"


def raises(exchange: Exchange) -> None:
    raise ValueError("wrong")


TESTS = """
import pytest

def test_that_is_fine(bedrock, tmp_path):
    bedrock.model.answers("Hello.")
    assert bedrock.client.ask("Hi.", working_directory=tmp_path) == "Hello."

def test_that_leaves_a_run(bedrock, tmp_path):
    bedrock.model.calls("bash", cmd="ls")
    conversation = bedrock.client.create(tmp_path, approval_policy="ask_all")
    conversation.send("Hi.")
    bedrock.wait_for_state(conversation, "awaiting_tool_approval")

def test_that_leaves_a_job(bedrock, tmp_path):
    bedrock.model.calls("bash", cmd="sleep 1000", wait_seconds=0)
    bedrock.model.answers("Started.")
    bedrock.client.ask("Hi.", working_directory=tmp_path, mode="unrestricted")

def test_that_fails_anyhow(bedrock):
    bedrock.model.answers("Never.")
    assert False

@pytest.mark.parametrize("number", range(3))
def test_that_finds_nothing_of_the_others(bedrock, number):
    assert list(bedrock.client.conversations()) == []
"""
TESTS_OF_A_FOLDER = """
def test_its_server(bedrock):
    assert [model.name for model in bedrock.client.models() if model.default] == ["models/claude-haiku-4-5"]
"""


def test_a_test_that_leaves_something_fails_on_any_worker(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside those that the README shows, which pass."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    shown, conftest = EXAMPLES
    folder = pytester.mkdir("with_a_server_of_its_own")
    (folder / "conftest.py").write_text(conftest)
    (folder / "test_default.py").write_text(TESTS_OF_A_FOLDER)
    pytester.makepyfile(test_shown=shown, test_leaving=TESTS)
    ran = pytester.runpytest_subprocess("-p", "bedrock.testing.plugin", "-p", "xdist", "-n", "2")
    ran.assert_outcomes(passed=7 + shown.count("def test_"), failed=1, errors=2)
    ran.stdout.fnmatch_lines_random(["*a run is in progress in *", "*job b-1 is still running in *"])
    ran.stdout.no_fnmatch_line("*never got a request for*")


def test_a_missing_server_is_said(monkeypatch: pytest.MonkeyPatch, start_bedrock: Callable[..., Bedrock]) -> None:
    """Only the client is installed: here, the Python that is started has neither."""
    bare = SimpleNamespace(executable=str(Path(sys.base_prefix) / "bin" / "python3"))
    monkeypatch.setattr("bedrock.cli.spawned_server.sys", bare)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with pytest.raises(pytest.fail.Exception, match="it is not installed here; from a checkout, run "):
        start_bedrock()
