"""A conversation as lines: what a tool printed while somebody watched, and what is known only at its end."""

from __future__ import annotations

import pytest
from bedrock import Event
from bedrock.cli.paint import Paint
from bedrock.cli.transcript import OUTPUT_LINES, Transcript
from bedrock.messages import Approval

from tests.unit.clients.fake_server import output, result, stored

LONG = "".join(f"{number}\n" for number in range(OUTPUT_LINES + 5))


@pytest.mark.parametrize(
    ("streamed", "stored_output", "shown"),
    [
        ("a\nb\n", "a\nb\n[exit code 3]", ["  │ a", "  │ b", "  │ [exit code 3]"]),
        ("a\nb", "a\nb", ["  │ a", "  │ b"]),
        (LONG, f"{LONG}[exit code 3]", [*(f"  │ {n}" for n in range(OUTPUT_LINES)), "  │ …", "  │ [exit code 3]"]),
    ],
    ids=["ends with more", "ends the same", "cut and ends with more"],
)
def test_how_a_streamed_command_ended_is_shown_after_its_output(
    streamed: str, stored_output: str, shown: list[str]
) -> None:
    lines: list[str] = []
    transcript = Transcript(Paint(False), lines.append, live=True)
    transcript.show(Event(output(streamed, 0)))
    transcript.show(Event(stored("tool", result(stored_output))))
    assert lines == [*shown, "  └ tool, 0.0 s"]


def test_who_is_asked_for_the_unrestricted_mode_hears_that_it_stays() -> None:
    transcript = Transcript(Paint(False), lambda _: None, live=True)
    question, reason = transcript.question(
        Approval("a", "t1", "request_mode_upgrade", {"reason": "to write x"}), "/tmp"
    )
    assert "all its tools" in question
    assert "until the mode is changed back" in question
    assert reason.strip() == "to write x"
