"""What approval rules say of a shell text, against what bash does with it: no rule allows what another one denies.

Each text is run by a real bash whose PATH has nothing but programs that note how they were called, and the usual
wrappers and shells, in a directory of its own. What was called is held against the verdict that was made before.
"""

import contextlib
import os
import select
import shlex
import shutil
import signal
import subprocess
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.adapters.tools import call_subjects
from actors.core.approval import HARMLESS, SUBCOMMANDS, runs_no_other
from actors.core.content import ToolUse
from actors.core.context import Action, ApprovalPolicy, ApprovalRule, ShellCommand
from actors.core.steps.approvals import CallVerdict, evaluate
from actors.ports import InvalidApprovalRuleError
from tests.machine.columns import PARENT
from tests.property.profiles import profile
from tests.property.tape import Tape, tapes

PROGRAMS = ("git", "rm", "make", "ls", "x")
"""Programs that note their arguments and do nothing else."""
WRAPPERS = ("bash", "sh", "env", "nice", "nohup", "timeout", "xargs", "find", "awk", "sed", "python3")
SECONDS = 20

NOTE = """#!/bin/sh
printf '%s\\0' "$#" "${{0##*/}}" "$@" >> {trace}
"""

BASIC = (
    *("git push", "git push origin", "git log", "git -c a=b push", "git status", "rm -rf d", "rm", "/bin/rm d"),
    *("make all", "make", "ls -l", "echo git push", "cd .", "printf %s rm", "true", "x", "git", "push"),
)
HARMLESS_TEXTS = ("make all", "make", "ls -l", "echo git push", "cd .", "x y", "git log", "make rm")
PREFIXES = (
    "A=1 ", "PATH=. ", "env ", "env -i PATH=$PATH ", "command ", "builtin ", "exec ", "exec -a ls ", "nohup ",
    "time ", "time -p ", "! ", "eval ", "xargs ", "timeout 5 ", "nice ", "coproc ", "- ", "\\", "bash -c ", "~/",
    ">f ", "2>&1 ", "</dev/null ", "if ", "then ", "{ ", "function f ", "alias ", "trap ", "source ", ". ", "set ",
    "export ", "declare ", "let ", "test -v ", "hash -p ", "enable -f ", "echo ", "make ", "ls ", "make \\\n", "#",
)  # fmt: skip
FRAMES = (
    "{ {0}; }", "( {0} )", "$({0})", "`{0}`", "echo $({0})", 'echo "$({0})"', "echo `{0}`", "ls <({0})", "{0} >f",
    "if true; then {0}; fi", "for i in 1; do {0}; done", "case a in a) {0};; esac", "f() { {0}; }; f", "{0} <<E\nE",
    "cat <<E\n$({0})\nE", "[[ -n $({0}) ]]", "echo $((a[$({0})]))", "test -v 'a[$({0})]'", "printf -v 'a[$({0})]' x",
    "bash -c '{0}'", 'sh -c "{0}"', "eval '{0}'", 'eval "{0}"', "echo '{0}' | bash", "bash <<< '{0}'", "{0} #",
    "# {0}", ": ${a:=$({0})}", 'echo "${a:-$({0})}"', "trap '{0}' EXIT", "ls # \\\n{0}", "ls\n{0}", "echo '\n'{0}",
    "!{0}", "while {0}; do break; done", "until {0}; do break; done", "{0} 2>/dev/null", "{0} >&2", "{0} &>/dev/null",
    "{0}\\\n", "a=({0})", "a='{0}'; $a", "shopt -s expand_aliases\nalias ls='{0}'\nls", "ls() { {0}; }; ls",
    "((1)) && {0}", "echo {a,`{0}`}", "{git,push}", "g\\it {0}", "find . -maxdepth 0 -exec {0} ;",
    'awk \'BEGIN { system("{0}") }\'', "echo ${x#$({0})}", "select i in a; do {0}; break; done </dev/null",
    "read a <<< '{0}'; $a", "cd . && {0}",
)  # fmt: skip
JOINTS = (
    "; ", " && ", " || ", " | ", " |& ", " & ", "\n", ";\n", "|\n", "&&", "|", "&", " &> /dev/null ", "\r\n", " ;; ",
)  # fmt: skip
NOISE = (
    "'", '"', "\\", "$", "`", "&", "|", ";", "<", ">", "(", ")", "{", "}", "#", "*", "?", "~", "!", "=", "\n", "\t",
    " ", "\r", "[", "]", "-", "a", "$'", '$"', "\\\n", "<<", "''", '""', "${", "$(", "\x0b", "\xa0", "é",
)  # fmt: skip


def allow(prefix: str) -> ApprovalRule:
    return call_subjects.prepared_rule(ApprovalRule(prefix, Action.ALLOW, command_prefix=prefix))


