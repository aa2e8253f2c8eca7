"""Matches tool calls with approval rules, and suggests rules that would allow a call.

Rules that deny are applied broadly, rules that allow narrowly: a call that cannot be fully analysed counts as a
possible match for a rule that denies, and never matches a rule that allows.
"""

from __future__ import annotations

import shlex
from enum import IntEnum
from typing import TYPE_CHECKING

from actors.core.approval.approval_rules import Action, ApprovalRule

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.core.approval.approval_rules import CallSubject, ShellCommand
    from actors.core.content import ToolUse

MCP_PREFIX = "mcp__"
"""The prefix of an MCP tool's name, which has the form mcp__server__tool."""

TWO_WORDS = frozenset(
    "apt brew bundle cargo docker dotnet gh git go gradle helm kubectl make mvn npm pip pnpm podman poetry rake "
    "systemctl terraform uv yarn".split()
)
"""Programs whose first argument names the action, as in `git push`; a suggested prefix includes that argument."""


class RuleMatch(IntEnum):
    """Whether a call matches a rule."""

    NO = 0
    MAYBE = 1
    """The call might match: this can only be known when it runs."""
    YES = 2


def match(rule: ApprovalRule, call: ToolUse, subject: CallSubject | None) -> RuleMatch:
    """Return whether the call matches the rule, might match it, or does not. Use this for rules that deny or ask.

    `subject` contains the call's commands and paths; None if nothing is known about them.
    """
    if rule.tool:
        return _certainly(call.name == rule.tool)
    if rule.mcp_server:
        return _certainly(server_of(call.name) == rule.mcp_server)
    if subject is None:
        return RuleMatch.MAYBE
    if rule.path:
        return _match_path(rule.path, subject)
    if rule.command and rule.command == subject.text:
        return RuleMatch.YES
    commands = (*subject.commands, *subject.inner)
    found = max((_match_command(rule, command) for command in commands), default=RuleMatch.NO)
    return max(found, RuleMatch.MAYBE) if subject.opaque else found


def covered(rules: Iterable[ApprovalRule], call: ToolUse, subject: CallSubject | None) -> bool:
    """Return whether these rules, whose action is ALLOW, together match everything that the call does."""
    rules = tuple(rules)
    if any(rule.tool == call.name or (rule.mcp_server and rule.mcp_server == server_of(call.name)) for rule in rules):
        return True
    if subject is None:
        return False
    if any(rule.command and rule.command == subject.text for rule in rules):
        return True
    paths = (*subject.paths, *subject.trees)
    if subject.opaque or not (subject.commands or paths):
        return False
    return all(any(_covers_command(rule, command) for rule in rules) for command in subject.commands) and all(
        any(rule.path and _beneath(path, rule.path) for rule in rules) for path in paths
    )


def server_of(tool: str) -> str:
    """Return the name of the MCP server that has this tool, or ""."""
    return tool.removeprefix(MCP_PREFIX).partition("__")[0] if tool.startswith(MCP_PREFIX) else ""


def suggestions(call: ToolUse, subject: CallSubject | None, working_dir: str) -> tuple[ApprovalRule, ...]:
    """Return rules with which a person could allow calls like this one, the narrowest first. Their `id` is ""."""
    if subject is None:
        return ()
    if subject.text:
        return (_allow(command=subject.text, words=_only_words(subject)), *_prefixes(subject))
    tool = _allow(tool=call.name)
    if server := server_of(call.name):
        return tool, _allow(mcp_server=server)
    directories = dict.fromkeys((*(_directory(path, working_dir) for path in subject.paths), *subject.trees))
    return (*(_allow(path=directory) for directory in directories), tool)


def describe(rule: ApprovalRule) -> str:
    """Describe which calls the rule matches, in words for people and models."""
    if rule.tool:
        return f"the tool {rule.tool}"
    if rule.mcp_server:
        return f"the MCP server {rule.mcp_server}"
    if rule.path:
        return f"files beneath {rule.path}"
    return f"the command {rule.command!r}" if rule.command else f"commands that begin with {rule.command_prefix!r}"


def _certainly(matches: bool) -> RuleMatch:
    return RuleMatch.YES if matches else RuleMatch.NO


def _match_path(directory: str, subject: CallSubject) -> RuleMatch:
    """Return whether the call reads or writes something beneath this directory, or might read something there."""
    if any(_beneath(path, directory) for path in (*subject.paths, *subject.trees, *subject.also_reads)):
        return RuleMatch.YES
    return RuleMatch.MAYBE if any(_beneath(directory, tree) for tree in subject.trees) else RuleMatch.NO


def _beneath(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _match_command(rule: ApprovalRule, command: ShellCommand) -> RuleMatch:
    """Return whether a command matches a rule, or might; a program's directory is ignored (/bin/ls matches ls)."""
    if not (rule.command or rule.command_prefix):
        return RuleMatch.NO
    wanted, words = _named(rule.words), _named(command.words)
    if wanted and words[: len(wanted)] == wanted and (rule.command_prefix or len(words) == len(wanted)):
        return RuleMatch.MAYBE if rule.command and command.open else RuleMatch.YES
    unseen = command.open and wanted[: len(words)] == words
    return RuleMatch.MAYBE if unseen or command.runs_others else RuleMatch.NO


def _named(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words, with the first one reduced to the name of the program without directories."""
    return (words[0].rpartition("/")[2], *words[1:]) if words else ()


def _covers_command(rule: ApprovalRule, command: ShellCommand) -> bool:
    if not rule.words:
        return False
    if rule.command_prefix:
        return command.words[: len(rule.words)] == rule.words and not command.runs_others
    return bool(rule.command) and command.words == rule.words and not command.open


def _only_words(subject: CallSubject) -> tuple[str, ...]:
    """Return the words of the call's only command; () if the call does more, or if not all words are known."""
    if subject.opaque or len(subject.commands) != 1 or subject.commands[0].open:
        return ()
    return subject.commands[0].words


def _prefixes(subject: CallSubject) -> tuple[ApprovalRule, ...]:
    """Return a rule for each command, which allows all commands that begin with the same one or two words.

    Commands that may run other commands get no rule.
    """
    if subject.opaque:
        return ()
    beginnings = dict.fromkeys(
        command.words[: 2 if command.words[0] in TWO_WORDS else 1]
        for command in subject.commands
        if not command.runs_others
    )
    return tuple(_allow(command_prefix=shlex.join(words), words=words) for words in beginnings)


def _directory(path: str, working_dir: str) -> str:
    return working_dir if _beneath(path, working_dir) else path.rpartition("/")[0] or "/"


def _allow(
    *,
    tool: str = "",
    command: str = "",
    command_prefix: str = "",
    path: str = "",
    mcp_server: str = "",
    words: tuple[str, ...] = (),
) -> ApprovalRule:
    return ApprovalRule("", Action.ALLOW, tool, command, command_prefix, path, mcp_server, words)
