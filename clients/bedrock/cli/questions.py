"""What a person is asked to allow, as lines in which nothing can hide."""

from __future__ import annotations

from bedrock.cli.calls import telling
from bedrock.cli.diffs import changed_line
from bedrock.cli.paint import Paint
from bedrock.cli.text.safe_text import SafeText, literal
from bedrock.messages import Approval, ToolCall

#: What precedes each line of what is to be done.
INDENT = "    "


def question_lines(approval: Approval, working_directory: str, paint: Paint) -> list[SafeText]:
    """Say what is to be allowed, in full; every control character of it is shown."""
    if approval.tool == "request_mode_upgrade":
        wants = "the agent asks for the unrestricted mode: all its tools may then write and use the network, until"
        wants += " the mode is changed back"
        return [paint.careful(f"? {wants}"), *_indented(str(approval.input.get("reason", "")))]
    lines = _indented(telling(ToolCall(approval.id, approval.tool, approval.input), literal))
    if "patches" in approval.input:
        lines = [paint.text(INDENT, changed_line(line.removeprefix(INDENT), paint, unmarked=literal)) for line in lines]
    asked = paint.text("? ", literal(approval.tool), " wants to run in ", literal(working_directory))
    return [paint.careful(asked), *lines]


def _indented(text: str) -> list[SafeText]:
    return [INDENT + line for line in literal(text).lines()]
