"""The program against a scripted server: what it prints where, and with which exit code it ends."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import click
import grpc
import pytest
from bedrock import Approval, AsyncConversation, Conversation, v1
from bedrock._shared.requests import MAX_REQUEST_BYTES
from bedrock.cli import app
from bedrock.cli import exit_codes as exits
from bedrock.cli.app import SUMMARIES, bedrock
from bedrock.cli.commands import chat as demo
from bedrock.cli.commands import doctor, inspect
from bedrock.cli.exit_codes import what_to_do
from bedrock.errors import QuotaExceeded, Unavailable
from click.testing import CliRunner, Result
from google.protobuf.timestamp_pb2 import Timestamp

from tests.support.fake_server import (
    NAME,
    SLUG,
    FakeBedrock,
    Refusal,
    asks_person,
    ends_with,
    fails,
    says,
    state,
    stopped,
    stored,
    uses_tool,
)

Program = Callable[..., Result]


@pytest.fixture
def program(address: str) -> Program:
    def run(*arguments: str, stdin: str | None = None) -> Result:
        environment = {"BEDROCK_ADDRESS": address, "BEDROCK_TOKEN": "secret"}
        return CliRunner(env=environment).invoke(bedrock, arguments, input=stdin, catch_exceptions=False)

    return run


def test_the_answer_goes_to_standard_output_and_the_work_to_standard_error(program: Program, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("ls -l", "a.txt", "There is a.txt."))
    result = program("ask", "What", "is", "here?")
    assert result.exit_code == 0
    assert result.stdout == "There is a.txt.\n"
    assert "ls -l" in result.stderr
    assert "a.txt" in result.stderr
    (sent,) = fake.asked(v1.SendMessageRequest)
    assert sent.text == "What is here?"


def test_a_quiet_question_prints_only_the_answer(program: Program, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("ls", "a.txt", "Yes."))
    result = program("ask", "-q", "Hm?")
    assert (result.stdout, result.stderr) == ("Yes.\n", "")


def test_without_a_terminal_what_a_tool_asks_is_declined_and_told(program: Program, fake: FakeBedrock) -> None:
    fake.answers.append(asks_person())
    result = program("ask", "-q", "Use it")
    assert (result.exit_code, result.stdout) == (exits.OK, "Then not.\n")
    assert result.stderr == ("No terminal to ask on, so this question from MCP server t was declined: Which branch?\n")
    (reply,) = fake.asked(v1.AnswerQuestionRequest)
    assert reply.decline


def test_no_prompt_is_a_mistake(program: Program, fake: FakeBedrock) -> None:
    result = program("ask", stdin="")
    assert result.exit_code == exits.USAGE
    assert "no prompt" in result.stderr
    assert not fake.requests


def test_a_failed_run_is_exit_code_1_and_tells_its_error_once(program: Program, fake: FakeBedrock) -> None:
    for arguments in (("ask", "Hi"), ("ask", "-q", "-r", SLUG, "Hi")):
        fake.answers.append(fails("auth", "The key is wrong; set\x07 another one."))
        result = program(*arguments)
        assert (result.exit_code, result.stdout) == (exits.FAILED, "")
        assert result.stderr == "error: The key is wrong; set another one.\n"


def test_a_call_that_asks_is_exit_code_3_and_stays_open(program: Program, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("rm x", "", "", ask=True))
    result = program("ask", "Remove x")
    assert result.exit_code == exits.NEEDS_APPROVAL
    assert f"bedrock approve {SLUG}" in result.stderr
    assert not fake.asked(v1.ResolveApprovalRequest)
    assert not fake.asked(v1.CancelConversationRequest)


@pytest.mark.parametrize(
    ("command", "client"), [("ask --approve all Remove", AsyncConversation), ("chat", Conversation)]
)
def test_another_client_may_answer_before_everything_is_approved(
    program: Program,
    fake: FakeBedrock,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    client: type[Conversation | AsyncConversation],
) -> None:
    fake.answers.append(uses_tool("rm x", "", "Done.", ask=True))
    approve = client.approve

    def too_slow(conversation: Conversation | AsyncConversation, approval: Approval | str) -> object:
        assert isinstance(approval, Approval)
        assert fake.resolve(approval.name, v1.APPROVAL_DECISION_DENY)
        return approve(conversation, approval)  # type: ignore[arg-type]

    monkeypatch.setattr(client, "approve", too_slow)
    result = program(*command.split())
    assert result.exit_code == 0
    assert "Then not.\n" in result.stdout


def test_a_restart_is_an_error_and_not_a_cancel(program: Program, fake: FakeBedrock) -> None:
    fake.answers.append(lambda run: [state("idle"), stopped(run, "interrupted", "restart")])
    result = program("ask", "Hi")
    assert (result.exit_code, result.stderr) == (exits.FAILED, "error: interrupted by a server restart\n")


def test_ctrl_c_cancels_the_run(program: Program, fake: FakeBedrock, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.answers.append(uses_tool("sleep", "", "", ask=True))

    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bedrock.cli.commands.ask._follow", pressed)
    assert program("ask", "Wait").exit_code == exits.CANCELLED
    (cancelled,) = fake.asked(v1.CancelConversationRequest)
    assert cancelled.run == f"{NAME}/requestCycles/1"


@pytest.mark.usefixtures("ctrl_c_at_sending")
def test_ctrl_c_while_the_message_is_sent_cancels_the_run_that_it_began(program: Program, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("sleep", "", "", ask=True))
    result = program("ask", "--output", "json", "Wait")
    assert result.exit_code == exits.CANCELLED
    assert (json.loads(result.stdout)["run"], json.loads(result.stdout)["exit_code"]) == (None, exits.CANCELLED)
    (cancelled,) = fake.asked(v1.CancelConversationRequest)
    assert cancelled.run == f"{NAME}/requestCycles/1"


@pytest.mark.parametrize(
    "command",
    [
        *("show", "export", "watch", "cancel", "queue", "cycles", "replay", "log", "download", "approve", "continue"),
        *("rm -y", "verify", "withdraw", "archive", "rename --title x", "mode", "list --parent", "chat -r", "ask -r"),
    ],
)
def test_an_empty_name_is_a_wrong_command_line(program: Program, fake: FakeBedrock, command: str) -> None:
    result = program(*command.split(), "", *(["restricted"] if command == "mode" else []))
    assert result.exit_code == exits.USAGE
    assert re.search(r"Invalid value for '.*(NAME|--parent|--resume).*': must not be empty", result.stderr)
    assert not fake.requests


def test_no_server_is_exit_code_4_and_says_how_to_start_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEDROCK_DATA_DIR", str(tmp_path / "none"))
    result = CliRunner().invoke(bedrock, ["list"])
    assert result.exit_code == exits.UNREACHABLE
    assert "bedrock serve" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("address", ["127.0.0.1:1", "unix:{tmp}/none.sock"])
@pytest.mark.parametrize("source", ["--address", "BEDROCK_ADDRESS"])
@pytest.mark.parametrize("command", ["list", "chat", "doctor"])
def test_a_wrong_address_is_named_with_how_to_check_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, source: str, command: str
) -> None:
    address = address.format(tmp=tmp_path)
    given = [source, address] if source == "--address" else []
    if not given:
        monkeypatch.setenv(source, address)
    result = CliRunner().invoke(bedrock, [*given, command])
    assert result.exit_code == exits.UNREACHABLE
    assert f"Check {source}" in result.output
    assert address in result.output
    assert "Start one" not in result.output


@pytest.mark.parametrize("address", ["127.0.0.1:7421x", "127.0.0.1:", "[::1]:0", "https://example.com:70000"])
def test_a_port_that_is_none_is_a_wrong_command_line(address: str) -> None:
    result = CliRunner().invoke(bedrock, ["--address", address, "list"])
    assert result.exit_code == exits.USAGE
    assert "is not a port" in result.stderr


@pytest.mark.parametrize(
    ("cause", "advice"),
    [
        ("Socket closed", "https://"),
        ("the TLS handshake failed. Check that the server uses TLS with …", "BEDROCK_CA_FILE"),
        ("Connection refused", "bedrock serve"),
        ("this is an HTTP port. …", "gRPC port"),
    ],
)
def test_what_to_do_depends_on_how_no_server_was_reached(cause: str, advice: str) -> None:
    failure = exits.CommandError.of(Unavailable(f"no Bedrock server can be reached at 127.0.0.1:1: {cause}"))
    assert failure.exit_code == exits.UNREACHABLE
    hints = ("https://.", "BEDROCK_CA_FILE", "bedrock serve", "gRPC port")
    assert [words in failure.hint for words in hints].count(True) == 1
    assert advice in failure.hint


@pytest.mark.parametrize(
    ("refusal", "exit_code", "words"),
    [
        (Refusal(grpc.StatusCode.FAILED_PRECONDITION, "ARCHIVED", "archived"), 1, "bedrock archive --undo NAME"),
        (Refusal(grpc.StatusCode.INVALID_ARGUMENT, "MODEL_UNAVAILABLE", "no such model"), 2, "bedrock models"),
        (Refusal(grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED", "no token"), 1, "BEDROCK_TOKEN"),
        (Refusal(grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN", "shutting down"), 4, "shutting down"),
        (Refusal(grpc.StatusCode.INTERNAL, "INTERNAL", "a fault"), 1, "a fault"),
    ],
)
def test_refusals_say_what_to_do(
    program: Program, fake: FakeBedrock, refusal: Refusal, exit_code: int, words: str
) -> None:
    fake.refuse("CreateConversation", *[refusal] * 5)
    result = program("ask", "-m", "nope", "Hi")
    assert result.exit_code == exit_code
    assert words in result.stderr


@pytest.mark.parametrize(
    ("said", "detail", "words"),
    [
        ("One, two,", "max_tokens", "the answer, or the reasoning before it, was cut off at the token limit"),
        ("One, two,", "refusal", "the model refused, or a content filter cut the answer off"),
        ("", "empty", "the answer is empty"),
    ],
)
def test_an_answer_that_is_not_whole_has_an_exit_code_of_its_own_and_says_what_is_wrong(
    program: Program, fake: FakeBedrock, said: str, detail: str, words: str
) -> None:
    fake.answers.extend([says(said, detail=detail)] * 2)
    result = program("ask", "-q", "Count")
    assert (result.exit_code, result.stdout.strip(), result.stderr) == (exits.NOT_WHOLE, said, f"error: {words}\n")
    told = json.loads(program("ask", "--output", "json", "Count").stdout)
    assert [told[key] for key in ("text", "stop_reason", "stop_detail", "error", "exit_code")] == [
        said, "completed", detail, words, exits.NOT_WHOLE,
    ]  # fmt: skip


def test_an_answer_that_filled_the_context_is_whole(program: Program, fake: FakeBedrock) -> None:
    fake.answers.append(says("All.", detail="context_exhausted"))
    result = program("ask", "-q", "Count")
    assert (result.exit_code, result.stdout, result.stderr) == (exits.OK, "All.\n", "")


def test_going_on_with_the_latest_conversation_of_this_directory(
    program: Program, fake: FakeBedrock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fake.conversation.working_directory = str(tmp_path)
    fake.others.append(v1.Conversation(name="conversations/c9", slug="other-9", working_directory="/elsewhere"))
    fake.answers.extend([says("One."), says("Two.")])
    assert program("ask", "-c", "Hi").stdout == "One.\n"
    assert program("ask", "-r", SLUG, "Hi").stdout == "Two.\n"
    assert not fake.asked(v1.CreateConversationRequest)
    assert program("ask", "-c", "-r", SLUG, "Hi").exit_code == exits.USAGE
    assert program("ask", "-c", "-m", "big", "Hi").exit_code == exits.USAGE


def test_there_may_be_nothing_to_go_on_with_here(program: Program, fake: FakeBedrock, tmp_path: Path) -> None:
    result = program("ask", "-c", "-C", str(tmp_path / "new"), "Hi")
    assert result.exit_code == exits.FAILED
    assert f"no conversation in {tmp_path / 'new'} yet" in " ".join(result.stderr.split())
    assert "`bedrock list` shows those in other directories" in " ".join(result.stderr.split())
    assert not fake.asked(v1.CreateConversationRequest)


def test_a_full_conversation_is_continued_in_its_successor(program: Program, fake: FakeBedrock) -> None:
    full = v1.ConversationState(kind=v1.STATE_KIND_CONTEXT_EXHAUSTED)
    followed = v1.Conversation(name="conversations/c8", working_directory="/tmp", state=full, continued_by=NAME)
    fake.others.append(followed)
    fake.answers.append(says("One."))
    assert program("ask", "-c", "-C", "/tmp", "Hi").stdout == "One.\n"
    assert not fake.asked(v1.ContinueConversationRequest)
    fake.others[0] = v1.Conversation(name=NAME, working_directory="/tmp", state=full)
    fake.answers.append(says("Two."))
    assert program("ask", "-c", "-C", "/tmp", "Hi").stdout == "Two.\n"
    assert len(fake.asked(v1.ContinueConversationRequest)) == 1


def test_what_is_here_is_listed_alone(program: Program, fake: FakeBedrock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/tmp")
    fake.others.append(v1.Conversation(name="conversations/c9", slug="other-9", working_directory="/elsewhere"))
    assert [line.split("\t")[0] for line in program("list").stdout.splitlines()] == ["other-9", SLUG]
    assert [line.split("\t")[0] for line in program("list", "--here").stdout.splitlines()] == [SLUG]


def test_a_directory_is_no_title(program: Program, fake: FakeBedrock) -> None:
    (line,) = program("list").stdout.splitlines()
    assert line.split("\t")[-2:] == ["/tmp", ""]
    fake.conversation.title = "A title"
    (line,) = program("list").stdout.splitlines()
    assert line.split("\t")[-2:] == ["/tmp", "A title"]


def test_a_new_conversation_is_as_the_options_say(program: Program, fake: FakeBedrock, tmp_path: Path) -> None:
    fake.answers.append(says("Hi."))
    program("ask", "-C", str(tmp_path), "-m", "big", "--mode", "unrestricted", "--approval-policy", "ask_all", "Hi")
    (request,) = fake.asked(v1.CreateConversationRequest)
    wanted = request.conversation
    assert (wanted.working_directory, wanted.model) == (str(tmp_path), "models/big")
    assert (wanted.mode, wanted.approval_policy) == (v1.MODE_UNRESTRICTED, v1.APPROVAL_POLICY_ASK_ALL)


def test_a_new_conversation_is_told_and_offered_what_its_creator_chooses(
    program: Program, fake: FakeBedrock, tmp_path: Path
) -> None:
    (tmp_path / "role.md").write_text("You are a poet.\n")
    made = program(
        "new", "-C", "/tmp", f"--instructions=@{tmp_path}/role.md", "--replace-instructions", "--tools=bash, think"
    )
    assert (made.exit_code, made.stdout) == (0, f"{SLUG}\n")
    program("new", "--instructions", "Be brief.", "--tools", "")
    own, none = fake.created
    assert own.instructions == v1.Instructions(text="You are a poet.\n", replace=True)
    assert own.tools.tools == ["tools/bash", "tools/think"]
    assert none.instructions == v1.Instructions(text="Be brief.")
    assert none.HasField("tools")
    assert none.tools.tools == []


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--replace-instructions"], "--replace-instructions requires --instructions"),
        (["--instructions", "@/does/not/exist"], "/does/not/exist"),
    ],
)
def test_instructions_that_cannot_be_told_are_a_usage_error(program: Program, options: list[str], fault: str) -> None:
    result = program("new", *options)
    assert result.exit_code == 2
    assert fault in result.stderr


def test_an_old_conversation_is_not_told_anew(program: Program) -> None:
    result = program("ask", "-r", SLUG, "--tools", "bash", "Hi")
    assert result.exit_code == 2
    assert "--tools and --mcp-servers apply only to new conversations" in result.stderr


def test_whether_it_goes_on_by_itself_is_chosen_and_shown(program: Program, fake: FakeBedrock) -> None:
    assert program("new", "--auto-continue").exit_code == 0
    assert fake.created[-1].auto_continue
    fake.conversation.approval_policy = v1.APPROVAL_POLICY_AUTO
    told = program("update", "--auto-continue", SLUG).stdout
    assert told == f"{SLUG}: demo, approvals: auto, continues automatically when its context is used up\n"
    assert "continues automatically" in program("show", SLUG).stdout
    assert program("update", "--no-auto-continue", SLUG).stdout == f"{SLUG}: demo, approvals: auto\n"
    assert "continues automatically" not in program("show", SLUG).stdout


def test_mcp_servers_of_a_file_are_given_to_a_new_conversation(
    program: Program, fake: FakeBedrock, tmp_path: Path
) -> None:
    file = tmp_path / "servers.toml"
    file.write_text(
        '[[mcp_servers]]\nname = "files"\ncommand = ["files", "."]\nenvironment = { LANG = "C" }\n'
        'read_only = ["read"]\n'
        '[[mcp_servers]]\nname = "web"\nurl = "https://mcp.example.com"\nheaders = { Authorization = "secret:web" }\n'
    )
    assert program("new", "--mcp-servers", str(file)).exit_code == 0
    files, web = fake.created[-1].mcp_servers
    assert (files.name, files.stdio) == ("files", v1.McpServer.Stdio(command=["files", "."], environment={"LANG": "C"}))
    assert list(files.read_only_tools) == ["read"]
    assert (web.http.url, dict(web.http.headers)) == ("https://mcp.example.com", {"Authorization": "secret:web"})
    wrong_files = {"": "[[mcp_servers]] tables", "[[mcp_servers]]\nname = 'a'": "either command", "[[x": "not TOML: "}
    for wrong, words in wrong_files.items():
        file.write_text(wrong)
        refused = program("new", "--mcp-servers", str(file))
        assert refused.exit_code == 2
        assert words in refused.stderr


def test_mcp_servers_of_a_conversation_are_shown(program: Program, fake: FakeBedrock) -> None:
    files = fake.conversation.mcp_servers.add(name="files", state=v1.McpServer.STATE_READY)
    files.tools_left_out.add(reason="it has no name")
    fake.conversation.mcp_servers.add(name="web", state=v1.McpServer.STATE_FAILED, error="HTTP 503")
    shown = " ".join(program("show", SLUG).stdout.split())
    assert "files (ready; tool without a name is omitted: it has no name), web (failed: HTTP 503)" in shown


def test_the_tokens_of_prompt_and_tools_and_an_assumed_window_are_shown(program: Program, fake: FakeBedrock) -> None:
    assert "each request" not in program("show", SLUG).stdout
    usage = v1.ContextUsage(used_tokens=5, usable_window_tokens=24_576, fixed_tokens=3_635, assumed=True)
    fake.conversation.context_usage.CopyFrom(usage)
    fake.conversation.model = "models/mine"
    shown = " ".join(program("show", SLUG).stdout.split())
    assert "each request about 3,635 tokens of system prompt and tools" in shown
    assert "The context window of mine is unknown: 24,576 usable tokens are assumed;" in shown
    assert 'set window under [models."mine"] in the server\'s settings' in shown


def test_what_the_creator_chose_is_shown(program: Program, fake: FakeBedrock) -> None:
    fake.conversation.instructions.CopyFrom(v1.Instructions(text="A poet.", replace=True))
    fake.conversation.tools.CopyFrom(v1.ToolSelection(tools=["tools/bash"]))
    fake.conversation.client_tools.add(name="find_order")
    fake.conversation.unoffered_tools.add(name="find_order", text="restricted mode offers less")
    fake.conversation.state.kind = v1.STATE_KIND_TOOL_EXECUTING
    fake.conversation.state.tool_executing.current.tool = "find_order"
    fake.conversation.state.tool_executing.deadline.seconds = 1
    shown = program("show", SLUG).stdout
    assert re.search(r"state +running a tool, waiting for a client \(find_order\)\n", shown)
    assert re.search(r"client tools +find_order\n", shown)
    assert re.search(r"not offered +find_order: restricted mode offers less\n", shown)
    assert "not offered to the agent in this mode: find_order\n" in program("mode", SLUG, "restricted").stdout
    assert re.search(r"tools +bash\n", shown)
    assert re.search(r"instructions +A poet. \(instead of the server's prompt\)\n", shown)


def test_how_a_model_is_to_answer(program: Program, fake: FakeBedrock) -> None:
    program("new", "--effort", "low", "--max-output-tokens", "99")
    assert fake.created[0].generation == v1.Generation(reasoning_effort=v1.REASONING_EFFORT_LOW, max_output_tokens=99)
    program("ask", "-r", SLUG, "--temperature", "0.5", "Hi")
    assert fake.asked(v1.SendMessageRequest)[0].generation == v1.Generation(temperature=0.5)
    program("update", SLUG, "--model", "big", "--effort", "max")
    program("update", SLUG, "--model-defaults")
    updated = program("update", SLUG, "--approval-policy", "ask_all")
    assert updated.stdout.endswith(", approvals: ask_all\n")
    both, none, policy = fake.asked(v1.UpdateConversationRequest)
    assert list(policy.update_mask.paths) == ["approval_policy"]
    assert list(both.update_mask.paths) == ["model", "generation.reasoning_effort"]
    assert list(none.update_mask.paths) == ["generation"]
    assert none.conversation.generation == v1.Generation()
    fake.conversation.generation.CopyFrom(v1.Generation(temperature=0, max_output_tokens=4_000))
    assert re.search(r"model +big \(temperature 0, 4,000 tokens at most\)\n", program("show", SLUG).stdout)


def test_an_answer_that_fits_a_schema_is_printed_as_json_alone(
    program: Program, fake: FakeBedrock, tmp_path: Path
) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    fake.answers += [ends_with({"a": [1, 2]}, "Here it is:")] * 2
    result = program("ask", "-q", "--output-schema", str(schema), "Count")
    assert (result.exit_code, json.loads(result.stdout)) == (0, {"a": [1, 2]})
    result = program("ask", "-q", "--output-schema", str(schema), "--output", "json", "Count")
    assert json.loads(result.stdout)["output"] == {"a": [1, 2]}
    fake.refuse("SendMessage", *[Refusal(grpc.StatusCode.INVALID_ARGUMENT, "", "output_schema: it loops")] * 2)
    resumed = program("ask", "-r", SLUG, "--output-schema", str(schema), "Count")
    assert (resumed.exit_code, fake.deleted) == (2, False)
    refused = program("ask", "--output-schema", str(schema), "Count")
    assert (refused.exit_code, fake.deleted) == (2, True), "an empty conversation is not left behind"
    assert "it loops" in refused.stderr
    schema.write_text("[]")
    assert program("ask", "--output-schema", str(schema), "Count").exit_code == 2
    schema.write_bytes(b"\xff")
    assert ": not UTF-8: " in program("ask", "--output-schema", str(schema), "Count").stderr
    schema.write_text("{")
    refused = program("ask", "--output-schema", str(schema), "Count")
    assert (refused.exit_code, ": not JSON: " in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    "options", [(), ("--effort", "low", "--model-defaults"), ("--effort", "extreme"), ("--temperature", "3")]
)
def test_an_update_without_sense_is_a_usage_error(program: Program, options: tuple[str, ...]) -> None:
    assert program("update", SLUG, *options).exit_code == 2


def test_lists_for_a_pipe_have_tabs_and_whole_values(program: Program, fake: FakeBedrock) -> None:
    fake.conversation.title = "A title that is much longer than a column of a table for people would ever be " * 2
    (line,) = program("list").stdout.splitlines()
    cells = line.split("\t")
    assert cells[:4] == [SLUG, "idle", "restricted", "demo"]
    assert cells[5:] == ["/tmp", fake.conversation.title]


def test_lists_as_json_have_the_names_of_the_contract(program: Program) -> None:
    assert json.loads(program("list", "--output", "json").stdout)[0]["working_directory"] == "/tmp"
    assert json.loads(program("models", "--output", "json").stdout)[1]["usable_window_tokens"] == "180000"
    assert json.loads(program("tools", "--output", "json").stdout)[0]["name"] == "tools/bash"


def test_models_and_tools_are_listed(program: Program, fake: FakeBedrock) -> None:
    assert program("models").stdout.splitlines()[1].split("\t") == ["big", "acme", "180,000", "yes", ""]
    assert program("tools").stdout.startswith("bash\t")
    assert json.loads(program("models", "big").stdout)["name"] == "models/big"


def test_quotas_are_listed_with_what_is_used(program: Program, fake: FakeBedrock) -> None:
    assert program("quota").stdout == ""
    midnight = Timestamp(seconds=1_767_225_600)
    fake.quotas += [
        v1.Quota(quota="cost_per_day", limit=12_500_000, used=900_000, reset_time=midnight),
        v1.Quota(principal="ada", quota="concurrent_runs", limit=2_000, used=7),
    ]
    cost, runs = (line.split("\t") for line in program("quota").stdout.splitlines())
    assert cost == ["cost_per_day", "server", "$0.90", "$12.50", "2026-01-01 00:00 UTC"]
    assert runs == ["concurrent_runs", "ada", "7", "2,000", ""]
    fake.quotas.append(v1.Quota(quota="streams"))
    shown = json.loads(program("quota", "--output", "json").stdout)
    assert [each["used"] for each in shown] == ["900000", "7", "0"]
    assert (shown[0]["principal"], shown[2]["limit"]) == ("", "0")


def test_nodes_are_listed_and_a_server_of_its_own_says_so(program: Program, fake: FakeBedrock) -> None:
    assert program("nodes").stderr == "This server does not share its conversations with other servers.\n"
    (alone,) = json.loads(program("nodes", "--output", "json").stdout)
    assert (alone["incarnation"], alone["address"], alone["draining"], alone["answering"]) == ("0", "", False, True)
    fake.nodes = [
        v1.Node(incarnation=3, name="one", address="one:7421", version="0.2.0", answering=True),
        v1.Node(
            incarnation=7, name="two", address="two:7421", version="0.3.0", draining=True, active_conversations=2345
        ),
    ]
    one, two = (line.split("\t") for line in program("nodes").stdout.splitlines())
    assert one == ["one", "one:7421", "3", "0.2.0", "0", "running", "answers"]
    assert two == ["two", "two:7421", "7", "0.3.0", "2,345", "stopping", ""]
    assert [each["incarnation"] for each in json.loads(program("nodes", "--output", "json").stdout)] == ["3", "7"]


def test_what_to_do_about_too_many_runs_is_to_end_one() -> None:
    error = QuotaExceeded("2 of 2", reason="QUOTA_EXCEEDED", metadata={"quota": "concurrent_runs"})
    assert "`bedrock cancel NAME`" in what_to_do(error)
    assert "`bedrock quota`" in what_to_do(QuotaExceeded("all", metadata={"quota": "tokens_per_day"}))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("shwo", "No such command 'shwo'. Did you mean show?\nSee `bedrock --help`.\n"),
        ("archived", "No such command 'archived'. Did you mean archive?"),
        ("xyzzy", "No such command 'xyzzy'.\n"),
        ("chat -r", "Option '-r' requires an argument.\nSee `bedrock chat --help`.\n"),
        ("--address", "Option '--address' requires an argument.\nSee `bedrock --help`.\n"),
        (f"mode {SLUG} x", "Invalid value for '[MODE]': 'x' is not one of 'restricted', 'workspace',"),
        (f"update {SLUG}", "nothing to change; give an option such as --effort high\nSee `bedrock update --help`.\n"),
    ],
)
def test_a_wrong_command_line_is_told_like_every_other_error(program: Program, line: str, said: str) -> None:
    result = program(*line.split())
    assert result.stderr.startswith(f"error: {said}")
    assert (result.stdout, result.exit_code) == ("", exits.USAGE)


def test_what_to_do_names_the_conversation_that_nobody_has_typed(program: Program, fake: FakeBedrock) -> None:
    fake.refuse("SendMessage", Refusal(grpc.StatusCode.FAILED_PRECONDITION, "AGENT_BUSY", "it works"))
    assert "`bedrock cancel c1`" in program("ask", "Hi").stderr


def test_the_doctor_looks_at_this_machine_only_for_its_own_server(
    program: Program, fake: FakeBedrock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "git: " in program("doctor").stdout
    del fake.models[1:]
    monkeypatch.setattr(doctor, "is_local", lambda _: False)
    elsewhere = program("doctor").stdout
    assert "The server's operator decides which models" in elsewhere
    assert "git: " not in elsewhere


def test_the_doctor_asks_the_distribution_of_the_server_for_what_it_knows(
    program: Program, fake: FakeBedrock, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ("fail", "database", "it cannot be opened", "Start it.")
    plugged = SimpleNamespace(load=lambda: lambda config: [found] if config == "its.toml" else [])
    monkeypatch.setattr(doctor, "entry_points", lambda group: (plugged,) if group == "bedrock.doctor" else ())
    told = program("doctor", "--config", "its.toml")
    assert "fail  database: it cannot be opened\n      → Start it." in told.stdout
    assert told.exit_code == 1
    assert "database" not in program("doctor").stdout
    monkeypatch.setattr(doctor, "is_local", lambda _: False)
    assert "database" not in program("doctor", "--config", "its.toml").stdout


def test_mcp_servers_are_listed_with_their_states(program: Program) -> None:
    files, web, left_out = (line.split("\t") for line in program("mcp").stdout.splitlines())
    assert left_out == ["web: tool put is omitted: it has no input schema"]
    assert files == ["files", "failed", "0", "mcp-files .", "it is not installed"]
    assert web == ["web", "ready", "1", "https://mcp.test", ""]
    assert json.loads(program("mcp", "--output", "json").stdout)[0]["stdio"] == {"command": ["mcp-files", "."]}


def test_logins_at_mcp_servers_are_commands_of_the_server(
    program: Program, fake: FakeBedrock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.info.mcp_servers.add(name="w", state=v1.McpServer.STATE_NEEDS_LOGIN, error="needs login: bedrock mcp login w")
    row = ["w", "needs login", "0", "", fake.info.mcp_servers[-1].error]
    assert program("mcp").stdout.splitlines()[2].split("\t") == row
    monkeypatch.setattr(inspect, "entry_points", lambda **_: ())
    assert "No such command 'login'" in program("mcp", "login", "w").stderr
    login = EntryPoint("login", "server.auth.credential_commands:login", "bedrock.commands.mcp")
    monkeypatch.setattr(inspect, "entry_points", lambda group, name: (login,) if group == login.group else ())
    assert "Log in to an MCP server" in program("mcp", "login", "--help").stdout


def test_a_conversation_is_shown(program: Program, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("rm x", "", "", ask=True))
    program("ask", "Remove x")
    shown = program("show", SLUG).stdout
    for words in (SLUG, "> Remove x", "Let me look.", "? Run bash in /", "rm x", "bedrock approve"):
        assert words in shown
    as_json = json.loads(program("show", SLUG, "--output", "json").stdout)
    assert [message["role"] for message in as_json["messages"]] == ["ROLE_USER", "ROLE_AGENT"]


def test_sub_agents_are_listed_and_shown_with_their_parent(program: Program, fake: FakeBedrock) -> None:
    """The scripted server lists its one conversation as a sub-agent of whatever is named."""
    assert program("list", "--parent", SLUG).stdout.startswith(f"{SLUG}\tidle\t")
    fake.conversation.parent = "conversations/p1"
    fake.conversation.title = "Count."
    fake.conversation.state.kind = v1.STATE_KIND_FAILED
    fake.conversation.state.failed.error.message = "no such file"
    shown = program("show", SLUG).stdout
    assert f"sub-agents   1 (`bedrock list --parent {SLUG}` lists them)\n" in shown
    assert "parent       p1\n" in shown
    assert "error        no such file\n" in shown
    (listed,) = json.loads(program("show", SLUG, "--output", "json").stdout)["sub_agents"]
    assert listed["name"] == NAME


def test_background_jobs_are_shown_with_how_to_end_them(program: Program, fake: FakeBedrock) -> None:
    assert "jobs" not in program("show", SLUG).stdout
    fake.jobs = ["b-1", "b-3"]
    assert f"jobs         b-1, b-3 (`bedrock cancel --kill-jobs {SLUG}` ends them)\n" in program("show", SLUG).stdout
    told = json.loads(program("show", SLUG, "--output", "json").stdout)
    assert told["background_jobs"] == ["b-1", "b-3"]


def test_what_a_conversation_used_and_cost_is_shown(program: Program, fake: FakeBedrock) -> None:
    program("ask", "Hi")
    assert "used" not in program("show", SLUG).stdout
    fake.conversation.total_usage.CopyFrom(v1.Usage(input_tokens=200, output_tokens=34))
    assert "200 tokens in, 34 out\n" in program("show", SLUG).stdout
    total = v1.Usage(
        input_tokens=200, output_tokens=34, cache_read_tokens=1000, cache_write_tokens=10, cost_micros=12_345
    )
    fake.conversation.total_usage.CopyFrom(total)
    assert "1,210 tokens in (1,000 from cache), 34 out, $0.0123\n" in program("show", SLUG).stdout
    fake.conversation.aside_usage.CopyFrom(v1.Usage(input_tokens=90, output_tokens=8))
    assert "side queries 90 tokens in, 8 out\n" in program("show", SLUG).stdout


def test_cycles_are_listed(program: Program, fake: FakeBedrock) -> None:
    fake.answers.append(says("Hello"))
    program("ask", "Hi")
    assert program("cycles", SLUG).stdout.split("\t")[-1] == "completed\n"
    assert json.loads(program("cycles", SLUG, "--output", "json").stdout)[0]["stop_reason"] == "STOP_REASON_COMPLETED"


@pytest.mark.parametrize(
    ("command", "told", "answer"),
    [
        (["approve", SLUG], "approved", (v1.APPROVAL_DECISION_APPROVE, "")),
        (["deny", SLUG, "--note", "No."], "denied", (v1.APPROVAL_DECISION_DENY, "No.")),
    ],
)
def test_an_open_question_is_answered_by_command(
    program: Program, fake: FakeBedrock, command: list[str], told: str, answer: tuple[int, str]
) -> None:
    fake.answers.append(uses_tool("rm x", "", "Done.", ask=True))
    program("ask", "Remove x")
    assert program("approve", SLUG, "other").exit_code == exits.FAILED
    assert program(*command).stdout == f"{told} bash (t1)\n"
    (request,) = fake.asked(v1.ResolveApprovalRequest)
    assert (request.decision, request.note) == answer


def test_several_open_questions_are_distinguished(program: Program, fake: FakeBedrock) -> None:
    pending = [
        v1.PendingApproval(name=f"{NAME}/approvals/{call}", tool_call=v1.ToolCall(tool_use_id=call, tool="bash"))
        for call in ("t1", "t2")
    ]
    fake.conversation.state.awaiting_approval.pending.extend(pending)
    result = program("deny", SLUG)
    assert result.exit_code == exits.USAGE
    assert "t1 (bash), t2 (bash)" in result.stderr


def test_nothing_to_approve_is_said(program: Program) -> None:
    result = program("approve", SLUG)
    assert result.exit_code == exits.FAILED
    assert "has no pending approval" in result.stderr


def test_cancelling_says_that_a_follow_up_runs_now(
    program: Program, fake: FakeBedrock, monkeypatch: pytest.MonkeyPatch
) -> None:
    cycles = f"{NAME}/requestCycles"
    answer = v1.CancelConversationResponse(
        run=f"{cycles}/c1:1",
        state=v1.ConversationState(busy=True, run=f"{cycles}/c1:2"),
        returned_steers=[v1.QueuedMessage(message=v1.Message(content=[v1.ContentBlock(text="and " * 100 + "on")]))],
    )
    monkeypatch.setattr(fake, "CancelConversation", lambda _: answer)
    assert program("cancel", SLUG).stdout.splitlines() == [
        "cancelled",
        "not delivered: " + "and " * 100 + "on",
        f"a queued follow-up is now running; to drop queued messages too: bedrock cancel --discard-queued {SLUG}",
    ]


def test_cancelling_says_what_was_stopped(program: Program, fake: FakeBedrock) -> None:
    assert program("cancel", SLUG).stdout == "there is nothing to cancel\n"
    fake.answers.append(uses_tool("rm x", "", "", ask=True))
    program("ask", "Remove x")
    fake.full = True
    unrecorded = "stopped, but not recorded yet: the server cannot store this now and will try again"
    assert program("cancel", SLUG).stdout == f"cancelled: a request to the model\n{unrecorded}\n"
    fake.full = False
    assert program("cancel", SLUG, "--discard-queued").stdout == "cancelled\n"
    request = fake.asked(v1.CancelConversationRequest)[-1]
    assert request.discard_queued


def test_background_jobs_are_reported_and_ended_on_request(program: Program, fake: FakeBedrock) -> None:
    fake.jobs = ["b-1", "b-3"]
    ends_them = "b-1, b-3 (`bedrock cancel --kill-jobs c1` ends them)\n"
    assert program("cancel", "c1").stdout == f"there is nothing to cancel\nstill running in the background: {ends_them}"
    assert program("cancel", "--kill-jobs", "c1").stdout == "cancelled: 2 background jobs\n"
    none = "there is nothing to cancel, and no background job is running\n"
    assert program("cancel", "--kill-jobs", "c1").stdout == none


def test_what_may_do_more_than_a_narrower_mode_is_reported_and_ended_on_request(
    program: Program, fake: FakeBedrock
) -> None:
    fake.jobs = ["b-1", "b-3"]
    what = "tool call t1, background job b-1, background job b-3, MCP server files"
    ends_it = f"(`bedrock mode --stop-running {SLUG} restricted` stops them)"
    told = program("mode", "c1", "restricted").stdout
    assert told == f"{SLUG} is restricted\nstill running with more rights: {what} {ends_it}\n"
    told = program("mode", "--stop-running", SLUG, "restricted").stdout
    assert told == f"{SLUG} is restricted\nstopped: {what}\n"
    assert program("mode", SLUG, "restricted").stdout == f"{SLUG} is restricted\n"
    assert program("mode", SLUG).stdout == f"{SLUG} is restricted\n"
    assert program("mode", SLUG, "--stop-running").exit_code == exits.USAGE


def test_the_other_commands_reach_the_server(program: Program, fake: FakeBedrock, tmp_path: Path) -> None:
    assert program("mode", SLUG, "unrestricted").stdout == f"{SLUG} is unrestricted\n"
    assert "bedrock chat -r" in program("continue", SLUG).stdout
    assert program("rename", SLUG, "--title", "New").stdout == f"{SLUG}  New\n"
    assert program("rename", SLUG).exit_code == exits.USAGE
    assert program("archive", SLUG).stdout == f"{SLUG} is archived\n"
    assert program("archive", SLUG, "--undo").stdout == f"{SLUG} is active\n"
    assert program("verify", "--all").stdout == f"{SLUG}: ok\n"
    assert program("verify").exit_code == exits.USAGE
    assert program("replay", SLUG).stdout == "1 steps, 0 differences\n"
    logged = map(json.loads, program("log", SLUG, "--reverse").stdout.splitlines())
    assert [(each["step"], each["event"]["type"]) for each in logged] == [("2", "user_message"), ("1", "user_message")]
    assert len(program("log", SLUG, "--after", "1").stdout.splitlines()) == 1
    assert json.loads(program("export", SLUG).stdout) == {"kind": "conversation"}
    assert program("rm", SLUG, "--yes").stdout == f"deleted {SLUG}\n"
    assert "_BEDROCK_COMPLETE" in program("completion", "bash").stdout


def test_verify_all_names_what_is_too_damaged_to_be_listed(program: Program, fake: FakeBedrock) -> None:
    fake.unreadable = ["conversations/c1"]
    result = program("verify", "--all")
    assert result.exit_code == exits.FAILED
    assert result.stdout == "c1: 1 violation(s)\n  the conversation's row cannot be read\n"


def test_without_a_terminal_nothing_is_deleted_unless_it_is_meant(program: Program, fake: FakeBedrock) -> None:
    refused = program("rm", SLUG)
    assert (refused.exit_code, refused.stdout) == (exits.USAGE, "")
    assert "--yes" in refused.stderr
    assert not fake.requests
    for option, force in (("--yes", False), ("--force", True)):
        assert program("rm", option, SLUG).stdout == f"deleted {SLUG}\n"
        assert fake.asked(v1.DeleteConversationRequest)[-1].force is force


@pytest.mark.parametrize(("reason", "advice"), [("AGENT_BUSY", "cancel"), ("AWAITING_APPROVAL", "approve")])
@pytest.mark.parametrize("command", ["rm -y", "archive"])
def test_what_is_busy_is_neither_deleted_nor_archived_and_the_error_says_how_to_do_it(
    program: Program, fake: FakeBedrock, reason: str, advice: str, command: str
) -> None:
    for method in ("DeleteConversation", "ArchiveConversation"):
        fake.refuse(method, Refusal(grpc.StatusCode.FAILED_PRECONDITION, reason, "agent is busy"))
    result = program(*command.split(), SLUG)
    assert result.exit_code == exits.FAILED
    assert "agent is busy" in result.stderr
    assert f"bedrock {advice} {SLUG}`" in result.stderr
    assert "follow_up" not in result.stderr


def test_watching_ends_when_the_conversation_is_deleted(program: Program, fake: FakeBedrock) -> None:
    fake.answers.append(says("Hello"))
    program("ask", "Hi")
    fake.deleted = True
    shown = program("watch", SLUG).stdout
    assert "> Hi" in shown
    assert shown.endswith("■ the conversation was deleted\n")
    lines = program("watch", SLUG, "--output", "stream-json").stdout.splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["snapshot", "caught_up", "deleted"]


def test_nothing_that_a_model_writes_controls_the_terminal(program: Program, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("echo \x1b]0;x\x07; rm\r-rf", "out\x1b[31mput", "Done.", ask=True))
    program("ask", "Do it")
    shown = program("show", SLUG).stdout
    assert "\x1b" not in shown
    assert "\r" not in shown
    assert r"echo \x1b]0;x\x07; rm\x0d-rf" in shown


def test_the_doctor_finds_what_is_wrong(program: Program, fake: FakeBedrock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-very-secret")
    result = program("doctor")
    assert result.exit_code == 0
    assert "ok    server: version 0.1.0 answers" in result.stdout
    assert "warn  sandbox: tier B (Landlock 4 and seccomp, no namespaces)" in result.stdout
    assert "namespaces are forbidden" in result.stdout
    assert "warn  sandbox: unrestricted tools can read the server's token" in result.stdout
    assert "ok    models: 2 models; a new conversation uses demo" in result.stdout
    assert "very-secret" not in result.output


@pytest.mark.parametrize(
    ("tier", "reason", "told"),
    [
        ("TIER_B", "sandbox = B limits the sandbox to tier B", "tier B (Landlock 4 and seccomp, no namespaces): "),
        ("TIER_NONE", "the setting sandbox = none", "none: tools are not confined: the setting sandbox"),
    ],
)
def test_a_sandbox_that_was_chosen_is_nothing_to_warn_of(
    program: Program, fake: FakeBedrock, tier: str, reason: str, told: str
) -> None:
    kind = v1.GetServerInfoResponse.Sandbox
    fake.info.sandbox.MergeFrom(kind(tier=kind.Tier.Value(tier), reason=reason, by_setting=True))
    fake.info.sandbox.restricted_available = tier != "TIER_NONE"
    assert f"ok    sandbox: {told}" in program("doctor").stdout


@pytest.mark.parametrize(("by_setting", "level"), [(False, "warn"), (True, "ok  ")])
def test_the_doctor_names_the_modes_and_says_why_one_is_not_available(
    program: Program, fake: FakeBedrock, by_setting: bool, level: str
) -> None:
    fake.info.sandbox.by_setting, fake.info.sandbox.workspace_reason = by_setting, "no mount namespaces: allow them"
    told = program("doctor").stdout
    assert "ok    restricted mode: tools can read but not change anything, and have no network\n" in told
    assert f"{level}  workspace mode: not available: no mount namespaces: allow them\n" in told
    assert "ok    unrestricted mode: tools may change files and run any command\n" in told


@pytest.mark.parametrize(
    ("kernel", "told"),
    [
        ((True, True), "processes and memory limited by the kernel"),
        (
            (True, False),
            "processes limited by the kernel; memory limited by the server, which kills a tool that exceeds",
        ),
        ((False, False), "processes and memory limited by the server, which kills a tool that exceeds the limit"),
    ],
)
def test_the_doctor_tells_who_bounds_what_tools_have(
    program: Program, fake: FakeBedrock, kernel: tuple[bool, bool], told: str
) -> None:
    kind = v1.GetServerInfoResponse.Sandbox
    fake.info.sandbox.MergeFrom(
        kind(tier=kind.TIER_A, kernel_bounds_processes=kernel[0], kernel_bounds_memory=kernel[1])
    )
    assert f"ok    tool limits: {told}" in program("doctor").stdout


def test_the_doctor_notices_a_wrong_token(program: Program, fake: FakeBedrock) -> None:
    fake.refuse("GetServerInfo", Refusal(grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED", "unknown token"))
    result = program("doctor")
    assert result.exit_code == exits.FAILED
    assert "fail  auth: the server at " in result.stdout


def test_the_doctor_notices_that_no_server_is_there() -> None:
    result = CliRunner().invoke(bedrock, ["--address", "127.0.0.1:1", "doctor", "--output", "json"])
    assert result.exit_code == exits.UNREACHABLE
    found = {finding["subject"]: finding for finding in json.loads(result.stdout)}
    assert found["server"]["level"] == "fail"
    assert found["sandbox"]["text"] == "not checked: the server is unreachable"


def test_the_doctor_notices_a_token_that_others_may_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEDROCK_DATA_DIR", str(tmp_path))
    (tmp_path / "token").write_text("x")
    (tmp_path / "token").chmod(0o644)
    assert doctor._token(None).level == "warn"
    (tmp_path / "token").chmod(0o600)
    assert doctor._token(None).level == "ok"


def test_only_the_demo_model_is_worth_a_hint(program: Program, fake: FakeBedrock) -> None:
    del fake.models[1:]
    assert "warn  models: only the scripted demo model" in program("doctor").stdout


def test_without_a_terminal_a_conversation_is_played(program: Program, fake: FakeBedrock, tmp_path: Path) -> None:
    fake.answers.append(uses_tool("ls", "a.txt", "There is a.txt.", ask=True))
    result = program("chat", "-C", str(tmp_path))
    assert result.exit_code == 0
    order = [demo.PROMPT, "Let me look.", "● bash ls", "? Run bash in", "answered automatically", "a.txt"]
    order += ["There is a.txt.", f"Completed. To read it again: bedrock show {SLUG}", "ANTHROPIC_API_KEY"]
    positions = [result.stdout.index(words) for words in order]
    assert positions == sorted(positions)
    (created,) = fake.asked(v1.CreateConversationRequest)
    assert created.conversation.approval_policy == v1.APPROVAL_POLICY_ASK_WRITES
    assert created.conversation.working_directory == str(tmp_path)


def test_who_wraps_a_chat_says_what_brings_it_back(program: Program, fake: FakeBedrock) -> None:
    fake.answers.append(says("Hello."))
    played = program("chat", "--again", 'make local-llm ARGS="-r {}"').stdout
    assert f'To read it again: make local-llm ARGS="-r {SLUG}"\n' in played
    assert "--again" not in program("chat", "--help").stdout


@pytest.mark.parametrize(
    "option", ["-c", f"-r={SLUG}", "--mode=restricted", "--approval-policy=ask_all", "--effort=low"]
)
def test_what_a_played_conversation_cannot_heed_is_refused(program: Program, fake: FakeBedrock, option: str) -> None:
    result = program("chat", option)
    assert result.exit_code == exits.USAGE
    assert "bedrock ask" in result.stderr
    assert not fake.requests


def test_a_real_model_without_a_sandbox_gets_no_automatic_yes(program: Program, fake: FakeBedrock) -> None:
    fake.conversation.mode = v1.MODE_UNRESTRICTED
    fake.conversation.model = "models/big"
    fake.answers.append(uses_tool("rm -rf /", "", "", ask=True))
    result = program("chat")
    assert result.exit_code == 0
    assert "there is no terminal: no" in result.stdout
    (resolved,) = fake.asked(v1.ResolveApprovalRequest)
    assert resolved.decision == v1.APPROVAL_DECISION_DENY


@pytest.mark.parametrize("left", [KeyboardInterrupt, BrokenPipeError])
def test_a_played_conversation_that_is_broken_off_is_cancelled(
    program: Program, fake: FakeBedrock, monkeypatch: pytest.MonkeyPatch, left: type[BaseException]
) -> None:
    fake.answers.append(uses_tool("sleep 25", "", "", ask=True))

    def leave(*_: object) -> None:
        raise left

    monkeypatch.setattr(demo, "_decide", leave)
    assert program("chat").exit_code == (exits.CANCELLED if left is KeyboardInterrupt else exits.CLOSED_PIPE)
    assert len(fake.asked(v1.CancelConversationRequest)) == 1


def test_a_played_conversation_that_fails_is_exit_code_1(program: Program, fake: FakeBedrock) -> None:
    fake.answers.append(fails("auth", "The key is wrong."))
    result = program("chat")
    assert result.exit_code == exits.FAILED
    assert "The key is wrong." in result.stdout


def test_commands_of_the_server_are_plugged_in(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def serve() -> None:
        print("serving")

    class Plugged(EntryPoint):
        def load(self) -> click.Command:
            return serve

    plugged = [Plugged("serve", "server.cli:serve", app.GROUP), Plugged("chat", "elsewhere:chat", app.GROUP)]
    monkeypatch.setattr(app, "_plugged", lambda: {entry.name: entry for entry in plugged})
    assert CliRunner().invoke(bedrock, ["serve"]).output == "serving\n"
    assert "elsewhere" not in CliRunner().invoke(bedrock, ["chat", "--help"]).output


def test_without_the_server_its_commands_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_plugged", dict)
    result = CliRunner().invoke(bedrock, ["serve"])
    assert result.exit_code == exits.USAGE
    assert "from a checkout with `pip install ./clients .`" in result.stderr
    assert CliRunner().invoke(bedrock, ["nonsense"]).exit_code == exits.USAGE


def test_help_names_every_command() -> None:
    shown = CliRunner().invoke(bedrock, ["--help"]).output
    for name in app.OURS:
        assert f"  {name} " in shown
        assert CliRunner().invoke(bedrock, [name, "--help"]).exit_code == 0
    assert [line[:-1] for line in shown.splitlines() if line.endswith(":")][1:] == list(app.SECTIONS.values())
    for group in ((), ("mcp",), ("token",), ("config",)):
        narrow = CliRunner().invoke(bedrock, [*group, "--help"], terminal_width=80).output
        assert "..." not in narrow.partition("Options:")[2], "a summary is cut off"


@pytest.mark.parametrize("width", [20, 45, 200])
def test_summaries_are_those_of_the_commands(width: int) -> None:
    context = click.Context(bedrock)
    for name, summary in SUMMARIES.items():
        command = bedrock.get_command(context, name)
        assert command is not None
        assert click.Command(name, help=summary).get_short_help_str(width) == command.get_short_help_str(width)
    assert SUMMARIES.keys() == {*app.OURS, *app.SERVERS}


def test_the_version_is_reported() -> None:
    assert CliRunner().invoke(bedrock, ["--version"]).output.startswith("bedrock ")


def test_messages_of_the_server_and_errors_are_distinguished(program: Program, fake: FakeBedrock) -> None:
    fake.happen(
        stored("system", v1.ContentBlock(text="The mode is restricted now.")),
        stored("error", v1.ContentBlock(text="It broke.")),
    )
    while len(fake.durable) < 2:
        fake.move()
    shown = program("show", SLUG).stdout
    assert "· The mode is restricted now." in shown
    assert "✗ It broke." in shown


def test_standard_input_that_never_ends_is_not_waited_for(
    program: Program, fake: FakeBedrock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Endless(io.StringIO):
        def read(self, size: int | None = -1) -> str:
            raise AssertionError("waited for ever")

    monkeypatch.setattr("sys.stdin", Endless())
    from bedrock.cli.commands.ask import _prompt

    assert _prompt(("Hi",)) == "Hi"


def test_lines_of_json_have_keys_that_programs_can_rely_on(program: Program, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("ls", "a.txt", "There is a.txt."))
    lines = [json.loads(line) for line in program("ask", "--output", "stream-json", "Look").stdout.splitlines()]
    *events, last = lines
    assert all(event["kind"] in event or event["kind"] == "reasoning_delta" for event in events)
    assert list(last) == ["kind", "result"]
    assert last["kind"] == "result"
    keys = "conversation slug run stop_reason stop_detail text error needs_approval output exit_code usage"
    assert list(last["result"]) == keys.split()


def test_a_conversation_is_summarized_and_continued(program: Program, fake: FakeBedrock) -> None:
    result = program("compact", "brave-otter")
    assert (result.exit_code, result.stdout) == (0, "brave-otter continues from here: `bedrock chat -r brave-otter`\n")
    assert len(fake.asked(v1.ContinueConversationRequest)) == 1


def test_a_conversation_without_a_summary_stays_and_says_why(program: Program, fake: FakeBedrock) -> None:
    fake.summary = [stored("error", v1.ContentBlock(text="No summary was written: no route")), state("idle")]
    result = program("compact", "brave-otter")
    assert result.exit_code == 1
    assert "brave-otter was not summarized: No summary was written: no route" in result.stderr
    assert "`bedrock chat -r brave-otter`" in result.stderr
    assert not fake.asked(v1.ContinueConversationRequest)


def test_a_conversation_is_forked(program: Program, fake: FakeBedrock) -> None:
    fake.cycles = [v1.RequestCycle(name=f"{NAME}/requestCycles/c1:{number}") for number in (1, 2, 3)]
    result = program("fork", "brave-otter", "--at", "c1:2")
    text = "brave-otter continues from there (files stay as they are): `bedrock chat -r brave-otter`\n"
    assert (result.exit_code, result.stdout) == (0, text)
    assert program("fork", "brave-otter", "--back", "2").exit_code == program("fork", "brave-otter").exit_code == 0
    cycles = [each.request_cycle.rpartition("/")[2] for each in fake.asked(v1.ForkConversationRequest)]
    assert cycles == ["c1:2", "c1:1", ""]
    assert program("fork", "brave-otter", "--at", "c1:2", "--back", "1").exit_code == 2
    result = program("fork", "brave-otter", "--back", "3")
    assert result.exit_code == 1
    assert "nothing would be left" in result.stderr


def test_the_short_name_of_list(program: Program) -> None:
    assert program("ls").stdout == program("list").stdout
    assert "brave-otter" in program("ls").stdout


def test_the_program_alone_says_how_it_is_used_where_there_is_no_terminal(program: Program) -> None:
    result = program()
    assert result.exit_code == 2
    assert "Usage: bedrock" in result.stdout
    assert "compact" in result.stdout


def test_a_prompt_for_a_chat_needs_a_terminal(program: Program) -> None:
    result = program("chat", "do", "it")
    assert result.exit_code == 2
    assert "bedrock ask" in result.stderr


def test_rules_are_made_listed_and_revoked(program: Program, fake: FakeBedrock) -> None:
    operator = v1.ApprovalRule.ORIGIN_OPERATOR
    fake.operator_rules = [
        v1.ApprovalRule(name="approvalRules/1", action=v1.ApprovalRule.ACTION_DENY, tool="tools/patch", origin=operator)
    ]
    made = program("rules", SLUG, "--add", "allow", "prefix", "make test", "--add", "deny", "exact", "rm \x1b[2J")
    assert made.stdout == "r1: allow commands that begin with make test\nr2: deny the command rm \\x1b[2J\n"
    listed = [line.split() for line in program("rules", SLUG).stdout.splitlines()]
    assert ["(server)", "deny", "the", "tool", "patch"] in listed
    assert ["r1", "allow", "default", "commands", "that", "begin", "with", "make", "test"] in listed
    assert f"rules        2 (`bedrock rules {SLUG}` lists them)" in program("show", SLUG).stdout
    shown = json.loads(program("rules", SLUG, "--output", "json").stdout)
    assert [rule["action"] for rule in shown] == ["ACTION_DENY", "ACTION_ALLOW", "ACTION_DENY"]
    assert program("rules", SLUG, "--revoke", "r1").stdout == "revoked r1\n"
    assert [rule.command for rule in fake.conversation.approval_rules] == ["rm \x1b[2J"]
    assert program("rules", SLUG, "--revoke", "r1").exit_code != 0
    assert program("rules", SLUG, "--add", "permit", "tool", "bash").exit_code == exits.USAGE


NOT_WANTED = {
    "/dev/zero": r"it is neither a file nor a pipe",
    "/dev": r"[Ii]s a directory",
    "{tmp}/large": r"it is larger than 32 MiB",
}


@pytest.mark.parametrize(
    "command",
    [
        ("ask", "--image", "{}", "What is it?"),
        ("ask", "--output-schema", "{}", "Count"),
        ("new", "--instructions", "@{}"),
        ("new", "--mcp-servers", "{}"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("file", NOT_WANTED)
def test_a_file_that_cannot_be_what_is_wanted_is_refused(
    program: Program, fake: FakeBedrock, tmp_path: Path, command: tuple[str, ...], file: str
) -> None:
    with (tmp_path / "large").open("wb") as large:
        large.truncate(MAX_REQUEST_BYTES + 1)
    path = file.format(tmp=tmp_path)
    result = program(*(word.format(path) for word in command))
    assert result.exit_code in {1, 2}
    assert path in result.stderr
    assert re.search(NOT_WANTED[file], result.stderr), result.stderr
    assert not fake.created


def test_a_pipe_is_read_as_a_file_is(program: Program, fake: FakeBedrock) -> None:
    """As of the shell's <(…)."""
    there, here = os.pipe()
    os.write(here, b"Be brief.")
    os.close(here)
    try:
        assert program("new", "--instructions", f"@/dev/fd/{there}").exit_code == 0
    finally:
        os.close(there)
    assert fake.created[0].instructions.text == "Be brief."
