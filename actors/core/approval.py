"""Matches tool calls with approval rules, and suggests rules that would allow a call.

Rules that deny are applied broadly, rules that allow narrowly: a call that cannot be fully analysed counts as a
possible match for a rule that denies, and never matches a rule that allows.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache
from itertools import chain

from msgspec.structs import replace

from actors.core.content import ToolUse
from actors.core.context import Action, ApprovalRule, CallSubject, Rules, ShellCommand

# Programs whose operands are names and data, not programs to run.
PROGRAMS = frozenset(
    "basename black cat cd cmp comm cp curl cut date df diff dirname du echo false file gofmt grep head id isort jq ls "
    "make md5sum mkdir mv mypy nl paste pwd pytest readlink realpath rg rm rmdir ruff sha256sum shellcheck sleep sort "
    "stat tail tee touch tr tree true tsc uname uniq wc wget which".split()
)

# Programs for which the same is true, but only if the first argument is one of these subcommands.
SUBCOMMANDS = {
    "apt": "list search show",
    "cargo": "bench build check clippy doc fmt metadata test tree",
    "docker": "images info inspect logs ps version",
    "git": "add blame branch checkout cherry-pick clone commit describe diff fetch grep init log ls-files ls-remote "
    "merge mv pull push rebase reflog remote reset restore revert rev-parse rm shortlog show stash status switch tag "
    "worktree",
    "go": "build doc fmt list mod test version vet",
    "kubectl": "describe explain get logs version",
    "npm": "ci ls outdated test view",
    "pip": "check freeze list show",
    "podman": "images info inspect logs ps version",
    "systemctl": "is-active list-units status",
}

# Options that make none of these programs run another one. Each is compared as a whole word.
HARMLESS = frozenset(
    "- -- -h -l -la -m -q -v --cached --check --color --dry-run --name-only --name-status --no-color --oneline "
    "--porcelain --quiet --release --short --staged --stat --verbose --version".split()
)

# Matches words that may be more than names or data: options (`-x`, `+x`), files with options (`@file`), settings such
# as `CC=gcc`, and text that make, or a shell started by the program, would expand.
_NO_OPERAND = re.compile(r"[-+@]|[^/]*=|(?s:.*)(?:\$[({]|`)")


def runs_no_other(command: ShellCommand) -> bool:
    """Whether the command's program is known never to run a program that its operands name."""
    program, *arguments = command.words
    if program in PROGRAMS:
        return True
    if program not in SUBCOMMANDS:
        return False
    return arguments[0] in SUBCOMMANDS[program].split() if arguments else not command.open


def prefix_allows(prefix: tuple[str, ...], command: ShellCommand) -> bool:
    """Whether a rule that allows this prefix allows the command: its options must be harmless or in the prefix."""
    words = command.words
    return (
        not command.open
        and words[: len(prefix)] == prefix
        and runs_no_other(command)
        and all(word in HARMLESS or word in prefix or not _NO_OPERAND.match(word) for word in words[len(prefix) :])
    )


MCP_PREFIX = "mcp__"

# Programs whose first argument names the action, as in `git push`; a suggested prefix includes that argument.
TWO_WORDS = frozenset(
    "apt brew bundle cargo docker dotnet gh git go gradle helm kubectl make mvn npm pip pnpm podman poetry rake "
    "systemctl terraform uv yarn".split()
)

# Shells, whose scripts may come from a file or from another command.
SHELLS = frozenset("bash sh dash zsh ksh".split())

# Matches characters that a shell started by the command would expand, which changes the words.
_EXPANDED = re.compile(r"[\\$`{}\[\]*?~]")
_QUOTES = re.compile(r"[\\'\"]")
_PART = re.compile(r"[^\s;|&()<>`$,\[\]{}=!]+")


class RuleMatch(IntEnum):
    NO = 0
    # The call might match; only running it would tell.
    MAYBE = 1
    YES = 2


def match(rule: ApprovalRule, call: ToolUse, subject: CallSubject | None, edition: Rules) -> RuleMatch:
    """Whether a rule that denies or asks matches the call. `subject` is None if the call's effect is unknown."""
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
    match_command = _match_command if edition >= Rules.NOTHING_LOST else _match_command_by_its_beginning
    commands = (*subject.commands, *subject.inner)
    found = max((match_command(rule, command) for command in commands), default=RuleMatch.NO)
    return max(found, RuleMatch.MAYBE) if subject.opaque else found


def covered(rules: Iterable[ApprovalRule], call: ToolUse, subject: CallSubject | None, edition: Rules) -> bool:
    """Whether these rules, whose action is ALLOW, together match everything that the call does."""
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
    return all(any(_covers_command(rule, command, edition) for rule in rules) for command in subject.commands) and all(
        any(rule.path and _beneath(path, rule.path) for rule in rules) for path in paths
    )


def allows_part(rule: ApprovalRule, call: ToolUse, subject: CallSubject | None, edition: Rules) -> bool:
    """Whether this rule, whose action is ALLOW, matches something that the call does."""
    parts = (
        (subject,)
        if subject is None
        else (
            subject,
            *(replace(subject, commands=(command,)) for command in subject.commands),
            *(replace(subject, paths=(path,), trees=()) for path in (*subject.paths, *subject.trees)),
        )
    )
    return any(covered((rule,), call, part, edition) for part in parts)


