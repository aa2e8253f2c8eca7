"""Approval requests as lines of text in which every invisible character is shown, and the replies to them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from bedrock.cli.display.tool_calls import headline, telling
from bedrock.cli.text.diff import changed_line
from bedrock.cli.text.safe_text import SafeText, literal
from bedrock.cli.text.style import Paint, one_line
from bedrock.states import Approval


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """A question of the client itself, apart from the agent's approval requests."""

    text: str
    accept: Callable[[], Awaitable[None]]


Asked: TypeAlias = Approval | Offer
"""A question to the user."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A user's reply to a question."""

    approve: bool
    always: bool = False
    """Whether to approve all later calls of the same tool, too."""
    note: str = ""
    """The reason of a denial; "" if none was given."""
    workspace: bool = False
    """Whether to grant the workspace mode instead of the unrestricted one that was asked for."""


_APPROVE = re.compile(r"(?P<once>y|yes)|a|always", re.IGNORECASE)
_WORKSPACE = re.compile(r"w|workspace", re.IGNORECASE)
WORKSPACE_INSTEAD = "not that much; the mode is workspace now: go on with what it lets you do"
"""What the agent is told then."""
_DENY = re.compile(r"no?(?:[,:.]?\s+(?P<note>.*))?", re.IGNORECASE | re.DOTALL)

#: The prefix of each line of the tool call.
INDENT = SafeText("    ")
#: Maximum columns of a question's title.
TITLE_COLUMNS = 60


def question_lines(approval: Approval, working_directory: str, paint: Paint) -> list[SafeText]:
    """Return the approval request in full; control characters are made visible."""
    if approval.tool == "request_mode_upgrade":
        until = ", until the mode is changed back"
        if approval.mode_upgrade is not None and approval.mode_upgrade.mode == "workspace":
            where = paint.text("? the agent asks for the workspace mode: its tools may then change files in ")
            what = paint.text(where, literal(working_directory), ", and nothing else", until)
        else:
            wants = "the agent asks for the unrestricted mode: all its tools may then write and use the network"
            what = paint.text(f"? {wants}{until}")
        return [paint.careful(what), *_indented(str(approval.input.get("reason", "")))]
    lines = _indented(telling(approval.input, literal))
    if "patches" in approval.input:
        lines = [paint.text(INDENT, changed_line(line.removeprefix(INDENT), paint, unmarked=literal)) for line in lines]
    asked = paint.text("? ", literal(approval.tool), " wants to run in ", literal(working_directory))
    return [paint.careful(asked), *lines]


def question_title(approval: Approval) -> SafeText:
    """Return a short title of a question: the tool and its action."""
    return call_title(approval.tool, approval.input)


def offers_workspace(asked: Asked | None) -> bool:
    """Return whether the workspace mode is another answer to a question: the agent asks for the unrestricted mode."""
    return isinstance(asked, Approval) and asked.mode_upgrade is not None and asked.mode_upgrade.mode != "workspace"


def call_title(tool: str, given: dict[str, Any]) -> SafeText:
    """Return a short title of a call: the tool, and the most informative part of its input."""
    return one_line(literal(tool) + " " + literal(headline(given, literal)), TITLE_COLUMNS)


def parse_reply(text: str) -> Reply | None:
    """Parse the reply to an approval request from typed text; None if the text is an ordinary message."""
    if found := _APPROVE.fullmatch(text.strip()):
        return Reply(approve=True, always=not found["once"])
    if _WORKSPACE.fullmatch(text.strip()):
        return Reply(approve=False, note=WORKSPACE_INSTEAD, workspace=True)
    if found := _DENY.fullmatch(text.strip()):
        return Reply(approve=False, note=found["note"] or "")
    return None


def _indented(text: str) -> list[SafeText]:
    return [INDENT + line for line in literal(text).lines()]
