"""The closed sets of words are those of the contract, and a misspelt one is an error of both type checkers."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from bedrock import types, v1

ROOT = Path(__file__).parents[3]

ENUMS: dict[str, Any] = {
    "ApprovalDecision": v1.ApprovalDecision,
    "ApprovalPolicy": v1.ApprovalPolicy,
    "CallStatus": v1.Event.ClientToolCallChanged.Status,
    "ContextState": v1.ContextState,
    "CycleView": v1.ListRequestCyclesRequest.View,
    "Delivery": v1.Delivery,
    "Disposition": v1.Disposition,
    "ErrorKind": v1.ErrorKind,
    "Fate": v1.QueuedMessage.Fate,
    "FollowUpPolicy": v1.FollowUpPolicy,
    "McpServerState": v1.McpServer.State,
    "Mode": v1.Mode,
    "ModelProtocol": v1.Model.Protocol,
    "QuestionStatus": v1.Question.Status,
    "ReasoningEffort": v1.ReasoningEffort,
    "RequestPhase": v1.ConversationState.LlmRequesting.Phase,
    "Role": v1.Role,
    "AuditDecider": v1.AuditEntry.Decider,
    "AuditOutcome": v1.AuditEntry.Outcome,
    "AuditVerdict": v1.AuditEntry.Verdict,
    "RuleAction": v1.ApprovalRule.Action,
    "RuleOrigin": v1.ApprovalRule.Origin,
    "SandboxTier": v1.GetServerInfoResponse.Sandbox.Tier,
    "StateKind": v1.StateKind,
    "StopReason": v1.StopReason,
    "SystemMessageKind": v1.SystemMessageKind,
    "ToolAudience": v1.Tool.Audience,
    "ToolGroup": v1.ToolGroup,
    "ToolOutcome": v1.ToolOutcome,
    "UnofferedReason": v1.UnofferedTool.Reason,
    "JobStatus": v1.Event.BackgroundJobChanged.Status,
}
SETS = [name for name in vars(types) if name[0].isupper() and name != "Literal"]


def words(enum: Any) -> list[str]:
    """The values of an enum without their prefix, as the package names them."""
    zero = enum.DESCRIPTOR.values_by_number[0].name
    prefix = zero.removesuffix("UNSPECIFIED")
    return [name.removeprefix(prefix).lower() for name, number in enum.items() if number]


@pytest.mark.parametrize("name", sorted(set(SETS) - {"EventKind", "ListEventKind"}))
def test_a_set_holds_the_names_of_its_enum(name: str) -> None:
    assert sorted(get_args(getattr(types, name))) == sorted(words(ENUMS[name]))


def test_the_kinds_of_events_are_the_fields_of_the_event() -> None:
    fields = {field.name for field in v1.Event.DESCRIPTOR.oneofs_by_name["event"].fields}
    assert set(get_args(types.EventKind)) == fields - {"heartbeat"} | {"reasoning_delta"}
    changes = v1.WatchConversationsResponse.DESCRIPTOR.oneofs_by_name["event"].fields
    assert set(get_args(types.ListEventKind)) == {field.name for field in changes}


RIGHT = """
def right(client: Client) -> None:
    conversation = client.create(mode="restricted", approval_policy="ask_writes", follow_up_policy="always")
    for event in conversation.send("Hi", delivery="steer", on_approval="deny"):
        assert event.kind != "text_delta" or event.role == "" or event.fate == "queued"
    client.ask("Hi", on_approval=lambda approval: approval.tool == "bash")
    info = conversation.get()
    assert info.mode == "restricted" and info.state.kind == "idle" and info.create_time.tzinfo
    assert info.archive_time is None or info.archive_time > info.create_time
    assert [model.name for model in client.models() if model.protocol == "demo"]
    assert client.server_info().limits.heartbeat_interval.total_seconds() > 1
    for cycle in conversation.cycles():
        if cycle.stop_reason == "completed" and cycle.end_time and cycle.steps[0].root:
            print(cycle.end_time - cycle.start_time, cycle.steps[0].root.text)
    print([queued.message.text for queued in conversation.queue() if queued.fate == "queued"])
    assert conversation.cancel().state.kind == "idle" or conversation.set_mode("restricted").surviving_jobs == ()
"""
WRONG = """
def wrong(
    client: Client, event: Event, message: Message, stop: Stop, agent: SubAgentStatus, info: ConversationInfo
) -> None:
    client.create(approval_policy="ask_write")
    client.create(mode="restrict")
    client.create(follow_up_policy="alway")
    client.ask("Hi", on_approval="all")
    client.conversation("c").send("Hi", delivery="followup")
    client.conversation("c").send("Hi", wait_for_other=True)
    client.conversation("c").set_mode("wide open")
    client.conversation("c").update(approval_policy="ask")
    client.conversation("c").cycles(view="step")
    print(event.kind == "text_detla")
    print(event.role == "agnet")
    print(event.fate == "deliverd")
    print(event.decision == "denied")
    print(message.role == "assistant")
    print(message.tool_results[0].outcome == "okay")
    print(stop.reason == "complete")
    print(stop.error_kind == "ratelimit")
    print(agent.outcome == "done")
    print(info.mode == "wide open")
    print(info.state.kind == "busy")
    print(info.state.tool_executing.current)
    info.title = "New"
    print(client.models()[0].protocol == "openai")
    print(client.server_info().sandbox.tier == "c")
    print([cycle.stop_reason for cycle in client.conversation("c").cycles() if cycle.end_time > info.create_time])
    print(event.conversation.name)
    client.create(budget={"run_tokens": 5})


async def wrong_too(client: AsyncClient) -> None:
    await client.create(approval_policy="ask_write")
    await client.conversation("c").set_mode("wide open")
    async for event in client.conversation("c").events():
        print(event.kind == "text_detla")
"""
HEAD = "from bedrock import AsyncClient, Client, ConversationInfo, Event, Message, Stop, SubAgentStatus\n\n"


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_misspelt_word_is_an_error_of_the_type_checker(checker: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(HEAD + RIGHT + "\n" + WRONG, encoding="utf-8")
    if checker == "mypy":
        command = ["mypy", "--strict", "--no-error-summary", f"--cache-dir={ROOT / '.mypy_cache'}", program]
    else:
        settings = f'{{"typeCheckingMode": "strict", "extraPaths": ["{ROOT / "clients"}"], "include": ["program.py"]}}'
        (tmp_path / "pyrightconfig.json").write_text(settings)
        command = ["pyright", "--project", tmp_path]
    env = {**os.environ, "MYPYPATH": str(ROOT / "clients")}
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    found = {int(line) for line in re.findall(r"program\.py:(\d+).*error", done.stdout)}
    lines = program.read_text().splitlines()
    expected = {
        number
        for number, line in enumerate(lines, 1)
        if number > lines.index('    client.create(approval_policy="ask_write")') - 1
        and line.startswith("    ")
        and "async for" not in line
    }
    assert found == expected, done.stdout + done.stderr


def test_the_examples_of_the_readme_are_typed(tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "clients" / "README.md").read_text(), re.DOTALL)
    assert examples
    for number, example in enumerate(examples):
        (tmp_path / f"example_{number}.py").write_text(example)
    command = ["mypy", "--strict", f"--cache-dir={ROOT / '.mypy_cache'}", *sorted(tmp_path.glob("*.py"))]
    env = {**os.environ, "MYPYPATH": str(ROOT / "clients")}
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
