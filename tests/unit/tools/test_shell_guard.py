"""The guard rail: what is refused wherever it stands, and what is not although it looks like it."""

import pytest

from actors.adapters.tools.bash.shell_guard import check_command
from actors.adapters.tools.bash.shell_syntax import PIECE_BYTES, _pieces_of
from actors.adapters.tools.program_launch import ToolRefusedError

REFUSED_ADD = ["-A", "--all", ".", "*", "-vA", "./", "-- .", "'*'", "-v ."]
REFUSED_PUSH = ["--force", "-f", "-uf origin main", "origin main --force"]
REFUSED_RM = [
    *("/", "~", "$HOME", '"$HOME"', "${HOME}", ".git", "*", ".*", "/*", "~/", "$HOME/*", "./*", "./.git/", "//"),
    *("../../..", "build /", "-- *", "/work/.git", "*/", "/home/me", "'/'"),
]
EVERYWHERE = [
    "{}",
    "sudo {}",
    "sudo -u root {}",
    "sudo FOO=1 -E {}",
    "env -i A=b {}",
    "timeout -k 3 5 {}",
    "nohup {} &",
    "time {}",
    "command {}",
    "echo x | xargs -n 1 {}",
    "A=1 {}",
    "! {}",
    "a; {}; b",
    "a && {} || b",
    "a | {}",
    "( {} )",
    "{{ {}; }}",
    "for f in a b; do {}; done",
    "while {}; do :; done",
    "if a; then {}; fi",
    "case x in x) {};; esac",
    "f() {{ {}; }}; f",
    "echo $({})",
    "echo `{}`",
    'echo "in $({}) text"',
    "cat <({})",
    "x=$({})",
    "cat <<E\n$({})\nE",
    "{} > log 2>&1",
    "{} < /dev/null | cat",
    "a && {} > log",
    "bash -c '{}'",
    "sh -xc '{}'",
    "eval {}",
    "{} ; (",
    "if {}",
]


def refused(command: str) -> bool:
    try:
        check_command(command, "/work")
    except ToolRefusedError as refusal:
        return str(refusal).startswith("command_refused: ") and str(refusal).endswith(" Nothing was run.")
    return False


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")


@pytest.mark.parametrize("rest", REFUSED_ADD)
def test_adding_everything_is_refused(rest: str) -> None:
    assert refused(f"git add {rest}")
    assert refused(f"git -C sub --no-pager -c a=b add {rest}")


@pytest.mark.parametrize("rest", REFUSED_PUSH)
def test_a_forced_push_is_refused(rest: str) -> None:
    assert refused(f"git push {rest}")


@pytest.mark.parametrize("what", REFUSED_RM)
@pytest.mark.parametrize("options", ["-rf", "-fr", "-r -f", "-R --force", "--recursive -vf"])
def test_deleting_everything_is_refused(options: str, what: str) -> None:
    assert refused(f"rm {options} {what}")


@pytest.mark.parametrize("place", EVERYWHERE)
@pytest.mark.parametrize("command", ["git add -A", "git push --force", "rm -rf *"])
def test_it_is_refused_at_any_position(place: str, command: str) -> None:
    assert refused(place.format(command))


@pytest.mark.parametrize(
    "command",
    [
        "rm -r 2>/dev/null -f /",
        "r''m -rf /",
        "\\rm -rf /",
        '"rm" -rf /',
        "/bin/rm -rf /",
        "rm -r \\\n -f /",
        "rm / -rf",
    ],
)
def test_it_is_refused_however_it_is_written(command: str) -> None:
    assert refused(command)


@pytest.mark.parametrize(
    "command",
    [
        "git add README.md src",
        "git add -A src/",
        "git add --all -- src",
        "git add . --dry-run",
        "git add -nA",
        "git add -p",
        "git add ./a",
        "git push",
        "git push --force-with-lease",
        "git push --force-with-lease=main origin",
        "git push --follow-tags",
        "git push -o feature -ofast",
        "git commit -am 'rm -rf /'",
        "git log --all -f .",
        "git rm -rf .",
        "rm -rf build dist/*",
        "rm -rf '*' '~' \\*",
        "rm -rf .github .gitignore a/.git",
        'rm -rf "$build"',
        "rm -rf ''",
        "rm -r *",
        "rm -f *",
        "echo rm -rf /",
        "echo 'git add -A'",
        "grep -rf / *",
        "cat > x <<'E'\nrm -rf /\ngit add -A\nE",
        "# rm -rf /",
        "sudo",
        "",
        "git",
        "rm -rf (",
        "bash -c",
    ],
)
def test_what_is_meant_is_not_refused(command: str) -> None:
    assert not refused(command)


def test_long_texts_are_judged_without_their_here_documents() -> None:
    document = "cat > x <<-'E' <<F\n" + "rm -rf *\n" * 9000 + "E\ngit add -A\nF\n"
    assert not refused(document)
    assert refused(document + "git add \\\n  -A")
    assert refused("echo $((1 << E))\n" * 9000 + "rm -rf *"), "no here-document"


@pytest.mark.parametrize("text", ["a|", "<<E\n", "${", "a && ", "(", "a ", "a"])
def test_nothing_long_is_parsed_at_once(text: str) -> None:
    command = text * (120_000 // len(text))
    assert max(map(len, _pieces_of(command))) <= PIECE_BYTES
    check_command(command, "/work")


def test_a_text_that_takes_too_long_to_judge_is_not_run() -> None:
    with pytest.raises(ToolRefusedError, match=r"command_too_intricate: .* script file"):
        check_command("|~)rm" * 25_000, "/work")