def server_of(tool: str) -> str:
    return tool.removeprefix(MCP_PREFIX).partition("__")[0] if tool.startswith(MCP_PREFIX) else ""


def suggestions(
    call: ToolUse, subject: CallSubject | None, working_dir: str, edition: Rules
) -> tuple[ApprovalRule, ...]:
    """Rules with which a person could allow calls like this one, narrowest first. Their `id` is ""."""
    if subject is None:
        return ()
    if subject.text:
        return (_allow(command=subject.text, words=_only_words(subject)), *_prefixes(subject, edition))
    tool = _allow(tool=call.name)
    if server := server_of(call.name):
        return tool, _allow(mcp_server=server)
    directories = dict.fromkeys((*(_directory(path, working_dir) for path in subject.paths), *subject.trees))
    return (*(_allow(path=directory) for directory in directories), tool)


def describe(rule: ApprovalRule) -> str:
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
    if any(_beneath(path, directory) for path in (*subject.paths, *subject.trees, *subject.also_reads)):
        return RuleMatch.YES
    return RuleMatch.MAYBE if any(_beneath(directory, tree) for tree in subject.trees) else RuleMatch.NO


def _beneath(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _match_command(rule: ApprovalRule, command: ShellCommand) -> RuleMatch:
    """Whether the rule's words occur, or might occur, in the command. Directories are ignored: `/bin/rm` is `rm`."""
    wanted, words = _named(rule.words), command.words
    if not wanted:
        return RuleMatch.NO
    program, *arguments = wanted
    begun = [position for position, word in enumerate(words, 1) if word.rpartition("/")[2] == program]
    behind = [words[position : position + len(arguments)] for position in begun]
    if tuple(arguments) in behind if rule.command_prefix else wanted == _named(words[-len(wanted) :]):
        return RuleMatch.MAYBE if rule.command and command.open else RuleMatch.YES
    if command.open and any(wanted[1:][: len(seen)] == seen for seen in behind):
        return RuleMatch.MAYBE
    if _may_run(wanted, command) or (rule.command_prefix and not runs_no_other(command) and _in_order(wanted, words)):
        return RuleMatch.MAYBE
    return RuleMatch.NO


def _may_run(wanted: tuple[str, ...], command: ShellCommand) -> bool:
    """Whether the command may run these words as a part of an argument, for example of a script."""
    parts, sought = _parts(command.words), sum(_parts(wanted), ())
    if sought and any(part[begin : begin + len(sought)] == sought for part in parts for begin in range(len(part))):
        return True
    if runs_no_other(command):
        return False
    names = [*chain.from_iterable(parts)]
    if sought and any(name.startswith("-") and name.endswith(sought[0]) for name in names):  # as in `env -S'git push'`
        return True
    return command.open or any(map(_EXPANDED.search, command.words)) or not SHELLS.isdisjoint(names)


def _in_order(wanted: tuple[str, ...], words: tuple[str, ...]) -> bool:
    sought, rest = sum(_parts(wanted), ()), chain.from_iterable(_parts(words))
    return bool(sought) and all(part in rest for part in sought)


@lru_cache(maxsize=16)
def _parts(words: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    return tuple(
        tuple(part.rpartition("/")[2] or part for part in _PART.findall(_QUOTES.sub("", word))) for word in words
    )


def _named(words: tuple[str, ...]) -> tuple[str, ...]:
    return (words[0].rpartition("/")[2], *words[1:]) if words else ()


def _covers_command(rule: ApprovalRule, command: ShellCommand, edition: Rules) -> bool:
    if not rule.words:
        return False
    if rule.command_prefix and edition < Rules.NOTHING_LOST:
        return command.words[: len(rule.words)] == rule.words and not command.runs_others
    if rule.command_prefix:
        return prefix_allows(rule.words, command)
    return bool(rule.command) and command.words == rule.words and not command.open


def _only_words(subject: CallSubject) -> tuple[str, ...]:
    """The words of the call's command, if there is exactly one and all its words are known; otherwise ()."""
    if subject.opaque or len(subject.commands) != 1 or subject.commands[0].open:
        return ()
    return subject.commands[0].words


def _prefixes(subject: CallSubject, edition: Rules) -> tuple[ApprovalRule, ...]:
    """Rules that allow the first one or two words of each command, if such a rule would allow the command."""
    if subject.opaque:
        return ()
    begun = ((command, command.words[: 2 if command.words[0] in TWO_WORDS else 1]) for command in subject.commands)
    found = ((command, _allow(command_prefix=shlex.join(words), words=words)) for command, words in begun)
    return tuple(dict.fromkeys(rule for command, rule in found if _covers_command(rule, command, edition)))


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


def _match_command_by_its_beginning(rule: ApprovalRule, command: ShellCommand) -> RuleMatch:
    if not (rule.command or rule.command_prefix):
        return RuleMatch.NO
    wanted, words = _named(rule.words), _named(command.words)
    if wanted and words[: len(wanted)] == wanted and (rule.command_prefix or len(words) == len(wanted)):
        return RuleMatch.MAYBE if rule.command and command.open else RuleMatch.YES
    unseen = command.open and wanted[: len(words)] == words
    return RuleMatch.MAYBE if unseen or command.runs_others else RuleMatch.NO
