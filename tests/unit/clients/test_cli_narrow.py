"""Commands at a narrow terminal: no word is broken, and no name that another command needs is cut."""

from __future__ import annotations

import pytest
from bedrock import v1
from bedrock.cli.app import bedrock
from click.testing import CliRunner

from tests.support.fake_server import NAME, SLUG, FakeBedrock, fails, uses_tool
from tests.support.terminals import Terminal
from tests.unit.clients.test_cli_queue_and_cycles import queued

WORDS = "It is as it was before, but for some words that are longer than others. " * 4


def printed(address: str, *arguments: str, columns: int) -> list[str]:
    """The lines that a command leaves at a terminal of that width."""
    with Terminal(*arguments, environ={"BEDROCK_ADDRESS": address}, columns=columns) as terminal:
        terminal.ends()
        return terminal.rows


def words(rows: list[str]) -> str:
    return " ".join(" ".join(rows).split())


@pytest.mark.parametrize("columns", [60, 80])
def test_what_is_longer_than_the_terminal_goes_on_at_a_word(address: str, fake: FakeBedrock, columns: int) -> None:
    fake.conversation.title = WORDS
    fake.conversation.working_directory = "/tmp/" + "a-folder " * 20
    fake.conversation.state.kind = v1.STATE_KIND_FAILED
    fake.conversation.state.failed.error.message = WORDS
    fake.answers += [uses_tool("rm x", "", "Done.", ask=True), fails("auth", WORDS)]
    shown = printed(address, "show", SLUG, columns=columns)
    doctor = printed(address, "doctor", columns=columns)
    asked = printed(address, "ask", "Hi", columns=columns)
    for rows, told in (
        (shown, "title It is as it was before,"),
        (shown, "directory /tmp/a-folder a-folder a-folder a-folder a-folder a-folder a-folder a-folder a-folder"),
        (doctor, "→ They are hidden if the server can create mount namespaces. Restricted mode always hides them."),
        (asked, f"`bedrock approve {SLUG}` or `bedrock deny {SLUG}`, then `bedrock show {SLUG}`. To approve all tool"),
    ):
        assert told in words(rows)
        assert max(map(len, rows)) < columns
    title = next(number for number, row in enumerate(shown) if row.startswith("title "))
    assert shown[title + 1][:14].strip() == shown[title + 1][13], "it is set in like what is above"


def test_names_are_whole_however_narrow_the_terminal(address: str, fake: FakeBedrock) -> None:
    fake.conversation.title = WORDS
    fake.conversation.model = "models/one-with-a-rather-long-name"
    entry = queued(1, v1.QueuedMessage.FATE_QUEUED, WORDS)
    entry.message.name = f"{NAME}/messages/0198c0de-1234-7abc-8def-0123456789ab"
    fake.queued, fake.cycles = [entry], [v1.RequestCycle(name=f"{NAME}/requestCycles/c:1")]
    fake.cycles[0].steps.add().root.content.add(text="Look around. " * 20)
    fake.cycles[0].name = f"{NAME}/requestCycles/0198c0de-1234-7abc-8def-0123456789ab"
    for command, name in (
        (("list",), SLUG),
        (("queue", SLUG), "0198c0de-1234-7abc-8def-0123456789ab"),
        (("cycles", SLUG), "0198c0de-1234-7abc-8def-0123456789ab"),
    ):
        for columns in (60, 80):
            rows = printed(address, *command, columns=columns)
            assert any(row.startswith(f"{name} ") for row in rows), rows
            assert any("…" in row for row in rows)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("queue", SLUG), "The queue is empty."),
        (("queue", SLUG, "--all"), "Nothing has been queued yet."),
        (("approvals",), "No approvals are pending."),
        (("questions",), "No questions are open."),
        (("cycles", SLUG), "No runs yet."),
        (("models",), "No models."),
        (("nodes",), "This server does not share its conversations with other servers."),
        (("mcp",), "No MCP servers; configure them as [[mcp_servers]] in the settings."),
    ],
)
def test_an_empty_list_is_a_sentence_instead_of_a_table(
    address: str, fake: FakeBedrock, command: tuple[str, ...], sentence: str
) -> None:
    del fake.info.mcp_servers[:], fake.models[:]
    assert printed(address, *command, columns=80) == [sentence]
    result = CliRunner().invoke(bedrock, ["--address", address, *command])
    assert (result.stdout, result.stderr) == ("", f"{sentence}\n"), "no line of a table, for what reads the pipe"


def test_a_conversation_in_which_nothing_was_said_says_so(address: str) -> None:
    assert printed(address, "show", SLUG, columns=80)[-1] == "No messages yet."
