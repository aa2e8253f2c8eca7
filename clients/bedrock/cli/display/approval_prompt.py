"""Shows approval requests as lines of text with every invisible character made visible, and parses the replies."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from bedrock.cli.display.question_form import QuestionForm
from bedrock.cli.display.tool_calls import headline, telling
from bedrock.cli.text.diff import changed_line
from bedrock.cli.text.safe_text import SafeText, literal
from bedrock.cli.text.style import Paint, one_line
from bedrock.states import Approval, ApprovalRule


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """A yes-or-no question that comes from the chat itself, not from the agent."""

    text: str
    accept: Callable[[], Awaitable[None]]
    refuse: Callable[[], None] = lambda: None


Asked: TypeAlias = Approval | Offer | QuestionForm
"""What the user can be asked: an approval, a question of the chat itself, or the form of a tool's question."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A user's reply to a question."""

    approve: bool
    rule: ApprovalRule | None = None
    """The rule that decides later calls in the same way; None if the reply is for this call only."""
    note: str = ""
    """The reason of a denial; "" if none was given."""
    workspace: bool = False
    """Whether to grant the workspace mode instead of the unrestricted one that was asked for."""


_APPROVE = re.compile(r"y|yes", re.IGNORECASE)
_NEVER = re.compile(r"never(?:\s+(?P<key>\w))?", re.IGNORECASE)
_WORKSPACE = re.compile(r"w|workspace", re.IGNORECASE)
WORKSPACE_INSTEAD = "not that much; the mode is workspace now: go on with what it lets you do"
"""The note for the agent if a person grants the workspace mode instead of the unrestricted mode."""
_DENY = re.compile(r"no?(?:[,:.]?\s+(?P<note>.*))?", re.IGNORECASE | re.DOTALL)

#: The prefixes of lines from a tool call and of the program's own lines. They differ, so that no call can imitate the
#: program.
INDENT, OWN_INDENT = SafeText("    "), SafeText("  ")
#: For each kind of approval rule, the key that approves a call and creates a rule of this kind.
RULE_KEYS = {"command": "e", "command_prefix": "b", "path": "d", "tool": "t", "mcp_server": "s"}
#: The kinds of approval rules, by their names in command-line options.
RULE_KINDS = {"exact": "command", "prefix": "command_prefix", "path": "path", "tool": "tool", "server": "mcp_server"}
_ALWAYS = {
    "command": "this [e]xact command",
    "command_prefix": "[b]eginning with {}",
    "path": "[d]irectory {}",
    "tool": "[t]ool {}",
    "mcp_server": "[s]erver {}",
}
_KINDS = {
    "command": "the command",
    "command_prefix": "commands that begin with",
    "path": "files beneath",
    "tool": "the tool",
    "mcp_server": "the MCP server",
}
#: Maximum columns of a rule's subject in the line of possible replies.
RULE_COLUMNS = 30
#: Maximum columns of a rule's title in an approval request.
RULE_TITLE_COLUMNS = 60
#: Maximum columns of a question's title.
TITLE_COLUMNS = 60


def question_lines(approval: Approval, working_directory: str, paint: Paint) -> list[SafeText]:
    """Return the lines that show an approval request in full; control characters are made visible."""
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
    return [paint.careful(asked), *lines, paint.dim(OWN_INDENT + _why_asked(approval.rule))]


def _why_asked(rule: ApprovalRule | None) -> SafeText:
    """Return why a person is asked: a rule demands it, a rule might deny the call, or no rule allows the call."""
    if rule is None:
        return SafeText("asked, because no rule allows it")
    about = one_line(rule_title(rule), RULE_TITLE_COLUMNS)
    whose = SafeText("a rule of the server" if rule.origin == "operator" else "rule " + literal(rule_id(rule)))
    if rule.action == "deny":
        return whose + " might deny it, which cannot be told before it runs: deny " + about
    return whose + " asks for " + about


def made_rule(rules: Iterable[ApprovalRule], wanted: ApprovalRule) -> ApprovalRule | None:
    """Return the rule that was created when the user chose the suggestion `wanted`; None if it was deleted again."""
    alike = (rule for rule in rules if (rule.kind, rule.subject) == (wanted.kind, wanted.subject))
    return max((rule for rule in alike if rule.origin == "conversation"), key=_age, default=None)


def rule_line(rule: ApprovalRule, revoking: str) -> SafeText:
    """Return a line about a new rule. `revoking` is the command that revokes it, where {} stands for the rule's id."""
    named = literal(rule_id(rule))
    made = SafeText("rule ") + named + f": {rule.action} " + rule_title(rule)
    return made + f" ({revoking.format(named)} revokes it)"


