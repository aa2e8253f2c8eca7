"""Determines which simple commands a shell text runs, for approval rules, and detects when this is uncertain.

Only an unambiguous part of the shell's language is supported: words with their quotes, lists, pipelines, comments, and
redirections to file descriptors and /dev/null. All other text is opaque: substitutions, assignments, redirections to
files, compound commands, functions, here-documents. A parser that recovers from syntax it does not know, like the one
of shell_guard, may read a text otherwise than bash does. An approval rule could then allow a command that nobody
approved, so the commands that such a parser finds are used only to deny.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from msgspec import Struct

from actors.adapters.tools.bash.shell_tree import IntricateTextError, commands
from actors.adapters.tools.bash.shell_words import SHELLS, WRAPPERS, plain, script, unwrapped
from actors.core.approval.approval_rules import ShellCommand

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_BYTES = 16 * 1024
"""Texts of more bytes are treated as opaque."""

PARSE_SECONDS = 0.2
"""Maximum CPU seconds for the search for commands in an opaque text."""

MAX_DEPTH = 4
"""The maximum nesting of shells, as in `sh -c "sh -c ..."`, in which commands are looked for."""

INTERPRETERS = SHELLS | frozenset(
    "awk gawk mawk nawk sed perl python pypy ruby node deno bun lua luajit php tclsh wish expect guile ghci irb "
    "Rscript julia java jshell scala groovy osascript pwsh csh tcsh fish ash busybox toybox m4 bc dc gdb lldb "
    "vi vim nvim view ex ed emacs nano less more most man info git-shell sqlite3 psql mysql".split()
)
"""Programs that execute code from their input or their arguments."""

RUNNERS = frozenset(WRAPPERS) | frozenset(
    "find fd parallel watch entr strace ltrace perf valgrind script unshare nsenter setpriv runuser su pkexec ssh scp "
    "sftp rsync tar cpio zip start-stop-daemon systemd-run at batch crontab dbus-run-session xvfb-run tmux screen "
    "prlimit taskset chrt numactl choom setarch npx pipx uvx bunx fakeroot rlwrap unbuffer socat nc ncat "
    "gosu su-exec tini dumb-init bwrap firejail proot faketime cpulimit hyperfine chronic ifne run-parts direnv "
    "torsocks proxychains proxychains4 sg newgrp daemonize tcpdump".split()
)
"""Programs that run another program, which their arguments name."""

OPTIONS_THAT_RUN = {
    "sort": ("--co",),
    "split": ("--f",),
    "rg": ("--pre", "--hostname-bin"),
    "wget": ("--use-a", "--ex", "-e"),
    "go": ("-exec", "--exec", "-toolexec", "--toolexec", "-vettool", "--vettool"),
    **dict.fromkeys(("ack", "ag", "bat", "batcat"), ("--pag",)),
    "git grep": ("-O", "--op"),
    "git clone": ("-u", "-c", "--upl", "--conf", "--te"),
    "git init": ("--te",),
    "git push": ("--rec", "--exec"),
    "git archive": ("--exec",),
    "git ls-remote": ("--upl", "--exec"),
    **dict.fromkeys(("git fetch", "git pull"), ("--upl",)),
}
"""Programs and subcommands that run another program only with options that begin with one of these strings.