ALLOWING = tuple(map(allow, ("make", "ls", "git", "echo", "cd")))
EXACT = call_subjects.prepared_rule(ApprovalRule("e", Action.ALLOW, command="make all"))
DENYING = (
    call_subjects.prepared_rule(ApprovalRule("d1", Action.DENY, command_prefix="git push")),
    call_subjects.prepared_rule(ApprovalRule("d2", Action.DENY, command_prefix="rm")),
)
ASK_ALL = replace(PARENT, approval_policy=ApprovalPolicy.ASK_ALL)


@st.composite
def words(draw: st.DrawFn, text: str, *, plainly: bool = False) -> str:
    """The same words, as people and programs may write them; `plainly`: with the quotes that everybody knows."""
    return "".join(_written(letter, draw(st.integers(0, 30)), plainly) for letter in text)


def _written(letter: str, way: int, plainly: bool) -> str:
    known = {
        0: f"'{letter}'",
        1: f'"{letter}"',
        2: f"\\{letter}",
        3: f"''{letter}",
        4: f'""{letter}',
        5: f"\\\n{letter}",
    }
    odd = (f"$'\\x{ord(letter):02x}'", f"[{letter}]", f"{{{letter},}}", f'$"{letter}"', f"${{q:-{letter}}}")
    if way in known:
        return known[way]
    return odd[way - len(known)] if not plainly and letter != " " and way < len(known) + len(odd) else letter


def lists() -> st.SearchStrategy[str]:
    """Texts whose commands can mostly be told, and what one or two characters make of them."""
    part = st.sampled_from(HARMLESS_TEXTS * 3 + BASIC).flatmap(lambda text: words(text, plainly=True))
    joined = st.tuples(part, st.lists(st.tuples(st.sampled_from(JOINTS), part).map("".join), max_size=2)).map(
        lambda pair: pair[0] + "".join(pair[1])
    )
    noisy = st.builds(_with_noise, joined, st.integers(0, 200), st.sampled_from(NOISE))
    return st.one_of(joined, noisy, st.builds(_with_noise, noisy, st.integers(0, 200), st.sampled_from(NOISE)))


def texts() -> st.SearchStrategy[str]:
    """Texts that run some of the programs in some way, and texts that are close to them and wrong."""
    simple = st.sampled_from(BASIC).flatmap(lambda text: st.one_of(st.just(text), words(text)))
    prefixed = st.tuples(st.sampled_from(PREFIXES), simple).map("".join)
    part = st.recursive(
        st.one_of(simple, simple, prefixed),
        lambda inner: st.one_of(
            st.tuples(st.sampled_from(FRAMES), inner).map(lambda pair: pair[0].replace("{0}", pair[1])),
            st.tuples(inner, st.sampled_from(JOINTS), inner).map("".join),
            st.tuples(st.sampled_from(PREFIXES), inner).map("".join),
        ),
        max_leaves=4,
    )
    return st.one_of(part, part, st.builds(_with_noise, part, st.integers(0, 200), st.sampled_from(NOISE)))


def _with_noise(text: str, place: int, noise: str) -> str:
    place %= len(text) + 1
    return text[:place] + noise + text[place:]


