"""A conversation as lines: what a tool printed while somebody watched, and what is known only at its end."""

from typing import Any

import pytest
from bedrock import Event, v1
from bedrock.cli.display.labels import NOT_WHOLE
from bedrock.cli.display.questions import question_lines
from bedrock.cli.display.transcript import GO_ON, OUTPUT_LINES, SUMMED_UP, Transcript
from bedrock.cli.text.style import Paint
from bedrock.states import Approval

from tests.support.fake_server import delta, output, result, state, stopped, stored

LONG = "".join(f"{number}\n" for number in range(OUTPUT_LINES + 5))


@pytest.mark.parametrize(
    ("streamed", "stored_output", "shown"),
    [
        ("a\nb\n", "a\nb\n[exit code 3]", ["  │ a", "  │ b", "  │ [exit code 3]"]),
        ("a\nb", "a\nb", ["  │ a", "  │ b"]),
        (
            LONG,
            f"{LONG}[exit code 3]",
            ["  │ … 6 lines above", *(f"  │ {n}" for n in range(6, 17)), "  │ [exit code 3]"],
        ),
        ("a\nb\n", "Cancelled by user", ["  │ a", "  │ b", "  │ Cancelled by user"]),
    ],
    ids=["ends with more", "ends the same", "cut and ends with more", "cancelled"],
)
def test_how_a_streamed_command_ended_is_shown_after_its_output(
    streamed: str, stored_output: str, shown: list[str]
) -> None:
    lines: list[str] = []
    transcript = Transcript(Paint(False), lines.append, live=True)
    transcript.show(Event.from_proto(output(streamed, 0)))
    transcript.show(Event.from_proto(stored("tool", result(stored_output))))
    assert lines == [*shown, "  └ tool"]


def test_who_is_asked_for_the_unrestricted_mode_hears_that_it_stays() -> None:
    upgrade = v1.PendingApproval.ModeUpgrade(tool_use_id="t1", reason="to write x")
    asked = Approval.from_proto(v1.PendingApproval(name="a", mode_upgrade=upgrade))
    question, reason = question_lines(asked, "/tmp", Paint(False))
    assert "Tools can then change any file and use the network, until you switch back" in question
    assert reason.strip() == "to write x"


@pytest.mark.parametrize("detail", [*NOT_WHOLE, "context_exhausted", ""])
def test_an_answer_that_is_not_whole_is_followed_by_what_is_wrong(detail: str) -> None:
    assert shown(stopped("r", detail=detail)) == [f"■ {words}" for kind, words in NOT_WHOLE.items() if kind == detail]


def test_a_limit_that_nears_is_shown() -> None:
    near = stored("system", v1.ContentBlock(text="At least 80 % of the budget of $2.50 is spent."))
    assert shown(near) == ["· At least 80 % of the budget of $2.50 is spent."]


# --- sub-agents and summaries -----------------------------------------------------------------------------------------


def shown(*events: v1.Event, live: bool = False) -> list[str]:
    lines: list[str] = []
    transcript = Transcript(Paint(False), lines.append, live=live)
    for event in events:
        transcript.show(Event.from_proto(event))
    return lines


def test_that_a_window_is_assumed_is_said_once_after_the_first_answer() -> None:
    def updated(used: int) -> v1.Event:
        usage = v1.ContextUsage(used_tokens=used, usable_window_tokens=24_576, assumed=True)
        return v1.Event(conversation_updated=v1.Conversation(model="models/mine", context_usage=usage))

    assert shown(updated(0)) == []
    (line,) = shown(updated(0), updated(5), updated(9))
    assert line == (
        "· The context window of mine is unknown: 24,576 usable tokens are assumed; "
        'set window under [models."mine"] in the server\'s settings'
    )


def told(kind: v1.SystemMessageKind.ValueType, said: str, *, sequence: int = 7) -> v1.Event:
    event = stored("system", v1.ContentBlock(text=said))
    event.message_added.system_kind = kind
    event.message_added.sequence = sequence
    return event


def test_a_call_for_sub_agents_is_a_list_of_their_tasks() -> None:
    given: dict[str, Any] = {"tasks": [{"task": "Count.\nAll of them.", "max_turns": 3}, {"task": "Look."}]}
    called = stored("agent", v1.ContentBlock(tool_call=v1.ToolCall(tool_use_id="t1", tool="spawn_sub_agent")))
    called.message_added.content[0].tool_call.input.update(given)
    assert shown(called, stored("tool", result("Task: ..."))) == [
        "● spawn_sub_agent 2 tasks",
        "    1. Count.",
        "       All of them. (max_turns: 3)",
        "    2. Look.",
        "  │ Task: ...",
        "  └ spawn_sub_agent",
    ]


def test_what_sub_agents_report_is_shown_like_output_and_not_without_end() -> None:
    lines = shown(told(v1.SYSTEM_MESSAGE_KIND_SUB_AGENT_RESULTS, LONG))
    assert lines[:2] == ["· reports from the sub-agents", "  │ 0"]
    assert lines[-1] == "  │ … 5 more lines"


@pytest.mark.parametrize("kind", [v1.SYSTEM_MESSAGE_KIND_SUMMARY, v1.SYSTEM_MESSAGE_KIND_SUMMARY_FALLBACK])
def test_a_summary_has_a_heading_and_says_how_to_go_on(kind: v1.SystemMessageKind.ValueType) -> None:
    assert shown(told(kind, "This and\nthat.")) == ["", f"── {SUMMED_UP} ──", "This and", "that.", f"■ {GO_ON}"]
    assert "bedrock continue" in GO_ON


def test_the_summary_that_a_conversation_begins_with_is_that_of_another() -> None:
    lines = shown(told(v1.SYSTEM_MESSAGE_KIND_SUMMARY, "This.", sequence=1))
    assert lines == ["", "── summary of the previous conversation ──", "This."]


def test_a_summary_that_is_written_while_a_viewer_watches_is_shown_once() -> None:
    lines = shown(
        state("awaiting_continuation"),
        delta("This and\nth", 0),
        state("awaiting_continuation"),
        delta("at.", 11),
        told(v1.SYSTEM_MESSAGE_KIND_SUMMARY, "This and\nthat."),
        state("context_exhausted"),
        live=True,
    )
    assert lines == ["", f"── {SUMMED_UP} ──", "This and", "that.", f"■ {GO_ON}"]


def test_a_late_viewer_without_a_terminal_sees_running_sub_agents_after_the_messages() -> None:
    pending = [v1.SubAgent(conversation="c1-a2", task="Look.", task_index=1)]
    done = v1.Event.SubAgentsChanged.Report(conversation="c1-a1", task="Count.", state=v1.STATE_KIND_COMPLETED)
    waiting = v1.ConversationState(kind=v1.STATE_KIND_AWAITING_SUB_AGENTS)
    snapshot = v1.Event.Snapshot(
        conversation=v1.Conversation(state=waiting),
        messages=[stored("user", v1.ContentBlock(text="Go.")).message_added],
        sub_agents=v1.Event.SubAgentsChanged(pending=pending, reports=[done]),
    )
    lines = shown(v1.Event(snapshot=snapshot))
    assert lines == ["", "> Go.", "  ✓ Count."]
    assert shown(v1.Event(snapshot=snapshot), live=True) == lines[:3]
