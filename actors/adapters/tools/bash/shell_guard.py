"""Refuses a few commands that destroy work and are hardly ever intended. This is a guard rail, not a security boundary.

The command text is parsed, so a destructive command is found anywhere in it. Parts that cannot be parsed are left to
bash, because its error messages are more helpful to the model.
"""

from __future__ import annotations

import os
import posixpath
import re
import time

from actors.adapters.tools.bash.shell_syntax import IntricateTextError, commands, plain, script, unwrapped
from actors.adapters.tools.program_launch import ToolRefusedError

PARSE_SECONDS = 0.5

# Maximum nesting of shells, as in `sh -c "sh -c ..."`, that is checked; commands nested more deeply are allowed.
MAX_DEPTH = 4

# Matches the letters of `rm` or `git`, even if quotes separate them. Text without a match need not be parsed.
_SUSPICIOUS = re.compile(r"r\W*m|g\W*i\W*t")

# Options of git itself that take the next word as their value.
GIT_VALUED = frozenset("-C -c --git-dir --work-tree --namespace --super-prefix --config-env".split())

EVERYTHING = frozenset([".", "*", "./"])


def check_command(command: str, cwd: str) -> None:
    """Raise ToolRefusedError, with advice, for a command that is destructive or takes over PARSE_SECONDS to parse."""
    try:
        _check(command, cwd, MAX_DEPTH, time.thread_time() + PARSE_SECONDS)
    except IntricateTextError:
        raise ToolRefusedError(
            "command_too_intricate",
            "This command is too complex to check before it runs. Write it to a script file in pieces, or "
            "split it into several calls. Nothing was run.",
        ) from None


def _check(text: str, cwd: str, depth: int, until: float) -> None:
    if depth == 0 or not _SUSPICIOUS.search(text):
        return
    for words in filter(None, map(unwrapped, commands(text, until, _SUSPICIOUS.search))):
        _check_git_add(words)
        _check_git_push(words)
        _check_rm(words, cwd)
        inner = script(words)
        if inner is not None:
            _check(inner, cwd, depth - 1, until)


# --- refused commands -------------------------------------------------------------------------------------------------


def _check_git_add(words: list[str]) -> None:
    subcommand, *arguments = _git(words)
    if subcommand not in {"add", "stage"}:
        return
    options, operands = _sorted(arguments)
    if "--dry-run" in options or "n" in _letters(options):
        return
    all_of_it = not operands and ("--all" in options or "A" in _letters(options))
    if all_of_it or any(word in EVERYTHING for word in operands):
        raise _refused(
            "`git add` of everything also stages files that were never meant to be committed. "
            "Name the files: look at `git status --short`, then `git add -- path/one path/two`."
        )


def _check_git_push(words: list[str]) -> None:
    subcommand, *arguments = _git(words)
    if subcommand != "push":
        return
    options, _ = _sorted(arguments)
    if "--force" in options or "f" in _letters(options, ends_at="o"):
        raise _refused(
            "A force push overwrites what others have pushed in the meantime. Use `git push --force-with-lease`, which "
            "refuses to do that."
        )


def _check_rm(words: list[str], cwd: str) -> None:
    if words[0] != "rm":
        return
    options, operands = _sorted(words[1:], marks=True)
    letters = _letters(options)
    recursive = bool({"r", "R"} & letters) or "--recursive" in options
    if not recursive or not ("f" in letters or "--force" in options):
        return
    for operand in operands:
        if _precious(operand, cwd):
            raise _refused(
                f"`rm -rf {operand}` would delete more than you probably meant. Name each file and directory to "
                "delete, or leave out -f."
            )


def _git(words: list[str]) -> list[str]:
    """The subcommand and arguments of a git command; [""] for other commands or if there is no subcommand."""
    if words[0] != "git":
        return [""]
    position = 1
    while position < len(words) and words[position].startswith("-"):
        position += 2 if words[position] in GIT_VALUED else 1
    return words[position:] or [""]


def _sorted(arguments: list[str], *, marks: bool = False) -> tuple[list[str], list[str]]:
    """Split arguments into options and operands.

    Backslashes that mark quoted `*`, `?`, `[` and `~` are removed unless `marks` is true.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    words = [word if marks else plain(word) for word in arguments[:end]]
    behind = [word if marks else plain(word) for word in arguments[end + 1 :]]
    options = [word for word in words if word.startswith("-") and word != "-"]
    return options, [word for word in words if word not in options] + behind


def _letters(options: list[str], *, ends_at: str = "") -> set[str]:
    """The letters of all short options; an option's letters from `ends_at` on (with its value) are left out."""
    letters: set[str] = set()
    for option in options:
        if not option.startswith("--"):
            cluster = option[1:]
            letters |= set(cluster.partition(ends_at)[0] if ends_at else cluster)
    return letters


def _precious(operand: str, cwd: str) -> bool:
    """Whether an operand is too valuable to delete.

    These are too valuable: /, the home directory, `*` in either of them or in `cwd`, and the .git of `cwd`.
    """
    path = posixpath.normpath(operand.replace("${HOME}", "$HOME")) if operand else ""
    directory, last = posixpath.split(path)
    if last in {"*", ".*"}:
        return directory in {"", "."} or _is_root_or_home(directory, cwd)
    return path == ".git" or _absolute(path, cwd) == posixpath.join(cwd, ".git") or _is_root_or_home(path, cwd)


def _is_root_or_home(path: str, cwd: str) -> bool:
    home = posixpath.normpath(os.environ.get("HOME") or "/")
    return path in {"~", "$HOME"} or _absolute(path, cwd) in {"/", home}


def _absolute(path: str, cwd: str) -> str:
    """The absolute path; two slashes at the start count as one."""
    return "/" + posixpath.normpath(posixpath.join(cwd, path)).lstrip("/") if path else ""


def _refused(text: str) -> ToolRefusedError:
    return ToolRefusedError("command_refused", f"{text} Nothing was run.")
