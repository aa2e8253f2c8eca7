"""Presents approvals and tools' questions to users as text, and parses the replies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from typing import Any, TypeAlias

from bedrock.cli.text.safe_text import SafeText, literal
from bedrock.cli.text.style import Paint, changed_line, one_line
from bedrock.states import Approval, ApprovalRule, Question

# Names of the tool arguments that describe a call best, in order of preference. Of these, the first that a call has is
# shown, without its name.
_TELLING = ("cmd", "command", "path", "pattern", "thoughts", "result")


def telling(given: dict[str, Any], clean: Callable[[str], str], raw: str = "") -> str:
    """Describe a tool call by its input or, if it has none, by `raw`; `clean` makes texts safe to print."""
    if not given:
        return clean(raw)
    if isinstance(tasks := given.get("tasks"), list):
        return _tasks(tasks, clean)
    if isinstance(patches := given.get("patches"), list):
        return "\n".join([headline(given, clean), *_patches(patches, clean)])
    key = next((key for key in _TELLING if key in given), None)
    lines = [] if key is None else [clean(str(given[key]))]
    lines += [f"{clean(str(name))}: {clean(str(value))}" for name, value in given.items() if name != key]
    return "\n".join(lines)


def _tasks(tasks: list[Any], clean: Callable[[str], str]) -> str:
    lines = [f"{len(tasks)} task{'' if len(tasks) == 1 else 's'}"]
    for number, task in enumerate(tasks, start=1):
        values = task if isinstance(task, dict) else {"task": task}
        more = [f"{clean(str(name))}: {clean(str(value))}" for name, value in values.items() if name != "task"]
        said = clean(str(values.get("task", ""))).replace("\n", "\n   ")
        lines.append(f"{number}. {said}" + (f" ({', '.join(more)})" if more else ""))
    return "\n".join(lines)


def headline(given: dict[str, Any], clean: Callable[[str], str]) -> str:
    """Describe a tool call in one line, by the most informative part of its input `given`; "" if there is none."""
    key = next((key for key in _TELLING if key in given), None)
    return "" if key is None else clean(str(given[key])).replace("\n", " ")


def _patches(patches: list[Any], clean: Callable[[str], str]) -> Iterator[str]:
    for patch in patches:
        values = dict(patch) if isinstance(patch, dict) else {"operation": str(patch)}
        old, new = values.pop("oldText", ""), values.pop("newText", "")
        more = [f"{clean(str(name))}: {clean(str(value))}" for name, value in values.items() if name != "operation"]
        yield clean(str(values.get("operation", ""))) + (f" ({', '.join(more)})" if more else "")
        for sign, text in (("-", old), ("+", new)):
            yield from (f"{sign} {line}" for line in clean(str(text)).removesuffix("\n").split("\n") if text)


# Maximum columns of a title or a description of a field.
WORDS_COLUMNS = 100
NO_SECRETS = "this text comes from the MCP server; do not enter passwords or keys"
_YES = frozenset({"y", "yes", "true"})
_NO = frozenset({"n", "no", "false"})


def clock_time(when: datetime) -> str:
    """The time of day in this machine's time zone, as HH:MM:SS."""
    return when.astimezone().strftime("%H:%M:%S")


