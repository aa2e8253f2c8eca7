"""Decides which commands a rule by prefix can allow: those of programs that run no other program.

Programs and options that run others cannot all be listed, and many programs accept the beginning of an option for the
option. So this module lists the opposite, what is known to run nothing that the arguments name. All else is asked for.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.core.approval.approval_rules import ShellCommand

PROGRAMS = frozenset(
    "basename black cat cd cmp comm cp curl cut date df diff dirname du echo false file gofmt grep head id isort jq ls "
    "make md5sum mkdir mv mypy nl paste pwd pytest readlink realpath rg rm rmdir ruff sha256sum shellcheck sleep sort "
    "stat tail tee touch tr tree true tsc uname uniq wc wget which".split()
)
"""Programs whose operands are names and data, not programs to run."""

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
"""Programs of which this is true for some subcommands; the first argument must be one of these."""

HARMLESS = frozenset(
    "- -- -h -l -la -m -q -v --cached --check --color --dry-run --name-only --name-status --no-color --oneline "
    "--porcelain --quiet --release --short --staged --stat --verbose --version".split()
)
"""Options that run nothing, whichever of these programs gets them. They are compared whole."""

_NO_OPERAND = re.compile(r"[-+@]|[^/]*=|(?s:.*)(?:\$[({]|`)")
"""Matches the beginning of an option, of the name of a file with options, and of a setting such as `CC=gcc`; also text
that make, or a shell that a program starts, would expand."""


def runs_no_other(command: ShellCommand) -> bool:
    """Return whether the command is of a program that is known to run no other program which its operands name."""
    program, *arguments = command.words
    if program in PROGRAMS:
        return True
    if program not in SUBCOMMANDS:
        return False
    return arguments[0] in SUBCOMMANDS[program].split() if arguments else not command.open


def prefix_allows(prefix: tuple[str, ...], command: ShellCommand) -> bool:
    """Return whether a rule that allows this prefix allows the command: the prefix, then operands.

    An option must be harmless or be named by the prefix. A prefix that does not allow itself is no rule.
    """
    words = command.words
    return (
        not command.open
        and words[: len(prefix)] == prefix
        and runs_no_other(command)
        and all(word in HARMLESS or word in prefix or not _NO_OPERAND.match(word) for word in words[len(prefix) :])
    )