def _age(rule: ApprovalRule) -> float:
    return 0 if rule.create_time is None else rule.create_time.timestamp()


def question_title(asked: Asked) -> SafeText:
    """Return a short title of a question: the tool and its action, or what is asked."""
    if isinstance(asked, Approval):
        return call_title(asked.tool, asked.input)
    return one_line(literal(asked.question.message if isinstance(asked, QuestionForm) else asked.text), TITLE_COLUMNS)


def offers_workspace(asked: Asked | None) -> bool:
    """Return whether a person can grant the workspace mode instead of the wider one that the agent asks for."""
    return isinstance(asked, Approval) and asked.mode_upgrade is not None and asked.mode_upgrade.workspace_available


def call_title(tool: str, given: dict[str, Any]) -> SafeText:
    """Return a short title of a call: the tool, and the most informative part of its input."""
    return one_line(literal(tool) + " " + literal(headline(given, literal)), TITLE_COLUMNS)


def parse_reply(text: str, asked: Asked | None) -> Reply | None:
    """Return the reply that a typed text contains; None if the text is an ordinary message, or fills in a form."""
    if isinstance(asked, QuestionForm):
        return None
    text, rules = text.strip(), rules_by_key(asked)
    if _APPROVE.fullmatch(text):
        return Reply(approve=True)
    if rule := rules.get(text.lower()):
        return Reply(approve=True, rule=rule)
    if _WORKSPACE.fullmatch(text) and offers_workspace(asked):
        return Reply(approve=False, note=WORKSPACE_INSTEAD, workspace=True)
    if found := _DENY.fullmatch(text):
        return Reply(approve=False, note=found["note"] or "")
    if rules and (found := _NEVER.fullmatch(text)):
        rule = rules.get(found["key"].lower()) if found["key"] else next(iter(rules.values()))
        return None if rule is None else Reply(approve=False, rule=rule)
    return None


def rules_by_key(asked: Asked | None) -> dict[str, ApprovalRule]:
    """Return the first approval rule of each kind that a question suggests, by the key that the user presses for it."""
    rules: dict[str, ApprovalRule] = {}
    for rule in asked.suggestions if isinstance(asked, Approval) else ():
        if rule.kind in RULE_KEYS:
            rules.setdefault(RULE_KEYS[rule.kind], rule)
    return rules


def replies(asked: Asked, paint: Paint, mode: str) -> SafeText:
    """Return the letters that, with Enter, answer a question, as a line; `mode` is that of the conversation."""
    if isinstance(asked, QuestionForm):
        return paint.text(asked.prompt_line(paint), "\n")
    rules = rules_by_key(asked)
    always = ", ".join(
        _ALWAYS[rule.kind].format(one_line(literal(rule.subject), RULE_COLUMNS)) for rule in rules.values()
    )
    always = f"  always: {always}  [never]" if always else ""
    narrower = "  [w]orkspace only" if offers_workspace(asked) and mode != "workspace" else ""
    return paint.careful(f"[y]es  [n]o{always}{narrower}, then Enter ")


def rule_id(rule: ApprovalRule) -> str:
    """Return the id of a rule, as commands take it; "(server)" for an operator's rule, which cannot be revoked."""
    return rule.name.rpartition("/")[2] if rule.origin == "conversation" else "(server)"


def rule_title(rule: ApprovalRule) -> SafeText:
    """Return what a rule is about, on one line; control characters are made visible."""
    subject = literal(rule.subject).replace("\n", "⏎")
    return literal(_KINDS.get(rule.kind, rule.kind)) + " " + SafeText(subject)


def _indented(text: str) -> list[SafeText]:
    return [INDENT + line for line in literal(text).lines()]