class QuestionForm:
    """A tool's question, and the answers filled in so far."""

    def __init__(self, question: Question) -> None:
        self.question = question
        schema = question.requested_schema or {}
        fields: dict[str, dict[str, Any]] = schema.get("properties", {})
        order = [name for name in schema.get("propertyOrder", ()) if name in fields]
        self._fields = {name: fields[name] for name in dict.fromkeys((*order, *sorted(fields)))}
        self._required = frozenset(schema.get("required", ()))
        self.content: dict[str, Any] = {}
        self._place = 0

    @property
    def complete(self) -> bool:
        """Whether all fields were filled in or skipped. A question without fields is complete after one Enter."""
        return self._place >= max(1, len(self._fields))

    @property
    def name(self) -> str:
        """The name of the field that is filled in next; "" if there is none."""
        return list(self._fields)[self._place] if self._place < len(self._fields) else ""

    def begin_again(self) -> None:
        """Forget all answers, and go back to the first field."""
        self.content.clear()
        self._place = 0

    def lines(self, paint: Paint) -> list[SafeText]:
        """The lines that show the question in full; control characters are made visible."""
        asked = self.question
        tool = literal(asked.tool.removeprefix("tools/"))
        head = paint.text(
            "? MCP server ",
            literal(asked.mcp_server),
            " needs your input for ",
            tool,
            f" (answer by {clock_time(asked.deadline)})",
        )
        lines = [paint.careful(head), *(INDENT + line for line in literal(asked.message).lines())]
        if asked.url:
            lines.append(paint.text(INDENT, "open ", literal(asked.url)))
        return [*lines, paint.dim(INDENT + f"({NO_SECRETS})")]

    def prompt_line(self, paint: Paint) -> SafeText:
        """The line above the prompt: what the next Enter answers, how to decline, and the deadline."""
        return paint.text(
            paint.careful(self.prompt()), paint.dim(f"  /decline; answer by {clock_time(self.question.deadline)}")
        )

    def prompt(self) -> SafeText:
        """A line that says what the next Enter answers: a field with its description and what can be typed."""
        if self.question.url:
            return SafeText("Enter: I have opened it")
        if not self.name:
            return SafeText("Enter: yes")
        field, parts = self._fields[self.name], [one_line(literal(self.name), WORDS_COLUMNS)]
        if about := _about(self.name, field):
            parts.append(SafeText("\N{EN DASH} ") + one_line(literal(about), WORDS_COLUMNS))
        parts.append(SafeText("(") + SafeText(", ").join(self._expected(field)) + SafeText(")"))
        return SafeText(" ".join(parts))

    def enter(self, text: str) -> str:
        """Fill in the next field; "" skips it or takes its default.

        Return why the text is refused, or "" if it is not.
        """
        if name := self.name:
            field, text = self._fields[name], text.strip()
            if text:
                try:
                    self.content[name] = value_of(field, text)
                except ValueError as error:
                    return str(error)
            elif "default" in field:
                self.content[name] = field["default"]
            elif name in self._required:
                return "this field is required"
        elif text.strip().casefold() not in {"", *_YES}:
            return "not sent: press Enter alone to accept, or decline"
        self._place += 1
        return ""

    def _expected(self, field: Mapping[str, Any]) -> list[SafeText]:
        found = [SafeText(_KINDS.get(str(field.get("type")), "text"))]
        if choices := choices_of(field):
            listed = (f"{number} {label}" for number, (_, label) in enumerate(choices, 1))
            several = "some of " if field.get("type") == "array" else ""
            found = [SafeText(several) + one_line(literal(" · ".join(listed)), 2 * WORDS_COLUMNS)]
        found += (literal(_bound(key, field[key])) for key in _BOUNDS if key in field)
        if field.get("format"):
            found.append(literal(str(field["format"])))
        if "default" in field:
            found.append(SafeText("Enter: ") + one_line(literal(_default_text(field["default"])), WORDS_COLUMNS))
        elif self.name not in self._required:
            found.append(SafeText("Enter skips this field"))
        return found


_KINDS = {"boolean": "y or n", "integer": "a whole number", "number": "a number", "string": "text"}
_BOUNDS = {"minimum": "at least", "maximum": "at most", "minLength": "at least", "maxLength": "at most"}


def _bound(key: str, limit: Any) -> str:
    unit = f" character{'' if limit == 1 else 's'}" if key.endswith("Length") else ""
    return f"{_BOUNDS[key]} {limit}{unit}"


def _about(name: str, field: Mapping[str, Any]) -> str:
    """A field's title and description as one string. The title is omitted if it only repeats the name."""
    title, description = str(field.get("title") or ""), str(field.get("description") or "")
    told = "" if _letters(title) == _letters(name) else title
    return ": ".join(dict.fromkeys(words for words in (told, description) if words))


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()