A one-letter option is also found among combined letters, as -O in -nO.
"""

SUBCOMMANDS_THAT_RUN = {
    "git": frozenset("bisect config difftool filter-branch hook mergetool rebase submodule".split()),
    **dict.fromkeys(("docker", "podman", "kubectl"), frozenset("compose debug exec run".split())),
    **dict.fromkeys(
        "bundle conda hatch mise npm pdm pipenv pnpm poetry rye uv yarn".split(),
        frozenset("dlx exec node shell tool x".split()),
    ),
}
"""Programs with subcommands that run other commands, given by their arguments, options or settings."""

RUN_WORD = frozenset("conda hatch pdm pipenv poetry rye uv".split())
"""Programs whose subcommand `run` runs any command, not only scripts that the project defines."""

OPTIONS_BEFORE = frozenset([*SUBCOMMANDS_THAT_RUN, "printf"])
"""Programs whose options before the first operand or subcommand may run code: git -c, docker -H, printf -v."""

HARMLESS_BUILTINS = frozenset(": true false cd pwd echo printf exit return break continue kill sleep".split())
"""Builtins of bash that run no other command, whatever their arguments are; printf only without -v."""

BUILTINS = frozenset(
    ". : [ alias bg bind break builtin caller cd command compgen complete compopt continue declare dirs disown echo "
    "enable eval exec exit export false fc fg getopts hash help history jobs kill let local logout mapfile popd printf "
    "pushd pwd read readarray readonly return set shift shopt source suspend test times trap true type typeset ulimit "
    "umask unalias unset wait".split()
)

KEYWORDS = frozenset(
    "! [[ ]] case coproc do done elif else esac fi for function if in select then time until while".split()
)

_BLANK = re.compile(r"(?:[ \t]|\\\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_SEPARATOR = re.compile(r"\|\||&&|\|&|[|;&\n]")
_REDIRECTION = re.compile(
    r"(?:[0-9]?>&[0-9]|[0-9]?>>?[ \t]*/dev/null|&>>?[ \t]*/dev/null|0?<[ \t]*/dev/null)(?=[ \t\n;|&]|$)"
)
_LITERAL = re.compile(r"[A-Za-z0-9_./:=@%,+^-]+")
_HASH = re.compile(r"#")
_SINGLE = re.compile(r"'([^']*)'")
_VARIABLE = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\}|[0-9?#])")
_QUOTED = re.compile(r'[^"\\$`]+')
_ESCAPED = re.compile(r"\\([^\n])")
_PATTERN = re.compile(r"[*?\[\]~{}!]|[^\x00-\x7f]")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_VERSION = re.compile(r"[0-9.]+(?:[-.]\w+)?$")


class OpaqueTextError(Exception):
    """Raised if it cannot be known in advance which commands a shell text runs."""


class _Word(Struct, frozen=True):
    text: str
    known: bool


def read(text: str) -> tuple[ShellCommand, ...]:
    """Return the simple commands that bash would run for this text, in order.

    Raises OpaqueTextError if that is unclear.
    """
    if len(text.encode(errors="replace")) > MAX_BYTES or _CONTROL.search(text):
        raise OpaqueTextError
    return tuple(_command(words) for words in _lists(text))


def find(text: str) -> tuple[ShellCommand, ...]:
    """Return the simple commands in a text, also those run by `sudo`, `env` and the like or by `sh -c`.

    bash may run more commands than these. Returns () if parsing takes longer than PARSE_SECONDS.
    """
    try:
        return tuple(_found(text, MAX_DEPTH, time.thread_time() + PARSE_SECONDS))
    except IntricateTextError:
        return ()


def _found(text: str, depth: int, until: float) -> Iterator[ShellCommand]:
    for words in commands(text, until) if depth else ():
        for form in (words, unwrapped(words)):
            if form:
                yield ShellCommand(tuple(map(plain, form)), open=True, runs_others=runs_others(form, whole=False))
                if (inner := script([plain(form[0]).rpartition("/")[2], *form[1:]])) is not None:
                    yield from _found(inner, depth - 1, until)


def runs_others(words: Sequence[str], *, whole: bool) -> bool:
    """Return whether a command may run other commands that do not appear in its words.

    `whole` is False if further words, which cannot be known in advance, follow `words`.
    """
    name = words[0].rpartition("/")[2]
    if name in KEYWORDS or (name in BUILTINS and name not in HARMLESS_BUILTINS):
        return True
    options = OPTIONS_THAT_RUN.get(name) or OPTIONS_THAT_RUN.get(" ".join((name, *words[1:2])), ())
    if options and (not whole or any(_begins(word, options) for word in words[1:])):
        return True
    if name in OPTIONS_BEFORE:
        return _subcommand_runs(name, words[1]) if len(words) > 1 else not whole
    return bool({name, _VERSION.sub("", name)} & (INTERPRETERS | RUNNERS))


def _begins(word: str, options: tuple[str, ...]) -> bool:
    letters = word[1:] if word.startswith("-") and not word.startswith("--") else ""
    return word.startswith(options) or any(len(option) == 2 and option[1] in letters for option in options)


def _subcommand_runs(name: str, first: str) -> bool:
    runs = first in SUBCOMMANDS_THAT_RUN.get(name, ()) or (first == "run" and name in RUN_WORD)
    return runs or first.startswith("-")


def _command(words: list[_Word]) -> ShellCommand:
    known: list[str] = []
    for word in words:
        if not word.known:
            break
        known.append(word.text)
    if not known or known[0] in KEYWORDS or _ASSIGNMENT.match(known[0]):
        raise OpaqueTextError
    whole = len(known) == len(words)
    return ShellCommand(tuple(known), open=not whole, runs_others=runs_others(known, whole=whole))


def _lists(text: str) -> Iterator[list[_Word]]:
    """Yield the words of each simple command. Raises OpaqueTextError, also for text that is a syntax error in bash."""
    words: list[_Word] = []
    position, needed = 0, False
    while position < len(text):
        if blank := _BLANK.match(text, position):
            position = blank.end()
        elif redirection := _REDIRECTION.match(text, position):
            position = redirection.end()
            if not words:
                raise OpaqueTextError
        elif separator := _SEPARATOR.match(text, position):
            position = separator.end()
            lines = separator[0] == "\n"
            if words:
                yield words
                words, needed = [], separator[0] in {"|", "||", "&&", "|&"}
            elif not lines:
                raise OpaqueTextError
        elif comment := _COMMENT.match(text, position):
            position = comment.end()
        else:
            word, position = _word(text, position)
            words.append(word)
    if words:
        yield words
    elif needed:
        raise OpaqueTextError


def _word(text: str, position: int) -> tuple[_Word, int]:
    """Return the word that begins at `position`, and the position after the word. Raises OpaqueTextError."""
    pieces: list[str] = []
    known = True
    while position < len(text) and text[position] not in " \t\n;|&<>()":
        if plain_text := _LITERAL.match(text, position) or (_HASH.match(text, position) if pieces else None):
            pieces.append(plain_text[0])
            position = plain_text.end()
        elif single := _SINGLE.match(text, position):
            pieces.append(single[1])
            position = single.end()
        elif text[position] == '"':
            quoted, known_text, position = _double_quoted(text, position + 1)
            pieces.append(quoted)
            known &= known_text
        elif text.startswith("\\\n", position):
            position += 2
        elif escaped := _ESCAPED.match(text, position):
            pieces.append(escaped[1])
            position = escaped.end()
        elif unknown := (_VARIABLE.match(text, position) or _PATTERN.match(text, position)):
            known = False
            position = unknown.end()
        else:
            raise OpaqueTextError
    if position < len(text) and text[position] in "<>()":
        raise OpaqueTextError
    return _Word("".join(pieces), known), position


def _double_quoted(text: str, position: int) -> tuple[str, bool, int]:
    """Return the text up to the closing quote, whether it contains no variable, and the position after the quote.

    Raises OpaqueTextError.
    """
    pieces: list[str] = []
    known = True
    while position < len(text):
        character = text[position]
        if character == '"':
            return "".join(pieces), known, position + 1
        if some := _QUOTED.match(text, position):
            pieces.append(some[0])
            position = some.end()
        elif character == "\\":
            following = text[position + 1 : position + 2]
            pieces.append("" if following == "\n" else following if following in '$`"\\' else "\\" + following)
            position += 2
        elif variable := _VARIABLE.match(text, position):
            known = False
            position = variable.end()
        else:
            break
    raise OpaqueTextError
