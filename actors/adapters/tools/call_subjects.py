"""Determines what tool calls are about, for approval rules: the commands and paths in their arguments.

No command is run. Symbolic links are resolved when a call is checked; they may change before the call runs. This is
acceptable because approval rules are a convenience; the permission mode enforces security.
"""

from __future__ import annotations

import os
import posixpath
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from actors.adapters.tools.bash import shell_reading
from actors.core.approval import prefix_allows, runs_no_other
from actors.core.context import Action, ApprovalRule, CallSubject
from actors.ports import InvalidApprovalRuleError

TREE_TOOLS = frozenset(["search", "keyword_search"])

MAX_LINKS = 40


def subject_of(
    name: str, arguments: Mapping[str, Any], working_dir: str, within: Sequence[str] | None = None
) -> CallSubject:
    """The commands or paths that a valid call to a built-in tool is about.

    Links are resolved; if `within` is given, only links in these directories are resolved.
    """
    if name == "bash":
        return shell_subject(arguments.get("cmd", ""))
    if name in TREE_TOOLS:
        tree = _repository(working_dir, within) if name == "keyword_search" else arguments.get("path", ".")
        return CallSubject(trees=(real_path(tree, working_dir, within),))
    if name == "spawn_sub_agent":
        return CallSubject(
            also_reads=tuple(
                real_path(path, real_path(task.get("cwd", ""), working_dir, within), within)
                for task in arguments["tasks"]
                for path in task.get("read_first", ())
            )
        )
    if "path" in arguments:
        return CallSubject(paths=(real_path(arguments["path"], working_dir, within),))
    return CallSubject()


def shell_subject(text: str) -> CallSubject:
    """A CallSubject with the simple commands that a shell text runs; it is empty for a blank text."""
    if not text.strip():
        return CallSubject()
    try:
        commands = shell_reading.read(text)
    except shell_reading.OpaqueTextError:
        return CallSubject(text, inner=shell_reading.find(text), opaque=True)
    found = () if all(map(runs_no_other, commands)) else shell_reading.find(text)
    return CallSubject(text, commands, inner=tuple(command for command in found if command not in commands))


def real_path(path: str, working_dir: str, within: Sequence[str] | None = None) -> str:
    """The absolute path with its links resolved; parts that do not exist are left unchanged.

    If `within` is given, only links in these directories are followed, because the targets of other links must not be
    revealed to a user who cannot read them.
    """
    try:
        if within is not None:
            return _followed(os.path.join(working_dir, path), within)
        return os.path.realpath(os.path.join(working_dir, path))
    except (OSError, ValueError):
        return posixpath.normpath(posixpath.join(working_dir, path))


def _followed(path: str, within: Sequence[str]) -> str:
    found, left, links = "/", path.split("/")[::-1], 0
    while left:
        part = left.pop()
        if part == "..":
            found = os.path.dirname(found)
        elif part not in {"", "."}:
            found = os.path.join(found, part)
            if links < MAX_LINKS and any(_is_in(found, folder) for folder in within) and os.path.islink(found):
                target, links = os.readlink(found), links + 1
                left += target.split("/")[::-1]
                found = "/" if target.startswith("/") else os.path.dirname(found)
    return found


def _is_in(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}/")


def prepared_rule(rule: ApprovalRule, within: Sequence[str] | None = None) -> ApprovalRule:
    """A rule with its command split into words and its directory resolved (see `real_path`).

    Raises InvalidApprovalRuleError for a blank command, a `command_prefix` that does not begin a simple command, a
    relative directory, or a prefix that no rule can allow.
    """
    if rule.path:
        if not rule.path.startswith("/"):
            raise InvalidApprovalRuleError("path", "must be the absolute path of a directory")
        return replace(rule, path=real_path(rule.path, "/", within))
    if rule.command:
        subject = shell_subject(rule.command)
        if not subject.text:
            raise InvalidApprovalRuleError("command", "must not be empty")
        known = len(subject.commands) == 1 and not (subject.opaque or subject.commands[0].open)
        return replace(rule, command=subject.text, words=subject.commands[0].words if known else ())
    return _prepared_prefix(rule) if rule.command_prefix else rule


def _prepared_prefix(rule: ApprovalRule) -> ApprovalRule:
    try:
        (command,) = shell_reading.read(rule.command_prefix.strip())
    except (shell_reading.OpaqueTextError, ValueError):
        raise InvalidApprovalRuleError(
            "command_prefix", "must be the first words of one simple command, without variables, patterns or operators"
        ) from None
    if command.open:
        raise InvalidApprovalRuleError("command_prefix", "must not contain variables or patterns")
    if rule.action is Action.ALLOW and not prefix_allows(command.words, command):
        raise InvalidApprovalRuleError(
            "command_prefix",
            f"must not begin with {shlex.join(command.words[:2])}, which can run programs that its arguments name; "
            "allow the exact command",
        )
    return replace(rule, command_prefix=rule.command_prefix.strip(), words=command.words)


def _repository(working_dir: str, within: Sequence[str] | None) -> str:
    """The root of the enclosing git repository (which must be in `within`, if given), or else the working directory."""
    directory = working_dir
    while not os.path.lexists(os.path.join(directory, ".git")):
        parent = os.path.dirname(directory)
        outside = within is not None and not any(parent == each or _is_in(parent, each) for each in within)
        if parent == directory or outside:
            return working_dir
        directory = parent
    return directory
