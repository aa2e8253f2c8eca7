"""What a person is asked to allow, as lines in which nothing can hide."""

from __future__ import annotations

from bedrock.cli.calls import headline, telling
from bedrock.cli.diffs import changed_line
from bedrock.cli.paint import Paint, one_line
from bedrock.cli.text.safe_text import SafeText, literal
from bedrock.messages import Approval, ToolCall

#: What precedes each line of what is to be done.
INDENT = "    "
#: Columns of a question in a few words.
TITLE_COLUMNS = 60


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


def question_heading(approval: Approval, count: int) -> str:
    """Say which of several open questions is answered next."""
    return f"{count} questions are open; this answers: {question_title(approval)}"


def question_title(approval: Approval) -> SafeText:
    """A question in a few words: the tool, and what it is to do."""
    about = headline(ToolCall(approval.id, approval.tool, approval.input), literal)
    return one_line(literal(approval.tool) + " " + literal(about), TITLE_COLUMNS)


def _indented(text: str) -> list[SafeText]:
    return [INDENT + line for line in literal(text).lines()]