class Bash:
    """Runs texts and says which programs they called."""

    def __init__(self, directory: Path) -> None:
        self.programs, self.cwd, self.trace = directory / "bin", directory / "cwd", directory / "trace"
        self.programs.mkdir()
        for name in PROGRAMS:
            program = self.programs / name
            program.write_text(NOTE.format(trace=self.trace))
            program.chmod(0o700)
        for name in WRAPPERS:
            if found := shutil.which(name):
                (self.programs / name).symlink_to(found)

    def calls(self, text: str) -> list[tuple[str, ...]]:
        """Run a text until it and all that it started have ended; return the calls in their order."""
        shutil.rmtree(self.cwd, ignore_errors=True)
        self.cwd.mkdir()
        self.trace.write_bytes(b"")
        ended, held = os.pipe()
        try:
            running = subprocess.Popen(
                ["/bin/bash", "-c", text],
                cwd=self.cwd,
                env={"PATH": str(self.programs), "HOME": str(self.programs), "LC_ALL": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(held,),
                start_new_session=True,
            )
        finally:
            os.close(held)
        try:
            select.select([ended], [], [], SECONDS)  # readable when nothing is left that has the other end
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            os.close(ended)
        noted = iter(self.trace.read_bytes().decode(errors="replace").split("\0")[:-1])
        return [tuple(islice(noted, int(count) + 1)) for count in noted]


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Bash:
    return Bash(tmp_path_factory.mktemp("bash"))


def verdict(text: str, *rules: ApprovalRule, policy: ApprovalPolicy = ApprovalPolicy.ASK_ALL) -> CallVerdict:
    """What becomes of a bash call with this text."""
    context = replace(ASK_ALL, approval_policy=policy, approval_rules=rules)
    return evaluate(context, ToolUse("t", "bash", "{}"), call_subjects.shell_subject(text)).verdict


def denied(call: tuple[str, ...]) -> bool:
    return call[0] == "rm" or call[:2] == ("git", "push")


@example("make;git push")
@example("ls '' rm")
@example("g''it pu\\\nsh")
@example('git "push"')
@example("echo $'\\x67'it; git $'push'")
@given(st.one_of(lists(), texts()))
@profile(500)
def test_no_rule_allows_what_another_denies(bash: Bash, text: str) -> None:
    if "\0" in text:
        return
    without_questions = verdict(text, *DENYING, policy=ApprovalPolicy.AUTO)
    allowed = verdict(text, *ALLOWING, *DENYING)
    exactly = verdict(text, EXACT)
    if CallVerdict.RUN not in (without_questions, allowed, exactly):
        return
    calls = bash.calls(text)

    assert not any(map(denied, calls)), (text, calls)
    if allowed is CallVerdict.RUN:
        assert {call[0] for call in calls} <= {"make", "ls", "git"}, (text, calls)
        options = {word for call in calls for word in call[1:] if word.startswith("-")}
        assert options <= HARMLESS, (text, calls)
    if exactly is CallVerdict.RUN:
        assert set(calls) <= {("make", "all")}, (text, calls)


OPERANDS = ("origin", "a.txt", "./evil", "push", "run", "x=y", "@file", "+x", "a b", "", "-", "--", "git", "rm")


OPTIONS = tuple(sorted(HARMLESS))
LONG_OPTIONS = ("--exec=./evil", "--upload-pack", "--config=x", "--quiet", "--verbose", "--oneline")
LETTERS = "abcuxqvm-="


def command_of(tape: Tape) -> tuple[str, ...]:
    """A command of a known or unknown program, with operands, options, and beginnings of options."""
    program = tape.pick(("git", "docker", "npm", "make", "wget", "pytest", "env", "linux32", "./git"))
    known = SUBCOMMANDS.get(program, "").split() or ["all"]
    subcommand = tape.pick((*known, "container", "explore", "bisect", "fetch-pack", "-c"))
    return (program, subcommand, *(_word(tape) for _ in range(tape.number(5))))


def _word(tape: Tape) -> str:
    beginning = tape.pick(LONG_OPTIONS)[: 2 + tape.number(12)]
    letters = "-" + tape.pick(LETTERS) + "".join(tape.some(LETTERS, 3))
    return tape.pick((tape.pick(OPERANDS), tape.pick(OPTIONS), beginning, letters))


COMMANDS = tapes(53, 53).map(command_of)
WRAPPING = tapes(4, 4).map(lambda tape: tape.some(("linux32", "ssh-agent", "env", "A=1", "./x"), 3))


@example(("git", "push", "--exe=./evil"), 2)
@example(("git", "push", "--e=x"), 2)
@example(("git", "clone", "--u", "./evil", "x"), 2)
@example(("git", "clone", "--co=core.sshCommand=x", "x"), 2)
@example(("git", "ls-remote", "--up=x"), 2)
@example(("git", "fetch-pack", "--exec", "x"), 1)
@example(("wget", "--config=x"), 1)
@example(("docker", "container", "run", "x"), 2)
@example(("npm", "explore", "x", "--", "rm"), 3)
@given(COMMANDS, st.integers(1, 4))
@profile(2_000)
def test_a_prefix_allows_its_own_words_operands_and_harmless_options(command: tuple[str, ...], length: int) -> None:
    prefix = command[:length]
    try:
        rule = allow(shlex.join(prefix))
    except InvalidApprovalRuleError:
        rule = ApprovalRule("stored", Action.ALLOW, command_prefix=shlex.join(prefix), words=prefix)
        assert verdict(shlex.join(prefix), rule) is CallVerdict.ASK, "a rule that cannot be made allows nothing"
    if verdict(shlex.join(command), rule) is CallVerdict.RUN:
        options = {word for word in command[length:] if word.startswith("-")}
        assert options <= HARMLESS | set(prefix)
        assert runs_no_other(ShellCommand(command))


@given(COMMANDS, st.integers(0, 4), WRAPPING)
@profile(2_000)
def test_what_is_denied_stays_denied_whatever_runs_it_and_whatever_else_is_ruled(
    command: tuple[str, ...], length: int, wrappers: list[str]
) -> None:
    denying = ApprovalRule("d", Action.DENY, command_prefix="x", words=command[: length + 1])
    others = (allow("git"), allow("make"), *DENYING)
    assert verdict(shlex.join(command), denying) is CallVerdict.DENY
    assert verdict(shlex.join((*wrappers, *command)), *others, denying) is CallVerdict.DENY
    without = verdict(shlex.join((*wrappers, *command)), *others, policy=ApprovalPolicy.AUTO)
    with_it = verdict(shlex.join((*wrappers, *command)), *others, denying, policy=ApprovalPolicy.AUTO)
    order = (CallVerdict.RUN, CallVerdict.ASK, CallVerdict.DENY)
    assert order.index(with_it) >= order.index(without)
