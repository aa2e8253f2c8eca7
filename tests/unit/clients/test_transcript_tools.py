"""Tools in a transcript: diffs with colours, questions in which nothing hides, notices in words for people."""

import re
from typing import Any

import pytest
from bedrock import Approval, Event, v1
from bedrock.cli.display.questions import question_lines
from bedrock.cli.display.transcript import Transcript
from bedrock.cli.text.output import folding
from bedrock.cli.text.style import DIFF_LINES, Paint, extent

from tests.support.fake_server import NAME, question, result, stored

DIFF = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n one\n-two\n+2\x1b[2J\n"
PATCHES: list[dict[str, Any]] = [
    {"operation": "replace", "oldText": "two\n", "newText": "2\nzwei\u202e", "toClipboard": "c"},
    {"operation": "append_eof", "fromClipboard": "c"},
]


def lines_of(*events: v1.Event, colour: bool = False) -> list[str]:
    lines: list[str] = []
    transcript = Transcript(Paint(colour), lines.append)
    for event in events:
        transcript.show(Event.from_proto(event))
    return lines


def patched(diff: str) -> list[v1.Event]:
    called = stored("agent", v1.ContentBlock(tool_call=v1.ToolCall(tool_use_id="t1", tool="patch")))
    called.message_added.content[0].tool_call.input.update({"path": "x", "patches": PATCHES})
    answered = stored("tool", result("<patches_applied>all</patches_applied>"))
    answered.message_added.content[0].tool_result.display.update({"path": "x", "diff": diff})
    return [called, answered]


def test_a_patch_shows_what_has_changed() -> None:
    assert lines_of(*patched(DIFF)) == [
        "● patch x",
        "  │ @@ -1,2 +1,2 @@",
        "  │  one",
        "  │ -two",
        "  │ +2\\x1b[2J",
        "  └ patch, +1 -1",
    ]
    coloured = lines_of(*patched(DIFF), colour=True)
    assert any("\x1b[31m-two" in line for line in coloured)
    assert any("\x1b[32m+2" in line for line in coloured)


def test_a_long_diff_is_cut() -> None:
    lines = lines_of(*patched(DIFF + "+x\n" * DIFF_LINES))
    assert lines[-2] == "  │ … 4 more lines"
    assert lines[-1] == f"  └ patch, +{DIFF_LINES + 1} -1"
    assert extent("--- a\n+++ b\n") == "+0 -0"


def test_who_is_asked_for_a_patch_sees_all_of_it_and_every_control_character() -> None:
    asked = question("patch", {"path": "x", "patches": PATCHES})
    assert question_lines(asked, "/tmp", Paint(False)) == [
        "? Run patch in /tmp?",
        "    x",
        "    replace (toClipboard: c)",
        "    - two",
        "    + 2",
        "    + zwei\\u202e",
        "    append_eof (fromClipboard: c)",
    ]


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        (
            v1.ApprovalRule(
                name=f"{NAME}/approvalRules/r1",
                action=v1.ApprovalRule.ACTION_ASK,
                origin=v1.ApprovalRule.ORIGIN_CONVERSATION,
                command_prefix="git\x1b",
            ),
            "  rule r1 asks for commands that begin with git\\x1b",
        ),
        (
            v1.ApprovalRule(
                name="approvalRules/1",
                action=v1.ApprovalRule.ACTION_DENY,
                origin=v1.ApprovalRule.ORIGIN_OPERATOR,
                path="/etc",
            ),
            "  a rule of the server may deny the call when it runs: deny files beneath /etc",
        ),
    ],
)
def test_a_question_says_which_rule_asks(rule: v1.ApprovalRule, line: str) -> None:
    asked = question("bash").proto
    asked.rule.CopyFrom(rule)
    assert question_lines(Approval.from_proto(asked), "/tmp", Paint(False))[-1] == line


@pytest.mark.parametrize("mode", ["restricted", "unrestricted"])
def test_a_change_of_the_mode_is_shown_by_its_kind_independent_of_the_agent_s_text(mode: str) -> None:
    notice = stored("system", v1.ContentBlock(text="Something else. Call request_mode_upgrade and say why."))
    notice.message_added.system_kind = v1.SystemMessageKind.Value(f"SYSTEM_MESSAGE_KIND_MODE_{mode.upper()}")
    (line,) = lines_of(notice)
    assert line.startswith(f"· The mode is now {mode}: tools ")
    notice.message_added.system_kind = v1.SYSTEM_MESSAGE_KIND_BUDGET
    assert lines_of(notice) == ["· Something else. Call request_mode_upgrade and say why."]


@pytest.mark.parametrize(
    ("display", "shown"),
    [
        ({"for_agent": "Ask for more."}, ["Ask for more.", "[The mode is restricted.]"]),
        ({}, ["Ask for more.", "[The mode is restricted. Ask for more.]"]),
        ({"for_agent": "Something else."}, ["Ask for more.", "[The mode is restricted. Ask for more.]"]),
    ],
)
def test_output_for_the_agent_alone_is_not_shown_to_people(display: dict[str, Any], shown: list[str]) -> None:
    refused = result("Ask for more.\n[The mode is restricted. Ask for more.]")
    refused.tool_result.display.update(display)
    assert lines_of(stored("tool", refused))[:2] == [f"  │ {line}" for line in shown]


def test_what_is_too_long_is_set_in_where_it_goes_on() -> None:
    lines: list[str] = []
    write = folding(lines.append, lambda: 20)
    paint = Paint(True)
    write(paint.dim("  │ output of a tool that goes on"))
    write(paint.text("● bash one two three four"))
    write(paint.text("漢字" * 6))
    assert all(line.startswith("\x1b[2m") for line in lines[:2])
    assert [re.sub(r"\x1b\[\d*m", "", line) for line in lines] == [
        "  │ output of a tool",
        "  │ that goes on",
        "● bash one two three",
        "  four",
        "漢字漢字漢字漢字漢字",
        "漢字",
    ]


@pytest.mark.parametrize("asked", [True, False])
def test_who_was_not_asked_reads_why_a_call_was_denied(asked: bool) -> None:
    """A rule has denied it, or a person whom nobody watched."""
    call = v1.ToolCall(tool_use_id="t1", tool="bash")
    approval = v1.PendingApproval(name=f"{NAME}/approvals/t1", tool_call=call)
    denied = v1.Event.ApprovalChanged(approval=approval, decision=v1.APPROVAL_DECISION_DENY, note="not now")
    answered = stored("tool", result("Denied: a rule of the server denies bash."))
    answered.message_added.content[0].tool_result.outcome = v1.TOOL_OUTCOME_DENIED
    events = [v1.Event(approval_changed=v1.Event.ApprovalChanged(approval=approval)), v1.Event(approval_changed=denied)]
    lines = lines_of(stored("agent", v1.ContentBlock(tool_call=call)), *(events if asked else []), answered)
    why = ["  denied bash: not now"] if asked else ["  │ Denied: a rule of the server denies bash."]
    assert lines[-2:] == [*why, "  └ bash: denied"]