def choices_of(field: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The values that a field offers, each with the label that users see; [] if it takes any value."""
    given = field.get("items", {}) if field.get("type") == "array" else field
    if "enum" in given:
        names = given.get("enumNames", [])
        return [(value, names[place] if place < len(names) else value) for place, value in enumerate(given["enum"])]
    titled = given.get("oneOf") or given.get("anyOf") or []
    return [(each["const"], each.get("title", each["const"])) for each in titled]


def value_of(field: Mapping[str, Any], text: str) -> Any:
    """Convert the user's input to the value of a field. Raises ValueError, whose message says what is accepted."""
    choices = choices_of(field)
    match field.get("type"):
        case "array":
            return [_choice(choices, each.strip()) for each in text.split(",") if each.strip()]
        case "boolean":
            if text.lower() in _YES | _NO:
                return text.lower() in _YES
            raise ValueError("type y or n")
        case "integer":
            return _number(field, text, int, "type a whole number")
        case "number":
            return _number(field, text, float, "type a number")
        case _ if choices:
            return _choice(choices, text)
        case _:
            _check_bounds(field, "minLength", len(text), "maxLength")
            return text


def _number(field: Mapping[str, Any], text: str, kind: Callable[[str], float], otherwise: str) -> float:
    try:
        found = kind(text)
        if not isfinite(found):
            raise ValueError(otherwise)
    except (ValueError, OverflowError):
        raise ValueError(otherwise) from None
    _check_bounds(field, "minimum", found, "maximum")
    return found


def _check_bounds(field: Mapping[str, Any], least: str, value: float, most: str) -> None:
    """Raise ValueError, which names the bound, if a value is less than `least` or more than `most`."""
    for key, beyond in ((least, value < field.get(least, value)), (most, value > field.get(most, value))):
        if beyond:
            raise ValueError(f"type {_bound(key, field[key])}")


def _choice(choices: list[tuple[str, str]], text: str) -> str:
    for number, (value, label) in enumerate(choices, 1):
        if text in (value, label, str(number)):
            return value
    raise ValueError(f"type one of the numbers 1 to {len(choices)}, or a name")


def _default_text(default: Any) -> str:
    return {True: "y", False: "n"}[default] if isinstance(default, bool) else str(default)


Asked: TypeAlias = Approval | QuestionForm
"""What the user can be asked: an approval, or the form of a tool's question."""


@dataclass(frozen=True, slots=True)
class Reply:
    approve: bool
    rule: ApprovalRule | None = None
    """The rule that decides later calls in the same way; None if the reply is for this call only."""
    note: str = ""
    """The reason for a denial; "" if none was given."""
    workspace: bool = False
    """Whether to grant the workspace mode instead of the unrestricted one that was asked for."""


_APPROVE = re.compile(r"y|yes", re.IGNORECASE)
_NEVER = re.compile(r"never(?:\s+(?P<key>\w))?", re.IGNORECASE)
_WORKSPACE = re.compile(r"w|workspace", re.IGNORECASE)
WORKSPACE_INSTEAD = "denied; the mode is now workspace: continue with what it allows"
"""The note for the agent if a user grants the workspace mode instead of the unrestricted mode."""
_DENY = re.compile(r"no?(?:[,:.]?\s+(?P<note>.*))?", re.IGNORECASE | re.DOTALL)

# The prefixes of lines from a tool call and of the program's own lines. They differ, so that no call can imitate the
# program.
INDENT, OWN_INDENT = SafeText("    "), SafeText("  ")
# For each kind of approval rule, the key that approves a call and creates a rule of this kind.
RULE_KEYS = {"command": "e", "command_prefix": "b", "path": "d", "tool": "t", "mcp_server": "s"}
# The kinds of approval rules, by their names in command-line options.
RULE_KINDS = {"exact": "command", "prefix": "command_prefix", "path": "path", "tool": "tool", "server": "mcp_server"}
_ALWAYS = {
    "command": "[e] always this exact command", "command_prefix": "[b] always what begins with {}",
    "path": "[d] always in {}", "tool": "[t] always the tool {}", "mcp_server": "[s] always the MCP server {}",
}  # fmt: skip
_RULE_WORDS = {
    "command": "the command", "command_prefix": "commands that begin with", "path": "files beneath", "tool": "the tool",
    "mcp_server": "the MCP server",
}  # fmt: skip
# Maximum columns of a rule's subject in the list of possible replies.
RULE_COLUMNS = 30
# Maximum columns of a rule's title in an approval request.
RULE_TITLE_COLUMNS = 60
# Maximum columns of a question's title.
TITLE_COLUMNS = 60


def question_lines(approval: Approval, working_directory: str, paint: Paint) -> list[SafeText]:
    """The lines that show an approval request in full; control characters are made visible."""
    if approval.tool == "request_mode_upgrade":
        if approval.mode_upgrade is not None and approval.mode_upgrade.mode == "workspace":
            rights = SafeText("workspace mode? Tools can then change files in ") + literal(working_directory)
        else:
            rights = SafeText("unrestricted mode? Tools can then change any file and use the network")
        what = SafeText("? Switch to ") + rights + ", until you switch back (/mode)."
        return [paint.careful(what), *_indented(str(approval.input.get("reason", "")))]
    lines = _indented(telling(approval.input, literal))
    if "patches" in approval.input:
        lines = [paint.text(INDENT, changed_line(line.removeprefix(INDENT), paint, unmarked=literal)) for line in lines]
    asked = paint.text("? Run ", literal(approval.tool), " in ", literal(working_directory), "?")
    why = [] if approval.rule is None else [paint.dim(OWN_INDENT + _rule_that_asks(approval.rule))]
    return [paint.careful(asked), *lines, *why]


def _rule_that_asks(rule: ApprovalRule) -> SafeText:
    """A line naming the rule that requires this approval, or may deny the call when it runs."""
    whose = SafeText("a rule of the server" if rule.origin == "operator" else "rule " + literal(rule_id(rule)))
    does = " may deny the call when it runs: deny " if rule.action == "deny" else " asks for "
    return whose + does + one_line(rule_title(rule), RULE_TITLE_COLUMNS)


def made_rule(rules: Iterable[ApprovalRule], wanted: ApprovalRule) -> ApprovalRule | None:
    """The rule that was created when the user chose the suggestion `wanted`; None if that rule has been deleted."""
    alike = (rule for rule in rules if (rule.kind, rule.subject) == (wanted.kind, wanted.subject))
    return max((rule for rule in alike if rule.origin == "conversation"), key=_age, default=None)


def rule_line(rule: ApprovalRule, revoking: str) -> SafeText:
    """A line about a new rule. `revoking` is the command that revokes it, where {} stands for the rule's id."""
    named = literal(rule_id(rule))
    made = SafeText("rule ") + named + f": {rule.action} " + rule_title(rule)
    return made + f" ({revoking.format(named)} revokes it)"


def _age(rule: ApprovalRule) -> float:
    return 0 if rule.create_time is None else rule.create_time.timestamp()


def question_title(asked: Asked) -> SafeText:
    """A short title of a question: the tool and its action, or what is asked."""
    if isinstance(asked, Approval):
        return call_title(asked.tool, asked.input)
    return one_line(literal(asked.question.message), TITLE_COLUMNS)


def offers_workspace(asked: Asked | None) -> bool:
    """Whether a user can grant the workspace mode instead of the wider one that the agent asks for."""
    return isinstance(asked, Approval) and asked.mode_upgrade is not None and asked.mode_upgrade.workspace_available


def call_title(tool: str, given: dict[str, Any]) -> SafeText:
    """A short title of a call: the tool, and the most informative part of its input."""
    return one_line(literal(tool) + " " + literal(headline(given, literal)), TITLE_COLUMNS)


def parse_reply(text: str, asked: Asked | None) -> Reply | None:
    """The reply that a typed text contains; None if the text is an ordinary message, or fills in a form."""
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
    """The first approval rule of each kind that a question suggests, by the key that the user presses for it."""
    rules: dict[str, ApprovalRule] = {}
    for rule in asked.suggestions if isinstance(asked, Approval) else ():
        if rule.kind in RULE_KEYS:
            rules.setdefault(RULE_KEYS[rule.kind], rule)
    return rules


def replies(asked: Asked, paint: Paint, mode: str) -> list[SafeText]:
    """Lines that list the letters with which to answer a question; `mode` is the conversation's mode."""
    if isinstance(asked, QuestionForm):
        return [asked.prompt_line(paint)]
    rules = rules_by_key(asked).values()
    never = "  [never]" if rules else ""
    narrower = ["[w] no, but workspace mode"] if offers_workspace(asked) and mode != "workspace" else []
    always = [_ALWAYS[rule.kind].format(one_line(literal(rule.subject), RULE_COLUMNS)) for rule in rules]
    return [paint.careful(line) for line in (f"[y]es  [n]o{never} + Enter (no default)", *always, *narrower)]


def no_reply(asked: Asked | None) -> str:
    """The message about a typed text that does not answer a question."""
    letters = ["y", "n", *rules_by_key(asked), *(["w"] if offers_workspace(asked) else [])]
    return f"answer {', '.join(letters[:-1])} or {letters[-1]}; Esc or Ctrl-C cancels, ↑ and Tab queue it as a message"


def rule_id(rule: ApprovalRule) -> str:
    """The id of a rule, as commands take it; "(server)" for an operator's rule, which cannot be revoked."""
    return rule.name.rpartition("/")[2] if rule.origin == "conversation" else "(server)"


def rule_title(rule: ApprovalRule) -> SafeText:
    """The subject of a rule, on one line; control characters are made visible."""
    subject = literal(rule.subject).replace("\n", "⏎")
    return literal(_RULE_WORDS.get(rule.kind, rule.kind)) + " " + SafeText(subject)


def _indented(text: str) -> list[SafeText]:
    return [INDENT + line for line in literal(text).lines()]
